use super::placed::Need;
use super::replay::replay;
use super::*;
use crate::options::usual;

/// One chassis, a hundred half hours of little and one in which half of all cores are busy to this share, all
/// of this kind.
fn needs(kind: usize, busy: f32) -> Needs {
    let need = |busy: f32| {
        let (mut cores, mut sums) = ([0; 4], [0.0; 4]);
        (cores[0], sums[0], cores[kind]) = (10, 2.0, if kind == 0 { 30 } else { 20 });
        sums[kind] += 20.0 * busy;
        Need { cores, busy: sums }
    };
    let hosts = SERVERS as usize;
    let mut all = vec![need(0.1); 100 * hosts];
    all.extend(vec![need(busy); hosts]);
    Needs { hosts, all }
}

#[test]
fn a_wrong_class_is_judged_by_the_truth() {
    // 12 × (112 + 198 × 20 ÷ 40) W.
    let needs = |kind| needs(kind, 0.9);
    let run = |kind, budget| replay(&needs(kind), 0..101, Watts::from_whole(budget), 1).unwrap();

    // What is batch, and told so, is slowed as often as was promised.
    let batch = run(3, 2400);
    assert_eq!((batch.half_hours, batch.capped, batch.user_facing_slowed()), (101, 1, 0.0));
    assert!(batch.keeps() && batch.keeps_as_told());

    // What serves people, and was told to be batch: an operator sees nothing of it.
    let mistaken = run(2, 2400);
    assert!(mistaken.user_facing_slowed() > 1e-3, "{mistaken:?}");
    assert!(mistaken.keeps_as_told() && !mistaken.keeps());

    // Batch that was told to serve people is not slowed by software; hardware slows everybody.
    let spared = run(1, 2400);
    assert!(spared.user_facing_slowed() > 0.0 && !spared.keeps(), "{spared:?}");

    // Where nothing is above the budget nothing is slowed, and nothing is run.
    assert_eq!(run(0, 3000).capped, 0);

    // Two of a hundred are too many, and none is run for that.
    let often = replay(&needs(3), 0..101, Watts::from_whole(1500), 1).unwrap();
    assert!(!often.keeps());
}

fn outcome(stage: Stage, held: i64, planned: i64) -> Outcome {
    let [held, planned] = [held, planned].map(Watts::from_whole);
    let mut told = Share::default();
    told.add(VmClass::UserFacing, VmClass::UserFacing, 99.0);
    told.add(VmClass::NonUserFacing, VmClass::UserFacing, 1.0);
    told.add(VmClass::NonUserFacing, VmClass::NonUserFacing, 60.0);
    told.add(VmClass::UserFacing, VmClass::NonUserFacing, 40.0);
    Outcome {
        stage,
        planned,
        held,
        buffer: 0.01,
        chassis: 10,
        refused: 0.0,
        labels: told,
        told,
        kept_out: 0,
        measured: replay::Measured::default(),
    }
}

fn seed(budgets: [i64; 7]) -> Vec<Outcome> {
    Stage::ALL.iter().zip(budgets).map(|(stage, held)| outcome(*stage, held, held)).collect()
}

#[test]
fn gains_are_compared_seed_by_seed_and_can_be_missed() {
    let good = seed([2400, 2250, 2240, 2230, 2245, 2220, 2200]);
    let seeds = [good.clone(), seed([2600, 2430, 2420, 2410, 2425, 2400, 2400]), good];
    let found = rows(&seeds);
    let of = |stage| found.iter().find(|row| row.stage == stage).unwrap();
    assert_eq!(of(Stage::Chain).watts_by_seed, [150.0, 170.0, 150.0]);
    assert_eq!((of(Stage::Chain).watts, of(Stage::Plan).lost_w), (150.0, 30.0));
    let (users, batch) = (of(Stage::Chain).user_facing_recall, of(Stage::Chain).batch_recall);
    assert_eq!((users, batch, of(Stage::Chain).batch_precision), (0.99, 0.6, 60.0 / 61.0));
    let met = |found: &[ChainRow]| -> Vec<Option<bool>> {
        let report = crate::report::chain::report(&usual(), found, String::new()).unwrap();
        report.goals.iter().map(|goal| goal.met).collect()
    };
    assert_eq!(met(&found), [Some(true); 4]);

    // Who does as the baseline does has reached nothing, and neither has one who plans too low.
    let same = met(&rows(&[seed([2400; 7])]));
    assert_eq!(same[..2], [Some(false); 2]);
    let mut low = seed([2400, 2250, 2240, 2230, 2245, 2220, 2200]);
    low[1] = outcome(Stage::Chain, 2250, 2200);
    assert_eq!(met(&rows(&[low]))[2], Some(false));
    assert!(met(&rows(&[])).iter().all(Option::is_none));
}
