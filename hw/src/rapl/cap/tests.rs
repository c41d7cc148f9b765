use super::*;
use crate::testing::Tree;

const FLOOR: Watts = Watts::from_whole(100);
const LONG: &str = "constraint_1_power_limit_uw";
const SHORT: &str = "constraint_0_power_limit_uw";

fn dir(package: usize) -> String {
    format!("sys/class/powercap/intel-rapl:{package}")
}
fn tree() -> Tree {
    let tree = Tree::new();
    for package in 0..2 {
        tree.folder(
            &dir(package),
            &[
                ("name", &format!("package-{package}")),
                ("enabled", "1"),
                ("constraint_0_name", "short_term"),
                (SHORT, "200000000"),
                ("constraint_0_time_window_us", "2440"),
                ("constraint_0_max_power_uw", "0"),
                ("constraint_1_name", "long_term"),
                (LONG, "165000000"),
                ("constraint_1_time_window_us", "999424"),
                ("constraint_1_max_power_uw", "165000000"),
                ("constraint_2_name", "peak_power"),
                ("constraint_2_power_limit_uw", "400000000"),
            ],
        );
    }

    tree
}
fn cap(tree: &Tree) -> RaplCap {
    RaplCap::find(tree.root(), FLOOR).unwrap().unwrap()
}
fn read(tree: &Tree, file: &str) -> [String; 2] {
    [0, 1].map(|p| tree.read(&format!("{}/{file}", dir(p))).trim().to_owned())
}
/// Every file of both packages.
fn all(tree: &Tree) -> Vec<[String; 2]> {
    ["enabled", SHORT, LONG, "constraint_1_time_window_us", "constraint_2_power_limit_uw"]
        .map(|file| read(tree, file))
        .into()
}
fn swallow(tree: &Tree, file: &str) {
    tree.remove(file);
    std::os::unix::fs::symlink("/dev/null", tree.root().path(file)).unwrap();
}

#[test]
fn each_package_gets_its_part_within_floor_and_maximum() {
    for (watts, long, short) in [
        (240, "120000000", "120000000"),
        (60, "50000000", "50000000"),
        (-5, "50000000", "50000000"),
        (0, "50000000", "50000000"),
        (9999, "165000000", "165000000"),
    ] {
        let tree = tree();
        let before = all(&tree);
        let mut cap = cap(&tree);
        let original = cap.read().unwrap();
        cap.set(Watts::from_whole(watts), &original).unwrap();
        assert_eq!(read(&tree, LONG), [long, long], "{watts}");
        assert_eq!(read(&tree, SHORT), [short, short], "{watts}");
        let now = cap.read().unwrap();
        assert_eq!(RaplCap::is_on(&now, &original), watts < 330);
        cap.put_back(&original).unwrap();
        assert_eq!(all(&tree), before);
        assert!(!RaplCap::is_on(&cap.read().unwrap(), &original));
    }
}

/// One row: what a package has before (file, text), and what a limit of 120 W each becomes there.
#[test]
fn traps_of_the_registers() {
    let max = "constraint_1_max_power_uw";
    for (file, text, expected) in [
        (max, "0", "120000000"),
        (max, "100000000", "100000000"),
        (LONG, "110000000", "110000000"),
        (LONG, "0", "120000000"),
        // More than a register holds, from a firmware that says so.
        (max, "99999000000", "120000000"),
        (LONG, "4294967295000000", "120000000"),
    ] {
        let tree = tree();
        tree.write(&format!("{}/{file}", dir(0)), text);
        let mut cap = cap(&tree);
        let original = cap.read().unwrap();
        cap.set(Watts::from_whole(240), &original).unwrap();
        assert_eq!(read(&tree, LONG), [expected, "120000000"], "{file} = {text}");
    }
}

/// What was there and what is there now, in watts (0: none) and whether switched on; whether ours is on.
#[test]
fn a_limit_of_0_is_none_before_and_now() {
    let tree = tree();
    let states = |(watts, enabled): (u64, bool)| {
        let mut cap = cap(&tree);
        let mut state = cap.read().unwrap();
        let zone = state.get_mut("package-0").unwrap();
        (zone.limit_uw, zone.enabled) = (watts * 1_000_000, enabled);

        state
    };

    for (was, now, is_on) in [
        ((165, true), (165, true), false),
        ((165, true), (80, true), true),
        ((0, true), (0, true), false),
        ((0, true), (80, true), true),
        ((165, true), (0, true), false),
        ((165, false), (80, true), true),
        ((0, false), (80, true), true),
        ((165, false), (165, false), false),
    ] {
        assert_eq!(RaplCap::is_on(&states(now), &states(was)), is_on, "{was:?} {now:?}");
    }
}

#[test]
fn a_floor_that_would_be_masked_is_refused() {
    let tree = tree();
    for floor in [Watts::ZERO, Watts::from_milli(100), Watts::from_milli(1_999), Watts::from_whole(9_000)] {
        assert!(RaplCap::find(tree.root(), floor).is_err(), "{floor}");
    }
}

#[test]
fn a_limit_that_was_disabled_is_disabled_again() {
    let tree = tree();
    tree.write(&format!("{}/enabled", dir(0)), "0\n");
    let before = all(&tree);
    let mut cap = cap(&tree);
    let original = cap.read().unwrap();
    cap.set(Watts::from_whole(240), &original).unwrap();
    assert_eq!(read(&tree, "enabled"), ["1", "1"]);
    assert!(RaplCap::is_on(&cap.read().unwrap(), &original));
    cap.put_back(&original).unwrap();
    assert_eq!(all(&tree), before);
}

#[test]
fn the_next_instance_puts_back_what_was_written_down_and_the_window_too() {
    let tree = tree();
    let before = all(&tree);
    let mut first = cap(&tree);
    let saved = serde_json::to_string(&first.read().unwrap()).unwrap();
    let original = serde_json::from_str(&saved).unwrap();
    first.set(Watts::from_whole(200), &original).unwrap();
    // As hardware that loses the window with the limit.
    tree.write(&format!("{}/constraint_1_time_window_us", dir(1)), "27983872\n");
    cap(&tree).put_back(&original).unwrap();
    assert_eq!(all(&tree), before);
    // A package that was not there before is left alone.
    cap(&tree).put_back(&BTreeMap::new()).unwrap();
}

#[test]
fn a_journal_without_windows_is_understood() {
    let old: RaplCapOriginal = serde_json::from_str(r#"{"limit_uw":165000000,"enabled":true}"#).unwrap();
    assert_eq!((old.limit_uw, old.window_us, old.short_uw), (165_000_000, None, None));
}

/// One row: a file that swallows every write, as a locked register does; whether a limit can be set and
/// put back all the same.
#[test]
fn what_does_not_take_is_an_error_that_names_its_file() {
    for (file, settable) in [(LONG, false), (SHORT, true)] {
        let tree = tree();
        let mut cap = cap(&tree);
        let original = cap.read().unwrap();
        swallow(&tree, &format!("{}/{file}", dir(0)));
        let set = cap.set(Watts::from_whole(240), &original);
        assert_eq!(set.is_ok(), settable, "{file}: {set:?}");
        // What is in force there cannot be told; the other package is put back all the same.
        let error = cap.put_back(&original).unwrap_err();
        assert!(error.reason.contains(&format!("{}/{file}", dir(0))), "{error}");
        assert_eq!(tree.read(&format!("{}/{LONG}", dir(1))), "165000000\n");
    }
}

#[test]
fn a_locked_register_is_told_from_other_refusals() {
    let file = Path::new("/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw");
    for (errno, says) in [(nix::errno::Errno::ENODATA, "BIOS"), (nix::errno::Errno::EROFS, "writable")] {
        let error = HwError::io(file, Operation::Write, "a writable file", errno.into());
        assert!(locked(error).to_string().contains(says), "{errno}");
    }
}

#[test]
fn a_put_back_of_what_was_never_set_writes_nothing() {
    let tree = tree();
    let file = format!("{}/{LONG}", dir(0));
    tree.write(&file, "165000000");
    let mut cap = cap(&tree);
    let original = cap.read().unwrap();
    cap.put_back(&original).unwrap();
    // A write would have ended in a newline.
    assert_eq!(tree.read(&file), "165000000");
}

#[test]
fn without_constraints_there_is_no_limit() {
    let tree = Tree::new();
    assert!(RaplCap::find(tree.root(), FLOOR).unwrap().is_none());
    tree.folder(&dir(0), &[("name", "package-0"), ("enabled", "1")]);
    assert!(RaplCap::find(tree.root(), FLOOR).unwrap().is_none());
}

#[test]
fn garbage_is_an_error_that_names_its_file() {
    for (file, bad) in [
        ("enabled", "maybe"),
        ("enabled", ""),
        (LONG, "-1"),
        (SHORT, "x"),
        ("constraint_1_max_power_uw", "x"),
        ("constraint_1_time_window_us", "1 s"),
    ] {
        let tree = tree();
        tree.write(&format!("{}/{file}", dir(1)), bad);
        let e = RaplCap::find(tree.root(), FLOOR).unwrap_err();
        assert!(e.to_string().contains(file), "{e}");
    }
}

#[test]
fn a_cap_of_a_previous_instance_is_no_maximum() {
    let tree = tree();
    for package in 0..2 {
        tree.write(&format!("{}/constraint_1_max_power_uw", dir(package)), "0");
    }
    let mut before = cap(&tree);
    let original = before.read().unwrap();
    before.set(Watts::from_whole(120), &original).unwrap();
    let mut next = cap(&tree);
    next.set(Watts::from_whole(240), &original).unwrap();
    assert_eq!(read(&tree, LONG), ["120000000", "120000000"]);
    assert_eq!(read(&tree, SHORT), ["120000000", "120000000"]);
}
