use ballast_placement::admission::Belief;

use super::*;

/// A cluster of 200 cores for half a year: seconds for all of it.
fn small() -> Options {
    let arms = [
        (Moment::Zeroth, 0),
        (Moment::First, 0),
        (Moment::Second, 0),
        (Moment::Second, 1),
        (Moment::Second, 50),
    ];
    let arms = arms.map(|(moment, n)| Arm::new(moment, n, n > 0)).to_vec();
    let site = Site { law: Belief::SUB_B, capacity: 200.0, arrivals_per_h: 0.05, hours: 4380.0 };
    let sets = vec![Set { name: "small", site, arms, runs: 24 }];
    Options { seed: 1, slas: vec![1e-2], sets, pilot_runs: 6, pool: 60, grid: 2 }
}

fn play(options: &Options, parts: u64) -> Vec<SetResult> {
    let mut tuner = Tuner::new(options, |bad, n| (0..n).map(bad).collect());
    tuner.look(|jobs| jobs.iter().map(Job::run).collect());

    let mut all = vec![vec![]; tuner.thresholds().len()];
    for index in 0..parts {
        let jobs = tuner.jobs(Part { index, of: parts });
        let done = jobs.iter().map(Job::run).collect();
        let measured = tuner.measured(&jobs, done);
        assert!(tuner.is_part(Part { index, of: parts }, &measured));
        for (all, more) in all.iter_mut().zip(measured) {
            all.extend(more);
        }
    }
    all.iter_mut().for_each(|it: &mut Vec<Measured>| it.sort_by_key(|it| it.run));
    (0..options.sets.len()).map(|set| result(options, &tuner, &all, set)).collect()
}

#[test]
fn every_arm_is_tuned_and_parts_add_up_to_the_whole() {
    let options = small();
    let whole = play(&options, 1);
    let rows = &whole[0].rows;
    assert_eq!(rows.len(), 5);
    for row in rows {
        assert!(row.low <= row.utilisation && row.utilisation <= row.high, "{row:?}");
        assert!(row.utilisation <= whole[0].ceiling + 0.02 && row.utilisation > 0.02, "{row:?}");
        assert_eq!(row.runs, if row.policy == Moment::Zeroth { rows[0].runs } else { 24 });
    }

    // Knowing deployments is worth something.
    let of = |n| rows.iter().find(|row| row.policy == Moment::Second && row.prior_n == n).unwrap();
    assert!(of(50).utilisation > of(0).utilisation, "{rows:?}");
    assert_eq!(play(&options, 3), whole);
}

/// A part with fewer runs, with other runs, or with fewer thresholds is none.
#[test]
fn a_part_is_whole_or_none() {
    let options = small();
    let mut tuner = Tuner::new(&options, |bad, n| (0..n).map(bad).collect());
    let thresholds: Vec<Vec<f64>> = tuner.thresholds().iter().map(|it| it[..2].to_vec()).collect();
    assert!(tuner.set_thresholds(&thresholds) && !tuner.set_thresholds(&thresholds[1..]));
    assert!(!tuner.set_thresholds(&vec![vec![f64::NAN]; thresholds.len()]));
    assert_eq!(tuner.thresholds(), thresholds);

    let part = Part { index: 0, of: 2 };
    let jobs = tuner.jobs(part);
    let measured = tuner.measured(&jobs, vec![Tally::default(); jobs.len()]);
    assert!(tuner.is_part(part, &measured));
    assert!(!tuner.is_part(Part { index: 1, of: 2 }, &measured) && !tuner.is_part(part, &measured[1..]));
    let changed = |change: fn(&mut Vec<Measured>)| {
        let mut measured = measured.clone();
        change(&mut measured[1]);
        tuner.is_part(part, &measured)
    };
    assert!(!changed(Vec::clear) && !changed(|it| it[0].run = 2) && !changed(|it| it[0].tallies.truncate(1)));
}
