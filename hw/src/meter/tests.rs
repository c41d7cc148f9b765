use super::*;
use crate::testing::Tree;
use crate::{HwmonSensor, MatchSpec, RaplSensor};

const DIR: &str = "sys/class/hwmon/hwmon0";
const FILE: &str = "sys/class/hwmon/hwmon0/power1_input";

fn tree() -> Tree {
    let tree = Tree::new();
    tree.folder(DIR, &[("name", "lm25066"), ("power1_label", "pin"), ("power1_input", "230000000")]);
    tree
}
fn meter(tree: &Tree) -> PowerMeter {
    let spec = MatchSpec { name: "lm25066".into(), label: Some("pin".into()) };
    PowerMeter::new(HwmonSensor::new(tree.root(), spec), Watts::from_whole(500))
}
fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

#[test]
fn a_reading_is_fresh_only_when_it_moves() {
    let tree = tree();
    let mut meter = meter(&tree);
    assert_eq!(meter.sample(at(100)).unwrap(), (Watts::from_whole(230), at(100)));
    assert_eq!(meter.sample(at(300)).unwrap(), (Watts::from_whole(230), at(100)));
    tree.write(FILE, "231500000\n");
    assert_eq!(meter.sample(at(500)).unwrap(), (Watts::from_milli(231_500), at(500)));
}

#[test]
fn a_value_that_never_moves_is_frozen() {
    let tree = tree();
    let mut meter = meter(&tree);
    for n in 1..=25 {
        assert!(meter.sample(at(n)).is_ok());
    }
    assert!(matches!(meter.sample(at(26)), Err(SensorError::Frozen { reads: 26, .. })));
    tree.write(FILE, "230000001\n");
    assert!(meter.sample(at(27)).is_ok());
}

#[test]
fn implausible_is_never_low_power() {
    for bad in ["0", "-1", "-230000000", "500001000", "9223372036854775807", "999"] {
        let tree = tree();
        tree.write(FILE, bad);
        for n in 0..100 {
            assert!(matches!(meter(&tree).sample(at(n)), Err(SensorError::Implausible { .. })), "{bad}");
        }
    }
    for bad in ["", "unknown", "2.5e8", "9223372036854775808", "230000000 uW"] {
        let tree = tree();
        tree.write(FILE, bad);
        assert!(matches!(meter(&tree).sample(at(0)), Err(SensorError::Unreadable(_))), "{bad}");
    }
}

#[test]
fn a_sensor_that_moves_to_another_number_is_found_again() {
    let tree = tree();
    let mut meter = meter(&tree);
    meter.sample(at(0)).unwrap();
    // Its number now belongs to a disk; the meter is elsewhere.
    tree.write(&format!("{DIR}/name"), "nvme\n");
    tree.write(FILE, "5000000\n");
    assert!(matches!(meter.sample(at(1)), Err(SensorError::Unreadable(_))));
    tree.folder(
        "sys/class/hwmon/hwmon9",
        &[("name", "lm25066"), ("power1_label", "pin"), ("power1_input", "240000000")],
    );
    assert_eq!(meter.sample(at(2)).unwrap().0, Watts::from_whole(240));
    tree.remove("sys/class/hwmon/hwmon9");
    assert!(matches!(meter.sample(at(3)), Err(SensorError::Unreadable(_))));
}

#[test]
fn rapl_starts_then_measures_with_its_offset() {
    let tree = Tree::new();
    let (offset, max) = (Watts::from_whole(60), Watts::from_whole(500));
    let mut meter = PowerMeter::new(RaplSensor::new(tree.root(), offset, max), max);
    assert!(matches!(meter.sample(at(0)), Err(SensorError::Unreadable(_))));
    let zone = "sys/class/powercap/intel-rapl:0";
    let energy = |uj: &str| tree.write(&format!("{zone}/energy_uj"), uj);
    tree.folder(zone, &[("name", "package-0"), ("max_energy_range_uj", "262143328850")]);
    energy("0");
    assert!(matches!(meter.sample(at(200)), Err(SensorError::Started)));
    energy("40000000");
    assert_eq!(meter.sample(at(400)).unwrap(), (Watts::from_whole(260), at(400)));
    assert!(matches!(meter.sample(at(600)), Err(SensorError::Frozen { .. })));
    energy("128000001");
    assert!(matches!(meter.sample(at(800)).unwrap(), (w, _) if w == Watts::from_milli(280_000)));
    energy("928000001");
    assert!(matches!(meter.sample(at(1000)), Err(SensorError::Implausible { .. })));
}
