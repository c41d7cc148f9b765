use super::*;
use crate::chassis::Chassis;
use crate::policy::Approach;
use crate::readings::Intake;
use proptest::prelude::*;

const MINUTES: i64 = 10_000;

/// A chassis draws `base`, and `peak` in a few minutes of its own.
fn draw(base: i64, peak: i64, at: i64, minute: i64) -> Watts {
    Watts::from_whole(if (at..at + 5).contains(&minute) { peak } else { base })
}

fn none_yet() -> Readings {
    let (resolution, max) = (Watts::from_whole(1), Watts::from_whole(9000));
    Readings::new(Intake { period_s: 60, resolution, max }).unwrap()
}

fn add(to: &mut Readings, chassis: &str, minute: i64, draw: Watts) {
    let chassis = to.chassis(chassis, "").unwrap();
    to.take(chassis, 60 * minute, draw.as_f64()).unwrap();
}

/// Chassis that peak one after the other.
fn series(chassis: &[&str]) -> (Readings, Histogram) {
    let mut series = none_yet();
    let mut draws = Histogram::new(Watts::from_whole(1)).unwrap();
    for (n, name) in chassis.iter().enumerate() {
        for minute in 0..MINUTES {
            let draw = draw(2000, 3000, 100 * n as i64, minute);
            add(&mut series, name, minute, draw);
            draws.add(draw, 1);
        }
    }
    (series, draws)
}

fn node(name: &str, level: &str, w: i64, parent: &str, chassis: &[&str]) -> Node {
    Node {
        name: name.into(),
        level: level.into(),
        provisioned: Watts::from_whole(w),
        parent: Some(parent.to_owned()).filter(|parent| !parent.is_empty()),
        chassis: chassis.iter().map(|&name| name.to_owned()).collect(),
    }
}

fn planned(nodes: Vec<Node>, series: &Readings, draws: &Histogram) -> Result<(Levels, Plan), LevelsError> {
    let (chassis, approach) = (Chassis::default(), Approach::named("no-impact").unwrap());
    let terms = Terms::paper(&chassis);
    let plan = Plan::make(draws, &approach, &chassis, &terms).unwrap();
    let generations = BTreeMap::from([(String::new(), Generation { draws, plan: &plan })]);
    let topology = Topology::new(nodes).unwrap();
    Levels::plan(&topology, series, &approach.policy, &generations, &terms).map(|all| (all, plan))
}

#[test]
fn breakers_that_carry_all_budgets_change_none_and_sums_admit_less() {
    let (series, draws) = series(&["c1", "c2", "c3"]);
    let nodes = vec![
        node("row", "row", 12_000, "", &[]),
        node("r1", "rack", 7_000, "row", &["c1", "c2"]),
        node("r2", "rack", 3_500, "row", &["c3"]),
    ];

    let (levels, plan) = planned(nodes, &series, &draws).unwrap();

    for chassis in &levels.chassis {
        assert_eq!((chassis.budget, chassis.kept), (plan.budget, true));
        assert_eq!(chassis.lowered_by, None);
    }

    let row = &levels.nodes[0];
    assert_eq!((row.chassis, row.complete_share), (3, 1.0));
    assert_eq!(row.budget + row.headroom, row.provisioned);

    // One of three peaks at a time: 7000 W less what all three can shed, and the buffer.
    let alone = row.alone.unwrap();
    let shed = plan.reductions.first + plan.reductions.first + plan.reductions.first;
    assert_eq!(alone.p_min, draws.round_up(Watts::from_whole(7000) - shed));
    assert!(alone.budget < row.budget);

    // The lone chassis of a rack is a chassis.
    assert_eq!(
        levels.nodes[2].alone.unwrap().p_min,
        draws.round_up(Watts::from_whole(3000) - plan.reductions.first)
    );
}

#[test]
fn a_breaker_lowers_the_budgets_under_it_and_what_that_breaks_is_said() {
    let (series, draws) = series(&["c1", "c2", "c3"]);
    let nodes = |rack| {
        vec![node("row", "row", 12_000, "", &["c3"]), node("rack", "rack", rack, "row", &["c1", "c2"])]
    };

    // Planned are 3052 W each: the depth bound 2774 W and a buffer.
    let (levels, plan) = planned(nodes(6_000), &series, &draws).unwrap();
    let by_name: BTreeMap<_, _> = levels.chassis.iter().map(|c| (c.chassis.as_str(), c)).collect();
    assert_eq!(plan.budget, Watts::from_whole(3052));
    assert_eq!(by_name["c3"].budget, plan.budget);
    assert_eq!(by_name["c1"].budget, Watts::from_whole(3000));
    assert_eq!(by_name["c1"].lowered_by.as_deref(), Some("rack"));
    assert!(by_name["c1"].kept, "the buffer gives");
    let error = planned(nodes(5_000), &series, &draws).unwrap_err();
    assert!(error.to_string().starts_with("rack \"rack\" is provisioned for 5000.0 W; "), "{error}");
}

#[test]
fn a_budget_that_would_be_hit_too_often_is_marked() {
    let mut series = none_yet();
    let mut draws = Histogram::new(Watts::from_whole(1)).unwrap();
    for minute in 0..1000 {
        let draw = Watts::from_whole(2800 + minute % 100);
        add(&mut series, "c", minute, draw);
        draws.add(draw, 1);
    }
    let (levels, plan) = planned(vec![node("r", "rack", 2850, "", &["c"])], &series, &draws).unwrap();
    assert_eq!(plan.p_min, Watts::from_whole(2898));
    let chassis = &levels.chassis[0];
    assert_eq!((chassis.budget, chassis.kept), (Watts::from_whole(2850), false));
}

#[test]
fn topology_and_telemetry_speak_of_the_same_chassis() {
    let (series, draws) = series(&["c1", "c2"]);
    let error = planned(vec![node("r", "rack", 9000, "", &["c1"])], &series, &draws).unwrap_err();
    assert_eq!(error, LevelsError::NotFed("c2".into()));
    let nodes = vec![node("r", "rack", 9000, "", &["c1", "c2", "c3"])];
    let error = planned(nodes, &series, &draws).unwrap_err();
    assert_eq!(error, LevelsError::NoReading { node: "r".into(), chassis: "c3".into() });
}

#[test]
fn sums_of_too_few_complete_units_say_nothing() {
    let (mut series, draws) = series(&["c1"]);
    for minute in 0..MINUTES / 3 {
        add(&mut series, "c2", minute, Watts::from_whole(2000));
    }
    let (levels, _) = planned(vec![node("r", "rack", 9000, "", &["c1", "c2"])], &series, &draws).unwrap();
    assert_eq!(levels.nodes[0].alone, None);
    assert!((levels.nodes[0].complete_share - 1.0 / 3.0).abs() < 1e-3);
}

proptest! {
    /// Whatever the breakers carry: no node's budgets add up to more, no budget is above its plan or under what can be
    /// held, and a chassis whose breakers have room keeps its plan.
    #[test]
    fn budgets_respect_every_level(racks in prop::collection::vec((1usize..4, 5_400i64..12_000), 1..4),
        row in 15_000i64..40_000) {
        let mut nodes = vec![node("row", "row", row, "", &[])];
        let mut names = vec![];
        for (n, (chassis, w)) in racks.iter().enumerate() {
            let of: Vec<String> = (0..*chassis).map(|c| format!("c{n}-{c}")).collect();
            let of: Vec<&str> = of.iter().map(String::as_str).collect();
            nodes.push(node(&format!("r{n}"), "rack", *w, "row", &of));
            names.extend(of.iter().map(|&name| name.to_owned()));
        }

        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut series = none_yet();
        let mut draws = Histogram::new(Watts::from_whole(1)).unwrap();

        for name in &names {
            for (minute, w) in [2000, 2500, 3000].into_iter().enumerate() {
                add(&mut series, name, minute as i64, Watts::from_whole(w));
                draws.add(Watts::from_whole(w), 1);
            }
        }

        let least = Watts::from_whole(2774);

        match planned(nodes, &series, &draws) {
            Err(LevelsError::Overloaded { provisioned, lowest: sum, .. }) => prop_assert!(sum > provisioned),
            Err(error) => prop_assert!(false, "{error}"),
            Ok((levels, plan)) => {
                for node in &levels.nodes {
                    prop_assert!(node.headroom >= Watts::ZERO, "{node:?}");
                }
                let full = levels.nodes.iter().any(|node| node.headroom < Watts::from_whole(10));
                for chassis in &levels.chassis {
                    prop_assert!(chassis.budget >= least && chassis.budget <= plan.budget);
                    prop_assert_eq!(chassis.lowered_by.is_some(), chassis.budget < plan.budget);
                    prop_assert!(chassis.lowered_by.is_none() || full);
                }
            }
        }
    }
}
