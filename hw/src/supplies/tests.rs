use ballast_types::Watts;

use super::*;
use crate::testing::Tree;

const DIR: &str = "sys/class/hwmon/hwmon2";

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}
fn tree(values: &[(&str, &str)]) -> Tree {
    let tree = Tree::new();
    tree.folder(
        DIR,
        &[
            ("name", "psu"),
            ("power1_label", "pin"),
            ("power2_label", "pout1"),
            ("in1_label", "vin"),
            ("in2_label", "vout1"),
        ],
    );
    tree.folder(DIR, values);
    tree
}
fn supply(tree: &Tree, name: &str) -> SupplyMeter {
    SupplyMeter::new(name, PmbusSupply::new(tree.root(), name))
}
fn poll(tree: &Tree) -> Supply {
    supply(tree, "psu").poll(at(1)).0
}

#[test]
fn the_state_follows_from_what_pmbus_shows() {
    use SupplyState::{Active, Failed, Standby, Unknown};
    let w = |n| Some(Watts::from_whole(n));
    type Case<'a> = (&'a [(&'a str, &'a str)], SupplyState, Option<Watts>);
    let (pin, pout, vin) = ("power1_input", "power2_input", "in1_input");
    let (alarm, alarm2) = ("in1_lcrit_alarm", "in2_lcrit_alarm");
    let cases: &[Case<'_>] = &[
        (&[(pin, "1500000000"), (pout, "1400000000"), (vin, "230000")], Active, w(1500)),
        // A latched alarm on a supply that carries load.
        (&[(pin, "1500000000"), (pout, "1400000000"), (vin, "230000"), (alarm, "1")], Active, w(1500)),
        // Carries load but shows no input: missing, not low.
        (&[(pin, "0"), (pout, "1400000000"), (vin, "230000")], Active, None),
        (&[(pin, "-5"), (pout, "1400000000"), (vin, "230000")], Active, None),
        (&[(pin, "900000000000"), (pout, "1400000000"), (vin, "230000")], Active, None),
        (&[(pin, "8000000"), (pout, "0"), (vin, "230000")], Standby, w(8)),
        (&[(pin, "0"), (pout, "0"), (vin, "230000")], Standby, w(0)),
        (&[(pin, "0"), (pout, "0"), (vin, "0")], Failed, w(0)),
        (&[(pin, "0"), (pout, "0"), (vin, "230000"), ("in2_input", "0"), (alarm2, "1")], Failed, w(0)),
        (&[(pin, "0"), (pout, "0"), (vin, "90000"), (alarm, "1")], Failed, w(0)),
        // Few sensors.
        (&[(pin, "1500000000")], Active, w(1500)),
        (&[(pin, "0")], Unknown, w(0)),
        (&[], Unknown, None),
        // Garbage.
        (&[(pin, "x"), (pout, "1400000000"), (vin, "230000")], Unknown, None),
        (&[(pin, "1"), (pout, ""), (vin, "230000")], Unknown, None),
        (&[(pin, "1"), (pout, "1"), (vin, "<unknown>")], Unknown, None),
    ];

    for (values, state, input) in cases {
        assert_eq!(poll(&tree(values)), Supply { state: *state, input: *input }, "{values:?}");
    }
}

#[test]
fn a_pulled_supply_is_absent_and_a_lost_driver_is_unknown() {
    let tree = tree(&[("power1_input", "5000000")]);

    // A second one, with an address on its bus.
    let other = "sys/class/hwmon/hwmon3";
    tree.folder("sys/devices/3-0059", &[("name", "psu"), ("power1_input", "6000000")]);
    tree.folder(other, &[("uevent", "")]);
    let target = tree.root().path("sys/devices/3-0059");
    let link = tree.root().path(&format!("{other}/device"));
    std::os::unix::fs::symlink(target, link).unwrap();
    let mut supplies = ["psu@3-0059", "psu@3-0077", "ibm-cffps"].map(|name| supply(&tree, name));
    let mut states = |ms| supplies.each_mut().map(|supply| supply.poll(at(ms)).0.state);

    // A name that was never there may be a slip: what it draws is not known.
    let unknown = SupplyState::Unknown;
    assert_eq!(states(1), [SupplyState::Active, unknown, unknown]);
    tree.remove(other);
    tree.remove("sys/devices/3-0059");
    assert_eq!(states(2), [SupplyState::Absent, unknown, unknown]);
    tree.remove(DIR);
    assert_eq!(poll(&tree), Supply::UNKNOWN);
}

#[test]
fn two_devices_that_cannot_be_told_apart_are_unknown() {
    let tree = tree(&[("power1_input", "5000000")]);
    tree.folder("sys/class/hwmon/hwmon3", &[("name", "psu"), ("power1_input", "6000000")]);
    assert_eq!(poll(&tree), Supply::UNKNOWN);
}

#[test]
fn it_moves_with_a_value_or_a_state_only() {
    let tree = tree(&[("power1_input", "5000000"), ("power2_input", "4000000"), ("in1_input", "230000")]);
    let mut supply = supply(&tree, "psu");
    assert!(supply.poll(at(1)).1);
    assert!(!supply.poll(at(2)).1);
    tree.write(&format!("{DIR}/power1_input"), "5000001");
    assert!(supply.poll(at(3)).1);
    tree.write(&format!("{DIR}/power2_input"), "0");
    assert!(supply.poll(at(4)).1);
    assert!(!supply.poll(at(5)).1);
}

#[test]
fn an_active_supply_that_never_moves_is_unknown() {
    let tree = tree(&[("power1_input", "5000000"), ("power2_input", "4000000"), ("in1_input", "230000")]);
    let mut supply = supply(&tree, "psu");
    let states: Vec<_> = (0..30).map(|n| supply.poll(at(n)).0.state).collect();
    assert_eq!(states[24], SupplyState::Active);
    assert_eq!(states[25], SupplyState::Unknown);
    // Standby at a constant zero is no fault.
    tree.write(&format!("{DIR}/power2_input"), "0");
    tree.write(&format!("{DIR}/power1_input"), "0");
    assert!((30..90).all(|n| supply.poll(at(n)).0.state == SupplyState::Standby));
}
