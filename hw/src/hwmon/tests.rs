use ballast_types::{Instant, Watts};

use super::*;
use crate::sensor::{Sensor as _, SensorError};
use crate::testing::Tree;

fn spec(name: &str, label: Option<&str>) -> MatchSpec {
    MatchSpec { name: name.into(), label: label.map(Into::into) }
}
fn read(sensor: &mut HwmonSensor) -> Result<Watts, SensorError> {
    sensor.read(Instant::ZERO).map(|sampled| sampled.watts)
}
fn once(tree: &Tree, name: &str, label: Option<&str>) -> Result<Watts, SensorError> {
    read(&mut HwmonSensor::new(tree.root(), spec(name, label)))
}
fn watts(whole: i64) -> Watts {
    Watts::from_whole(whole)
}

/// A device as a kernel shows it: its folder in `sys/devices`, links in the class and to the parent.
fn device(tree: &Tree, parent: &str, number: u32, files: &[(&str, &str)]) {
    let real = format!("{parent}/hwmon/hwmon{number}");
    tree.folder(&real, files);
    tree.write(&format!("{real}/uevent"), "");
    tree.link("../..", &format!("{real}/device"));
    let up = "../../..";
    tree.link(&format!("{up}/{real}"), &format!("sys/class/hwmon/hwmon{number}"));
}

const BUS: &str = "sys/devices/pci0000:00/i2c-3";

#[test]
fn both_layouts_and_both_files_are_found() {
    let tree = Tree::new();
    let hot_swap = [("name", "lm25066"), ("power1_input", "5000000"), ("power1_label", "pin")];
    device(&tree, &format!("{BUS}/3-0040"), 7, &hot_swap);

    // `acpi_power_meter`: name and files are the parent's, and there is no `power1_input`.
    let acpi = "sys/devices/LNXSYSTM:00/ACPI000D:00";
    device(&tree, acpi, 3, &[]);
    let files = [
        ("name", "power_meter"),
        ("power1_average", "6000000"),
        ("power1_average_interval", "4000"),
        ("power1_accuracy", "99.0%"),
    ];

    tree.folder(acpi, &files);
    tree.folder("sys/class/hwmon/hwmon4", &[("temp1_input", "1")]);
    assert_eq!(once(&tree, "lm25066", Some("pin")).unwrap(), watts(5));
    let mut sensor = HwmonSensor::new(tree.root(), spec("power_meter", None));
    assert_eq!(read(&mut sensor).unwrap(), watts(6));
    assert_eq!(sensor.averaged_over(), Some(core::time::Duration::from_secs(4)));
}

#[test]
fn volts_and_amperes_make_a_power_where_the_driver_has_none() {
    let tree = Tree::new();
    let files = [
        ("name", "ina3221"),
        ("in1_label", "CPU"),
        ("in1_input", "12000"),
        ("curr1_input", "10500"),
        ("in2_label", "12V_AUX"),
        ("in2_input", "12000"),
        ("curr2_input", "-3"),
        ("in4_label", "shunt"),
        ("in4_input", "9"),
    ];

    device(&tree, &format!("{BUS}/3-0041"), 0, &files);
    assert_eq!(once(&tree, "ina3221", Some("CPU")).unwrap(), watts(126));
    assert_eq!(once(&tree, "ina3221", Some("12V_AUX")).unwrap(), Watts::ZERO);
    assert!(once(&tree, "ina3221", Some("shunt")).is_err());

    // A power that the driver computes comes first.
    device(&tree, &format!("{BUS}/3-0045"), 1, &[("name", "ina226"), ("in1_input", "12000")]);
    let real = format!("{BUS}/3-0045/hwmon/hwmon1");
    tree.folder(&real, &[("curr1_input", "1000"), ("power1_input", "11990000")]);
    assert_eq!(once(&tree, "ina226", None).unwrap(), Watts::from_milli(11_990));
}

#[test]
fn what_is_not_there_or_not_unique_is_refused() {
    let tree = Tree::new();
    assert!(once(&tree, "pmbus", None).is_err());
    let channels = [
        ("name", "pmbus"),
        ("power1_input", "1000000"),
        ("power1_label", "pin"),
        ("power2_input", "2000000"),
        ("power2_label", "pout1"),
    ];
    tree.folder("sys/class/hwmon/hwmon0", &channels);
    assert!(once(&tree, "pmbus", None).is_err());
    assert_eq!(once(&tree, "pmbus", Some("pout1")).unwrap(), watts(2));
    assert!(once(&tree, "pmbus", Some("psys")).is_err());
    tree.folder("sys/class/hwmon/hwmon1", &channels);
    let e = once(&tree, "pmbus", Some("pin")).unwrap_err();
    assert!(e.to_string().contains("2 channels of pmbus"), "{e}");
}

#[test]
fn equal_drivers_are_told_apart_by_their_device() {
    let tree = Tree::new();
    for (n, id) in [(0, "3-0058"), (1, "3-0059")] {
        let value = format!("{}000000", n + 1);
        let files = [("name", "pmbus"), ("power1_input", value.as_str())];
        device(&tree, &format!("{BUS}/{id}"), n, &files);
    }
    assert_eq!(once(&tree, "pmbus@3-0059", None).unwrap(), watts(2));
    assert!(once(&tree, "pmbus@3-0060", None).is_err());
    assert!(once(&tree, "adm1275@3-0058", None).is_err());
}

#[test]
fn numbers_that_two_equal_devices_swap_are_followed() {
    let tree = Tree::new();
    let (a, b) = (format!("{BUS}/3-0058"), format!("{BUS}/3-0059"));
    let with = |value| [("name", "pmbus"), ("power1_input", value), ("power1_label", "pin")];
    device(&tree, &a, 0, &with("1000000"));
    let mut sensor = HwmonSensor::new(tree.root(), spec("pmbus", Some("pin")));
    assert_eq!(read(&mut sensor).unwrap(), watts(1));

    // The driver is reloaded: another supply comes first, and takes the number.
    for gone in [format!("{a}/hwmon"), "sys/class/hwmon/hwmon0".into()] {
        tree.remove(&gone);
    }
    device(&tree, &b, 0, &with("2000000"));
    device(&tree, &a, 1, &with("1000001"));
    assert_eq!(read(&mut sensor).unwrap(), watts(1), "by the device's path, not by its number");

    // It goes for good: the other one is not it, but the only one there is with this name.
    for gone in [a, "sys/class/hwmon/hwmon1".into()] {
        tree.remove(&gone);
    }
    assert_eq!(read(&mut sensor).unwrap(), watts(2));
    tree.remove("sys/class/hwmon/hwmon0");
    assert!(read(&mut sensor).is_ok(), "the folder itself is still there");
    tree.remove(&b);
    assert!(read(&mut sensor).is_err());
}

#[test]
fn a_device_that_vanishes_while_it_is_found_is_passed_over() {
    let tree = Tree::new();
    tree.folder("sys/class/hwmon/hwmon1", &[("name", "lm25066"), ("power1_input", "5000000")]);
    tree.link("nowhere", "sys/class/hwmon/hwmon0");
    assert_eq!(once(&tree, "lm25066", None).unwrap(), watts(5));
}
