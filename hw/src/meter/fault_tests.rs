//! Every way in which a sensor fails, and what comes of it: one row is one injected fault.

use std::os::unix::net::UnixListener;

use ballast_types::{Supply, SupplyState};

use super::*;
use crate::testing::Tree;
use crate::{HwmonSensor, MatchSpec, PmbusSupply, RaplSensor, SupplyMeter};

/// What a fault must lead to. Nothing of it is ever "low power".
#[derive(Clone, Copy, Debug)]
enum Leads {
    /// To a missing reading whose reason has this.
    Missing(&'static str),
    /// To the right value all the same, in watts.
    Value(i64),
}
use Leads::{Missing, Value};

/// A fault: its name, what it does to the machine, what it leads to.
type Row = (&'static str, fn(&Tree), Leads);

const MAX: Watts = Watts::from_whole(500);
const HWMON: &str = "sys/class/hwmon";
const DEVICE: &str = "sys/devices/i2c-3/3-0040";
const ITS_HWMON: &str = "sys/devices/i2c-3/3-0040/hwmon";
const DRIVER: &str = "sys/devices/i2c-3/3-0040/hwmon/hwmon1/name";
const INPUT: &str = "sys/devices/i2c-3/3-0040/hwmon/hwmon1/power1_input";

/// A hot-swap controller as a kernel shows it, below links.
fn hot_swap(tree: &Tree, number: u32, at: &str, value: &str) {
    let real = format!("{at}/hwmon/hwmon{number}");
    let files = [("name", "lm25066"), ("power1_label", "pin"), ("power1_input", value)];
    tree.folder(&real, &files);
    tree.link("../..", &format!("{real}/device"));
    tree.link(&format!("../../../{real}"), &format!("{HWMON}/hwmon{number}"));
}

/// Takes a part of the first controller away, and puts others there: number, address and watts.
fn swapped(tree: &Tree, gone: &str, others: &[(u32, &str, u32)]) {
    tree.remove(gone);
    tree.remove("sys/class/hwmon/hwmon1");
    for (number, address, watts) in others {
        hot_swap(tree, *number, &format!("sys/devices/i2c-3/3-00{address}"), &format!("{watts}000000"));
    }
}

/// Puts something that is no file of a number in the place of one.
fn instead(tree: &Tree, file: &str, of: fn(&Tree, &str)) {
    tree.remove(file);
    of(tree, file);
}

/// A link whose reads the kernel refuses with EIO: nothing is mapped at a process's address 0.
fn eio(tree: &Tree, file: &str) {
    tree.link("/proc/self/mem", file);
}

/// Opening a socket is ENXIO, as of a device that has no driver any more.
fn enxio(tree: &Tree, file: &str) {
    drop(UnixListener::bind(tree.root().path(file)).unwrap());
}

/// Checks one reading against its row.
fn check(fault: &str, read: Result<(Watts, Instant), SensorError>, leads: Leads) {
    match (read, leads) {
        (Ok((watts, _)), Value(expected)) => {
            assert_eq!(watts, Watts::from_whole(expected), "{fault}");
        }
        (Err(error), Missing(why)) => {
            assert!(error.to_string().contains(why), "{fault}: {error}");
        }
        (read, _) => panic!("{fault}: {read:?}, not {leads:?}"),
    }
}

#[test]
fn hwmon() {
    let rows: &[Row] = &[
        ("zero", |t| t.write(INPUT, "0\n"), Missing("reads 0.0 W, but only above 0 W")),
        ("less than a milliwatt", |t| t.write(INPUT, "999\n"), Missing("reads 0.0 W")),
        ("negative", |t| t.write(INPUT, "-230000000\n"), Missing("above 0 W")),
        ("beyond the server", |t| t.write(INPUT, "500001000\n"), Missing("at most 500.0 W")),
        ("largest number", |t| t.write(INPUT, "9223372036854775807\n"), Missing("at most 500.0 W")),
        ("beyond any number", |t| t.write(INPUT, "9223372036854775808\n"), Missing("a whole number")),
        ("unknown", |t| t.write(INPUT, "unknown\n"), Missing("a whole number")),
        ("<unknown>", |t| t.write(INPUT, "<unknown>\n"), Missing("a whole number")),
        ("nan", |t| t.write(INPUT, "nan\n"), Missing("a whole number")),
        ("a unit", |t| t.write(INPUT, "230000000 uW\n"), Missing("a whole number")),
        ("nothing, as on ENODATA", |t| t.write(INPUT, ""), Missing("a whole number")),
        ("an endless file", |t| t.write(INPUT, &"2".repeat(70_000)), Missing("64 KiB")),
        ("EIO", |t| instead(t, INPUT, eio), Missing("os error 5")),
        ("ENXIO", |t| instead(t, INPUT, enxio), Missing("os error 6")),
        ("EISDIR", |t| instead(t, INPUT, |t, f| t.write(&format!("{f}/x"), "")), Missing("error 21")),
        ("ELOOP", |t| instead(t, INPUT, |t, f| t.link("power1_input", f)), Missing("os error 40")),
        ("its file is gone", |t| t.remove(INPUT), Missing("0 channels of lm25066")),
        ("its device is gone", |t| swapped(t, DEVICE, &[]), Missing("0 channels of lm25066")),
        ("the whole class is gone", |t| t.remove("sys"), Missing("sys/class/hwmon")),
        ("another number", |t| swapped(t, ITS_HWMON, &[(7, "40", 240)]), Value(240)),
        ("its number is another's", |t| swapped(t, ITS_HWMON, &[(1, "41", 90), (2, "40", 240)]), Value(240)),
        ("two instead", |t| swapped(t, DEVICE, &[(1, "41", 90), (2, "42", 90)]), Missing("0 channels of")),
        ("another driver", |t| t.write(DRIVER, "nvme\n"), Missing("0 channels of lm25066")),
        ("a neighbour is half gone", |t| t.link("nowhere", "sys/class/hwmon/hwmon0"), Value(230)),
    ];

    for (fault, inject, leads) in rows {
        let tree = Tree::new();
        hot_swap(&tree, 1, DEVICE, "230000000");
        let spec = MatchSpec { name: "lm25066".into(), label: Some("pin".into()) };
        let mut meter = PowerMeter::new(HwmonSensor::new(tree.root(), spec), MAX);
        check(fault, meter.sample(Instant::ZERO), Value(230));
        inject(&tree);

        for ms in 1..4 {
            check(fault, meter.sample(Instant::from_millis(ms)), *leads);
        }
    }
}

const PACKAGE: &str = "sys/class/powercap/intel-rapl:0";
const ENERGY: &str = "sys/class/powercap/intel-rapl:0/energy_uj";

fn package(tree: &Tree, range: &str) {
    tree.folder(PACKAGE, &[("name", "package-0"), ("max_energy_range_uj", range)]);
}

fn others_come(tree: &Tree) {
    tree.write(ENERGY, "40000000");
    for (zone, name) in
        [("intel-rapl:9", "psys"), ("intel-rapl:0:3", "core"), ("intel-rapl-mmio:0", "package-0")]
    {
        let files = [("name", name), ("energy_uj", "7"), ("max_energy_range_uj", "9")];
        tree.folder(&format!("sys/class/powercap/{zone}"), &files);
    }
}

#[test]
fn rapl() {
    // At first 100 W; the fault comes with the third read, 200 ms after the second.
    let rows: &[Row] = &[
        ("the counter stands still", |t| t.write(ENERGY, "20000000"), Missing("times in a row")),
        ("it is reset", |t| t.write(ENERGY, "0"), Missing("at most 500.0 W")),
        ("it jumps", |t| t.write(ENERGY, "20000000000"), Missing("at most 500.0 W")),
        ("it is beyond its range", |t| t.write(ENERGY, "262143328851"), Missing("max_energy_range_uj")),
        ("garbage", |t| t.write(ENERGY, "0x20\n"), Missing("microjoules")),
        ("negative", |t| t.write(ENERGY, "-1\n"), Missing("microjoules")),
        ("nothing", |t| t.write(ENERGY, ""), Missing("microjoules")),
        ("EIO", |t| instead(t, ENERGY, eio), Missing("os error 5")),
        ("the zone is gone", |t| t.remove(PACKAGE), Missing("os error 2")),
        ("psys and mmio and the cores come beside it", others_come, Value(100)),
    ];

    for (fault, inject, leads) in rows {
        let tree = Tree::new();
        package(&tree, "262143328850");
        tree.write(ENERGY, "0\n");
        let mut meter = PowerMeter::new(RaplSensor::new(tree.root(), Watts::ZERO, MAX), MAX);
        assert!(matches!(meter.sample(Instant::ZERO), Err(SensorError::Started)), "{fault}");
        tree.write(ENERGY, "20000000");
        check(fault, meter.sample(Instant::from_millis(200)), Value(100));
        inject(&tree);
        check(fault, meter.sample(Instant::from_millis(400)), *leads);
    }
}

#[test]
fn rapl_that_cannot_be_counted_is_refused_from_the_start() {
    let rows: &[Row] = &[
        ("no zones at all", |_| {}, Missing("package-N")),
        ("no package", |t| t.folder(PACKAGE, &[("name", "psys")]), Missing("package-N")),
        ("no name", |t| t.write(&format!("{PACKAGE}/x"), ""), Missing("name")),
        ("no range", |t| t.folder(PACKAGE, &[("name", "package-0")]), Missing("max_energy_range_uj")),
        ("a range of nothing", |t| package(t, "0"), Missing("more than 0 microjoules")),
    ];

    for (fault, inject, leads) in rows {
        let tree = Tree::new();
        inject(&tree);
        let mut meter = PowerMeter::new(RaplSensor::new(tree.root(), Watts::ZERO, MAX), MAX);

        for ms in 0..3 {
            check(fault, meter.sample(Instant::from_millis(ms)), *leads);
        }
    }
}

const SUPPLY: &str = "sys/class/hwmon/hwmon2";
const PIN: &str = "sys/class/hwmon/hwmon2/power1_input";

/// Draws so many microwatts and gives none.
fn carries(tree: &Tree, input: &str) {
    tree.folder(SUPPLY, &[("power1_input", input), ("power2_input", "0")]);
}

fn on_bus(tree: &Tree, address: &str, supply: &str) {
    let at = format!("sys/bus/i2c/devices/{address}");
    tree.write(&format!("{at}/x"), "");
    tree.link(&format!("../../../../{at}"), &format!("{supply}/device"));
}

/// Another supply of the same kind.
fn neighbour(tree: &Tree) {
    tree.folder("sys/class/hwmon/hwmon3", &[("name", "pmbus")]);
    on_bus(tree, "3-0059", "sys/class/hwmon/hwmon3");
}

#[test]
fn supplies() {
    use SupplyState::{Absent, Active, Failed, Standby, Unknown};
    let w = |watts| Some(Watts::from_whole(watts));
    type Row = (&'static str, fn(&Tree), SupplyState, Option<Watts>);
    let rows: &[Row] = &[
        ("nothing is drawn under load", |t| t.write(PIN, "0"), Active, None),
        ("less than nothing", |t| t.write(PIN, "-5"), Active, None),
        ("a hundred kilowatts", |t| t.write(PIN, "100000000001"), Active, None),
        ("garbage", |t| t.write(PIN, "n/a"), Unknown, None),
        ("EIO", |t| instead(t, PIN, eio), Unknown, None),
        ("its feed is lost", |t| (carries(t, "0"), t.folder(SUPPLY, &[("in1_input", "0")])).1, Failed, w(0)),
        ("it carries nothing", |t| carries(t, "4000000"), Standby, w(4)),
        ("it was pulled", |t| (t.remove(SUPPLY), neighbour(t)).1, Absent, w(0)),
        ("its driver is gone", |t| t.remove(SUPPLY), Unknown, None),
        ("its driver has changed", |t| t.folder(SUPPLY, &[("name", "nvme")]), Unknown, None),
    ];

    for (fault, inject, state, input) in rows {
        let tree = Tree::new();
        let files = [
            ("name", "pmbus"),
            ("power1_label", "pin"),
            ("power1_input", "500000000"),
            ("power2_label", "pout1"),
            ("power2_input", "460000000"),
            ("in1_label", "vin"),
            ("in1_input", "230000"),
        ];

        tree.folder(SUPPLY, &files);
        on_bus(&tree, "3-0058", SUPPLY);
        let name = "pmbus@3-0058";
        let mut supply = SupplyMeter::new(name, PmbusSupply::new(tree.root(), name));
        let good = Supply { state: Active, input: w(500) };
        assert_eq!(supply.poll(Instant::ZERO).0, good, "{fault}");
        inject(&tree);
        let read = supply.poll(Instant::from_millis(200)).0;
        assert_eq!(read, Supply { state: *state, input: *input }, "{fault}");
        let silent = input.is_none() && *state == Unknown;
        assert_eq!(silent || *state == Absent, supply.problem().is_some(), "{fault}");
    }
}
