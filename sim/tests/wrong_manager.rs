//! The chassis manager lives, sends in time, and is wrong.

use ballast_agent_core::Policy;
use ballast_sim::demo::moving;
use ballast_sim::world::{Fault, ManagerFault};

use crate::scenarios::{END, in_steps, made, over_budget};

/// The highest trip fraction with these faults from `from` seconds on.
fn tripped(from: f64, moves: bool, faults: &[Fault]) -> f64 {
    let loads = moving(12, 120.0, 7);
    let plant = match moves {
        true => over_budget(12, 0.93, |n| loads[n].clone()),
        false => over_budget(12, 0.93, in_steps),
    };
    let faults: Vec<_> = faults.iter().map(|&fault| (from, END, fault)).collect();
    crate::run(made(plant, Policy::Stepwise, 1, &faults), 120.0).1.trip_fraction_max
}

fn assert_holds(faults: &[Fault]) {
    for (from, moves) in [(15.0, false), (19.5, false), (45.0, false), (19.5, true), (45.0, true)] {
        let trip = tripped(from, moves, faults);
        assert!(trip < 1.0, "{faults:?} from {from} s, moving load {moves}: {trip}");
    }
}

#[test]
fn a_manager_that_repeats_its_grants_is_not_obeyed() {
    assert_holds(&[Fault::ManagerWrong(ManagerFault::Repeats)]);
}

#[test]
fn a_manager_that_has_lost_its_set_point_is_not_obeyed() {
    assert_holds(&[Fault::ManagerWrong(ManagerFault::GrantsAll)]);
}
