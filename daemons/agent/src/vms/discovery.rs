//! VMs that are found by their cgroups, looked for every few seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{io, mem, thread};

use ballast_agent_core::{ControlledVm, Input};
use ballast_hw::{CpuList, Originals, Root};
use ballast_types::VmId;
use ballast_types::wire::{Alarm, AlarmId, VmSpec};

use super::Vms;
use crate::config::DiscoverConfig;
use crate::message::Message;
use ballast_runtime::threads::supervise;
use ballast_runtime::{clock, lock};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DiscoveredVm {
    pub(super) id: VmId,
    pub(super) spec: VmSpec,
    /// The pattern that it matched, or who else told it.
    pub(super) by: String,
    /// The CPUs that somebody else gave it alone; `None` where it gets cores here.
    pub(super) cpus: Option<CpuList>,
}

pub(super) struct Discovery {
    rules: Vec<DiscoverConfig>,
    /// What a VM's group said of its size, if anything, when it was first taken: later what its files say is ours.
    sizes: BTreeMap<(String, u64), Option<u16>>,
    /// What kept groups from being VMs, at the last look.
    troubles: Vec<Alarm>,
}

impl Discovery {
    pub(super) fn new(rules: Vec<DiscoverConfig>) -> Self {
        Self { rules, sizes: BTreeMap::new(), troubles: vec![] }
    }

    /// Goes by other rules from the next look on.
    pub(super) fn follow(&mut self, rules: Vec<DiscoverConfig>) {
        self.rules = rules;
    }

    /// What kept groups from being VMs.
    pub(super) fn troubles(&self) -> impl Iterator<Item = &Alarm> {
        self.troubles.iter()
    }

    /// Every VM that is there now, in order of rule and path. `originals` is what was on its group before it
    /// was restricted.
    pub(super) fn look(&mut self, root: &Root, originals: &Originals) -> Vec<DiscoveredVm> {
        let before = mem::take(&mut self.troubles);
        let sizes = mem::take(&mut self.sizes);
        let (mut all, mut paths, mut names) = (vec![], BTreeSet::new(), BTreeSet::new());

        for rule in &self.rules {
            let groups = rule.pattern.find(root).unwrap_or_else(|error| {
                self.troubles.push(not_taken(&rule.pattern, format!("discover {}: {error}", rule.pattern)));
                vec![]
            });

            for group in groups {
                if !paths.insert(group.path.clone()) {
                    continue;
                }
                let limit = originals.quotas.get(&group.path).and_then(|it| it.limit.time());
                let key = (group.path.clone(), group.inode);
                let known = sizes.get(&key).copied();
                let is_its_own = known.is_none() || !originals.cpusets.contains_key(&group.path);
                let size = || group.size(limit.or(group.cpu_max)).filter(|_| is_its_own);
                let own = known.flatten().or_else(size);
                let Some(cores) = rule.cores.or(own) else {
                    let message = format!(
                        "{}: no vCPUs, CPUQuota or AllowedCPUs tell its size: discover.cores of {}",
                        group.path, rule.pattern
                    );
                    self.troubles.push(not_taken(&group.path, message));
                    continue;
                };

                self.sizes.insert(key, own);
                if !names.insert(group.name.clone()) {
                    let message = format!("{}: another VM is called {}", group.path, group.name);
                    self.troubles.push(not_taken(&group.path, message));
                    continue;
                }

                let spec = VmSpec {
                    class: rule.class,
                    throttle_order: rule.throttle_order,
                    cores,
                    cgroup: Some(group.path),
                    on_extreme: rule.on_extreme,
                    tenant: rule.tenant.clone(),
                    pinned: rule.pinned,
                };
                if let Err(why) = spec.check() {
                    self.troubles.push(not_taken(&group.name, format!("{}: {why}", group.name)));
                    continue;
                }

                all.push(DiscoveredVm { id: group.name, spec, by: rule.pattern.to_string(), cpus: None });
            }
        }

        for trouble in self.troubles.iter().filter(|it| !before.contains(it)) {
            tracing::warn!("not a VM: {}", trouble.message);
        }
        all
    }
}

fn not_taken(subject: impl std::fmt::Display, why: String) -> Alarm {
    Alarm::about(AlarmId::VmNotTaken, subject, why)
}

impl Vms {
    /// Looks at which VMs there are, and whether each is where it was put; gives the new set if it is another
    /// than before.
    pub(crate) fn rescan(&mut self) -> Option<Vec<ControlledVm>> {
        // Everything has been put back.
        self.journal.as_ref()?;
        let found = self.found();
        let left = self.specs.find(found);
        let is_new = left.is_some() | self.specs.predicted.expire(clock::now());
        // Who waits for an answer is not moved meanwhile.
        let is_new = is_new | (!self.waits_for_answers && self.specs.advance(clock::now()));
        self.give_all_back(left.unwrap_or_default());
        let is_settled =
            self.troubles.is_empty() && self.slice_troubles.is_empty() && !self.waits_for_answers;
        if !is_new && is_settled && !self.astray() {
            self.note();
            return None;
        }
        let before = self.set.clone();
        let set = self.move_all();
        (set != before).then_some(set)
    }
}

/// Starts looking, every `period` and whenever one who was asked has `answered`; ends when the control thread
/// does.
pub(crate) fn start(
    period: Duration,
    answered: Receiver<()>,
    vms: Arc<Mutex<Vms>>,
    messages: Sender<Message>,
) -> io::Result<()> {
    let turn = move || {
        // Sent under the lock, so that no older set comes after a newer one.
        let mut vms = lock(&vms);
        match vms.rescan() {
            Some(set) => messages.send(Message::Input(Input::Vms(set))).is_ok(),
            None => true,
        }
    };
    let look = move |(): &mut ()| {
        while turn() {
            if let Err(RecvTimeoutError::Disconnected) = answered.recv_timeout(period) {
                thread::sleep(period);
            }
            // One look is enough for all who have answered by now.
            while answered.try_recv().is_ok() {}
        }
    };
    supervise("discovery", (), look).map(drop)
}
