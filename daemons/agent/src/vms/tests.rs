//! VMs that are found, moved by others, or started anew, on folders that look like cgroups.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use ballast_agent_core::Input;
use ballast_hw::binding::LIBVIRT_URI;
use ballast_hw::{Binders, By, JournalFolders, Opened};
use ballast_types::wire::{Predictions, VmPrediction};
use ballast_types::{BootId, CoreId};

use super::*;
use crate::config::{AgentConfig, ConfigFile as _};
use crate::message::Message;

const BATCH: &str = "batch.slice/b.service";

/// A server of eight cores.
pub(super) struct Server {
    folder: tempfile::TempDir,
}

impl Server {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let top = folder.path().join("sys/fs/cgroup");
        fs::create_dir_all(&top).unwrap();
        fs::write(top.join("cgroup.controllers"), "cpuset cpu").unwrap();
        let random = folder.path().join("proc/sys/kernel/random");
        fs::create_dir_all(&random).unwrap();
        fs::write(random.join("boot_id"), "boot\n").unwrap();
        Self { folder }
    }
    pub(super) fn dir(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join("sys/fs/cgroup").join(path)
    }
    pub(super) fn write(&self, path: &str, file: &str, text: &str) {
        fs::write(self.dir(path).join(file), format!("{text}\n")).unwrap();
    }
    pub(super) fn read(&self, path: &str, file: &str) -> String {
        fs::read_to_string(self.dir(path).join(file)).unwrap().trim().to_owned()
    }
    /// A VM's group that has `cpus` CPUs' time, and whose CPUs read as the ones it will get: a folder
    /// grants nothing by itself.
    pub(super) fn make(&self, path: &str, cpus: u32, granted: &str) {
        fs::create_dir_all(self.dir(path)).unwrap();
        self.write(path, "cgroup.events", "populated 1");
        self.write(path, "cpuset.cpus", "");
        self.write(path, "cpuset.cpus.effective", granted);
        self.write(path, "cpu.max", &format!("{} 100000", cpus * 100_000));
    }
    /// Its folder is kept, so that its inode is not used again at once.
    pub(super) fn end(&self, path: &str) {
        let aside = tempfile::tempdir_in(self.folder.path()).unwrap().keep();
        fs::rename(self.dir(path), aside.join("ended")).unwrap();
    }
    pub(super) fn start(&self, config: &str) -> (Vms, Vec<ControlledVm>) {
        self.try_start(config, By::Cgroup).unwrap()
    }
    pub(super) fn try_start(&self, config: &str, by: By) -> anyhow::Result<(Vms, Vec<ControlledVm>)> {
        self.start_with(config, Binders::new(&Root::at(self.folder.path()), by))
    }
    pub(super) fn start_with(
        &self,
        config: &str,
        binders: Binders,
    ) -> anyhow::Result<(Vms, Vec<ControlledVm>)> {
        let text = format!("server = \"s\"\nchassis = \"c\"\nmeter.offset_w = 60\n{config}");
        let AgentConfig { vms, groups, .. } = AgentConfig::parse("agent.toml", &text)?;
        let root = Root::at(self.folder.path());
        let domains: Vec<_> = (0..8).map(|id| Domain::from(CoreId(id))).collect();
        let state: &Path = &self.folder.path().join("state");
        let (journal, opened) = Journal::open(&JournalFolders::of(state), &BootId::new("boot").unwrap())?;
        let originals = match opened {
            Opened::Adopted(saved) => *saved,
            _ => Originals::default(),
        };
        let auto_path = Some(state.join("auto-class.json"));
        let sources = VmSources { vms, groups, pods: None, changes_path: state.join("vms.json"), auto_path };
        Vms::start(&root, &domains, sources, binders, journal, originals, None)
    }
}

pub(super) fn id(name: &str) -> VmId {
    VmId::new(name).unwrap()
}
pub(super) fn spec(class: VmClass, cores: u16, cgroup: Option<&str>) -> VmSpec {
    let cgroup = cgroup.map(str::to_owned);
    let (class, on_extreme) = (Some(class), OnExtreme::None);
    VmSpec { class, throttle_order: 0, cores, cgroup, on_extreme, tenant: None, pinned: false }
}
fn shown(set: &[ControlledVm]) -> Vec<(&str, VmClass, usize)> {
    set.iter().map(|vm| (vm.id.as_str(), vm.class, vm.cores.len())).collect()
}
pub(super) fn alarms(vms: &Vms) -> String {
    vms.notes.alarms().join("\n")
}

const RULES: &str = "[[discover]]\npattern = \"batch.slice/*.service\"\nclass = \"non-user-facing\"\n\
                     on_extreme = \"kill\"\n[[discover]]\npattern = \"new.slice/*\"\n";
use VmClass::{NonUserFacing, UserFacing};

#[test]
fn vms_come_and_go_with_their_cgroups() {
    let server = Server::new();
    let (mut vms, set) = server.start(RULES);
    assert!(set.is_empty() && vms.rescan().is_none());
    server.make(BATCH, 2, "6-7");
    let set = vms.rescan().expect("a newcomer");
    assert_eq!(shown(&set), [("b", NonUserFacing, 2)]);
    assert_eq!(set[0].on_extreme, OnExtreme::Kill);
    assert_eq!(vms.specs.origins()[&id("b")], "found by batch.slice/*.service");
    assert!(vms.rescan().is_none(), "nothing is new");

    // Nobody says what this one is, so it is not touched.
    server.make("new.slice/web.service", 1, "1");
    assert_eq!(shown(&vms.rescan().unwrap()), [("web", UserFacing, 1), ("b", NonUserFacing, 2)]);

    // One without processes is none.
    server.write(BATCH, "cgroup.events", "populated 0");
    assert_eq!(shown(&vms.rescan().unwrap()), [("web", UserFacing, 1)]);
    server.end("new.slice/web.service");
    assert!(vms.rescan().unwrap().is_empty());
    assert!(alarms(&vms).is_empty(), "{}", alarms(&vms));
}

#[test]
fn a_size_that_the_rules_do_not_give_any_more_is_the_groups_own() {
    let server = Server::new();
    let rules = |cores: &str| format!("[[discover]]\npattern = \"batch.slice/*.service\"\n{cores}");
    let parse = |text: &str| {
        let text = format!("server = \"s\"\nchassis = \"c\"\nmeter.offset_w = 60\n{text}");
        AgentConfig::parse("agent.toml", &text).unwrap().groups.discover
    };
    server.make(BATCH, 2, "6-7");
    let (mut vms, set) = server.start(&rules("cores = 1\n"));
    assert_eq!(set[0].cores.len(), 1);

    let set = vms.reload(BTreeMap::new(), parse(&rules(""))).unwrap();
    assert_eq!(set[0].cores.len(), 2);
}

#[test]
fn what_was_asked_for_wins_over_what_is_discovered() {
    let config =
        format!("{RULES}[[vm]]\nid = \"mine\"\nclass = \"user-facing\"\ncores = 1\ncgroup = {BATCH:?}\n");
    let server = Server::new();
    server.make(BATCH, 2, "1");
    server.make("new.slice/web.service", 1, "2");
    let (mut vms, set) = server.start(&config);
    assert_eq!(shown(&set), [("mine", UserFacing, 1), ("web", UserFacing, 1)]);

    // The API names what was found, and needs no cgroup for that.
    server.write("new.slice/web.service", "cpuset.cpus.effective", "5-7");
    let set = vms.change(id("web"), Some(spec(NonUserFacing, 3, None))).unwrap();
    assert_eq!(shown(&set), [("mine", UserFacing, 1), ("web", NonUserFacing, 3)]);
    assert_eq!(vms.specs.cgroup(&id("web")).unwrap(), "new.slice/web.service");
    assert_eq!(vms.specs.origins()[&id("web")], "api");

    // Taken back, it is what was found again; and what was found only leaves with its group.
    server.write("new.slice/web.service", "cpuset.cpus.effective", "2");
    let set = vms.change(id("web"), None).unwrap();
    assert_eq!(shown(&set), [("mine", UserFacing, 1), ("web", UserFacing, 1)]);
    let error = vms.change(id("web"), None).unwrap_err().to_string();
    assert!(error.contains("leaves with it"), "{error}");
    assert!(matches!(vms.change(id("other"), None), Err(VmsError::Unknown(_))));
}

#[test]
fn what_does_not_fit_is_left_out_and_told_of() {
    let server = Server::new();
    server.make(BATCH, 2, "6-7");
    server.make("batch.slice/huge.service", 20, "0-7");
    server.make("batch.slice/sizeless.service", 1, "0-7");
    server.write("batch.slice/sizeless.service", "cpu.max", "max 100000");
    server.make("new.slice/b.service", 1, "0-7");
    let (mut vms, set) = server.start(RULES);
    assert_eq!(shown(&set), [("b", NonUserFacing, 2)]);
    let said = alarms(&vms);

    for part in ["VM huge is left out", "sizeless.service: no vCPUs", "another VM is called b"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(said.lines().count(), 3, "{said}");

    // What is asked for makes room for itself.
    let set = vms.change(id("web"), Some(spec(UserFacing, 7, None))).unwrap();
    assert_eq!(shown(&set), [("web", UserFacing, 7)]);
    assert!(alarms(&vms).contains("VM b is left out"), "{}", alarms(&vms));
    let error = vms.change(id("more"), Some(spec(UserFacing, 2, None))).unwrap_err().to_string();
    assert!(error.contains("VM web: cores = 7") || error.contains("VM more"), "{error}");
    assert_eq!(shown(&vms.change(id("web"), None).unwrap()), [("b", NonUserFacing, 2)]);
}

#[test]
fn the_size_is_that_of_the_first_look() {
    let server = Server::new();
    server.make(BATCH, 2, "6-7");
    let (mut vms, _) = server.start(RULES);
    // As a quota of ours would.
    server.write(BATCH, "cpu.max", "10000 20000");
    server.write(BATCH, "cpuset.cpus", "6");
    assert!(vms.rescan().is_none());
    assert_eq!(vms.specs()[&id("b")].cores, 2);
}

#[test]
fn a_group_made_anew_is_bound_anew_and_leaves_the_old_ones_cpus_alone() {
    let server = Server::new();
    server.make(BATCH, 2, "6-7");
    let (mut vms, _) = server.start(RULES);
    let before = vms.killable().inode(&id("b")).unwrap();
    server.end(BATCH);
    server.make(BATCH, 2, "6-7");
    server.write(BATCH, "cpuset.cpus", "0-5");
    assert!(vms.rescan().is_none(), "to the controller it is the same");
    assert_ne!(vms.killable().inode(&id("b")), Some(before), "it is the new one that may be killed");
    assert_eq!(vms.originals.cpusets[BATCH].cpus, "0-5");
    server.write(BATCH, "cpuset.cpus.effective", "0-5");
    vms.restore(true).unwrap();
    assert_eq!(server.read(BATCH, "cpuset.cpus"), "0-5");
}

#[test]
fn a_vm_that_is_not_where_it_should_be_is_user_facing() {
    let server = Server::new();
    server.make(BATCH, 2, "6-7");
    let (mut vms, _) = server.start(RULES);
    server.write(BATCH, "cpuset.cpus.effective", "0-7");
    // It is bound again, and the kernel does not grant it.
    assert_eq!(vms.rescan().map(|set| set[0].class), Some(UserFacing));
    assert_eq!(server.read(BATCH, "cpuset.cpus"), "6-7");
    assert!(alarms(&vms).contains("VM b counts as user-facing: read back"), "{}", alarms(&vms));
    server.write(BATCH, "cpuset.cpus.effective", "6-7");
    assert_eq!(vms.rescan().map(|set| set[0].class), Some(NonUserFacing));
    assert!(alarms(&vms).is_empty());
}

#[test]
fn a_vm_that_somebody_moves_is_bound_again_until_it_is_his() {
    let server = Server::new();
    server.make(BATCH, 2, "");

    // A kernel that grants what is written.
    fs::remove_file(server.dir(BATCH).join("cpuset.cpus.effective")).unwrap();
    std::os::unix::fs::symlink("cpuset.cpus", server.dir(BATCH).join("cpuset.cpus.effective")).unwrap();
    server.write(BATCH, "cpuset.cpus", "0-7");
    let (mut vms, _) = server.start(RULES);

    for _ in 0..3 {
        server.write(BATCH, "cpuset.cpus", "0-3");
        assert!(vms.rescan().is_none(), "it is where it was");
        assert_eq!(server.read(BATCH, "cpuset.cpus"), "6-7");
    }

    server.write(BATCH, "cpuset.cpus", "0-3");
    assert_eq!(vms.rescan().map(|set| set[0].class), Some(UserFacing));
    assert!(alarms(&vms).contains("somebody else moves it"), "{}", alarms(&vms));
    assert!(vms.rescan().is_none());
    assert_eq!(server.read(BATCH, "cpuset.cpus"), "0-3", "no fight");
    vms.restore(true).unwrap();
    assert_eq!(server.read(BATCH, "cpuset.cpus"), "0-7");
}

#[test]
fn a_vm_that_comes_later_is_bound_when_it_does() {
    let config = format!("[[vm]]\nid = \"b\"\nclass = \"non-user-facing\"\ncores = 2\ncgroup = {BATCH:?}\n");
    let server = Server::new();
    let (mut vms, set) = server.start(&config);
    assert_eq!(shown(&set), [("b", UserFacing, 2)], "it may run anywhere");
    assert!(vms.rescan().is_none());
    server.make(BATCH, 2, "6-7");
    assert_eq!(shown(&vms.rescan().unwrap()), [("b", NonUserFacing, 2)]);
}

#[test]
fn a_life_that_binds_otherwise_puts_back_what_an_earlier_one_left() {
    let server = Server::new();
    server.make(BATCH, 2, "6-7");
    server.write(BATCH, "cpuset.cpus", "0-7");
    let (vms, _) = server.start(RULES);
    assert_eq!(vms.originals.cpusets[BATCH].cpus, "0-7");
    // Killed; the next instance asks systemd, which is not there.
    drop(vms);
    server.write(BATCH, "cpuset.cpus", "6-7");
    server.write(BATCH, "cpuset.cpus.effective", "0-7");
    let (mut vms, set) = server.try_start(RULES, By::Systemd).unwrap();
    assert_eq!(server.read(BATCH, "cpuset.cpus"), "0-7");
    assert_eq!(shown(&set)[0].1, UserFacing);
    assert!(alarms(&vms).contains("system bus"), "{}", alarms(&vms));
    vms.restore(true).unwrap();
}

#[test]
fn a_machine_with_hybrid_cgroups_throttles_nobody_and_says_why() {
    let server = Server::new();
    fs::remove_file(server.dir("cgroup.controllers")).unwrap();
    fs::create_dir(server.dir("unified")).unwrap();
    server.write("unified", "cgroup.controllers", "");
    server.make(BATCH, 2, "6-7");
    let (vms, set) = server.start(RULES);
    assert_eq!(shown(&set), [("b", UserFacing, 2)]);
    assert!(alarms(&vms).contains("systemd.unified_cgroup_hierarchy=1"), "{}", alarms(&vms));
    assert_eq!(server.read(BATCH, "cpuset.cpus"), "");
}

#[test]
fn a_class_by_its_own_use_ends_with_the_vms_life_and_yields_to_a_told_one() {
    const VM: &str = "new.slice/v.service";
    let server = Server::new();

    // A kernel that grants what is written.
    let make = |path: &str, cpus| {
        server.make(path, cpus, "");
        let effective = server.dir(path).join("cpuset.cpus.effective");
        fs::remove_file(&effective).unwrap();
        std::os::unix::fs::symlink("cpuset.cpus", effective).unwrap();
        server.write(path, "cpuset.cpus", "0-7");
    };

    make(VM, 2);
    make(BATCH, 1);
    let (mut vms, set) = server.start(RULES);
    assert_eq!(shown(&set), [("v", UserFacing, 2), ("b", NonUserFacing, 1)]);
    let lives = |vms: &Vms| -> Vec<_> {
        vms.measured().iter().map(|it| (it.vm.clone(), it.classless, it.start().unwrap())).collect()
    };
    let [(v, true, life), (b, false, other)] = &lives(&vms)[..] else { panic!() };
    assert_eq!((v, b), (&id("v"), &id("b")));

    // Of one whose class was told only the told one counts.
    let batch = BTreeMap::from([(v.clone(), *life), (b.clone(), *other)]);
    let set = vms.advise(batch.clone()).0.expect("another class");
    assert_eq!(shown(&set), [("b", NonUserFacing, 1), ("v", NonUserFacing, 2)]);
    assert_eq!(vms.specs.origins()[v], "auto");
    assert!(vms.advise(batch).0.is_none(), "nothing is new");

    // It outlives the agent.
    vms.restore(true).unwrap();
    drop(vms);
    let (mut vms, set) = server.start(RULES);
    assert_eq!(shown(&set), [("b", NonUserFacing, 1), ("v", NonUserFacing, 2)]);
    let set = vms.change(v.clone(), Some(spec(UserFacing, 2, None))).unwrap();
    assert_eq!(shown(&set)[0], ("v", UserFacing, 2));
    let set = vms.change(v.clone(), None).unwrap();
    assert_eq!(shown(&set)[1], ("v", NonUserFacing, 2));

    // Started anew it is another VM.
    server.end(VM);
    make(VM, 2);
    let set = vms.rescan().expect("another class");
    assert_eq!(shown(&set)[0], ("v", UserFacing, 2));
    assert_ne!(lives(&vms)[0].2, *life);

    // What cannot be written down is not done.
    let state = server.folder.path().join("state");
    fs::remove_dir_all(&state).unwrap();
    let now = BTreeMap::from([(v.clone(), lives(&vms)[0].2)]);
    assert!(matches!(vms.advise(now.clone()), (None, Err(_))));
    fs::create_dir_all(&state).unwrap();
    assert_eq!(shown(&vms.advise(now).0.unwrap())[1], ("v", NonUserFacing, 2));

    // And less is at once, even so.
    fs::remove_dir_all(&state).unwrap();
    let (set, written) = vms.advise(BTreeMap::new());
    assert!(written.is_err());
    assert_eq!(shown(&set.unwrap())[0], ("v", UserFacing, 2));
}

const DOMAIN: &str = r"machine.slice/machine-qemu\x2d3\x2dbatch.scope";
const DOMAINS: &str =
    "[[discover]]\npattern = \"machine.slice/machine-qemu*.scope\"\nclass = \"non-user-facing\"\n";

/// A domain with two vCPUs, a virsh beside it, and whoever looks after them once it has answered.
fn libvirt(server: &Server) -> (Arc<Mutex<Vms>>, mpsc::Receiver<Message>) {
    server.make(DOMAIN, 2, "0-7");
    for thread in ["emulator", "vcpu0", "vcpu1"] {
        server.make(&format!("{DOMAIN}/libvirt/{thread}"), 1, "0-7");
    }
    let virsh = server.folder.path().join("usr/bin/virsh");
    fs::create_dir_all(virsh.parent().unwrap()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../hw/src/binding/virsh.sh");
    std::os::unix::fs::symlink(script, virsh).unwrap();

    let (answers, answered) = mpsc::channel();
    let mut binders = Binders::new(&Root::at(server.folder.path()), By::Libvirt(LIBVIRT_URI.into()));
    binders.tell(answers);
    let (vms, set) = server.start_with(DOMAINS, binders).unwrap();
    assert_eq!(shown(&set), [("batch", UserFacing, 2)], "nobody has pinned it yet");
    let (vms, (messages, inbox)) = (Arc::new(Mutex::new(vms)), mpsc::channel());
    discovery::start(Duration::from_millis(100), answered, Arc::clone(&vms), messages).unwrap();
    (vms, inbox)
}

#[test]
fn a_domain_is_batch_once_libvirt_has_pinned_it_and_goes_back_at_the_end() {
    let server = Server::new();
    let (vms, inbox) = libvirt(&server);
    let Message::Input(Input::Vms(set)) = inbox.recv().unwrap() else { panic!("no VMs") };
    assert_eq!(shown(&set), [("batch", NonUserFacing, 2)]);
    let emulator = format!("{DOMAIN}/libvirt/emulator");
    assert_eq!(server.read(&emulator, "cpuset.cpus.effective"), "6-7");
    let mut vms = vms.lock().unwrap();
    assert!(alarms(&vms).is_empty(), "{}", alarms(&vms));
    vms.binders.shutdown_deadline().set(Duration::from_secs(60));
    vms.restore(true).unwrap();
    assert_eq!(server.read(&emulator, "cpuset.cpus.effective"), "0-7");
    assert!(!server.folder.path().join("state/journal.json").exists());
}

#[test]
fn libvirt_that_hangs_holds_up_neither_the_start_nor_the_list_of_vms() {
    let server = Server::new();
    fs::write(server.folder.path().join("virsh.slow"), "").unwrap();
    let began = std::time::Instant::now();
    let (vms, _inbox) = libvirt(&server);
    while !server.folder.path().join("virsh.log").exists() {
        std::thread::yield_now();
    }
    // virsh is ended after 5 s: who is held up by it has one answer until then.
    let mut answers = 0;
    while began.elapsed() < Duration::from_secs(4) && answers < 50 {
        assert_eq!(vms.lock().unwrap().specs().len(), 1);
        std::thread::sleep(Duration::from_millis(10));
        answers += 1;
    }
    assert!(answers > 3, "{answers} answers in {:?}", began.elapsed());
}

fn predictions(seq: u64, vms: &[(&str, VmClass)]) -> Predictions {
    let one = |(vm, class): &(&str, VmClass)| {
        (id(vm), VmPrediction { class: *class, p95_percent: 40, throttle_order: 3 })
    };
    Predictions { seq, valid_for_ms: 60_000, vms: vms.iter().map(one).collect() }
}

#[test]
fn what_is_predicted_counts_where_nobody_has_told_a_class() {
    let server = Server::new();
    let rules = "[[discover]]\npattern = \"new.slice/*\"\n[[discover]]\npattern = \"uf.slice/*\"\n\
                 class = \"user-facing\"\n[[discover]]\npattern = \"batch.slice/*\"\nclass = \
                 \"non-user-facing\"\nthrottle_order = 9\n";
    let (mut vms, set) = server.start(rules);
    let all = [("a", NonUserFacing), ("b", UserFacing), ("u", NonUserFacing)];
    // Before they are there: remembered.
    let (changed, written) = vms.tell(predictions(1, &all)).unwrap();
    assert!(set.is_empty() && changed.is_none() && written.is_ok());
    server.make("new.slice/a.service", 2, "6-7");
    server.make("batch.slice/b.service", 1, "5");
    server.make("uf.slice/u.service", 1, "0");
    let class = |set: &[ControlledVm], vm: &str| {
        set.iter().find(|it| it.id == id(vm)).map(|it| (it.class, it.throttle_order)).unwrap()
    };
    let set = vms.rescan().expect("they are there");
    assert_eq!(class(&set, "a"), (NonUserFacing, 3), "nobody but placement has told what it is");
    assert_eq!(class(&set, "b"), (NonUserFacing, 9), "the configuration's class wins");
    assert_eq!(class(&set, "u"), (UserFacing, 0), "the configuration's class wins");
    assert_eq!(vms.specs.origins()[&id("a")], "predicted");
    assert_eq!(vms.specs.origins()[&id("u")], "found by uf.slice/*");
    let held = vms.specs.predicted.vms().len();
    assert_eq!(held, 3);

    // An operator's class wins too, and the prediction counts again once it is taken back.
    let told = VmSpec { cgroup: None, ..spec(UserFacing, 2, None) };
    assert_eq!(class(&vms.change(id("a"), Some(told)).unwrap(), "a"), (UserFacing, 0));
    assert_eq!(vms.specs.origins()[&id("a")], "api");
    assert_eq!(class(&vms.change(id("a"), None).unwrap(), "a"), (NonUserFacing, 3));
    // Without a class an operator says only how large it is.
    let untold = VmSpec { class: None, ..spec(UserFacing, 2, None) };
    assert_eq!(class(&vms.change(id("a"), Some(untold)).unwrap(), "a"), (NonUserFacing, 3));

    // The same again moves nothing; what is not named any more is user-facing at once.
    assert!(vms.tell(predictions(2, &all)).unwrap().0.is_none());
    assert!(matches!(vms.tell(predictions(2, &[])), Err(TellError::Old { newest: 2, .. })));
    let (set, _) = vms.tell(predictions(3, &all[1..])).unwrap();
    assert_eq!(class(&set.expect("another set"), "a"), (UserFacing, 0));
}

#[test]
fn predictions_outlive_the_agent_and_none_kills() {
    let server = Server::new();
    let rules = "[[discover]]\npattern = \"new.slice/*\"\n";
    server.make("new.slice/a.service", 2, "6-7");
    let (mut vms, set) = server.start(rules);
    assert_eq!(shown(&set), [("a", UserFacing, 2)]);
    let (set, _) = vms.tell(predictions(1, &[("a", NonUserFacing)])).unwrap();
    assert_eq!(shown(&set.unwrap()), [("a", NonUserFacing, 2)]);
    assert_eq!(vms.killable.inode(&id("a")), None);
    vms.restore(true).unwrap();
    assert!(matches!(vms.tell(predictions(2, &[])), Err(TellError::Stopping)));
    drop(vms);

    let (mut vms, set) = server.start(rules);
    assert_eq!(shown(&set), [("a", NonUserFacing, 2)], "at the first instant");
    assert!(matches!(vms.tell(predictions(1, &[])), Err(TellError::Old { .. })), "of before the restart");
    // Nobody renews it.
    assert!(vms.specs.predicted.expire(clock::now() + Duration::from_secs(61)));
    server.make("new.slice/c.service", 1, "0");
    assert!(vms.rescan().unwrap().iter().all(|vm| vm.class == UserFacing));
}
