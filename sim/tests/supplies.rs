//! Power supplies that cannot be read, and feeds that fail and return, in a capping event.

use ballast_sim::plant::{PlantSpec, Profile, SupplySpec};
use ballast_sim::world::Fault;

use crate::network::run;
use crate::scenarios::{END, over_budget};

/// Batch work goes up at 20 s. With all of it at its floor 75 % of the budget are drawn. Each supply carries so many parts
/// per million of the budget: beyond what they carry together supplies slow every core by themselves.
fn plant(supplies: usize, each_ppm: u32) -> PlantSpec {
    let mut plant = over_budget(6, 0.75, |_| Profile::Constant(0.3));
    plant.supplies = vec![SupplySpec::active(plant.budget.ppm(each_ppm)); supplies];
    plant
}

/// Ten minutes after a supply became unreadable, half of the limit was gone.
#[test]
fn one_supply_that_cannot_be_read_for_good_slows_no_user_facing_core() {
    for from in [5.0, 60.0] {
        let (world, came) = run(plant(2, 600_000), 1, 1800, &[(from, END, Fault::SupplyUnreadable(0))]);
        assert_eq!((came.slowed, came.hardware_s), (0.0, 0.0), "{from}: {came:?}");
        assert!(came.drawn > 0.95 && came.trip < 0.2, "{from}: {came:?}");
        let alarms = world.chassis_status().unwrap().alarms;
        assert!(alarms.iter().any(|alarm| alarm.message.contains("cannot be read")), "{alarms:?}");
    }
}

/// While the meters did not show yet who carries the lost part, the total read too low, and the height rose.
#[test]
fn a_feed_that_fails_and_returns_slows_no_user_facing_core() {
    for period in [10.0, 30.0, 60.0] {
        let losses = (0..(300.0 / period) as u32).map(|n| 60.0 + period * f64::from(n));
        let faults: Vec<_> = losses.map(|t| (t, t + period / 2.0, Fault::FeedLoss(0))).collect();
        let (_, came) = run(plant(3, 515_000), 1, 360, &faults);
        assert_eq!((came.slowed, came.hardware_s), (0.0, 0.0), "{period} s: {came:?}");
        assert!(came.drawn > 0.95 && came.trip < 0.2, "{period} s: {came:?}");
    }
}
