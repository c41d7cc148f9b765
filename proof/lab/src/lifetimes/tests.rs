use super::recorded::Recording;
use super::*;

fn tiny() -> Options {
    let quick = Options::quick();
    Options {
        pools: 2,
        hosts: 30,
        days: 4,
        sets: Sets { synp: vec![], ..quick.sets.clone() },
        accuracies: vec![0.8],
        inflate_every_h: 24,
        ..quick
    }
}

fn runs(options: &Options, inputs: &[Input]) -> Vec<Run> {
    let jobs = jobs(options, inputs).unwrap();
    jobs.iter().flat_map(|job| job.run().unwrap().runs).collect()
}

#[test]
fn pools_are_played_alike_each_time_and_with_the_same_vms_for_each_policy() {
    let options = tiny();
    let all = runs(&options, &[]);
    assert_eq!(all, runs(&options, &[]));

    // Best and first fit, five policies with each of oracle, model and useless model, four with noise; two pools.
    assert_eq!(all.len(), 2 * (2 + 15 + 4));
    for run in &all {
        let best_fit = all.iter().find(|other| {
            (&other.pool, other.number) == (&run.pool, run.number) && other.policy == Contestant::BestFit
        });
        let (of, than) = (&run.score.whole, &best_fit.unwrap().score.whole);
        assert_eq!(of.placed + of.failed, than.placed + than.failed, "{run:?}");
        assert!(of.failed > 0 || than.failed > 0 || (of.bound - than.bound).abs() < 1e-9, "{run:?}");
        assert!(of.empty <= of.bound + 1e-9 && of.half_host_unusable < 1.0, "{run:?}");
        assert!(of.stranded_cores > 0.0 && of.stranded_cores < 0.3, "{run:?}");
    }
    assert!(all[0].score.whole != all[all.len() / 2].score.whole, "two pools are two");
}

#[test]
fn rows_have_the_fields_that_programs_read_and_gaps_are_between_best_fit_and_the_bound() {
    let all = runs(&tiny(), &[]);
    let table = PairedTable::new(&all, 2.0);
    let rows = table.rows();
    assert_eq!(rows.len(), all.len() / 2);
    for row in &rows {
        let json = serde_json::to_value(row).unwrap();
        for field in ["pool", "scenario", "prediction", "policy"] {
            assert!(json[field].is_string(), "{field}: {json}");
        }
        for field in ["empty_pp", "gap_percent", "wins", "interval_pp", "half_host_unusable_pp"] {
            assert!(json[field].is_number(), "{field}: {json}");
        }
        assert_eq!(row.by_pool_pp.len(), 2);
        assert_eq!(row.wins, row.by_pool_pp.iter().filter(|pp| **pp > 0.0).count());

        let best_fit = rows.iter().find(|row| row.policy == Contestant::BestFit).unwrap();
        let gap = 100.0 * row.empty_pp / (best_fit.bound_percent - best_fit.empty_percent);
        assert!((row.gap_percent - gap).abs() < 1e-6, "{row:?}");
    }
    let of = |policy| rows.iter().find(|row| row.policy == policy && row.prediction == ORACLE).unwrap();
    assert_eq!(of(Contestant::Nilas).scenario, "70 %");
}

#[test]
fn an_interval_is_students() {
    // Mean 2, deviation 1 of three: 4.303 / √3.
    let paired = Paired::of(vec![1.0, 2.0, 3.0]);
    assert!((paired.mean - 2.0).abs() < 1e-12 && (paired.interval.unwrap() - 2.4843).abs() < 1e-3);
    assert!(!paired.is_positive() && paired.wins == 3);
    assert_eq!(Paired::of(vec![1.0]).interval, None);
}

#[test]
fn recorded_arrivals_are_scored_whole_and_held_out_in_time() {
    let table = recorded::tests::vms();
    let recording = Recording::new("test", &table).unwrap();
    let input = Input::new(recording, table, None).unwrap();
    let options = Options {
        sets: Sets { syn: vec![], synp: vec![], ..tiny().sets },
        pools: 1,
        host_cores: 16,
        ..tiny()
    };
    let all = runs(&options, &[input]);
    let scenarios: Vec<&str> = all.iter().map(|run| run.scenario.as_str()).collect();
    assert_eq!((scenarios[0], scenarios[12]), ("70 %", "70 %, held out in time"));
    let predictions: Vec<&str> = all.iter().map(|run| run.prediction.as_str()).collect();
    assert_eq!((predictions[7], predictions[19]), (IN_SAMPLE, LEARNT));
    assert_eq!(all.len(), 24);
    // As many hosts as make the load, but for who is moved by chance.
    let load = 1.0 - all[0].score.whole.bound;
    assert!((0.5..0.9).contains(&load), "{load}");
}

#[test]
fn what_cannot_be_run_is_refused_with_what_is_allowed() {
    for options in
        [Options { pools: 0, ..tiny() }, Options { days: 2, ..tiny() }, Options { hosts: 1, ..tiny() }]
    {
        assert!(jobs(&options, &[]).map(drop).unwrap_err().allowed.contains(" to "));
    }
}
