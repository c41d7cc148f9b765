//! Each way to bind a VM, and what can go wrong with it.

use std::fs;
use std::time::{Duration, Instant};

use nix::errno::Errno::EACCES;

use super::*;
use crate::CpuList;
use crate::error::Operation;
use crate::libvirt::{Job, Pins, testing as libvirt_dbus};
use crate::systemd::DEADLINE;
use crate::systemd::testing::Mock;
use crate::testing::Tree;

const PLAIN: &str = "vms/web";
const UNIT: &str = "batch.slice/web.service";
const OTHER: &str = "other.slice/web.service";
const SCOPE: &str = r"machine.slice/machine-qemu\x2d3\x2dweb.scope";
const SCOPE_THREADS: &str = r"machine.slice/machine-qemu\x2d3\x2dweb.scope/libvirt";
const UNAVAILABLE: &str = "error: authentication unavailable";
const VCPU: &str = r"machine.slice/machine-qemu\x2d3\x2dweb.scope/libvirt/vcpu0";

fn list(text: &str) -> CpuList {
    text.parse().unwrap()
}
fn dir(path: &str) -> String {
    format!("sys/fs/cgroup/{path}")
}
/// What a group asks for itself.
fn own(path: &str) -> String {
    format!("{}/cpuset.cpus", dir(path))
}
fn granted(path: &str) -> String {
    format!("{}/cpuset.cpus.effective", dir(path))
}
fn partition(tree: &Tree, path: &str, kind: &str) {
    tree.write(&format!("{}/cpuset.cpus.partition", dir(path)), kind);
}
fn libvirt() -> By {
    By::Libvirt(LIBVIRT_URI.into())
}

fn machine() -> Tree {
    let tree = Tree::new();
    tree.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu");
    tree.write("sys/fs/cgroup/cpuset.cpus.effective", "0-15\n");
    tree
}
fn group(tree: &Tree, path: &str, effective: &str) {
    tree.folder(&dir(path), &[("cpuset.cpus", ""), ("cpuset.cpus.effective", effective)]);
}
fn bound_by(tree: &Tree, by: By) -> (Binders, Box<dyn Binder>) {
    let mut binders = Binders::new(tree.root(), by).waiting();
    let binder = binders.binder().unwrap();
    (binders, binder)
}
/// A domain with two vCPUs and one I/O thread, and a virsh.
fn domain(tree: &Tree) -> (Binders, Box<dyn Binder>) {
    scope(tree, SCOPE);
    // A link: a file that was just written cannot be run while a child of another test has it open.
    tree.link(concat!(env!("CARGO_MANIFEST_DIR"), "/src/binding/virsh.sh"), "usr/bin/virsh");
    bound_by(tree, libvirt())
}
fn scope(tree: &Tree, path: &str) {
    group(tree, path, "0-15");
    for (thread, cpus) in [("vcpu0", "0-7"), ("vcpu1", "0-7"), ("emulator", "0-15"), ("iothread1", "4")] {
        group(tree, &format!("{path}/libvirt/{thread}"), cpus);
    }
}
fn scope_of(id: u32) -> String {
    format!(r"machine.slice/machine-qemu\x2d{id}\x2dvm.scope")
}
fn threads(tree: &Tree) -> Vec<String> {
    let thread = |name| tree.read(&format!("{}/libvirt/{name}/cpuset.cpus.effective", dir(SCOPE)));
    ["vcpu0", "vcpu1", "emulator", "iothread1"].map(|name| thread(name).trim().to_owned()).into()
}

#[test]
fn a_file_is_written_and_put_back_with_an_explicit_list() {
    for (asked, effective, back) in [("", "0-15", "0-15"), ("4-7", "4-7", "4-7")] {
        let tree = machine();
        group(&tree, PLAIN, effective);
        tree.write(&own(PLAIN), asked);
        let (mut binders, binder) = bound_by(&tree, By::Cgroup);
        let original = binder.original(PLAIN).unwrap();
        let file = granted(PLAIN);
        tree.write(&file, "2-3");
        binder.bind(PLAIN, &list("2-3")).unwrap();
        assert_eq!(binder.effective(PLAIN).unwrap(), list("2-3"));
        tree.write(&file, back);
        binders.restore(PLAIN, &original).unwrap();
        assert_eq!(tree.read(&own(PLAIN)).trim(), back);
    }
}

#[test]
fn a_units_file_is_left_to_systemd_unless_told() {
    let tree = machine();
    for path in [UNIT, SCOPE, "batch.slice", "system.slice/vmm.service/vm1", PLAIN] {
        group(&tree, path, "0-15");
    }
    let may = |by: By, path| bound_by(&tree, by).1.original(path);
    may(By::Cgroup, UNIT).expect("no systemd, no owner");
    fs::create_dir_all(tree.root().path("run/systemd/system")).unwrap();
    for path in [UNIT, SCOPE, "batch.slice"] {
        let text = may(By::Cgroup, path).unwrap_err().to_string();
        assert!(text.contains("groups.by = \"systemd\"") && text.contains("Delegate="), "{text}");
        may(By::CgroupEvenUnits, path).unwrap();
    }
    for path in ["system.slice/vmm.service/vm1", PLAIN] {
        may(By::Cgroup, path).unwrap();
    }
    assert!(tree.written().is_empty());
}

#[test]
fn a_unit_is_bound_by_its_property_and_no_file_is_written() {
    for (allowed, before) in [("", "0-7"), ("0-3", "0-3")] {
        let tree = machine();
        let systemd = Mock::start(tree.root());
        systemd.unit(UNIT);
        let (mut binders, binder) = bound_by(&tree, By::Systemd);

        if !allowed.is_empty() {
            binders.systemd().unwrap().allow_cpus("web.service", &list(allowed)).unwrap();
        }
        let original = binder.original(UNIT).unwrap();
        assert_eq!(original.cpus, before);
        systemd.log();
        binder.bind(UNIT, &list("4-5")).unwrap();
        assert_eq!(binder.effective(UNIT).unwrap(), list("4-5"));

        // By a life that binds otherwise, too.
        let (mut binders, _) = bound_by(&tree, By::Cgroup);
        binders.restore(UNIT, &original).unwrap();
        assert_eq!(binder.effective(UNIT).unwrap(), list(before));
        let mut log = vec!["4-5", before];
        if allowed.is_empty() {
            // Only after the kernel has the explicit list.
            log.push("");
        }
        let log: Vec<_> = log.iter().map(|cpus| format!("web.service AllowedCPUs={cpus}")).collect();
        assert_eq!(systemd.log(), log);
        assert_eq!(systemd.get("web.service").allowed, list(allowed).to_mask());
        assert!(tree.written().is_empty(), "the files are systemd's");
    }
}

#[test]
fn a_unit_is_put_back_even_when_it_has_stopped() {
    let tree = machine();
    let systemd = Mock::start(tree.root());
    systemd.unit(UNIT);
    let (mut binders, binder) = bound_by(&tree, By::Systemd);
    let original = binder.original(UNIT).unwrap();
    binder.bind(UNIT, &list("1")).unwrap();
    // Its next start must not find our CPUs.
    tree.remove(&dir(UNIT));
    binders.restore(UNIT, &original).unwrap();
    assert!(systemd.get("web.service").allowed.is_empty());
    // A scope ends with its group.
    systemd.forget("web.service");
    binders.restore(UNIT, &original).unwrap();
}

#[test]
fn a_units_set_is_its_parents_until_it_has_one() {
    let tree = machine();
    let systemd = Mock::start(tree.root());
    systemd.unit(UNIT);
    let (_, binder) = bound_by(&tree, By::Systemd);
    tree.remove(&granted(UNIT));
    assert_eq!(binder.effective(UNIT).unwrap(), list("0-15"), "that of the root");
    tree.write("sys/fs/cgroup/batch.slice/cpuset.cpus.effective", "8-11\n");
    assert_eq!(binder.original(UNIT).unwrap().cpus, "8-11");
    tree.remove("sys/fs/cgroup/batch.slice");
    assert!(binder.effective(UNIT).unwrap_err().is_missing(), "it has ended");
}

/// The same over D-Bus as by virsh, to the word.
#[test]
fn every_thread_of_a_domain_is_pinned_and_goes_back_to_where_it_was() {
    let mut originals = vec![];
    for by_dbus in [false, true] {
        let tree = machine();
        let (_, binder) = domain(&tree);
        if by_dbus {
            libvirt_dbus::serve(tree.root());
        }
        let before = threads(&tree);
        let original = binder.original(SCOPE).unwrap();
        binder.bind(SCOPE, &list("8-9,12")).unwrap();
        assert_eq!(threads(&tree), ["8-9,12"; 4]);
        assert_eq!(binder.effective(SCOPE).unwrap(), list("8-9,12"));

        // A vCPU that came while it was bound goes where QEMU's own threads were.
        group(&tree, &format!("{SCOPE}/libvirt/vcpu2"), "8-9,12");

        // By a life that knows nothing of libvirt.
        let (mut binders, _) = bound_by(&tree, By::Cgroup);
        binders.restore(SCOPE, &original).unwrap();
        assert_eq!(threads(&tree), before);
        assert_eq!(tree.read(&format!("{}/libvirt/vcpu2/cpuset.cpus.effective", dir(SCOPE))).trim(), "0-15");

        // A domain that has ended needs nothing.
        tree.remove(&dir(SCOPE));
        binders.restore(SCOPE, &original).unwrap();
        assert!(tree.written().is_empty(), "the files are libvirt's");

        assert_eq!(tree.root().path("virsh.log").exists(), !by_dbus);
        let pinned = "--connect qemu:///system emulatorpin 3 8-9,12 --live; vcpupin 3 0 8-9,12 --live; ";
        assert!(by_dbus || tree.read("virsh.log").contains(pinned), "{}", tree.read("virsh.log"));
        originals.push(original);
    }
    assert_eq!(originals[0], originals[1]);
}

/// It takes connections, or has nobody who serves libvirt, or one who reaches no libvirt, or not this URI.
#[test]
fn where_no_libvirt_dbus_answers_virsh_is_asked() {
    let uris = [LIBVIRT_URI, LIBVIRT_URI, LIBVIRT_URI, "qemu:///session"];
    let buses: [fn(&Tree); 4] = [
        |tree| {
            fs::create_dir_all(tree.root().path("run/dbus")).unwrap();
            let silent = std::os::unix::net::UnixListener::bind(tree.root().path(BUS)).unwrap();
            std::mem::forget(silent);
        },
        |tree| std::mem::forget(Mock::start(tree.root())),
        |tree| libvirt_dbus::serve_without_libvirt(tree.root()),
        |tree| libvirt_dbus::serve(tree.root()),
    ];
    for (uri, bus) in uris.into_iter().zip(buses) {
        let tree = machine();
        domain(&tree);
        bus(&tree);
        let (_, binder) = bound_by(&tree, By::Libvirt(uri.into()));
        binder.bind(SCOPE, &list("8-9")).unwrap();
        assert!(tree.root().path("virsh.log").exists());
    }
}

/// libvirt on this machine, with so much time for all that is asked at once.
fn within(tree: &Tree, deadline: Duration, end: &ShutdownDeadline) -> Libvirt {
    let (bus, program) = (tree.root().path(BUS), tree.root().path("usr/bin/virsh"));
    Libvirt::start(deadline, Some(bus), program, LIBVIRT_URI.into(), end.clone(), None).unwrap()
}

#[test]
fn a_virsh_that_hangs_is_ended() {
    let tree = machine();
    domain(&tree);
    tree.write("virsh.slow", "");
    let hurried = |deadline, end: &ShutdownDeadline| {
        let error = within(&tree, deadline, end).ask(3, &Job::Read, true).unwrap_err();
        assert!(error.is_transient() && !error.is_missing(), "{error}");
    };

    let began = Instant::now();
    hurried(Duration::from_millis(100), &ShutdownDeadline::default());
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let shutdown_deadline = ShutdownDeadline::default();
    shutdown_deadline.set(Duration::ZERO);
    hurried(Duration::from_secs(3600), &shutdown_deadline);

    // It ends, and leaves somebody behind who never closes its output.
    tree.remove("virsh.slow");
    tree.write("virsh.leaves", "");
    hurried(Duration::from_secs(1), &ShutdownDeadline::default());
}

#[test]
fn nobody_waits_for_libvirt_while_the_daemon_runs() {
    let tree = machine();
    domain(&tree);
    tree.write("virsh.slow", "");
    let (answers, answered) = std::sync::mpsc::channel();
    let mut binders = Binders::new(tree.root(), libvirt());
    binders.tell(answers);
    let binder = binders.binder().unwrap();

    // On a busy machine virsh starts late: it would no longer be slow, and would carry out a bind.
    assert!(binder.original(SCOPE).unwrap_err().is_pending());
    while !tree.root().path("virsh.sleeps").exists() {
        std::thread::yield_now();
    }

    let began = Instant::now();
    for _ in 0..20 {
        assert!(binder.original(SCOPE).unwrap_err().is_pending());
        assert!(binder.bind(SCOPE, &list("1")).unwrap_err().is_pending());
        let via = Via::Libvirt { uri: LIBVIRT_URI.into(), domain: 3, pins: Pins::default() };
        let original = CpusetOriginal { cpus: "0-15".into(), via };
        assert!(binders.restore(SCOPE, &original).unwrap_err().is_pending());
    }
    assert!(began.elapsed() < Duration::from_secs(4), "no deadline has passed");

    // Once it answers, trying again helps.
    tree.remove("virsh.slow");
    let original = loop {
        match binder.original(SCOPE) {
            Ok(original) => break original,
            Err(error) if error.is_pending() => answered.recv().unwrap(),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    };
    assert_eq!(original.cpus, "0-15");
}

#[test]
fn all_domains_share_one_virsh_and_its_deadline() {
    let tree = machine();
    let (mut binders, binder) = domain(&tree);
    let ids = 10..22;
    let mut originals = std::collections::BTreeMap::new();
    for id in ids.clone() {
        scope(&tree, &scope_of(id));
    }
    let first = binder.original(&scope_of(10)).unwrap();
    for id in ids {
        let Via::Libvirt { uri, pins, .. } = first.via.clone() else { panic!("{first:?}") };
        let via = Via::Libvirt { uri, domain: id, pins };
        originals.insert(scope_of(id), CpusetOriginal { via, ..first.clone() });
    }
    tree.write("virsh.log", "");
    assert!(binders.restore_all(&originals).is_empty());
    let runs = tree.read("virsh.log").lines().count();
    assert!((3..12).contains(&runs), "{runs} runs for 12 domains");
}

#[test]
fn one_domain_that_hangs_does_not_keep_the_others_waiting() {
    for by_dbus in [false, true] {
        let tree = machine();
        domain(&tree);
        for id in [2, 4, 5] {
            scope(&tree, &scope_of(id));
        }
        if by_dbus {
            libvirt_dbus::serve(tree.root());
        }
        tree.write("virsh.hangs.3", "");
        let libvirt = within(&tree, Duration::from_secs(2), &ShutdownDeadline::default());
        let job = Job::Bind(list("8"));
        let mut missing = vec![2, 4, 5];
        while !missing.is_empty() {
            assert!(libvirt.ask(3, &Job::Read, false).is_err());
            missing.retain(|id| libvirt.ask(*id, &job, false).is_err());
            // The others come as soon as the one that hangs is known.
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(tree.read(&granted(&format!("{}/libvirt/vcpu0", scope_of(4)))).trim(), "8");
        assert!(libvirt.ask(3, &Job::Read, true).unwrap_err().is_transient());
        let mut ended = (0..30).map(|_| libvirt.ask(9, &Job::Read, true).unwrap_err().is_missing());
        assert!(ended.any(|it| it), "it has ended");
    }
}

#[test]
fn many_domains_that_hang_leave_time_to_pin_the_one_behind_them() {
    let tree = machine();
    domain(&tree);
    libvirt_dbus::serve(tree.root());
    let (hang, behind) = (5..=11, 12);
    scope(&tree, &scope_of(behind));
    for id in hang.clone() {
        scope(&tree, &scope_of(id));
        tree.write(&format!("virsh.hangs.{id}"), "");
    }

    // A busy machine is given more time, of which the others take as much more.
    let pinned = [2, 6, 20, 60].into_iter().any(|seconds| {
        let libvirt = within(&tree, Duration::from_secs(seconds), &ShutdownDeadline::default());
        for id in hang.clone() {
            assert!(libvirt.ask(id, &Job::Read, false).is_err());
        }
        libvirt.ask(behind, &Job::Bind(list("8")), true).is_ok()
    });
    assert!(pinned, "the others' time is over first");
}

/// It takes connections and says nothing.
#[test]
fn a_systemd_that_hangs_is_waited_for_once_for_all_vms() {
    let tree = machine();
    fs::create_dir_all(tree.root().path("run/dbus")).unwrap();
    let _silent = std::os::unix::net::UnixListener::bind(tree.root().path(BUS)).unwrap();
    let binders = || Binders::new(tree.root(), By::Systemd);
    let mut running = binders();
    let began = Instant::now();
    for n in 0..20 {
        let path = format!("batch.slice/vm{n}.service");
        group(&tree, &path, "0-7");
        let error = running.binder().unwrap().bind(&path, &list("1")).unwrap_err();
        assert!(error.is_transient() && !error.is_missing(), "{error}");
    }
    assert!(began.elapsed() < 10 * DEADLINE, "{:?} for 20 VMs", began.elapsed());

    // At the end each is tried, while there is time.
    let mut ending = binders().waiting();
    let began = Instant::now();
    for n in 0..2 {
        let error = ending.binder().unwrap().bind(&format!("batch.slice/vm{n}.service"), &list("1"));
        assert!(error.unwrap_err().is_transient());
    }
    assert!(began.elapsed() > DEADLINE.mul_f64(1.8), "{:?}", began.elapsed());
}

/// A CPU went offline while a VM was bound.
#[test]
fn what_went_offline_meanwhile_does_not_keep_a_vm_from_being_put_back() {
    for (by, path) in [(By::Cgroup, PLAIN), (By::Systemd, UNIT)] {
        let tree = machine();
        let systemd = Mock::start(tree.root());
        systemd.unit(UNIT);
        group(&tree, PLAIN, "0-7");
        let (mut binders, binder) = bound_by(&tree, by.clone());
        let original = binder.original(path).unwrap();
        assert_eq!(original.cpus, "0-7");
        systemd.online("0-4,6-15");
        let parent = path.rsplit_once('/').unwrap().0;
        tree.write(&granted(parent), "0-4,6-15\n");
        let granted = granted(path);

        if by == By::Cgroup {
            tree.write(&granted, "0-4,6-7\n");
        }
        binders.restore(path, &original).unwrap();
        assert_eq!(tree.read(&granted).trim(), "0-4,6-7", "{by:?}");

        // It must be all of it.
        systemd.online("0-3");

        if by == By::Cgroup {
            tree.write(&granted, "0-3\n");
        }
        let error = binders.restore(path, &original).unwrap_err();
        assert_eq!(error.operation, Operation::Verify, "{by:?}: {error}");
    }
}

/// What is wrong, with what way and group, and what the operator reads.
#[test]
fn what_cannot_be_bound_is_refused_with_the_remedy_and_nothing_is_written() {
    type Wrong = fn(&Tree);
    let rows: [(&str, By, &str, Wrong, &str); 17] = [
        ("no such group", By::Cgroup, "vms/other", |_| {}, "a VM that runs"),
        ("kubelet's", By::Cgroup, "kubepods.slice/x", |_| {}, "kubepods"),
        ("kubelet's unit", By::Systemd, "kubepods.slice/a.scope", |_| {}, "kubepods"),
        ("controller off", By::Cgroup, PLAIN, |t| t.remove(&own(PLAIN)), "subtree_control must have"),
        ("a partition", By::Cgroup, PLAIN, |t| partition(t, PLAIN, "isolated\n"), "are left alone"),
        ("a unit's partition", By::Systemd, UNIT, |t| partition(t, UNIT, "root\n"), "are left alone"),
        ("garbage", By::Cgroup, PLAIN, |t| t.write(&own(PLAIN), "3-1\n"), "a CPU list"),
        ("no CPUs at all", By::Cgroup, PLAIN, |t| t.write(&granted(PLAIN), "\n"), "a CPU list"),
        ("unreadable", By::Cgroup, PLAIN, |t| t.fail(&own(PLAIN), Operation::Read, EACCES), "runs as root"),
        ("not a unit", By::Systemd, PLAIN, |_| {}, "groups.by = \"cgroup\""),
        ("no such unit", By::Systemd, "batch.slice/b.service", |_| {}, "b.service"),
        ("another's unit", By::Systemd, OTHER, |t| group(t, OTHER, "0-15"), "its cgroup is, says systemd"),
        ("not a domain", libvirt(), UNIT, |_| {}, "a libvirt domain"),
        ("no virsh", libvirt(), SCOPE, |t| t.remove("usr/bin/virsh"), "libvirt-clients"),
        ("libvirt refuses", libvirt(), SCOPE, |t| t.write("virsh.fails", UNAVAILABLE), UNAVAILABLE),
        ("an answer that is none", libvirt(), SCOPE, |t| t.write(&granted(VCPU), "x"), "a CPU list"),
        ("an old libvirt", libvirt(), SCOPE, |t| t.remove(&dir(SCOPE_THREADS)), "libvirt 7.1"),
    ];

    for (what, by, path, wrong, says) in rows {
        let tree = machine();
        let systemd = Mock::start(tree.root());
        systemd.unit(UNIT);
        domain(&tree);
        group(&tree, PLAIN, "0-15");
        wrong(&tree);
        let error = bound_by(&tree, by).1.original(path).unwrap_err();
        assert!(error.to_string().contains(says), "{what}: {error}");
        assert_eq!(error.is_missing(), what.starts_with("no such"), "{what}: {error}");
        assert!(tree.written().is_empty() && systemd.log().is_empty(), "{what}");
        assert!(!tree.root().path("virsh.log").exists() || !tree.read("virsh.log").contains("0-15"));
    }
}

#[test]
fn a_grant_that_is_not_the_wish_is_an_error_whatever_the_way() {
    type Deaf = fn(&Tree, &Mock);
    let rows: [(By, &str, Deaf); 3] = [
        (By::Cgroup, PLAIN, |tree, _| tree.ignores(&own(PLAIN))),
        (By::Systemd, UNIT, |_, systemd| systemd.ignores()),
        (libvirt(), SCOPE, |tree, _| tree.write("virsh.ignores", "")),
    ];

    for (by, path, deaf) in rows {
        let tree = machine();
        let systemd = Mock::start(tree.root());
        systemd.unit(UNIT);
        domain(&tree);
        group(&tree, PLAIN, "0-15");
        let (mut binders, binder) = bound_by(&tree, by.clone());
        let original = binder.original(path).unwrap();
        deaf(&tree, &systemd);
        let error = binder.bind(path, &list("1-2")).unwrap_err();
        assert_eq!(error.operation, Operation::Verify, "{by:?}: {error}");
        assert!(binder.bind(path, &list("")).is_err(), "{by:?}");

        // Nothing was granted, so it is where it was.
        binders.restore(path, &original).unwrap();
    }
}

#[test]
fn a_group_made_anew_is_not_given_what_the_old_one_had() {
    let tree = machine();
    group(&tree, PLAIN, "0-15");
    let (mut binders, binder) = bound_by(&tree, By::Cgroup);
    let original = binder.original(PLAIN).unwrap();
    fs::rename(tree.root().path(&dir(PLAIN)), tree.root().path("ended")).unwrap();
    binders.restore(PLAIN, &original).unwrap();
    group(&tree, PLAIN, "0-3");
    binders.restore(PLAIN, &original).unwrap();
    assert!(tree.written().is_empty());
}

#[test]
fn nothing_is_bound_where_cgroups_are_not_unified() {
    let tree = Tree::new();
    tree.write("sys/fs/cgroup/unified/cgroup.controllers", "");
    for by in [By::Cgroup, By::Systemd, libvirt()] {
        let error = Binders::new(tree.root(), by).binder().err().expect("refused");
        assert!(error.to_string().contains("hybrid"), "{error}");
    }
}
