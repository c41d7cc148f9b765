//! The inventory in memory and on disk, together.
//!
//! A change is checked and made in memory, and handed to the thread that writes; its answer is given when it
//! is on disk. What comes meanwhile is written together. So an answer that was given stands after a crash; a
//! change that nobody was answered for is there whole or not at all.

use std::mem;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use anyhow::Context as _;
use axum::http::StatusCode;
use ballast_placement::{Inventory, Policy};
use tokio::sync::oneshot;

use super::admission::book::AdmissionBook;
use super::drains::book::Drains;
use super::lifetime_history::{HistoryCounts, HistoryOptions, HistoryRow, LifetimeHistory};
use super::store::{self, Contents, Record, Store};
use crate::config::AdmissionConfig;
use ballast_runtime::http::Refused;
use ballast_runtime::lock;
use ballast_runtime::threads::supervise;
use ballast_types::wire::{Alarm, AlarmId, LifetimeHistoryStatus};

/// What the thread that writes is given, in the order of changes.
enum Work {
    /// Put these on disk, all or none, or find that all before it is there.
    Write(Vec<Record>, oneshot::Sender<Result<(), String>>),
    /// Everything as it is at this point of the order.
    Renew(Contents),
    Stop,
}

/// The inventory. What is changed is on disk before anybody is told.
pub(super) struct DurableInventory {
    inventory: Mutex<Inventory>,
    /// Locked after the inventory.
    drains: Mutex<Drains>,
    /// Whether new deployments may come, if anybody asks. Locked after the inventory.
    admission: Option<Mutex<AdmissionBook>>,
    work: Sender<Work>,
    /// The thread that writes asks for everything: a change could not be written.
    wants_all: Arc<AtomicBool>,
    /// Why the newest changes are not on disk, if they are not.
    problem: Arc<Mutex<Option<String>>>,
    /// What became of the history of lifetimes, if one is kept.
    history: Option<Arc<HistoryCounts>>,
}

impl DurableInventory {
    /// What is in a folder, placed by `policy`; and the thread that writes. Fails when the folder cannot be
    /// used, or what is in it is damaged. With `history` the starts and ends of VMs are kept beside it, with
    /// `admission` what deployments did.
    pub(super) fn open(
        folder: &Path,
        policy: Policy,
        history: Option<HistoryOptions>,
        admission: Option<&AdmissionConfig>,
    ) -> anyhow::Result<(Arc<Self>, JoinHandle<()>)> {
        let recovered = store::open(folder)?;
        let mut inventory = Inventory::new(policy);
        let Contents { inventory: snapshot, drains, deployments } = recovered.contents;
        let now = ballast_runtime::unix_now();
        let replaced = inventory.replace(now, &snapshot);
        replaced.with_context(|| format!("{}: its contents contradict each other", folder.display()))?;
        let mut drains = Drains::of(drains);
        drains.recover(now, &mut inventory);
        let history = history.map(|options| {
            let running = inventory.vms().map(|vm| (vm.name.to_owned(), vm.since)).collect();
            LifetimeHistory::start(folder, options, running)
        });
        let history = history.transpose()?;
        let forgotten = admission.is_none() && !deployments.is_empty();
        let admission = admission.map(|config| AdmissionBook::new(config, now, deployments, inventory.vms()));
        let (durable, thread) =
            Self::over(recovered.store, inventory, drains, admission, recovered.problem, history)?;
        if forgotten {
            // Without admission deployments are not observed: a later start must not find stale ones.
            durable.give(durable.all(&durable.look())).map_err(|Refused(_, why)| anyhow::anyhow!(why))?;
        }
        Ok((durable, thread))
    }

    fn over(
        store: Store,
        inventory: Inventory,
        drains: Drains,
        admission: Option<AdmissionBook>,
        start_problem: Option<std::io::Error>,
        history: Option<LifetimeHistory>,
    ) -> std::io::Result<(Arc<Self>, JoinHandle<()>)> {
        // Not bounded: 128 orders at once, each of which waits for its change.
        let (work, inbox) = mpsc::channel();
        let broken = start_problem.is_some();
        let durable = Arc::new(Self {
            inventory: Mutex::new(inventory),
            drains: Mutex::new(drains),
            admission: admission.map(Mutex::new),
            work,
            wants_all: Arc::new(broken.into()),
            problem: Arc::default(),
            history: history.as_ref().map(LifetimeHistory::counts),
        });

        let (wants_all, problem) = (Arc::clone(&durable.wants_all), Arc::clone(&durable.problem));
        let mut writer = Writer { store, broken, wants_all, problem, history };

        if let Some(error) = start_problem {
            writer.note(Err(error));
        }
        let mut begun = false;
        let thread = supervise("inventory", inbox, move |inbox| {
            if mem::replace(&mut begun, true) {
                // What was being written may be half: all is written anew with the next change.
                writer.broken = true;
                writer.wants_all.store(true, Ordering::Relaxed);
                writer.note(Err(std::io::Error::other("the thread that writes has panicked")));
            }
            writer.run(inbox);
        })?;
        Ok((durable, thread))
    }

    /// The inventory as it is now: rules whose time has come have looked at their hosts again.
    pub(super) fn look(&self) -> MutexGuard<'_, Inventory> {
        let mut inventory = lock(&self.inventory);
        inventory.catch_up(ballast_runtime::unix_now());
        inventory
    }

    /// What became of the history of lifetimes, if one is kept.
    pub(super) fn history(&self) -> Option<LifetimeHistoryStatus> {
        self.history.as_ref().map(|history| history.status())
    }

    /// Makes a change, and comes back when it is on disk, with all changes before it.
    ///
    /// # Errors
    /// What `change` says, which has then changed nothing; 503 when the disk does not take it: then it may be
    /// there after a restart, or not.
    pub(super) async fn change<T, E>(
        &self,
        change: impl FnOnce(&mut Inventory) -> Result<(T, Option<Record>), E>,
    ) -> Result<Result<T, E>, Refused> {
        let (done, is_done) = oneshot::channel();
        let changed = {
            let mut inventory = self.look();
            if self.wants_all.swap(false, Ordering::Relaxed) {
                self.give(self.all(&inventory))?;
            }
            let (changed, record) = match change(&mut inventory) {
                Ok((told, record)) => (Ok(told), record),
                Err(error) => (Err(error), None),
            };
            let seen =
                self.admission().and_then(|mut it| it.note(ballast_runtime::unix_now(), record.as_ref()));
            let records = record.into_iter().chain(seen).collect();

            // Under the lock: records come in the order of changes. What was refused waits for what it was
            // refused for.
            self.give(Work::Write(records, done))?;

            changed
        };

        let written = is_done.await.map_err(|_| stopping())?;
        written.map_err(|why| Refused(StatusCode::SERVICE_UNAVAILABLE, why))?;

        Ok(changed)
    }

    /// The drains. Whoever locks the inventory, too, has locked it before.
    pub(super) fn drains(&self) -> MutexGuard<'_, Drains> {
        lock(&self.drains)
    }

    /// Whether new deployments may come, if anybody asks. Whoever locks the inventory, too, has locked it before.
    pub(super) fn admission(&self) -> Option<MutexGuard<'_, AdmissionBook>> {
        self.admission.as_ref().map(|it| lock(it))
    }

    fn all(&self, inventory: &Inventory) -> Work {
        let deployments = self.admission().map(|it| it.records()).unwrap_or_default();
        let drains = self.drains().all().cloned().collect();
        Work::Renew(Contents { inventory: inventory.snapshot(), drains, deployments })
    }

    fn give(&self, work: Work) -> Result<(), Refused> {
        self.work.send(work).map_err(|_| stopping())
    }

    /// Lets the thread that writes end, once all is written.
    pub(super) fn stop(&self) {
        // Fails only when it has ended.
        let _ = self.work.send(Work::Stop);
    }

    /// What an operator should look at.
    pub(super) fn alarms(&self) -> impl Iterator<Item = Alarm> {
        let problem = lock(&self.problem).clone();
        problem.map(|why| Alarm::new(AlarmId::InventoryNotWritten, why)).into_iter()
    }
}

fn stopping() -> Refused {
    Refused(StatusCode::SERVICE_UNAVAILABLE, "stopping".into())
}

struct Writer {
    store: Store,
    /// What is on disk is not known, until all of it was written anew.
    broken: bool,
    wants_all: Arc<AtomicBool>,
    problem: Arc<Mutex<Option<String>>>,
    history: Option<LifetimeHistory>,
}

impl Writer {
    fn run(&mut self, inbox: &Receiver<Work>) {
        while let Ok(first) = inbox.recv() {
            let (mut records, mut waiting) = (vec![], vec![]);
            let mut end = false;
            for work in std::iter::once(first).chain(inbox.try_iter()) {
                match work {
                    Work::Write(more, done) => {
                        records.extend(more);
                        waiting.push(done);
                    }
                    Work::Renew(contents) => {
                        self.write(&mut records, &mut waiting);
                        let written = self.store.renew(&contents);
                        self.broken = written.is_err();
                        self.note(written);
                    }
                    Work::Stop => end = true,
                }
            }

            self.write(&mut records, &mut waiting);

            if end {
                self.history = None;
                return;
            }
        }
    }

    /// All of these records at once, and then their answers.
    fn write(&mut self, records: &mut Vec<Record>, waiting: &mut Vec<oneshot::Sender<Result<(), String>>>) {
        if !records.is_empty() && !self.broken {
            let written = self.store.append(records);
            self.broken = written.is_err();
            self.note(written);
        }

        if self.broken {
            self.wants_all.store(true, Ordering::Relaxed);
        }
        let problem = lock(&self.problem).clone().filter(|_| self.broken);

        for done in waiting.drain(..) {
            // Fails only when nobody waits any more.
            let _ = done.send(problem.clone().map_or(Ok(()), Err));
        }

        // In memory they have changed, whatever the disk says.
        if let Some(history) = &self.history {
            history.note(records.drain(..).flat_map(rows).collect());
        }
        records.clear();
    }

    fn note(&self, written: std::io::Result<()>) {
        let problem = written.err().map(|error| format!("changes cannot be kept: {error}"));
        if let Some(problem) = &problem {
            tracing::error!("{problem}");
        }
        *lock(&self.problem) = problem;
    }
}

/// What the history of lifetimes is told of a change.
fn rows(record: Record) -> impl Iterator<Item = HistoryRow> {
    let ended = record.ended.into_iter().map(|(placed, at)| (placed, Some(at)));
    record.vms.into_iter().map(|placed| (placed, None)).chain(ended)
}

#[cfg(test)]
mod tests {
    use ballast_placement::inventory::{HostSpec, NamedHost};
    use ballast_placement::{InventoryError, MemoryKb, MilliCores, Resources};

    use super::*;

    async fn add(durable: &DurableInventory, name: &str) -> Result<Result<(), InventoryError>, Refused> {
        let capacity = Resources::new(MilliCores::from_cores(8), MemoryKb::ZERO);
        let spec = HostSpec::new("c1", capacity);
        let host = NamedHost { name: name.into(), spec };
        durable
            .change(|inventory| {
                inventory.set_host(ballast_runtime::unix_now(), &host.name, &host.spec)?;
                Ok(((), Some(Record { hosts: vec![host.clone()], ..Record::default() })))
            })
            .await
    }

    fn names(inventory: &Inventory) -> Vec<String> {
        inventory.hosts().map(|host| host.name.to_owned()).collect()
    }

    #[tokio::test]
    async fn a_full_disk_is_told_and_the_next_change_writes_all() {
        let folder = tempfile::tempdir().unwrap();
        let store = store::open(folder.path()).unwrap().store.full();
        let (durable, thread) =
            DurableInventory::over(store, Inventory::new(Policy::POWER), Drains::default(), None, None, None)
                .unwrap();
        let Err(Refused(status, why)) = add(&durable, "s1").await else { panic!("it was answered") };
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(why.contains("inventory.redb: No space left"), "{why}");
        assert_eq!(durable.alarms().collect::<Vec<_>>(), [Alarm::new(AlarmId::InventoryNotWritten, why)]);
        assert!(store::open(folder.path()).unwrap().contents.inventory.hosts.is_empty());

        // The database is opened anew, and the folder has room.
        add(&durable, "s2").await.ok().unwrap().unwrap();
        assert_eq!(durable.alarms().count(), 0);
        let bad = add(&durable, "a\nb").await.ok().unwrap().unwrap_err();
        assert!(matches!(bad, InventoryError::Name { .. }));
        durable.stop();
        thread.join().unwrap();
        let (again, _) = DurableInventory::open(folder.path(), Policy::POWER, None, None).unwrap();
        assert_eq!(names(&again.look()), ["s1", "s2"]);
        assert_eq!(names(&durable.look()), ["s1", "s2"]);
    }

    #[tokio::test]
    async fn changes_that_come_together_are_all_on_disk_when_answered() {
        let folder = tempfile::tempdir().unwrap();
        let (durable, _) = DurableInventory::open(folder.path(), Policy::POWER, None, None).unwrap();
        let all: Vec<String> = (0..50).map(|n| format!("s{n:02}")).collect();
        let mut tasks = tokio::task::JoinSet::new();
        for name in all.clone() {
            let durable = Arc::clone(&durable);
            tasks.spawn(async move { add(&durable, &name).await.ok().unwrap().unwrap() });
        }
        tasks.join_all().await;
        let found = store::open(folder.path()).unwrap().contents.inventory;
        let found: Vec<String> = found.hosts.into_iter().map(|host| host.name).collect();
        assert_eq!(found, all);
    }
}
