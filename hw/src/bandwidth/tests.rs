//! Quotas on folders that look like cgroups.

use super::*;
use crate::CpuMax;
use crate::systemd::testing::Mock;
use crate::testing::Tree;

const DIR: &str = "sys/fs/cgroup/machine.slice/b.scope";
const FILE: &str = "sys/fs/cgroup/machine.slice/b.scope/cpu.max";
const PATH: &str = "machine.slice/b.scope";
const PERIOD: Duration = Duration::from_millis(20);

fn tree(cpu_max: &str) -> Tree {
    let tree = Tree::new();
    tree.folder(DIR, &[("cpu.max", cpu_max), ("cpu.max.burst", "0")]);
    tree
}
fn vm() -> VmId {
    VmId::new("b").unwrap()
}
fn known(tree: &Tree) -> Bandwidth {
    let mut bandwidth = Bandwidth::new(tree.root(), PERIOD);
    bandwidth.know(&vm(), PATH, 4).unwrap();
    bandwidth
}

#[test]
fn a_quota_is_set_and_what_was_there_is_put_back() {
    for before in ["max 100000", "300000 100000"] {
        let tree = tree(before);
        let mut bandwidth = known(&tree);
        bandwidth.set(&vm(), 2000).unwrap();
        assert_eq!(tree.read(FILE), "40000 20000\n");
        bandwidth.set(&vm(), 1500).unwrap();
        assert_eq!(tree.read(FILE), "30000 20000\n");
        assert_eq!(bandwidth.originals()[PATH].limit.to_string(), before);
        bandwidth.release(&vm()).unwrap();
        assert_eq!(tree.read(FILE).trim(), before);
    }
}

#[test]
fn of_a_power_cap_and_a_recommendation_the_lower_is_in_force_and_the_original_below_both() {
    for (before, millicores) in [("max 100000", u32::MAX), ("120000 100000", 1200)] {
        let tree = tree(before);
        let mut bandwidth = known(&tree);
        let (mut cap, mut recommended) = (None, None);
        for (is_cap, value) in [
            (false, Some(3000)),
            (true, Some(2000)),
            (true, Some(500)),
            (false, Some(1000)),
            (true, None),
            (true, Some(1500)),
            (false, None),
            (false, Some(4000)),
            (true, None),
            (false, None),
        ] {
            match (is_cap, value) {
                (true, Some(value)) => bandwidth.set(&vm(), value).unwrap(),
                (true, None) => bandwidth.release(&vm()).unwrap(),
                (false, value) => bandwidth.recommend(&vm(), value).unwrap(),
            }
            *(if is_cap { &mut cap } else { &mut recommended }) = value;
            let now: CpuMax = tree.read(FILE).trim().parse().unwrap();
            let lowest = [cap, recommended].into_iter().flatten().min().unwrap_or(u32::MAX).min(millicores);
            assert_eq!(now.millicores().unwrap_or(u32::MAX), lowest, "{cap:?} {recommended:?} {before}");
            assert_eq!(bandwidth.originals()[PATH].limit.to_string(), before);
        }
        bandwidth.recommend(&vm(), Some(100)).unwrap();
        bandwidth.set(&vm(), 50).unwrap();
        assert!(bandwidth.release_all().is_empty());
        assert_eq!(tree.read(FILE).trim(), before);
    }
}

#[test]
fn a_stricter_limit_of_the_operator_is_never_raised() {
    let tree = tree("100000 100000");
    let mut bandwidth = known(&tree);
    bandwidth.set(&vm(), 2000).unwrap();
    assert_eq!(tree.read(FILE).trim(), "100000 100000");
    bandwidth.set(&vm(), 500).unwrap();
    bandwidth.set(&vm(), 2000).unwrap();
    assert_eq!(tree.read(FILE).trim(), "100000 100000");
    assert!(bandwidth.release_all().is_empty());
    assert_eq!(tree.read(FILE).trim(), "100000 100000");
}

#[test]
fn a_foreign_value_is_told_of_and_left() {
    let tree = tree("max 100000");
    let mut bandwidth = known(&tree);
    bandwidth.set(&vm(), 2000).unwrap();
    assert!(!bandwidth.look() && bandwidth.alarms().is_empty());
    tree.write(FILE, "70000 100000\n");
    assert!(!bandwidth.look(), "the original is what it was");
    let alarms = bandwidth.alarms().remove(0).message;
    assert!(alarms.contains("cpu.max: \"70000 100000\" is there, not \"40000 20000\""), "{alarms}");
    let e = bandwidth.set(&vm(), 1500).unwrap_err();
    assert!(e.to_string().contains("somebody else") && !e.is_transient(), "{e}");
    bandwidth.release(&vm()).unwrap();
    assert_eq!((&*tree.read(FILE), bandwidth.alarms().len()), ("70000 100000\n", 0));

    // It is the original from now on.
    bandwidth.set(&vm(), 500).unwrap();
    bandwidth.release(&vm()).unwrap();
    assert_eq!(tree.read(FILE).trim(), "70000 100000");

    // A value of ours that comes back is ours again.
    bandwidth.set(&vm(), 500).unwrap();
    tree.write(FILE, "max 100000\n");
    bandwidth.look();
    tree.write(FILE, "10000 20000\n");
    bandwidth.look();
    assert!(bandwidth.alarms().is_empty());
    bandwidth.set(&vm(), 600).unwrap();
}

#[test]
fn a_limit_that_changes_while_none_of_ours_is_on_becomes_the_original() {
    let tree = tree("max 100000");
    let mut bandwidth = known(&tree);
    tree.write(FILE, "300000 100000\n");
    assert!(bandwidth.look() && !bandwidth.look());
    assert_eq!(bandwidth.originals()[PATH].limit.time().unwrap().quota_us, Some(300_000));
    // Even if nobody has looked.
    tree.write(FILE, "200000 100000\n");
    bandwidth.set(&vm(), 1000).unwrap();
    bandwidth.release(&vm()).unwrap();
    assert_eq!(tree.read(FILE).trim(), "200000 100000");
}

#[test]
fn a_vm_that_ended_is_done_and_one_that_starts_anew_gets_its_quota_again() {
    let tree = tree("max 100000");
    let mut bandwidth = known(&tree);
    bandwidth.set(&vm(), 1000).unwrap();
    tree.remove(DIR);
    bandwidth.set(&vm(), 800).unwrap();
    bandwidth.release(&vm()).unwrap();
    bandwidth.set(&vm(), 1000).unwrap();
    // The old folder's inode must not be used again at once.
    tree.write("other/x", "");
    tree.folder(DIR, &[("cpu.max", "max 50000")]);
    assert!(bandwidth.look());
    assert_eq!(tree.read(FILE).trim(), "max 50000", "not before it is on disk");
    bandwidth.settle();
    assert_eq!(tree.read(FILE).trim(), "20000 20000");
    assert!(bandwidth.release_all().is_empty());
    assert_eq!(tree.read(FILE).trim(), "max 50000");
    bandwidth.set(&VmId::new("nobody").unwrap(), 5).unwrap();
}

#[test]
fn a_quota_moves_with_its_vm() {
    let tree = tree("max 100000");
    tree.folder("sys/fs/cgroup/n.scope", &[("cpu.max", "max 30000")]);
    let mut bandwidth = known(&tree);
    bandwidth.set(&vm(), 1000).unwrap();
    bandwidth.know(&vm(), PATH, 2).unwrap();
    assert_eq!(bandwidth.originals()[PATH].cores, 2);
    bandwidth.know(&vm(), "n.scope", 4).unwrap();
    assert_eq!(tree.read(FILE).trim(), "max 100000");
    bandwidth.settle();
    assert_eq!(tree.read("sys/fs/cgroup/n.scope/cpu.max"), "20000 20000\n");
    bandwidth.forget(&vm()).unwrap();
    assert_eq!(tree.read("sys/fs/cgroup/n.scope/cpu.max").trim(), "max 30000");
    assert!(bandwidth.originals().is_empty());
}

#[test]
fn a_group_without_bandwidth_control_or_with_bursts_is_refused_by_name() {
    let missing = tree("max 100000");
    missing.remove(FILE);
    let burst = tree("max 100000");
    burst.write(&format!("{DIR}/cpu.max.burst"), "5000\n");
    let garbage = tree("lots");
    let gone = Tree::new();
    for (tree, says) in [
        (&missing, "cgroup.subtree_control"),
        (&burst, "cpu.max.burst"),
        (&garbage, "\"max\" or a quota"),
        (&gone, "b.scope"),
    ] {
        let mut bandwidth = Bandwidth::new(tree.root(), PERIOD);
        let e = bandwidth.know(&vm(), PATH, 4).unwrap_err();
        assert!(e.to_string().contains(says), "{e}");
        assert!(bandwidth.originals().is_empty());
    }
}

#[test]
fn a_restart_adopts_its_quotas_and_nobody_elses() {
    // (found, adopted as, after release)
    for (now, adopted, after) in [
        ("40000 20000", Some(2000), "300000 100000"),
        ("300000 100000", None, "300000 100000"),
        ("max 100000", None, "max 100000"),
    ] {
        let tree = tree("300000 100000");
        let saved = known(&tree).originals();
        tree.write(FILE, now);
        let mut bandwidth = Bandwidth::new(tree.root(), PERIOD);
        let found = bandwidth.adopt(&saved);
        let expected: Vec<_> = adopted.map(|m| (vm(), 4, m)).into_iter().collect();
        assert_eq!(found, expected, "{now}");

        // The VM is configured as before, or not at all any more.
        for known in [true, false] {
            tree.write(FILE, now);
            let mut bandwidth = Bandwidth::new(tree.root(), PERIOD);
            bandwidth.adopt(&saved);

            if known {
                bandwidth.know(&vm(), PATH, 4).unwrap();
            }
            bandwidth.release(&vm()).unwrap();
            assert_eq!(tree.read(FILE).trim(), after, "{now} {known}");
            assert_eq!(bandwidth.originals().len(), usize::from(known));
        }
    }

    let saved = known(&tree("max 100000")).originals();
    assert_eq!(Bandwidth::new(Tree::new().root(), PERIOD).adopt(&saved), []);
}

#[test]
fn a_file_that_cannot_be_read_stays_journalled_until_it_is_put_back() {
    type Again = fn(&mut Bandwidth) -> Result<(), HwError>;
    let renamed = VmId::new("c").unwrap();
    let again: [(&str, Again); 5] = [
        ("known", |it| it.know(&vm(), PATH, 4)),
        ("known by another name", |it| it.know(&VmId::new("c").unwrap(), PATH, 4)),
        ("forgotten", |it| it.forget(&vm())),
        ("released", |it| it.release(&vm())),
        ("all released", |it| it.release_all().pop().map_or(Ok(()), Err)),
    ];

    for (what, again) in again {
        let tree = tree("300000 100000");
        tree.folder("sys/fs/cgroup/n.scope", &[("cpu.max", "20000 20000")]);
        let mut saved = known(&tree).originals();
        let other = QuotaOriginal { vm: VmId::new("n").unwrap(), ..saved[PATH].clone() };
        saved.insert("n.scope".to_owned(), other.clone());
        tree.write(FILE, "garbage");
        let mut bandwidth = Bandwidth::new(tree.root(), PERIOD);
        assert_eq!(bandwidth.adopt(&saved), [(other.vm, 4, 1000)], "the other is adopted");
        assert_eq!(bandwidth.originals(), saved, "{what}");
        let error = again(&mut bandwidth).unwrap_err();
        assert!(error.to_string().contains("found \"garbage\""), "{what}: {error}");
        assert_eq!(bandwidth.originals().get(PATH), saved.get(PATH), "{what}");
        tree.write(FILE, "40000 20000");
        again(&mut bandwidth).unwrap();
        assert_eq!(tree.read(FILE).trim(), "300000 100000", "{what}");
        let now = bandwidth.originals().remove(PATH).map(|it| it.vm);
        let expected = match what {
            "known" => Some(vm()),
            "known by another name" => Some(renamed.clone()),
            _ => None,
        };

        assert_eq!(now, expected, "{what}");
    }
}

/// The same group as a unit of systemd's, which is told.
fn unit(tree: &Tree) -> (Mock, Bandwidth) {
    let systemd = Mock::start(tree.root());
    systemd.unit(PATH);
    let through = Through::Systemd(Systemd::start(tree.root()).unwrap());
    let mut bandwidth = Bandwidth::new(tree.root(), PERIOD).through(through);
    bandwidth.know(&vm(), PATH, 4).unwrap();
    (systemd, bandwidth)
}

#[test]
fn a_unit_is_limited_through_systemd_and_no_file_is_written() {
    let tree = Tree::new();
    let (systemd, mut bandwidth) = unit(&tree);
    bandwidth.set(&vm(), 2000).unwrap();
    assert_eq!(tree.read(FILE), "40000 20000\n");
    let told = ["b.scope CPUQuotaPeriodUSec=20000", "b.scope CPUQuotaPerSecUSec=2000000"];
    assert_eq!(systemd.log(), told);
    assert_eq!(bandwidth.originals()[PATH].unit.as_deref(), Some("b.scope"));
    // A reload writes the same again: nothing to tell of.
    assert!(!bandwidth.look() && bandwidth.alarms().is_empty());
    bandwidth.release(&vm()).unwrap();
    assert_eq!(tree.read(FILE), "max 100000\n");
    assert_eq!((systemd.get("b.scope").quota, systemd.get("b.scope").period), (None, None));
    assert!(tree.written().is_empty());
}

#[test]
fn a_unit_that_stops_or_starts_anew_is_put_back_all_the_same() {
    let tree = Tree::new();
    let (systemd, mut bandwidth) = unit(&tree);
    bandwidth.set(&vm(), 2000).unwrap();

    // Its next life is born with what systemd was told: that is not its original.
    let dir = tree.root().path(DIR);
    std::fs::rename(&dir, tree.root().path("ended")).unwrap();
    tree.folder(DIR, &[("cpu.max", "40000 20000")]);
    assert!(!bandwidth.look());
    bandwidth.set(&vm(), 1500).unwrap();
    assert_eq!(tree.read(FILE), "30000 20000\n");
    tree.remove(DIR);
    bandwidth.release(&vm()).unwrap();
    assert_eq!(systemd.get("b.scope").quota, None);

    // The same by the next life of the agent, which writes files.
    for stopped in [false, true] {
        let tree = Tree::new();
        let (systemd, mut bandwidth) = unit(&tree);
        bandwidth.set(&vm(), 2000).unwrap();
        let saved = bandwidth.originals();

        if stopped {
            tree.remove(DIR);
        }
        let mut next = Bandwidth::new(tree.root(), PERIOD);
        assert_eq!(next.adopt(&saved).len(), usize::from(!stopped));
        assert!(next.release_all().is_empty());
        assert_eq!(systemd.get("b.scope").quota, None, "stopped: {stopped}");
    }
}

#[test]
fn what_systemd_does_late_is_not_taken_for_somebody_elses() {
    let tree = Tree::new();
    let (systemd, mut bandwidth) = unit(&tree);
    systemd.slow(crate::systemd::DEADLINE + Duration::from_millis(100));
    let e = bandwidth.set(&vm(), 2000).unwrap_err();
    assert!(e.is_transient(), "{e}");
    systemd.slow(Duration::ZERO);

    for _ in 0..6_000 {
        if tree.read(FILE) == "40000 20000\n" {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }

    assert_eq!(tree.read(FILE), "40000 20000\n");
    bandwidth.look();
    assert!(bandwidth.alarms().is_empty(), "{:?}", bandwidth.alarms());
    bandwidth.set(&vm(), 1500).unwrap();
    assert!(bandwidth.release_all().is_empty());
    assert_eq!(tree.read(FILE), "max 100000\n");
}

#[test]
fn what_systemd_may_still_do_is_undone() {
    let tree = Tree::new();
    let (systemd, mut bandwidth) = unit(&tree);
    systemd.slow(crate::systemd::DEADLINE + Duration::from_millis(100));
    bandwidth.set(&vm(), 2000).unwrap_err();
    systemd.slow(Duration::ZERO);
    // Nothing of ours shows yet, unless this machine is slow.
    assert!((0..9).any(|_| bandwidth.release_all().is_empty()));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(systemd.get("b.scope").quota, None);
    assert_eq!(tree.read(FILE).trim(), "max 100000");
}

#[test]
fn who_owns_a_group_is_asked_or_it_is_left() {
    let tree = tree("max 100000");
    std::fs::create_dir_all(tree.root().path("run/systemd/system")).unwrap();
    let files = |even_units| Bandwidth::new(tree.root(), PERIOD).through(Through::Files { even_units });
    let e = files(false).know(&vm(), PATH, 4).unwrap_err();
    assert!(e.to_string().contains("groups.by = \"systemd\""), "{e}");
    files(true).know(&vm(), PATH, 4).unwrap();
    let mut systemd =
        Bandwidth::new(tree.root(), PERIOD).through(Through::Systemd(Systemd::start(tree.root()).unwrap()));
    let e = systemd.know(&vm(), "vms/b", 4).unwrap_err();
    assert!(e.to_string().contains("groups.by = \"cgroup\""), "{e}");
}

const CLAMP: &str = "sys/fs/cgroup/machine.slice/b.scope/cpu.uclamp.max";

fn clamps(tree: &Tree) -> Bandwidth {
    Bandwidth::clamps(tree.root(), ClampScale::of("6.12", 2_400_000, 2_400_000))
}

#[test]
fn a_clamp_is_set_and_what_was_there_is_put_back_even_by_who_limits_time() {
    for (before, half) in [("max", "50.00"), ("80.00", "50.00"), ("30.00", "30.00")] {
        let tree = tree("max 100000");
        tree.write(CLAMP, before);
        let mut bandwidth = clamps(&tree);
        bandwidth.know(&vm(), PATH, 4).unwrap();
        bandwidth.set(&vm(), 2000).unwrap();
        assert_eq!(tree.read(CLAMP).trim(), half, "never looser than {before}");
        let saved = bandwidth.originals();
        assert_eq!(saved[PATH].limit.to_string(), before);

        // The next instance is told of it and goes on from there.
        let mut next = clamps(&tree);
        let told = next.adopt(&saved);
        let is_ours = before != half;
        assert_eq!(told.len(), usize::from(is_ours), "{told:?}");
        for (_, cores, millicores) in told {
            assert_eq!(
                Kind::Frequency(ClampScale::of("6.12", 1, 1)).limit(millicores, cores).to_string(),
                half
            );
        }
        assert!(next.release_all().is_empty());
        assert_eq!(tree.read(CLAMP).trim(), before);

        // One that limits time puts it back, and tells nobody of thousandths of another kind.
        let mut another = clamps(&tree);
        another.know(&vm(), PATH, 4).unwrap();
        another.set(&vm(), 2000).unwrap();
        let mut next = Bandwidth::new(tree.root(), PERIOD);
        assert_eq!(next.adopt(&saved), []);
        assert!(next.release_others().is_empty());
        assert_eq!(tree.read(CLAMP).trim(), before);
        next.know(&vm(), PATH, 4).unwrap();
        next.set(&vm(), 2000).unwrap();
        assert_eq!((&*tree.read(FILE), tree.read(CLAMP).trim()), ("40000 20000\n", before));
    }
}

#[test]
fn somebody_elses_clamp_is_told_of_and_left() {
    let tree = tree("max 100000");
    tree.write(CLAMP, "max");
    let mut bandwidth = clamps(&tree);
    bandwidth.know(&vm(), PATH, 4).unwrap();
    bandwidth.set(&vm(), 2000).unwrap();
    tree.write(CLAMP, "70.00");
    assert!(!bandwidth.look());
    let [alarm] = &bandwidth.alarms()[..] else { panic!("{:?}", bandwidth.alarms()) };
    assert!(alarm.message.contains("\"70.00\" is there, not \"50.00\""), "{}", alarm.message);
    assert!(bandwidth.set(&vm(), 1000).is_err());
    assert!(bandwidth.release_all().is_empty());
    assert_eq!(tree.read(CLAMP), "70.00");
}

#[test]
fn a_kernel_without_clamps_is_told_by_the_file() {
    let tree = tree("max 100000");
    let error = clamps(&tree).know(&vm(), PATH, 4).unwrap_err().to_string();
    assert!(
        error.contains("b.scope/cpu.uclamp.max") && error.contains("a group with cpu.uclamp.max"),
        "{error}"
    );
}
