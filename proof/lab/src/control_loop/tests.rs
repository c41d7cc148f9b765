//! The table of the control loop on short runs.

use ballast_types::PowerModel;

use super::*;
use crate::options::usual;

fn figures(options: &Options) -> Vec<LoopResult> {
    let jobs = jobs(options).unwrap();
    let done: Vec<_> = jobs.iter().map(|job| job.run().unwrap()).collect();
    rows(options, &jobs, &done)
}

fn by_policy(rows: &[LoopResult], policy: Contender) -> Figures {
    rows.iter().find(|row| row.policy == policy.name()).unwrap().figures
}

#[test]
fn no_controller_beats_the_oracle_and_a_plain_pi_slows_no_user_facing_core() {
    let options = Options { servers: vec![4], floors: vec![93.0], seconds: 60.0, ..usual() };
    let rows = figures(&options);
    assert_eq!(rows.len(), 3 * 7);
    for load in rows.chunks(7) {
        let oracle = by_policy(load, Contender::Oracle);
        assert_eq!(oracle.above_fraction, 0.0, "{}", load[0].load);
        // The late oracle draws too much for as long as it is late.
        for row in load.iter().filter(|row| row.policy != Contender::LateOracle.name()) {
            assert!(row.figures.mean_draw <= oracle.mean_draw, "{row:?}");
        }
        for policy in [Contender::Pi, Contender::PiLower] {
            assert_eq!(by_policy(load, policy).user_facing_slowed_core_s, 0.0, "{}", load[0].load);
        }
    }
}

#[test]
fn a_load_that_fits_draws_what_the_model_says() {
    let options = Options {
        loads: vec![Load::ALL[1]],
        servers: vec![1],
        floors: vec![50.0],
        policies: vec![Contender::Pi],
        seconds: 40.0,
        ..usual()
    };
    let figures = figures(&options)[0].figures;

    // Of 40 cores 12 are busy for 30 %, and 18 fully; batch cores at half frequency for the floor.
    let model = PowerModel::PAPER;
    let core_w = model.dynamic_w() / 40.0;
    let free_w = model.idle_w + (12.0 * 0.3 + 18.0) * core_w;
    let idle_w = model.static_w((22.0 + 18.0 * 0.5) / 40.0);
    let floored_w = idle_w + (12.0 * 0.3 + 18.0 * model.scale(0.5)) * core_w;

    // Twice the floor's draw is the budget; supplies and fans lose 6 to 8 % and some watts on both sides.
    let expected = 0.5 * free_w / floored_w;
    assert!((figures.mean_draw - expected).abs() < 0.01, "{} {expected}", figures.mean_draw);
    let calm = Figures { mean_draw: figures.mean_draw, rms_max: None, ..Figures::default() };
    assert_eq!(figures, calm);
}

#[test]
fn a_sweep_has_two_rows_for_every_number_and_finds_those_without_effect() {
    let options = Options { sweep: true, ..usual() };
    let changes = sweep::changes(options.sweep).unwrap();
    assert!(changes.len() > 30 && changes.len() % 2 == 1, "{}", changes.len());
    let row = |change: &Option<Change>, mean_draw| LoopResult {
        load: "moving",
        floor_percent: 93.0,
        servers: 4,
        policy: "ballast",
        change: change.as_ref().map(Change::name),
        figures: Figures { mean_draw, ..Figures::default() },
    };
    let rows = [row(&None, 0.9), row(&changes[1], 0.9), row(&changes[2], 0.9), row(&changes[3], 0.8)];
    assert_eq!(without_effect(&rows), [changes[1].as_ref().unwrap().name().split(' ').next().unwrap()]);

    // Every change is a change: the numbers are read back as they were scaled.
    let mut job = jobs(&Options { servers: vec![1], ..usual() }).unwrap()[5].clone();
    let usual = job.scenario();
    for change in changes.into_iter().flatten() {
        job.change = Some(change);
        let scenario = job.scenario();
        assert!(scenario.tuning.is_some() || scenario.agent_tuning.is_some(), "{:?}", job.change);
        assert_eq!(usual.plant, scenario.plant);
    }
}
