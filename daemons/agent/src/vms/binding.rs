//! Which CPUs every VM's cgroup is bound to, and what was there before.

use ballast_hw::binding::Binder;
use ballast_hw::cgroup::Cgroup;
use ballast_hw::{CpuList, HwError, Journal, Operation};

use super::Vms;

/// So often a VM that somebody else has moved is bound again; after that it is his.
const STRIKES: u32 = 3;

/// Where a VM was bound.
pub(super) struct Bound {
    cpus: CpuList,
    inode: u64,
    /// How often somebody else has moved it since.
    strikes: u32,
}

impl Bound {
    pub(super) fn cpus(&self) -> &CpuList {
        &self.cpus
    }
}

impl Vms {
    /// Binds a VM's group to these CPUs; what it had is journalled first.
    pub(super) fn confine(&mut self, path: &str, cpus: &CpuList) -> Result<Cgroup, HwError> {
        let group = Cgroup::at(&self.root, path)?;
        let binder = self.binders.binder()?;
        let inode = group.inode()?;

        if self.journal.as_ref().is_some_and(Journal::is_idle) {
            if binder.effective(path)? != *cpus {
                tracing::info!("dry run: would bind {path} to the CPUs {cpus}");
            }
            return Ok(group);
        }

        self.know_original(path, inode, &*binder)?;
        let known = self.bound.remove(path).filter(|it| it.inode == inode);
        let before = known.as_ref().filter(|it| it.cpus == *cpus);
        let mut strikes = before.map_or(0, |it| it.strikes);
        let now = binder.effective(path)?;
        let mut done = Ok(group);

        if now != *cpus {
            strikes += u32::from(before.is_some());
            if strikes <= STRIKES {
                if let Err(error) = binder.bind(path, cpus) {
                    // Whether it has moved once more is not known before the answer.
                    let known = known.filter(|_| error.is_pending());
                    self.bound.extend(known.map(|it| (path.to_owned(), it)));
                    return Err(error);
                }
            } else {
                let allowed = format!("{cpus}, as bound {STRIKES} times: somebody else moves it");
                done = Err(HwError::value(&self.root.path(path), Operation::Verify, now, allowed));
            }
        }

        self.bound.insert(path.to_owned(), Bound { cpus: cpus.clone(), inode, strikes });

        done
    }

    /// Writes down what a group had, unless that is known of this very group and way to bind it.
    fn know_original(&mut self, path: &str, inode: u64, binder: &dyn Binder) -> Result<(), HwError> {
        match self.originals.cpusets.get(path) {
            Some(known) if known.is_of_another(inode) => {}
            Some(known) if !self.binders.would_be(&known.via) => {
                // Of a previous instance that bound it otherwise.
                self.binders.restore(path, known)?;
            }
            Some(_) => return Ok(()),
            None => {}
        }

        let before = self.originals.cpusets.insert(path.to_owned(), binder.original(path)?);
        if let Some(journal) = &mut self.journal
            && let Err(error) = journal.begin(&self.originals)
        {
            // Not on disk: the next call must try again.
            match before {
                Some(before) => drop(self.originals.cpusets.insert(path.to_owned(), before)),
                None => drop(self.originals.cpusets.remove(path)),
            }

            return Err(error);
        }

        Ok(())
    }

    /// Gives a group back what it had.
    pub(super) fn give_back(&mut self, path: &str) -> Result<(), HwError> {
        self.bound.remove(path);
        let Some(original) = self.originals.cpusets.get(path) else { return Ok(()) };
        self.binders.restore(path, original)?;
        self.forget_original(path)
    }

    /// A group has back what it had.
    pub(super) fn forget_original(&mut self, path: &str) -> Result<(), HwError> {
        self.originals.cpusets.remove(path);
        // Whoever has this cgroup next must not get these cores after a crash of ours.
        self.journal.as_mut().map_or(Ok(()), |journal| journal.begin(&self.originals))
    }

    /// Whether any VM is not where it was put: its group was made anew, or somebody has moved it.
    pub(super) fn astray(&mut self) -> bool {
        let anew = |(path, inode): (&String, &u64)| {
            let now = Cgroup::at(&self.root, path).and_then(|group| group.inode());
            now.is_ok_and(|now| now != *inode)
        };
        if self.inodes.iter().any(anew) {
            return true;
        }
        let Ok(binder) = self.binders.binder() else { return false };
        let moved = |(path, it): (&String, &Bound)| {
            it.strikes <= STRIKES && binder.effective(path).is_ok_and(|now| now != it.cpus)
        };
        self.bound.iter().any(moved)
    }
}
