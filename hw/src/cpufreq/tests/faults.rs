//! What real kernels do to caps, and what comes of it.
//!
//! The machine has two cores with two threads each, and a policy per thread: 0 and 4, 1 and 5.

use Errno::{EACCES, EAGAIN, EBUSY, EINVAL, EIO, ENODATA, ENODEV, EPERM, EROFS};
use nix::errno::Errno;

use ballast_types::CoreId;

use super::super::*;
use super::mhz;
use crate::error::Operation::{Read, Write};
use crate::testing::Tree;

const CPU: &str = "sys/devices/system/cpu";
const ONLINE: &str = "sys/devices/system/cpu/online";
const FREE: &str = "2147483647";
const CAP: &str = "1200000";

struct Bench {
    tree: Tree,
    cpufreq: Cpufreq,
}

/// What a scan found changed: CPUs, originals, and whether another scan is due.
#[derive(Debug, Default, PartialEq)]
struct Scanned {
    cpus: bool,
    originals: bool,
    unsettled: bool,
}

fn of(policy: u16, file: &str) -> String {
    format!("{CPU}/cpufreq/policy{policy}/{file}")
}
fn max(policy: u16) -> String {
    of(policy, "scaling_max_freq")
}
fn online(tree: &Tree, cpus: &str) {
    tree.write(&format!("{CPU}/online"), &format!("{cpus}\n"));
}
fn siblings(tree: &Tree, cpu: u16, list: &str) {
    tree.write(&format!("{CPU}/cpu{cpu}/topology/thread_siblings_list"), &format!("{list}\n"));
}
/// Every file of a policy answers as if its CPUs were offline.
fn offline(tree: &Tree, policy: u16, errno: Errno) {
    for file in ["scaling_max_freq", "scaling_driver", "related_cpus", "cpuinfo_min_freq"] {
        tree.fail(&of(policy, file), Read, errno);
        tree.fail(&of(policy, file), Write, errno);
    }
}
fn back(tree: &Tree, policy: u16) {
    for file in ["scaling_max_freq", "scaling_driver", "related_cpus", "cpuinfo_min_freq"] {
        tree.heal(&of(policy, file));
    }
}
/// These CPUs are left online, and these policies are away.
fn leave(tree: &Tree, cpus: &str, away: &[u16]) {
    online(tree, cpus);
    away.iter().for_each(|policy| offline(tree, *policy, EBUSY));
}
/// Every CPU is online again, with these policies.
fn come_back(tree: &Tree, policies: &[u16]) {
    online(tree, "0-1,4-5");
    policies.iter().for_each(|policy| back(tree, *policy));
}

fn machine() -> Tree {
    let tree = Tree::new();
    online(&tree, "0-1,4-5");
    for cpu in [0, 1, 4, 5] {
        tree.policy(cpu);
        siblings(&tree, cpu, &format!("{},{}", cpu % 4, cpu % 4 + 4));
    }
    tree
}

impl Bench {
    fn of(tree: Tree) -> Self {
        let cpufreq = Cpufreq::discover(tree.root(), Floor::Half).unwrap();
        Self { tree, cpufreq }
    }
    /// Core 0 is capped, and that was seen.
    fn capped() -> Self {
        let mut bench = Self::of(machine());
        bench.cpufreq.set(CoreId(0), mhz(1200)).unwrap();
        assert_eq!(bench.turn(), None);
        bench.tree.written();
        bench
    }
    /// One turn of whoever looks after caps; what a scan found, if there was one.
    fn turn(&mut self) -> Option<Scanned> {
        let readback = self.cpufreq.plan_readback(true).read();
        let judged = self.cpufreq.apply_readback(readback);
        let scanned = matches!(judged, Judged::Unsure(_)).then(|| self.scan());
        self.push();
        scanned
    }
    fn scan(&mut self) -> Scanned {
        let mut changed = self.take_in();
        let scanned = Scanned {
            cpus: changed.cpus,
            originals: changed.new_originals.is_some(),
            unsettled: changed.unsettled,
        };
        self.journal(&mut changed);
        self.release_unwanted(changed);
        scanned
    }
    /// A scan after which nothing was journalled yet.
    fn take_in(&mut self) -> Changed {
        let scan = self.cpufreq.plan_scan().read(self.tree.root()).unwrap();
        self.cpufreq.apply_scan(scan)
    }
    fn journal(&mut self, changed: &mut Changed) {
        if let Some(new) = changed.new_originals.take() {
            let journalled = new.journal(|_| Ok::<_, ()>(())).unwrap();
            self.cpufreq.allow_new_caps(journalled);
        }
    }
    fn release_unwanted(&mut self, changed: Changed) {
        changed.unwanted.into_iter().for_each(|cap| self.cpufreq.release_unwanted(cap));
    }
    fn push(&mut self) {
        let due = self.cpufreq.plan_rewrites(watch::MayRewrite(()));
        let lifted: Vec<_> = due.into_iter().map(|cap| self.cpufreq.lift(cap)).collect();
        lifted.into_iter().for_each(|cap| self.cpufreq.rewrite(cap));
    }
    /// What policy 0 shows.
    fn shows(&self) -> String {
        self.tree.read(&max(0)).trim().to_owned()
    }
    /// Everything written to a policy since last asked.
    fn writes(&self, policy: u16) -> Vec<String> {
        let mine = |(file, value): (String, String)| (file == max(policy)).then_some(value);
        self.tree.written().into_iter().filter_map(mine).collect()
    }
}

/// Whether a cap could be set.
#[derive(Debug, PartialEq)]
enum Set {
    Done,
    Transient,
    Permanent,
}

#[test]
fn what_a_write_may_answer() {
    use Set::{Done, Permanent, Transient};
    type Row = (&'static str, fn(&Tree), Set);

    // Fault of policy 0 while core 0 is capped; what the controller is told.
    let rows: [Row; 15] = [
        ("no fault", |_| {}, Done),
        ("EBUSY, CPU offline", |t| (online(t, "1,4-5"), t.fail(&max(0), Write, EBUSY)).1, Done),
        ("ENODEV, CPU offline", |t| (online(t, "1,4-5"), t.fail(&max(0), Write, ENODEV)).1, Done),
        ("folder gone, CPU offline", |t| (online(t, "1,4-5"), t.remove(&of(0, ""))).1, Done),
        ("EBUSY, CPU online", |t| t.fail(&max(0), Write, EBUSY), Transient),
        ("EBUSY, who is online is unknown", |t| (t.remove(ONLINE), t.fail(&max(0), Write, EBUSY)).1, Done),
        ("EAGAIN: the driver is being switched", |t| t.fail(&max(0), Write, EAGAIN), Transient),
        ("ENODEV, CPU online", |t| t.fail(&max(0), Write, ENODEV), Permanent),
        ("folder gone, CPU online", |t| t.remove(&of(0, "")), Permanent),
        ("EACCES", |t| t.fail(&max(0), Write, EACCES), Permanent),
        ("EPERM", |t| t.fail(&max(0), Write, EPERM), Permanent),
        ("EROFS: a sandbox", |t| t.fail(&max(0), Write, EROFS), Permanent),
        ("ENODATA", |t| t.fail(&max(0), Write, ENODATA), Permanent),
        ("EIO", |t| t.fail(&max(0), Write, EIO), Permanent),
        ("EINVAL", |t| t.fail(&max(0), Write, EINVAL), Permanent),
    ];

    for (what, fault, told) in rows {
        let mut bench = Bench::of(machine());
        fault(&bench.tree);
        let set = match bench.cpufreq.set(CoreId(0), mhz(1200)) {
            Ok(()) => Done,
            Err(e) if e.is_transient() => Transient,
            Err(_) => Permanent,
        };

        assert_eq!(set, told, "{what}");
        assert_eq!(bench.tree.read(&max(4)).trim(), CAP, "{what}: the sibling is capped anyhow");

        // Whatever was, it can be released once mended, and nothing is left.
        bench.tree.policy(0);
        bench.tree.heal(&max(0));
        online(&bench.tree, "0-1,4-5");
        bench.scan();
        bench.push();
        assert!(bench.cpufreq.release_all().is_empty(), "{what}");
        assert_eq!((bench.shows(), bench.tree.read(&max(4)).trim()), (FREE.into(), FREE), "{what}");
    }
}

#[test]
fn an_old_kernel_that_refuses_a_maximum_below_the_minimum_is_named() {
    let mut bench = Bench::of(machine());
    bench.tree.write(&of(0, "scaling_min_freq"), "1500000\n");
    bench.tree.fail(&max(0), Write, EINVAL);
    let e = bench.cpufreq.set(CoreId(0), mhz(1200)).unwrap_err();
    assert!(e.to_string().contains("at least scaling_min_freq, 1500000 kHz"), "{e}");
}

/// What comes of a fault on a core that is capped: what policy 0 shows after four turns; how many cores are
/// raised, limited and offline, and how often a cap was raised; what policy 0 shows after the release.
type Fate = (&'static str, (u16, u16, u16, u64), &'static str);

fn always_raised(b: &mut Bench) {
    b.tree.write(&max(0), "3500000\n");
    b.tree.shows(&max(0), "3500000");
}
fn cap_comes_late(b: &mut Bench) {
    b.tree.ignores(&max(0));
    b.cpufreq.set(CoreId(0), mhz(1300)).unwrap();
    b.turn();
    b.turn();
    b.tree.write(&max(0), "1300000\n");
}
fn cap_is_clamped(b: &mut Bench) {
    b.tree.shows(&max(0), "1500000");
    b.cpufreq.set(CoreId(0), mhz(1300)).unwrap();
}
fn cap_between(b: &mut Bench) {
    let readback = b.cpufreq.plan_readback(true).read();
    b.cpufreq.set(CoreId(0), mhz(2000)).unwrap();
    let _ = b.cpufreq.apply_readback(readback);
    b.cpufreq.set(CoreId(0), mhz(1200)).unwrap();
}

#[test]
fn what_may_happen_to_a_cap_in_force() {
    type Row = (&'static str, fn(&mut Bench), Fate);
    let rows: [Row; 17] = [
        ("nothing", |_| {}, (CAP, (0, 0, 0, 0), FREE)),
        ("rounded by the driver", |b| b.tree.write(&max(0), "1199000\n"), ("1199000", (0, 0, 0, 0), FREE)),
        ("raised once", |b| b.tree.write(&max(0), "3500000\n"), (CAP, (0, 0, 0, 1), FREE)),
        ("boost switched: overwritten", |b| b.tree.write(&max(0), "2147483647\n"), (CAP, (0, 0, 0, 1), FREE)),
        ("raised whenever written", always_raised, ("3500000", (1, 0, 0, 2), "3500000")),
        ("lowered", |b| b.tree.write(&max(0), "1000000\n"), ("1000000", (0, 1, 0, 0), FREE)),
        ("below every p-state", |b| b.tree.write(&max(0), "400000\n"), ("400000", (0, 1, 0, 0), FREE)),
        ("garbage", |b| b.tree.write(&max(0), "<unknown>\n"), ("<unknown>", (0, 0, 0, 0), FREE)),
        ("empty", |b| b.tree.write(&max(0), ""), ("", (0, 0, 0, 0), FREE)),
        ("zero", |b| b.tree.write(&max(0), "0\n"), ("0", (0, 0, 0, 0), FREE)),
        ("EIO when read", |b| b.tree.fail(&max(0), Read, EIO), (CAP, (0, 0, 0, 0), FREE)),
        ("ENODATA when read", |b| b.tree.fail(&max(0), Read, ENODATA), (CAP, (0, 0, 0, 0), FREE)),
        ("EACCES when read", |b| b.tree.fail(&max(0), Read, EACCES), (CAP, (0, 0, 0, 0), FREE)),
        ("a cap that comes late", cap_comes_late, ("1300000", (0, 0, 0, 0), "1300000")),
        ("a cap that is clamped", cap_is_clamped, ("1500000", (1, 0, 0, 1), "1500000")),
        ("the machine slept", |b| b.cpufreq.resumed(), (CAP, (0, 0, 0, 0), FREE)),
        ("another cap before the look", cap_between, (CAP, (0, 0, 0, 0), FREE)),
    ];

    for (what, fault, (shown, (raised, limited, offline, times), released)) in rows {
        let mut bench = Bench::capped();
        fault(&mut bench);
        for _ in 0..4 {
            bench.turn();
        }
        assert_eq!(bench.shows(), shown, "{what}");
        let status = bench.cpufreq.status();
        let seen = (status.raised, status.limited, status.offline, status.foreign_writes);
        assert_eq!(seen, (raised, limited, offline, times), "{what}");
        assert_eq!(bench.cpufreq.alarms().len(), usize::from(raised), "{what}");
        bench.cpufreq.release(CoreId(0)).unwrap();
        assert_eq!(bench.shows(), released, "{what}");
        assert_eq!(bench.tree.read(&max(4)).trim(), FREE, "{what}");
        assert_eq!(bench.tree.read(&max(1)).trim(), "3500000", "{what}: the other core is not touched");
    }
}

#[test]
fn a_competing_writer_is_not_fought_and_keeps_what_it_wrote() {
    let mut bench = Bench::capped();
    for _ in 0..10 {
        bench.tree.write(&max(0), "3000000\n");
        bench.turn();
        bench.turn();
    }

    // Three times written anew: released first, because an equal value does nothing.
    assert_eq!(bench.writes(0), [FREE, CAP, FREE, CAP, FREE, CAP]);
    let alarms = bench.cpufreq.alarms();
    assert!(alarms[0].message.contains("policy0") && alarms[0].message.contains("gives up"), "{alarms:?}");

    // The controller's next step is written, once.
    bench.cpufreq.set(CoreId(0), mhz(1300)).unwrap();
    assert_eq!(bench.shows(), "1300000");
    bench.turn();
    bench.tree.write(&max(0), "3000000\n");
    bench.turn();
    bench.cpufreq.release(CoreId(0)).unwrap();
    assert_eq!(bench.shows(), "3000000");
    assert!(bench.cpufreq.alarms().is_empty());
}

#[test]
fn after_sleep_every_cap_is_taken_off_and_written_again() {
    let mut bench = Bench::capped();
    bench.cpufreq.resumed();
    bench.turn();
    assert_eq!(bench.writes(4), [FREE, CAP]);
    assert!(bench.writes(1).is_empty());
    bench.turn();
    assert!(bench.tree.written().is_empty());
}

#[test]
fn a_core_that_goes_is_no_failure_and_comes_back_capped() {
    let mut bench = Bench::capped();
    leave(&bench.tree, "1,5", &[0, 4]);
    let changed = bench.turn().expect("a look finds the policies away");
    assert_eq!(changed, Scanned { cpus: true, ..Scanned::default() });
    assert!(bench.cpufreq.domains()[0].cpus.is_empty());
    assert_eq!(bench.cpufreq.status().offline, 1);
    assert_eq!(bench.turn(), None, "and then it is known");
    bench.cpufreq.set(CoreId(0), mhz(1300)).unwrap();

    come_back(&bench.tree, &[0]);
    let changed = bench.scan();
    assert!(changed.cpus && changed.unsettled, "policy 4 is not back yet: {changed:?}");
    back(&bench.tree, 4);
    assert!(!bench.scan().unsettled);
    bench.tree.written();
    bench.push();
    assert_eq!(bench.writes(0), [FREE, "1300000"]);
    assert_eq!(bench.tree.read(&max(4)).trim(), "1300000");
    assert_eq!(bench.cpufreq.domains()[0].cpus.to_string(), "0,4");
}

#[test]
fn what_is_released_while_it_is_away_is_released_when_it_is_back() {
    let mut bench = Bench::capped();
    leave(&bench.tree, "0-1,5", &[4]);
    bench.cpufreq.release(CoreId(0)).unwrap();
    assert_eq!(bench.shows(), FREE);
    let left = bench.cpufreq.release_all();
    assert!(left.len() == 1 && left[0].contains("policy4") && left[0].contains("offline"), "{left:?}");
    come_back(&bench.tree, &[4]);
    bench.scan();
    assert_eq!(bench.tree.read(&max(4)).trim(), FREE);
    assert!(bench.cpufreq.release_all().is_empty());
}

#[test]
fn a_release_that_is_refused_is_tried_again() {
    let mut bench = Bench::capped();
    bench.tree.fail(&max(0), Write, EROFS);
    assert!(bench.cpufreq.release(CoreId(0)).is_err());
    assert_eq!(bench.tree.read(&max(4)).trim(), FREE, "the sibling is released anyhow");
    // What shall be released is not written anew, come what may.
    bench.tree.heal(&max(0));
    bench.cpufreq.resumed();
    bench.turn();
    assert!(!bench.cpufreq.capped() && bench.writes(0).is_empty());
    bench.tree.fail(&max(0), Write, EROFS);
    assert!(bench.cpufreq.release(CoreId(0)).is_err());
    bench.tree.heal(&max(0));
    bench.cpufreq.release(CoreId(0)).unwrap();
    assert_eq!(bench.shows(), FREE);
}

#[test]
fn a_sibling_that_comes_later_is_capped_with_its_core() {
    let tree = machine();
    leave(&tree, "0-1,5", &[4]);
    siblings(&tree, 0, "0");
    tree.remove(&format!("{CPU}/cpu4/topology"));
    let mut bench = Bench::of(tree);
    assert_eq!(bench.cpufreq.domains()[0].cpus.to_string(), "0");
    bench.cpufreq.set(CoreId(0), mhz(1200)).unwrap();

    come_back(&bench.tree, &[4]);
    siblings(&bench.tree, 0, "0,4");
    let changed = bench.scan();
    assert_eq!(changed, Scanned { cpus: true, originals: true, unsettled: false });
    assert_eq!(bench.tree.read(&max(4)).trim(), "3500000", "not before it is journalled");
    assert!(bench.cpufreq.originals().max_khz.contains_key(&CoreId(4)));
    bench.push();
    assert_eq!(bench.tree.read(&max(4)).trim(), CAP);
    bench.cpufreq.release(CoreId(0)).unwrap();
    assert_eq!(bench.tree.read(&max(4)).trim(), FREE);
}

/// Write-ahead: whatever the controller wants meanwhile, what came is capped once its original is on disk.
#[test]
fn what_came_is_not_capped_before_it_is_journalled() {
    let came = |capped: bool| {
        let tree = machine();
        leave(&tree, "0-1,5", &[4]);
        let mut bench = Bench::of(tree);

        if capped {
            bench.cpufreq.set(CoreId(0), mhz(1300)).unwrap();
        }
        come_back(&bench.tree, &[4]);
        let changed = bench.take_in();
        assert!(changed.new_originals.is_some());
        bench.release_unwanted(changed);
        bench
    };

    for capped in [true, false] {
        let mut bench = came(capped);
        bench.cpufreq.set(CoreId(0), mhz(1200)).unwrap();
        bench.push();
        bench.turn();
        assert_eq!(bench.tree.read(&max(4)).trim(), "3500000", "capped before: {capped}");
        let mut changed = bench.take_in();
        assert!(changed.new_originals.is_some(), "it goes on asking");
        bench.journal(&mut changed);
        bench.push();
        assert_eq!(bench.tree.read(&max(4)).trim(), CAP);
        assert!(bench.take_in().new_originals.is_none());

        // What is released before it was journalled was never touched.
        let mut bench = came(capped);
        bench.tree.written();
        bench.cpufreq.set(CoreId(0), mhz(1200)).unwrap();
        bench.cpufreq.release(CoreId(0)).unwrap();
        assert!(bench.writes(4).is_empty());
    }

    // The same where another driver came.
    let mut bench = Bench::capped();

    for policy in [0, 1, 4, 5] {
        bench.tree.write(&of(policy, "scaling_driver"), "intel_cpufreq\n");
        bench.tree.write(&max(policy), "3500000\n");
    }

    let mut changed = bench.take_in();
    assert!(changed.new_originals.is_some());
    bench.cpufreq.set(CoreId(1), mhz(1200)).unwrap();
    bench.push();
    assert!(bench.writes(0).is_empty() && bench.writes(1).is_empty());
    bench.journal(&mut changed);
    bench.push();
    assert_eq!((bench.shows(), bench.tree.read(&max(1)).trim()), (CAP.into(), CAP));
}

/// What the control thread wants between two calls of the one who looks after caps.
#[test]
fn whatever_is_asked_for_between_two_writes_is_what_comes_of_it() {
    type Row = (&'static str, fn(&mut Cpufreq), &'static str);
    let rows: [Row; 3] = [
        ("nothing", |_| {}, CAP),
        ("another cap", |it| it.set(CoreId(0), mhz(1500)).unwrap(), "1500000"),
        ("none", |it| it.release(CoreId(0)).unwrap(), FREE),
    ];

    for (what, wanted, shows) in rows {
        for between in 0..4 {
            let mut bench = Bench::capped();
            bench.cpufreq.resumed();
            let due = bench.cpufreq.plan_rewrites(watch::MayRewrite(()));
            assert_eq!(due.len(), 2, "both threads");
            let mut lifted = vec![];

            for (n, cap) in due.into_iter().enumerate() {
                (n == between).then(|| wanted(&mut bench.cpufreq));
                lifted.push(bench.cpufreq.lift(cap));
            }

            for (n, cap) in lifted.into_iter().enumerate() {
                (n + 2 == between).then(|| wanted(&mut bench.cpufreq));
                bench.cpufreq.rewrite(cap);
            }

            let shown = [0, 4].map(|policy| bench.tree.read(&max(policy)).trim().to_owned());
            assert_eq!(shown, [shows, shows], "{what} before write {between}");
        }
    }

    // What came back and is to be let go is wanted again.
    let mut bench = Bench::capped();
    leave(&bench.tree, "0-1,5", &[4]);
    bench.cpufreq.release(CoreId(0)).unwrap();
    come_back(&bench.tree, &[4]);
    let changed = bench.take_in();
    assert_eq!(changed.unwanted.len(), 1);
    bench.cpufreq.set(CoreId(0), mhz(1200)).unwrap();
    bench.release_unwanted(changed);
    assert_eq!(bench.tree.read(&max(4)).trim(), CAP);
}

/// Core 1 is offline at start; it is a core as any other when it comes.
#[test]
fn a_core_that_comes_later_is_capped_as_any_other() {
    for (present, control, cores) in [
        (Some("0-5"), None, [0, 1, 2, 3, 5].as_slice()),
        (Some("0-5"), Some("on"), &[0, 1, 2, 3, 5]),
        // What is offline are siblings.
        (Some("0-5"), Some("off"), &[0]),
        (None, None, &[0]),
    ] {
        let tree = machine();
        online(&tree, "0,4");
        for cpu in [1, 5] {
            offline(&tree, cpu, EBUSY);
            tree.remove(&format!("{CPU}/cpu{cpu}/topology"));
        }

        if let Some(present) = present {
            tree.write(&format!("{CPU}/present"), present);
        }
        if let Some(control) = control {
            tree.write(&format!("{CPU}/smt/control"), control);
        }
        let mut bench = Bench::of(tree);
        bench.cpufreq = bench.cpufreq.with_offline().unwrap();
        let ids = |cpufreq: &Cpufreq| cpufreq.domains().iter().map(|domain| domain.id.0).collect::<Vec<_>>();
        assert_eq!(ids(&bench.cpufreq), cores, "{present:?} {control:?}");
        let status = bench.cpufreq.status();
        assert_eq!((status.cores, status.offline), (1, 0), "what never was is not counted");

        if cores.len() == 1 {
            continue;
        }
        assert_eq!(bench.cpufreq.cores()[1].ladder, bench.cpufreq.cores()[0].ladder);
        bench.cpufreq.set(CoreId(1), mhz(1200)).unwrap();

        // It comes, with another range, and CPU 5 is its sibling.
        online(&bench.tree, "0-1,4-5");

        for cpu in [1, 5] {
            back(&bench.tree, cpu);
            siblings(&bench.tree, cpu, "1,5");
            bench.tree.write(&of(cpu, "base_frequency"), "3000000\n");
        }

        bench.tree.write("sys/devices/system/node/node0/cpulist", "0,4\n");
        bench.tree.write("sys/devices/system/node/node1/cpulist", "1,5\n");
        let changed = bench.scan();
        assert!(changed.cpus && changed.originals && !changed.unsettled, "{changed:?}");
        let came = &bench.cpufreq.domains()[1];
        assert_eq!((came.cpus.to_string().as_str(), came.node), ("1,5", 1));
        let nobody = bench.cpufreq.domains().iter().filter(|domain| domain.cpus.is_empty());
        assert_eq!(nobody.map(|domain| domain.id.0).collect::<Vec<_>>(), [2, 3, 5]);
        let status = bench.cpufreq.status();
        assert_eq!((status.cores, status.offline), (2, 0));
        bench.push();
        assert_eq!(bench.tree.read(&max(1)).trim(), "1500000", "its own floor");
        bench.cpufreq.set(CoreId(1), mhz(1800)).unwrap();
        assert_eq!(bench.tree.read(&max(5)).trim(), "1800000");
        bench.cpufreq.release(CoreId(1)).unwrap();
        assert_eq!(bench.tree.read(&max(1)).trim(), FREE);
    }
}

#[test]
fn a_thread_that_comes_later_is_its_siblings_and_no_core_of_its_own() {
    let tree = machine();
    leave(&tree, "1,4-5", &[0]);
    siblings(&tree, 4, "4");
    tree.remove(&format!("{CPU}/cpu0/topology"));
    tree.write(&format!("{CPU}/present"), "0-1,4-5");
    let mut bench = Bench::of(tree);
    bench.cpufreq = bench.cpufreq.with_offline().unwrap();
    bench.cpufreq.set(CoreId(4), mhz(1200)).unwrap();
    come_back(&bench.tree, &[0]);
    siblings(&bench.tree, 0, "0,4");
    siblings(&bench.tree, 4, "0,4");
    bench.scan();
    let shown = bench.cpufreq.domains().iter();
    let shown: Vec<_> = shown.map(|domain| (domain.id.0, domain.cpus.to_string())).collect();
    let want = [(0, ""), (1, "1,5"), (4, "0,4")].map(|(id, cpus)| (id, cpus.to_owned()));
    assert_eq!(shown, want);
    bench.push();
    assert_eq!(bench.shows(), CAP);
}

#[test]
fn a_machine_without_cpufreq_has_cores_that_no_cap_slows() {
    let tree = Tree::new();
    online(&tree, "0-3");
    tree.write(&format!("{CPU}/present"), "0-3\n");
    assert!(!Cpufreq::is_there(tree.root()).unwrap());
    let mut cpufreq = Cpufreq::none(tree.root()).unwrap().with_offline().unwrap();
    let cores = cpufreq.cores();
    assert_eq!((cores.len(), cpufreq.cpus().len(), cpufreq.status().cores), (4, 4, 4));
    assert_eq!(cores[0].ladder.floor().get() * 2, cores[0].ladder.max().get());
    assert!(cpufreq.originals().max_khz.is_empty() && cpufreq.status().driver == "none");
    cpufreq.set(CoreId(0), cores[0].ladder.floor()).unwrap();
    assert!(cpufreq.release_all().is_empty() && tree.written().is_empty());
    // A driver that is loaded later.
    tree.policy(0);
    assert!(Cpufreq::is_there(tree.root()).unwrap());
    let scan = cpufreq.plan_scan().read(tree.root()).unwrap();
    let _ = cpufreq.apply_scan(scan);
    assert!(cpufreq.alarms()[0].message.contains("restart the agent"), "{:?}", cpufreq.alarms());
}

#[test]
fn a_cap_of_a_previous_instance_on_an_offline_core_is_not_forgotten() {
    let tree = machine();
    let saved = Bench::of(tree).cpufreq.originals();
    let tree = machine();

    for policy in [1, 5] {
        tree.write(&max(policy), "1200000\n");
        offline(&tree, policy, EBUSY);
    }

    online(&tree, "0,4");
    let mut bench = Bench::of(tree);
    assert_eq!(bench.cpufreq.adopt(&saved).unwrap(), []);
    assert_eq!(bench.cpufreq.originals(), saved);
    assert_eq!(bench.cpufreq.release_all().len(), 2, "the journal must stay");
    come_back(&bench.tree, &[1, 5]);
    bench.scan();
    assert_eq!(bench.tree.read(&max(1)).trim(), FREE);
    assert_eq!(bench.tree.read(&max(5)).trim(), FREE);
}

#[test]
fn a_core_that_goes_while_it_is_adopted_is_no_failure() {
    let tree = machine();
    let saved = Bench::of(tree).cpufreq.originals();
    let mut bench = Bench::of(machine());
    for policy in [0, 4] {
        bench.tree.write(&max(policy), "1200000\n");
        offline(&bench.tree, policy, EBUSY);
    }
    online(&bench.tree, "1,5");
    bench.cpufreq.adopt(&saved).unwrap();
    bench.cpufreq.release(CoreId(0)).unwrap();
    come_back(&bench.tree, &[0, 4]);
    bench.scan();
    assert_eq!((bench.shows(), bench.tree.read(&max(4)).trim()), (FREE.into(), FREE));
}

#[test]
fn another_driver_loses_caps_and_gets_them_again() {
    let mut bench = Bench::capped();
    for policy in [0, 1, 4, 5] {
        bench.tree.write(&of(policy, "scaling_driver"), "intel_cpufreq\n");
        bench.tree.write(&of(policy, "cpuinfo_max_freq"), "3600000\n");
        bench.tree.write(&max(policy), "3600000\n");
    }
    let changed = bench.turn().expect("a raise is looked into");
    assert!(changed.originals && !changed.cpus);
    assert_eq!((bench.shows(), bench.tree.read(&max(4)).trim()), (CAP.into(), CAP));
    assert_eq!(bench.cpufreq.originals().driver, "intel_cpufreq");
    let alarms = bench.cpufreq.alarms();
    assert!(
        alarms[0].message.contains("intel_pstate") && alarms[0].message.contains("intel_cpufreq"),
        "{alarms:?}"
    );
    bench.cpufreq.release(CoreId(0)).unwrap();
    assert_eq!(bench.shows(), FREE);
}

#[test]
fn a_driver_that_is_away_for_a_moment_is_waited_for() {
    let mut bench = Bench::capped();
    for policy in [0, 1, 4, 5] {
        offline(&bench.tree, policy, Errno::ENOENT);
    }
    let changed = bench.turn().expect("a look finds the policies away");
    assert!(changed.unsettled && !changed.cpus, "{changed:?}");
    assert!(bench.cpufreq.set(CoreId(1), mhz(1200)).is_err(), "its CPU is online");

    for policy in [0, 1, 4, 5] {
        back(&bench.tree, policy);
        bench.tree.write(&max(policy), "3500000\n");
    }

    assert!(!bench.scan().unsettled);
    bench.push();
    assert_eq!(bench.shows(), CAP);

    // What was refused meanwhile the controller tries again; or the looks find it.
    for _ in 0..4 {
        bench.turn();
    }
    assert_eq!(bench.tree.read(&max(1)).trim(), CAP);
}

#[test]
fn what_discovery_may_meet() {
    type Row = (&'static str, fn(&Tree), Result<usize, &'static str>);

    const MAX: &str = "cpuinfo_max_freq";
    const TABLE: &str = "scaling_available_frequencies";
    const SIBLINGS: &str = "sys/devices/system/cpu/cpu0/topology/thread_siblings_list";

    // How many cores there are then, or which file is named.
    let rows: [Row; 14] = [
        ("an offline core", |t| (online(t, "0,4"), offline(t, 1, EBUSY), offline(t, 5, EBUSY)).0, Ok(1)),
        ("an offline sibling", |t| (online(t, "0-1,4"), offline(t, 5, EBUSY)).0, Ok(2)),
        ("no driver file", |t| t.remove(&of(0, "scaling_driver")), Err("scaling_driver")),
        ("no right to read", |t| t.fail(&of(0, MAX), Read, EACCES), Err(MAX)),
        ("a limit that cannot be read", |t| t.fail(&max(4), Read, EIO), Err("scaling_max_freq")),
        ("maximum below minimum", |t| t.write(&of(0, MAX), "900000\n"), Err(MAX)),
        ("base_frequency says EIO", |t| t.fail(&of(0, "base_frequency"), Read, EIO), Ok(2)),
        ("garbage in related_cpus", |t| t.write(&of(0, "related_cpus"), "zero\n"), Err("related_cpus")),
        ("garbage in a table", |t| t.write(&of(0, TABLE), "fast\n"), Err(TABLE)),
        ("an empty table", |t| t.write(&of(0, TABLE), "\n"), Ok(2)),
        ("garbage in online", |t| online(t, "4-0"), Err("online")),
        ("topology that cannot be read", |t| t.fail(SIBLINGS, Read, EACCES), Err("thread_siblings_list")),
        ("no topology", |t| [0, 1, 4, 5].iter().for_each(|n| t.remove(&format!("{CPU}/cpu{n}"))), Ok(4)),
        ("a policy that goes", |t| (online(t, "0-1,5"), t.remove(&of(4, ""))).0, Ok(2)),
    ];

    for (what, fault, want) in rows {
        let tree = machine();
        fault(&tree);
        match (Cpufreq::discover(tree.root(), Floor::Half), want) {
            (Ok(cpufreq), Ok(cores)) => assert_eq!(cpufreq.cores().len(), cores, "{what}"),
            (Err(e), Err(file)) => assert!(e.to_string().contains(file), "{what}: {e}"),
            (got, want) => panic!("{what}: {got:?}, not {want:?}"),
        }
    }
}
