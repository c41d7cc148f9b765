use super::*;
use crate::testing::Tree;

const PKG: &str = "sys/class/powercap/intel-rapl:0";
const DRAM: &str = "sys/class/powercap/intel-rapl:0:0";
const PSYS: &str = "sys/class/powercap/intel-rapl:1";

fn tree() -> Tree {
    let tree = Tree::new();
    for (dir, name) in [
        (PKG, "package-0"),
        (DRAM, "dram"),
        ("sys/class/powercap/intel-rapl:0:1", "core"),
        (PSYS, "psys"),
        ("sys/class/powercap/intel-rapl-mmio:0", "package-0"),
    ] {
        tree.folder(
            dir,
            &[("name", name), ("energy_uj", "1000000"), ("max_energy_range_uj", "262143328850")],
        );
    }
    tree
}
fn meter(tree: &Tree) -> RaplMeter {
    RaplMeter::find(tree.root(), Watts::from_whole(500)).unwrap()
}
fn energy(tree: &Tree, dir: &str, uj: u64) {
    tree.write(&format!("{dir}/energy_uj"), &format!("{uj}\n"));
}

/// A look at the counters: when, what package and memory show then, and what comes of it.
type Look = (u64, u64, u64, Energy);

/// Looks at the counters of a meter that has started at this number of the package's.
fn looks(what: &str, start: u64, all: &[Look]) {
    let tree = tree();
    energy(&tree, PKG, start);
    let mut meter = meter(&tree);
    assert_eq!(meter.sample(Instant::ZERO).unwrap(), Energy::Started, "{what}");
    for (ms, package, memory, expected) in all {
        energy(&tree, PKG, *package);
        energy(&tree, DRAM, *memory);
        energy(&tree, PSYS, 99_000_000 + ms);
        let found = meter.sample(Instant::from_millis(*ms)).unwrap();
        assert_eq!(found, *expected, "{what}: {ms} ms");
    }
}

#[test]
fn what_counters_say() {
    use Energy::Stale;
    let power = |watts| Energy::Power(Watts::from_whole(watts));
    let (m, range) = (1_000_000, 262_143_328_850);

    looks("package and memory over time", m, &[(200, 41 * m, 5 * m, power(220))]);
    looks("a counter may wrap once", range - 9_999_999, &[(200, 10 * m, m, power(100))]);

    // The next real difference is spread over the whole time.
    looks("stale, and never zero watts", m, &[(200, m, m, Stale), (400, 41 * m, m, power(100))]);

    // A memory counter that never moved counts nothing, and one that stops is stale.
    let stops = [(200, 21 * m, m, power(100)), (400, 41 * m, 2 * m, power(105)), (600, 61 * m, 2 * m, Stale)];
    looks("memory", m, &stops);
}

#[test]
fn implausible_differences_and_long_gaps_are_refused() {
    let tree = tree();
    let mut meter = meter(&tree);
    meter.sample(Instant::ZERO).unwrap();
    energy(&tree, PKG, 201_000_000);
    let implausible = Energy::Implausible(Watts::from_whole(1000));
    assert_eq!(meter.sample(Instant::from_millis(200)).unwrap(), implausible);
    // A reset looks like a wrap, and is implausible too.
    energy(&tree, PKG, 5);
    assert!(matches!(meter.sample(Instant::from_millis(400)).unwrap(), Energy::Implausible(_)));
    // After 524 s at 500 W the counter may have wrapped twice.
    energy(&tree, PKG, 9_000_000);
    assert_eq!(meter.sample(Instant::from_millis(600_000)).unwrap(), Energy::Started);
}

#[test]
fn every_file_missing_or_garbage_is_an_error_that_names_it() {
    for bad in ["", "-1", "x", "99999999999999999999999", "262143328851"] {
        let tree = tree();
        let mut meter = meter(&tree);
        tree.write(&format!("{PKG}/energy_uj"), bad);
        assert!(meter.sample(Instant::ZERO).unwrap_err().to_string().contains("energy_uj"), "{bad:?}");
    }

    for file in ["name", "max_energy_range_uj"] {
        let tree = tree();
        tree.remove(&format!("{PKG}/{file}"));
        let e = RaplMeter::find(tree.root(), Watts::from_whole(500)).unwrap_err();
        assert!(e.to_string().contains(file), "{e}");
    }

    let tree = tree();
    tree.write(&format!("{PKG}/max_energy_range_uj"), "0");
    assert!(RaplMeter::find(tree.root(), Watts::from_whole(500)).is_err());
    assert!(RaplMeter::find(Tree::new().root(), Watts::from_whole(500)).is_err());
}

#[test]
fn a_package_that_vanishes_is_missed_and_never_left_out() {
    let tree = tree();
    const SECOND: &str = "sys/class/powercap/intel-rapl:2";
    let second = |uj: &str| {
        tree.folder(
            SECOND,
            &[("name", "package-1"), ("energy_uj", uj), ("max_energy_range_uj", "262143328850")],
        );
    };

    second("1000000");
    let mut meter = meter(&tree);
    let mut now = 0;
    let mut uj = 1_000_000;
    let mut sample = |both: bool| {
        (now, uj) = (now + 10_000, uj + 500_000_000);
        energy(&tree, PKG, uj);
        if both {
            second(&uj.to_string());
        }
        meter.sample(Instant::from_millis(now))
    };

    assert_eq!(sample(true).unwrap(), Energy::Started);
    assert_eq!(sample(true).unwrap(), Energy::Power(Watts::from_whole(100)));
    tree.remove(SECOND);

    // For ever, and not only until the zones are looked for again.
    for _ in 0..9 {
        assert!(sample(false).unwrap_err().is_missing());
    }
    assert!(matches!(sample(true), Ok(Energy::Power(_))), "it is back");
}

#[test]
fn a_package_that_comes_later_is_counted() {
    let tree = tree();
    let mut meter = meter(&tree);
    meter.sample(Instant::ZERO).unwrap();
    let zone = "sys/class/powercap/intel-rapl:2";
    let second = [("name", "package-1"), ("energy_uj", "0"), ("max_energy_range_uj", "262143328850")];
    tree.folder(zone, &second);
    energy(&tree, PKG, 2_000_000);
    assert!(matches!(meter.sample(Instant::from_millis(10_000)), Ok(Energy::Power(_))));
    energy(&tree, PKG, 3_000_000);
    assert_eq!(meter.sample(Instant::from_millis(31_000)).unwrap(), Energy::Started);
    energy(&tree, PKG, 53_000_000);
    energy(&tree, zone, 70_000_000);
    let watts = Watts::from_whole(120);
    assert_eq!(meter.sample(Instant::from_millis(32_000)).unwrap(), Energy::Power(watts));
}

#[test]
fn amd_has_packages_and_cores_and_only_the_packages_count() {
    let tree = Tree::new();
    for (dir, name) in [("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core")] {
        let files = [("name", name), ("energy_uj", "0"), ("max_energy_range_uj", "65532610987")];
        tree.folder(&format!("sys/class/powercap/{dir}"), &files);
    }
    let mut meter = meter(&tree);
    meter.sample(Instant::ZERO).unwrap();
    energy(&tree, PKG, 30_000_000);
    energy(&tree, DRAM, 20_000_000);
    let watts = Watts::from_whole(150);
    assert_eq!(meter.sample(Instant::from_millis(200)).unwrap(), Energy::Power(watts));
}

#[test]
fn a_package_that_is_there_twice_counts_once_with_its_memory() {
    let tree = tree();
    let twice = [("intel-rapl:5", "package-0"), ("intel-rapl:5:0", "dram")];
    for (dir, name) in twice {
        let files = [("name", name), ("energy_uj", "0"), ("max_energy_range_uj", "262143328850")];
        tree.folder(&format!("sys/class/powercap/{dir}"), &files);
    }
    let meter = meter(&tree);
    let dirs: Vec<_> = meter.zones.iter().map(|c| c.zone.dir.clone()).collect();
    assert_eq!(dirs, [tree.root().path(PKG), tree.root().path(DRAM)]);
}

#[test]
fn what_root_alone_may_read_is_told_with_its_remedy() {
    let denied = HwError::io(Path::new("/e"), Operation::Read, "x", Errno::EACCES.into());
    let told = remedied(denied).to_string();
    assert!(told.contains("CAP_DAC_READ_SEARCH"), "{told}");
    let other = HwError::io(Path::new("/e"), Operation::Read, "x", Errno::EIO.into());
    assert!(!remedied(other).to_string().contains("root"));
}
