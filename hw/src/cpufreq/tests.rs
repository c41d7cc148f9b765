//! What caps do, on a folder.

mod drivers;
mod faults;

use ballast_types::{CoreId, KiloHertz};

use super::*;
use crate::testing::Tree;

const P0: &str = "sys/devices/system/cpu/cpufreq/policy0";
const BASE: &str = "base_frequency";
const TABLE: &str = "scaling_available_frequencies";
const MAX: &str = "sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq";

fn mhz(n: u32) -> KiloHertz {
    KiloHertz::from_mhz(n)
}
fn tree() -> Tree {
    let tree = Tree::new();
    tree.policy(0);
    tree
}
fn found(tree: &Tree) -> Cpufreq {
    Cpufreq::discover(tree.root(), Floor::Half).unwrap()
}

#[test]
fn the_ladder_follows_what_the_driver_offers() {
    // (files beside the policy's own, floor, steps, top), in MHz
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str], u32, usize, u32);
    let cases: &[Case<'_>] = &[
        (&[], &[], 1200, 13, 2400),
        (&[("cpuinfo_min_freq", "1500000")], &[], 1500, 10, 2400),
        (&[("base_frequency", "2500000")], &[], 1300, 13, 2500),
        (&[], &["base_frequency"], 1800, 18, 3500),
        (&[("base_frequency", "9900000")], &[], 1800, 18, 3500),
        (&[("amd_pstate_lowest_nonlinear_freq", "1700000")], &[], 1700, 8, 2400),
        // EPYC under acpi-cpufreq: three p-states.
        (&[(TABLE, "2400000 1900000 1500000 "), ("cpuinfo_min_freq", "1500000")], &[BASE], 1500, 3, 2400),
        // Turbo as one entry 1 MHz above.
        (&[(TABLE, "2401000 2400000 1800000 1200000 1000000")], &[BASE], 1200, 3, 2400),
    ];

    for (files, removed, floor, len, top) in cases {
        let tree = tree();
        tree.folder(P0, files);
        for file in *removed {
            tree.remove(&format!("{P0}/{file}"));
        }
        let ladder = found(&tree).cores().remove(0).ladder;
        assert_eq!((ladder.floor(), ladder.len(), ladder.max()), (mhz(*floor), *len, mhz(*top)), "{files:?}");
    }
}

#[test]
fn nominal_frequency_stands_in_for_a_missing_base() {
    let tree = tree();
    tree.remove(&format!("{P0}/base_frequency"));
    let file = "sys/devices/system/cpu/cpu0/acpi_cppc/nominal_freq";
    tree.write(file, "2000\n");
    assert_eq!(found(&tree).cores()[0].ladder.max(), mhz(2000));
    tree.write(file, "0\n");
    assert_eq!(found(&tree).cores()[0].ladder.max(), mhz(3500));
}

#[test]
fn a_chosen_floor_is_kept_or_refused() {
    let tree = tree();
    let ladder = |floor| Cpufreq::discover(tree.root(), floor).map(|c| c.cores().remove(0).ladder);
    assert_eq!(ladder(Floor::At(mhz(1650))).unwrap().floor(), mhz(1700));
    assert_eq!(ladder(Floor::At(mhz(100))).unwrap().floor(), mhz(1000));
    assert!(ladder(Floor::At(mhz(2500))).is_err());
}

#[test]
fn every_file_missing_or_garbage_is_an_error_that_names_it() {
    for file in ["scaling_driver", "cpuinfo_min_freq", "cpuinfo_max_freq", "scaling_max_freq"] {
        let tree = tree();
        tree.remove(&format!("{P0}/{file}"));
        let e = Cpufreq::discover(tree.root(), Floor::Half).unwrap_err();
        assert!(e.to_string().contains(file), "{e}");
    }

    for file in ["cpuinfo_min_freq", "cpuinfo_max_freq", "scaling_max_freq", BASE, TABLE] {
        for bad in ["<unknown>", "-5", "0", "1e6", "99999999999", "2.4"] {
            let tree = tree();
            tree.write(&format!("{P0}/{file}"), bad);
            let e = Cpufreq::discover(tree.root(), Floor::Half).unwrap_err();
            assert!(e.to_string().contains(file) && e.to_string().contains("expected"), "{e}");
        }
    }

    let tree = Tree::new();
    assert!(Cpufreq::discover(tree.root(), Floor::Half).is_err());
    tree.write("sys/devices/system/cpu/cpufreq/boost", "1\n");
    assert!(Cpufreq::discover(tree.root(), Floor::Half).is_err());
}

#[test]
fn a_cap_outside_the_ladder_never_reaches_the_kernel() {
    let tree = tree();
    let mut cpufreq = found(&tree);
    for bad in [KiloHertz::new(0), KiloHertz::new(2400), mhz(1199), mhz(2401), KiloHertz::new(u32::MAX)] {
        assert!(cpufreq.set(CoreId(0), bad).is_err(), "{bad}");
    }
    assert!(cpufreq.set(CoreId(7), mhz(1200)).is_err());
    assert_eq!(tree.read(MAX), "3500000\n");
    cpufreq.set(CoreId(0), mhz(1200)).unwrap();
    assert_eq!(tree.read(MAX), "1200000\n");
    assert_eq!(cpufreq.read_back(CoreId(0)).unwrap(), mhz(1200));
}

#[test]
fn a_release_puts_back_what_was_there() {
    for (before, written) in
        [("3500000", "2147483647\n"), ("2147483647", "2147483647\n"), ("2000000", "2000000\n")]
    {
        let tree = tree();
        tree.write(MAX, before);
        let mut cpufreq = found(&tree);
        cpufreq.set(CoreId(0), mhz(1300)).unwrap();
        cpufreq.release(CoreId(0)).unwrap();
        assert_eq!(tree.read(MAX), written, "{before}");
    }
}

#[test]
fn a_core_that_we_did_not_cap_is_left_to_others() {
    let tree = tree();
    let mut cpufreq = found(&tree);
    tree.write(MAX, "1800000\n");
    cpufreq.release(CoreId(0)).unwrap();
    assert_eq!(tree.read(MAX), "1800000\n");
    // Once released, it is theirs again.
    cpufreq.set(CoreId(0), mhz(1300)).unwrap();
    cpufreq.release(CoreId(0)).unwrap();
    tree.write(MAX, "1800000\n");
    cpufreq.release(CoreId(0)).unwrap();
    assert_eq!(tree.read(MAX), "1800000\n");
}

#[test]
fn a_cap_never_lifts_a_limit_of_somebody_else() {
    let tree = tree();
    tree.write(MAX, "1500000");
    let mut cpufreq = found(&tree);
    cpufreq.set(CoreId(0), mhz(2400)).unwrap();
    assert_eq!(tree.read(MAX), "1500000\n");
}

#[test]
fn a_restart_adopts_caps_and_never_takes_one_for_the_original() {
    // (value found, listed as capped, value after release)
    for (now, capped, after) in [
        ("1200000", Some(1200), "2147483647\n"),
        ("2400000", Some(2400), "2147483647\n"),
        ("3500000", None, "3500000"),
        // A stronger limit than ours ever is: ours may be hidden behind it.
        ("1000000", Some(1200), "2147483647\n"),
    ] {
        let tree = tree();
        let saved = found(&tree).originals();
        tree.write(MAX, now);
        let mut cpufreq = found(&tree);
        let expected: Vec<_> = capped.map(|m| (CoreId(0), mhz(m))).into_iter().collect();
        assert_eq!(cpufreq.adopt(&saved).unwrap(), expected, "{now}");
        cpufreq.release(CoreId(0)).unwrap();
        assert_eq!(tree.read(MAX), after, "{now}");
    }
}

/// `cpuinfo_max_freq` rises when boost is switched on: then the old one would be a limit.
#[test]
fn a_boost_between_two_instances_is_not_limited_for_good() {
    for (before, journalled, after) in
        [("3500000", "2147483647", "2147483647\n"), ("2000000", "2000000", "2000000\n")]
    {
        let tree = tree();
        tree.write(MAX, before);
        let saved = found(&tree).originals();
        assert_eq!(saved.max_khz[&CoreId(0)].get().to_string(), journalled);
        tree.write(MAX, "1200000");
        tree.write(&format!("{P0}/cpuinfo_max_freq"), "4200000\n");
        let mut cpufreq = found(&tree);
        assert_eq!(cpufreq.adopt(&saved).unwrap(), [(CoreId(0), mhz(1200))]);
        assert_eq!(cpufreq.originals(), saved);
        cpufreq.release(CoreId(0)).unwrap();
        assert_eq!(tree.read(MAX), after);
    }
}

#[test]
fn an_adopted_cap_behind_heat_is_still_ours_when_that_ends() {
    // (shown once the heat is over, alarmed as raised, value after release)
    for (shown, raised, after) in
        [("1000000", 0, "2147483647\n"), ("1200000", 0, "2147483647\n"), ("2400000", 0, "2147483647\n")]
    {
        let tree = tree();
        let saved = found(&tree).originals();
        tree.write(MAX, "1000000");
        let mut cpufreq = found(&tree);
        cpufreq.adopt(&saved).unwrap();
        tree.write(MAX, shown);

        for _ in 0..4 {
            let _ = cpufreq.apply_readback(cpufreq.plan_readback(true).read());
        }
        assert_eq!(cpufreq.foreign_writes, raised, "{shown}");
        cpufreq.release(CoreId(0)).unwrap();
        assert_eq!(tree.read(MAX), after, "{shown}");
    }
}

#[test]
fn another_driver_or_a_foreign_raise_is_not_adopted() {
    let tree = tree();
    tree.write(MAX, "2000000");
    let saved = found(&tree).originals();
    tree.write(MAX, "2400000");
    let mut cpufreq = found(&tree);
    assert!(cpufreq.adopt(&saved).unwrap().is_empty());
    assert_eq!(cpufreq.originals().max_khz[&CoreId(0)], mhz(2400));

    let other = CpufreqOriginals { driver: "acpi-cpufreq".into(), ..saved };
    tree.write(MAX, "1200000");
    assert!(found(&tree).adopt(&other).unwrap().is_empty());
}

/// A scan some time after the last write; whether what is put back has changed.
fn scan(cpufreq: &mut Cpufreq, tree: &Tree) -> bool {
    for policy in cpufreq.clocks.iter_mut().flat_map(|clock| &mut clock.policies) {
        policy.wrote = None;
    }
    let scan = cpufreq.plan_scan().read(tree.root()).unwrap();
    let changed = cpufreq.apply_scan(scan);
    let Some(new) = changed.new_originals else { return false };
    cpufreq.allow_new_caps(new.journal(|_| Ok::<_, ()>(())).unwrap());
    true
}
/// What a cap and its release leave.
fn put_back(cpufreq: &mut Cpufreq, tree: &Tree) -> String {
    let floor = cpufreq.cores()[0].ladder.floor();
    cpufreq.set(CoreId(0), floor).unwrap();
    cpufreq.release(CoreId(0)).unwrap();
    tree.read(MAX).trim().to_owned()
}
const NONE: &str = "2147483647";

#[test]
fn a_limit_of_firmware_or_heat_at_the_start_is_not_put_back_as_the_users() {
    let cooled = |kind: &str, state: &str| {
        let tree = tree();
        tree.folder("sys/class/thermal/cooling_device3", &[("type", kind), ("cur_state", state)]);
        tree
    };
    let limited = |tree: Tree, khz: &str| {
        tree.write(MAX, khz);
        put_back(&mut found(&tree), &tree)
    };

    let bios = tree();
    bios.folder(P0, &[("bios_limit", "2000000")]);
    assert_eq!(limited(bios, "2000000"), NONE);
    // 80 % of 3.5 GHz, and the third step of a table.
    assert_eq!(limited(cooled("Processor", "1"), "2800000"), NONE);
    let table = cooled("cpufreq-cpu0", "2");
    table.folder(P0, &[(TABLE, "1500000 3500000 2000000 2400000")]);
    assert_eq!(limited(table, "2000000"), NONE);

    // The user's own, whatever firmware and heat do above it.
    let bios = tree();
    bios.folder(P0, &[("bios_limit", "3000000")]);
    assert_eq!(limited(bios, "2000000"), "2000000");
    for (kind, state) in [("Processor", "1"), ("Processor", "0"), ("intel_powerclamp", "1"), ("Fan", "2")] {
        assert_eq!(limited(cooled(kind, state), "2000000"), "2000000", "{kind} {state}");
    }
}

#[test]
fn what_is_put_back_follows_the_user_while_nothing_is_capped() {
    let tree = tree();
    tree.write(MAX, "1800000");
    let mut cpufreq = found(&tree);

    // It was heat that nobody told of, and has gone: seen twice, so that no late write counts.
    tree.write(MAX, "3500000");
    assert_eq!((scan(&mut cpufreq, &tree), scan(&mut cpufreq, &tree)), (false, true));
    assert!(!scan(&mut cpufreq, &tree));
    assert_eq!(put_back(&mut cpufreq, &tree), NONE);

    // The user lowers it; and then firmware goes below, which is not taken.
    tree.write(MAX, "2200000");
    assert_eq!((scan(&mut cpufreq, &tree), scan(&mut cpufreq, &tree)), (false, true));
    tree.folder(P0, &[("bios_limit", "1500000")]);
    tree.write(MAX, "1500000");
    assert_eq!((scan(&mut cpufreq, &tree), scan(&mut cpufreq, &tree)), (false, false));
    assert_eq!(put_back(&mut cpufreq, &tree), "2200000");

    // Turbo that is switched off is nobody's limit.
    tree.remove(&format!("{P0}/bios_limit"));
    tree.write(MAX, "3500000");
    assert_eq!((scan(&mut cpufreq, &tree), scan(&mut cpufreq, &tree)), (false, true));
    tree.folder(P0, &[("cpuinfo_max_freq", "2400000"), ("scaling_max_freq", "2400000")]);
    assert_eq!((scan(&mut cpufreq, &tree), scan(&mut cpufreq, &tree)), (false, false));
}

#[test]
fn what_our_own_caps_show_is_never_taken_for_the_users() {
    let tree = tree();
    let mut cpufreq = found(&tree);
    cpufreq.set(CoreId(0), mhz(1300)).unwrap();
    assert_eq!((scan(&mut cpufreq, &tree), scan(&mut cpufreq, &tree)), (false, false), "while it is on");
    cpufreq.release(CoreId(0)).unwrap();

    // The kernel is late: it shows the cap after its release.
    tree.write(MAX, "1300000");
    for _ in 0..3 {
        let scan = cpufreq.plan_scan().read(tree.root()).unwrap();
        assert!(cpufreq.apply_scan(scan).new_originals.is_none());
    }
    assert_eq!(put_back(&mut cpufreq, &tree), NONE);
}
