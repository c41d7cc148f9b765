//! Killing VMs: which ones may be, how it is done, and how a dead one leaves the set.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use ballast_agent_core::{ActuatorError, ControlledVm, Input};
use ballast_hw::Root;
use ballast_types::VmId;

use super::killable::{Killable, Target};
use super::message::Message;
use super::refused::refused;
use super::vms::{Vms, VmsError};
use ballast_runtime::lock;
use ballast_runtime::threads::supervise;

/// Between two looks at whether a killed VM's cgroup is empty.
const LOOK: Duration = Duration::from_millis(100);
/// So many looks: a minute. A large VM's memory takes a while to be freed.
const LOOKS: u32 = 600;

/// Kills VMs, and has them reaped.
pub(super) struct Killer {
    root: Root,
    killable: Killable,
    dead: Sender<(VmId, Target)>,
}

impl Killer {
    /// Starts the thread that waits until a killed VM's cgroup is empty; it ends with the killer.
    pub(super) fn start(
        root: &Root,
        killable: Killable,
        vms: Arc<Mutex<Vms>>,
        messages: Sender<Message>,
    ) -> io::Result<Self> {
        let (dead, inbox) = mpsc::channel();
        supervise("reaper", inbox, move |inbox| reap(inbox, &vms, &messages))?;
        Ok(Self { root: root.clone(), killable, dead })
    }

    /// Kills one VM, all of it, at once.
    pub(super) fn kill(&self, vm: &VmId) -> Result<(), ActuatorError> {
        let Some(target) = self.killable.get(vm) else {
            tracing::warn!(%vm, "the VM is not killed: it has left, or may not be killed");
            return Err(ActuatorError::Permanent);
        };
        target.group.kill(&self.root, target.inode).map_err(|error| refused(&error))?;
        tracing::warn!(
            %vm,
            "VM killed: the draw is above the cap with every low-priority core at its lowest frequency"
        );
        // Cannot fail: the thread goes on until this ends.
        let _ = self.dead.send((vm.clone(), target));
        Ok(())
    }
}

/// Takes every killed VM out of the set once its cgroup is empty, as `DELETE /v1/vms/{id}` does.
fn reap(dead: &Receiver<(VmId, Target)>, vms: &Mutex<Vms>, messages: &Sender<Message>) {
    for (vm, target) in dead {
        let empty = (0..LOOKS).any(|_| {
            // What cannot be read may still be alive. What has been made anew is not what was killed.
            let empty = target.is_replaced() || !target.group.populated().unwrap_or(true);
            if !empty {
                thread::sleep(LOOK);
            }
            empty
        });

        if !empty {
            tracing::warn!(%vm, "the killed VM's cgroup is not empty: somebody has started the VM again");
            continue;
        }

        match remove(&mut lock(vms), &vm, &target) {
            // Fails only when the control thread has ended.
            Ok(Some(set)) => drop(messages.send(Message::Input(Input::Vms(set)))),
            Ok(None) => tracing::info!(%vm, "the VM stays: it was started again, or has moved"),
            Err(error) => tracing::info!(%vm, %error, "the killed VM has left already"),
        }
    }
}

/// Removes a dead VM; gives the new set. `None` if by now this name is that of a VM that may be alive: one
/// in another cgroup, or in one that was made anew.
fn remove(vms: &mut Vms, vm: &VmId, dead: &Target) -> Result<Option<Vec<ControlledVm>>, VmsError> {
    let lives = match vms.specs().get(vm) {
        Some(spec) => {
            let moved = spec.cgroup.as_deref() != Some(&dead.path);
            moved || dead.is_replaced() || dead.group.populated().unwrap_or(true)
        }
        None => false,
    };
    if lives { Ok(None) } else { vms.reap(vm.clone()) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use ballast_hw::{Bandwidth, Binders, By, Domain, Journal, JournalFolders, Originals};
    use ballast_types::wire::VmSpec;
    use ballast_types::{BootId, CoreId, OnExtreme, VmClass};

    use super::super::vms::VmSources;
    use super::*;
    use crate::config::GroupsConfig;
    use crate::quota::Quotas;

    const PATH: &str = "machine.slice/b.scope";

    fn id() -> VmId {
        VmId::new("b").unwrap()
    }

    fn spec(path: &str) -> VmSpec {
        let (class, cgroup) = (Some(VmClass::NonUserFacing), Some(path.to_owned()));
        VmSpec {
            class,
            throttle_order: 0,
            cores: 2,
            cgroup,
            on_extreme: OnExtreme::Kill,
            tenant: None,
            pinned: false,
        }
    }

    /// A folder that looks like a VM's cgroup.
    fn make(root: &Path, path: &str, populated: u8) {
        let dir = root.join("sys/fs/cgroup").join(path);
        fs::create_dir_all(&dir).unwrap();
        fs::write(root.join("sys/fs/cgroup/cgroup.controllers"), "cpuset cpu").unwrap();
        for (file, text) in [
            ("cpu.max", "max 100000\n"),
            // Already on the cores that it gets.
            ("cpuset.cpus", ""),
            ("cpuset.cpus.effective", "2-3\n"),
            ("cgroup.kill", ""),
            ("cgroup.events", &format!("populated {populated}\n")),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
    }

    /// Takes a group away; its folder is kept, so that its inode is not used again at once.
    fn end(root: &Path, path: &str) {
        fs::rename(root.join("sys/fs/cgroup").join(path), root.join("ended")).unwrap();
    }

    fn anew(root: &Path, populated: u8) {
        end(root, PATH);
        make(root, PATH, populated);
    }

    fn move_to_another(root: &Path, vms: &mut Vms) -> Vec<ControlledVm> {
        make(root, "machine.slice/c.scope", 1);
        vms.change(id(), Some(spec("machine.slice/c.scope"))).unwrap()
    }

    /// The VMs of a server whose VMs float.
    fn vms(root: &Path, specs: &[VmSpec]) -> (Vms, Vec<ControlledVm>) {
        start(root, specs, true)
    }

    fn start(root: &Path, specs: &[VmSpec], floating: bool) -> (Vms, Vec<ControlledVm>) {
        let cores: Vec<_> = (0..4).map(|id| Domain::from(CoreId(id))).collect();
        let folders = JournalFolders::of(&root.join("state"));
        let (journal, _) = Journal::open(&folders, &BootId::new("boot").unwrap()).unwrap();
        let vms = specs.iter().map(|spec| (id(), spec.clone())).collect();
        let hw = Root::at(root);
        let bandwidth = Bandwidth::new(&hw, Duration::from_millis(20));
        let bandwidth = floating.then(|| Quotas::new(bandwidth));
        let changes_path = root.join("state/vms.json");
        let sources =
            VmSources { vms, groups: GroupsConfig::default(), pods: None, changes_path, auto_path: None };
        let (binders, originals) = (Binders::new(&hw, By::Cgroup), Originals::default());
        Vms::start(&hw, &cores, sources, binders, journal, originals, bandwidth).unwrap()
    }

    #[test]
    fn only_the_vm_that_was_killed_is_reaped() {
        type Then = fn(&Path, &mut Vms);
        let cases: [(&str, Then, bool); 6] = [
            ("it is dead", |_, _| {}, true),
            ("its group is gone as well", |root, _| end(root, PATH), true),
            ("started anew", |root, _| anew(root, 1), false),
            ("about to start anew", |root, _| anew(root, 0), false),
            ("started in the same group", |root, _| make(root, PATH, 1), false),
            ("moved", |root, vms| drop(move_to_another(root, vms)), false),
        ];

        for (what, then, removed) in cases {
            let folder = tempfile::tempdir().unwrap();
            make(folder.path(), PATH, 0);
            let (mut vms, _) = vms(folder.path(), &[spec(PATH)]);
            let target = vms.killable().get(&id()).unwrap();
            then(folder.path(), &mut vms);
            assert_eq!(remove(&mut vms, &id(), &target).unwrap().is_some(), removed, "{what}");
            assert_eq!(vms.specs().is_empty(), removed, "{what}");
        }
    }

    #[test]
    fn a_group_made_anew_is_killed_only_after_it_was_looked_up_again() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        make(root, PATH, 1);
        let (vms, _) = vms(root, &[spec(PATH)]);
        let (killable, vms) = (vms.killable(), Arc::new(Mutex::new(vms)));
        let (messages, _inbox) = mpsc::channel();
        let killer = Killer::start(&Root::at(root), killable, Arc::clone(&vms), messages).unwrap();
        let file = root.join("sys/fs/cgroup").join(PATH).join("cgroup.kill");
        anew(root, 1);
        assert_eq!(killer.kill(&id()), Err(ActuatorError::Permanent));
        assert_eq!(fs::read_to_string(&file).unwrap(), "");
        vms.lock().unwrap().change(id(), Some(spec(PATH))).unwrap();
        assert_eq!(killer.kill(&id()), Ok(()));
        assert_eq!(fs::read_to_string(&file).unwrap(), "1\n");
    }

    #[test]
    fn who_counts_as_user_facing_is_not_killed() {
        for floating in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let root = folder.path();
            make(root, PATH, 1);
            let (mut vms, set) = start(root, &[spec(PATH)], floating);
            assert_eq!(set[0].on_extreme, OnExtreme::Kill);

            // A journal that cannot be written: something is in its place.
            let journal = root.join("state/journal.json");
            fs::remove_file(&journal).unwrap();
            fs::create_dir_all(journal.join("x")).unwrap();

            // Nor the second time, when nothing is new.
            for _ in 0..2 {
                let set = move_to_another(root, &mut vms);
                assert_eq!((set[0].class, set[0].on_extreme), (VmClass::UserFacing, OnExtreme::None));

                assert!(vms.killable().get(&id()).is_none());
            }

            fs::remove_dir_all(&journal).unwrap();
            let set = move_to_another(root, &mut vms);
            assert_eq!(set[0].class, VmClass::NonUserFacing);
            assert!(vms.killable().get(&id()).is_some());
            assert!(fs::read_to_string(&journal).unwrap().contains("c.scope"));
        }
    }

    #[test]
    fn a_group_at_the_top_that_was_allowed_once_is_not_killed() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), "machine", 1);
        let (vms, set) = vms(folder.path(), &[spec("machine")]);
        assert_eq!((set[0].class, set[0].on_extreme), (VmClass::NonUserFacing, OnExtreme::None));
        assert!(vms.killable().get(&id()).is_none());
    }
}
