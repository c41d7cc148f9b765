//! The inventory on disk: a database of hosts and VMs, each by its name, in one file.
//!
//! A change is a transaction, on disk when it is committed; a crash leaves it whole or not at all. Every start checks
//! all of the file: without that a flipped bit is read as if it were true. After an error the database takes nothing
//! more, a full disk included, so it is opened anew. A journal with snapshots was as fast, but let everybody wait 0.3 s
//! for each snapshot of 100,000 VMs (`docs/evidence/results.md`).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use ballast_placement::inventory::{HostSpec, NamedHost, Placed, Snapshot};
use ballast_types::Instant;
use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase as _, ReadableTable as _, StorageBackend, Table,
    TableDefinition,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admission::record::DeploymentRecord;
use crate::drains::record::Drain;

/// In JSON what is known of each.
type Definition = TableDefinition<'static, &'static str, &'static [u8]>;
/// By a host's name its [`HostSpec`].
const HOSTS: Definition = TableDefinition::new("hosts");
/// By a VM's name all of [`Placed`].
const VMS: Definition = TableDefinition::new("vms");
/// By a drain's number, with leading zeros, all of [`Drain`]; databases of before have no such table.
const DRAINS: Definition = TableDefinition::new("drains");
/// By its key all of [`DeploymentRecord`]; databases of before have no such table.
const DEPLOYMENTS: Definition = TableDefinition::new("deployments");
/// What is kept of the file in memory: everything is in the inventory as well.
const CACHE: usize = 4 << 20;

/// One change, told as what is there afterwards: taking note of it twice is as good as once.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// A host is there, and is so.
    Host(NamedHost),
    /// Hosts are there, and are so; others are gone.
    Hosts {
        /// Those that are new or otherwise than before.
        set: Vec<NamedHost>,
        /// Those that are gone.
        gone: Vec<String>,
    },
    /// VMs are there, and are so: all of a request in one record, so that they are there all or none.
    Vms(Vec<Placed>),
    /// What a drain has changed: all of it or nothing.
    Drains {
        /// Hosts that open or close.
        hosts: Vec<NamedHost>,
        /// VMs that have moved.
        vms: Vec<Placed>,
        set: Vec<Drain>,
        /// The numbers of those that are forgotten.
        gone: Vec<u64>,
    },
    /// What has been seen of deployments, written with the change that was seen.
    Deployments {
        set: Vec<DeploymentRecord>,
        /// The keys of those that are over.
        gone: Vec<String>,
    },
    /// VMs have ended, and a host may be gone with all of its own.
    Ended { vms: Vec<Placed>, host: Option<String>, at: Instant },
}

/// The database of one folder, which is this process's alone.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    /// `None` while the disk does not let it be opened: then only [`Store::renew`] helps.
    database: Option<Database>,
}

#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) store: Store,
    pub(super) inventory: Snapshot,
    pub(super) drains: Vec<Drain>,
    pub(super) deployments: Vec<DeploymentRecord>,
    /// Why nothing can be written, if it cannot.
    pub(super) problem: Option<io::Error>,
}

/// Opens what is in a folder; nothing at all is an empty inventory.
///
/// A disk that is full or takes no writes is no error: what it holds can be read. Fails when a file cannot be
/// read, or is damaged: it is named, and left as it is.
pub(super) fn open(folder: &Path) -> io::Result<Recovered> {
    let path = folder.join("inventory.redb");
    let mut store = Store { path, database: None };

    if !store.path.try_exists().map_err(|error| named(&store.path, &error))? {
        let inventory = Snapshot::default();
        let problem = store.renew(&inventory, &[], &[]).err();
        return Ok(Recovered { store, inventory, drains: vec![], deployments: vec![], problem });
    }

    let (database, problem) = match checked().open(&store.path).map_err(io_error) {
        Ok(database) => (database, None),
        Err(error) if error.kind() == ErrorKind::InvalidData => return Err(damaged(&store.path, &error)),
        // It cannot be written, so perhaps not mended after a crash either: a copy can.
        Err(error) => (copy(&store.path)?, Some(named(&store.path, &error))),
    };

    let (inventory, drains, deployments) = read(&database).map_err(|error| damaged(&store.path, &error))?;
    store.database = problem.is_none().then_some(database);

    Ok(Recovered { store, inventory, drains, deployments, problem })
}

impl Store {
    /// Puts records on disk, all or none of them.
    ///
    /// # Errors
    /// What the file system says; then what is on disk is known again only after [`Store::renew`].
    pub(super) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let closed = || ErrorKind::NotFound.into();
        let written = self.database.as_ref().ok_or_else(closed).and_then(|database| {
            change(database, |tables| records.iter().try_for_each(|record| note(record, tables)))
        });
        written.map_err(|error| named(&self.path, &error))
    }

    /// Makes what is on disk a whole inventory. The database is opened anew, or made: after an error it takes nothing
    /// more.
    ///
    /// # Errors
    /// What the file system says; then what was there before still is.
    pub(super) fn renew(
        &mut self,
        inventory: &Snapshot,
        drains: &[Drain],
        deployments: &[DeploymentRecord],
    ) -> io::Result<()> {
        self.database = None;
        let renewed = || {
            if self.path.try_exists()? {
                let database = checked().open(&self.path).map_err(io_error)?;
                change(&database, |tables| replace(inventory, drains, deployments, tables))?;

                return Ok(database);
            }

            // Under another name until it is whole: half a file would be a damaged one.
            let new = self.path.with_extension("new");
            let folder = self.path.parent().unwrap_or(Path::new("."));
            match fs::remove_file(&new) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }

            let database = checked().create(&new).map_err(io_error)?;
            change(&database, |tables| replace(inventory, drains, deployments, tables))?;
            fs::rename(&new, &self.path)?;
            File::open(folder)?.sync_all()?;

            Ok(database)
        };

        let renewed = renewed().map_err(|error| named(&self.path, &error));
        self.database = Some(renewed?);

        Ok(())
    }

    /// On a device that takes nothing.
    #[cfg(test)]
    pub(super) fn full(mut self) -> Self {
        let device = tests::Full::default();
        let is_full = std::sync::Arc::clone(&device.is_full);
        self.database = checked().create_with_backend(device).ok();
        is_full.store(true, std::sync::atomic::Ordering::Relaxed);
        self
    }
}

fn checked() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE).set_check_integrity_on_open(true);
    builder
}

/// The database of a file that cannot be written, in memory.
fn copy(path: &Path) -> io::Result<Database> {
    let bytes = fs::read(path).map_err(|error| named(path, &error))?;
    let backend = InMemoryBackend::new();
    let filled = backend.set_len(bytes.len() as u64);
    let filled = filled.and_then(|()| StorageBackend::write(&backend, 0, &bytes));
    filled.map_err(|error| named(path, &error))?;
    checked().create_with_backend(backend).map_err(|error| damaged(path, &error))
}

/// All that is in a database.
fn read(database: &Database) -> io::Result<(Snapshot, Vec<Drain>, Vec<DeploymentRecord>)> {
    let read = database.begin_read().map_err(io_error)?;
    let (hosts, vms) = (read.open_table(HOSTS).map_err(io_error)?, read.open_table(VMS).map_err(io_error)?);
    let mut inventory = Snapshot::default();
    for entry in hosts.iter().map_err(io_error)? {
        let (name, spec) = entry.map_err(io_error)?;
        let (name, spec) = (name.value().to_owned(), of_json::<HostSpec>(spec.value())?);
        inventory.hosts.push(NamedHost { name, spec });
    }
    for entry in vms.iter().map_err(io_error)? {
        inventory.vms.push(of_json(entry.map_err(io_error)?.1.value())?);
    }
    Ok((inventory, all_of(&read, DRAINS)?, all_of(&read, DEPLOYMENTS)?))
}

/// All of a table; nothing where there is none.
fn all_of<T: DeserializeOwned>(read: &ReadTransaction, table: Definition) -> io::Result<Vec<T>> {
    let table = match read.open_table(table) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(vec![]),
        table => table.map_err(io_error)?,
    };
    let one =
        |entry: Result<(_, redb::AccessGuard<'_, &[u8]>), _>| of_json(entry.map_err(io_error)?.1.value());
    table.iter().map_err(io_error)?.map(one).collect()
}

type Entries<'a> = Table<'a, &'static str, &'static [u8]>;

struct Tables<'a> {
    hosts: Entries<'a>,
    vms: Entries<'a>,
    drains: Entries<'a>,
    deployments: Entries<'a>,
}

/// One transaction: on disk as a whole when this comes back, or not at all.
fn change(database: &Database, change: impl FnOnce(&mut Tables<'_>) -> io::Result<()>) -> io::Result<()> {
    let write = database.begin_write().map_err(io_error)?;
    {
        let open = |table| write.open_table(table).map_err(io_error);
        let (hosts, vms) = (open(HOSTS)?, open(VMS)?);
        change(&mut Tables { hosts, vms, drains: open(DRAINS)?, deployments: open(DEPLOYMENTS)? })?;
    }
    write.commit().map_err(io_error)
}

fn note(record: &Record, tables: &mut Tables<'_>) -> io::Result<()> {
    let Tables { hosts, vms, drains, deployments } = tables;
    match record {
        Record::Host(host) => set(hosts, &host.name, &host.spec),
        Record::Hosts { set: new, gone } => {
            new.iter().try_for_each(|host| set(hosts, &host.name, &host.spec))?;
            gone.iter().try_for_each(|name| remove(hosts, name))
        }
        Record::Vms(placed) => placed.iter().try_for_each(|it| set(vms, &it.vm.name, it)),
        Record::Drains { hosts: new, vms: placed, set: under_way, gone } => {
            new.iter().try_for_each(|host| set(hosts, &host.name, &host.spec))?;
            placed.iter().try_for_each(|it| set(vms, &it.vm.name, it))?;
            under_way.iter().try_for_each(|drain| set(drains, &drain_key(drain.id), drain))?;
            gone.iter().try_for_each(|id| remove(drains, &drain_key(*id)))
        }
        Record::Deployments { set: seen, gone } => {
            seen.iter().try_for_each(|it| set(deployments, &it.key, it))?;
            gone.iter().try_for_each(|key| remove(deployments, key))
        }
        Record::Ended { vms: ended, host, .. } => {
            ended.iter().try_for_each(|placed| remove(vms, &placed.vm.name))?;
            host.iter().try_for_each(|name| remove(hosts, name))
        }
    }
}

/// Only what is otherwise is written: a transaction needs room beside what it replaces.
fn replace(
    inventory: &Snapshot,
    under_way: &[Drain],
    seen: &[DeploymentRecord],
    tables: &mut Tables<'_>,
) -> io::Result<()> {
    let Tables { hosts, vms, drains, deployments } = tables;
    let named: BTreeMap<&str, &HostSpec> =
        inventory.hosts.iter().map(|host| (host.name.as_str(), &host.spec)).collect();
    let placed: BTreeMap<&str, &Placed> =
        inventory.vms.iter().map(|placed| (placed.vm.name.as_str(), placed)).collect();
    hosts.retain(|name, _| named.contains_key(name)).map_err(io_error)?;
    vms.retain(|name, _| placed.contains_key(name)).map_err(io_error)?;
    named.iter().try_for_each(|(name, spec)| set(hosts, name, spec))?;
    placed.iter().try_for_each(|(name, placed)| set(vms, name, placed))?;

    let kept: BTreeMap<String, &Drain> = under_way.iter().map(|drain| (drain_key(drain.id), drain)).collect();
    drains.retain(|key, _| kept.contains_key(key)).map_err(io_error)?;
    kept.iter().try_for_each(|(key, drain)| set(drains, key, drain))?;

    let seen: BTreeMap<&str, &DeploymentRecord> = seen.iter().map(|it| (it.key.as_str(), it)).collect();
    deployments.retain(|key, _| seen.contains_key(key)).map_err(io_error)?;
    seen.iter().try_for_each(|(key, it)| set(deployments, key, it))
}

/// In the order of numbers.
fn drain_key(id: u64) -> String {
    format!("{id:020}")
}

fn set<T: Serialize>(entries: &mut Entries<'_>, name: &str, value: &T) -> io::Result<()> {
    let json = serde_json::to_vec(value)?;
    let same = entries.get(name).map_err(io_error)?.is_some_and(|there| there.value() == json);
    if !same {
        entries.insert(name, json.as_slice()).map_err(io_error)?;
    }
    Ok(())
}

fn remove(entries: &mut Entries<'_>, name: &str) -> io::Result<()> {
    entries.remove(name).map(drop).map_err(io_error)
}

fn of_json<T: DeserializeOwned>(json: &[u8]) -> io::Result<T> {
    serde_json::from_slice(json).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// What is damaged has the kind [`ErrorKind::InvalidData`].
fn io_error(error: impl Into<redb::Error>) -> io::Error {
    match error.into() {
        redb::Error::Io(error) => error,
        error @ (redb::Error::Corrupted(_)
        | redb::Error::UpgradeRequired(_)
        | redb::Error::TableDoesNotExist(_)
        | redb::Error::TableTypeMismatch { .. }) => io::Error::new(ErrorKind::InvalidData, error),
        error => io::Error::other(error),
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn damaged(path: &Path, why: &dyn Display) -> io::Error {
    let path = path.display();
    let text = format!(
        "{path}: {why}; it is left as it is. To start without it, move the inventory.* files away, then tell \
         hosts and VMs again"
    );
    io::Error::new(ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use ballast_placement::inventory::{NamedVm, VmSpec};
    use ballast_placement::{MemoryKb, MilliCores, Resources};
    use nix::errno::Errno;

    use super::*;

    /// A device that is full from some time on.
    #[derive(Debug, Default)]
    pub(super) struct Full {
        memory: InMemoryBackend,
        pub(super) is_full: Arc<AtomicBool>,
    }

    impl Full {
        fn room(&self) -> io::Result<()> {
            if self.is_full.load(Ordering::Relaxed) { Err(Errno::ENOSPC.into()) } else { Ok(()) }
        }
    }

    impl StorageBackend for Full {
        fn len(&self) -> io::Result<u64> {
            self.memory.len()
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            StorageBackend::read(&self.memory, offset, out)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.room().and_then(|()| self.memory.set_len(len))
        }

        fn sync_data(&self) -> io::Result<()> {
            self.room()
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.room().and_then(|()| StorageBackend::write(&self.memory, offset, data))
        }
    }

    fn host(name: &str) -> NamedHost {
        let capacity = Resources::new(MilliCores::from_cores(40), MemoryKb::from_gb(160.0).unwrap());
        let spec = HostSpec::new("c1", capacity);
        NamedHost { name: name.into(), spec }
    }

    fn vm(name: &str, host: &str) -> Placed {
        let resources = Resources::new(MilliCores::from_cores(4), MemoryKb::from_gb(16.0).unwrap());
        let vm = NamedVm { name: name.into(), spec: VmSpec::new(resources) };
        Placed { vm, host: host.into(), since: Some(Instant::from_millis(1_764_000_000_000)) }
    }

    fn records() -> Vec<Record> {
        vec![
            Record::Host(host("s1")),
            Record::Host(host("s2")),
            Record::Vms(vec![vm("a", "s1"), vm("b", "s2")]),
            Record::Ended { vms: vec![vm("a", "s1")], host: None, at: Instant::ZERO },
            Record::Vms(vec![vm("b", "s1"), vm("c", "s2")]),
            Record::Ended { vms: vec![vm("c", "s2")], host: Some("s2".into()), at: Instant::ZERO },
            Record::Hosts { set: vec![host("s3")], gone: vec![] },
        ]
    }

    fn after_all() -> Snapshot {
        Snapshot { hosts: vec![host("s1"), host("s3")], vms: vec![vm("b", "s1")] }
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// What a start finds that comes after a kill at this instant.
    fn after_kill(folder: &Path) -> Snapshot {
        let copy = tempfile::tempdir().unwrap();
        fs::copy(folder.join("inventory.redb"), copy.path().join("inventory.redb")).unwrap();
        open(copy.path()).unwrap().inventory
    }

    #[test]
    fn what_was_appended_is_there_after_a_kill_and_after_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut found = open(folder.path()).unwrap();
        assert!(found.problem.is_none());
        assert_eq!(found.inventory, Snapshot::default());

        let vms: Vec<usize> = records()
            .iter()
            .map(|record| {
                found.store.append(std::slice::from_ref(record)).unwrap();
                after_kill(folder.path()).vms.len()
            })
            .collect();
        assert_eq!(vms, [0, 0, 2, 1, 2, 1, 1]);
        assert_eq!(after_kill(folder.path()), after_all());

        drop(found);
        let mut found = open(folder.path()).unwrap();
        assert_eq!(found.inventory, after_all());
        let other = Snapshot { hosts: vec![host("s1"), host("s4")], vms: vec![vm("b", "s4")] };
        found.store.renew(&other, &[], &[]).unwrap();
        assert_eq!(after_kill(folder.path()), other);
        assert_eq!(names(folder.path()), ["inventory.redb"]);
    }

    #[test]
    fn what_cannot_be_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path()).unwrap().store;
        store.append(&records()).unwrap();
        // The other one holds the file: it takes no second.
        let mut found = open(folder.path()).unwrap();
        assert_eq!(found.inventory, after_all());
        assert!(found.problem.unwrap().to_string().contains("inventory.redb: "));
        assert!(found.store.append(&records()).is_err());
        drop(store);
        found.store.renew(&Snapshot::default(), &[], &[]).unwrap();
        assert_eq!(after_kill(folder.path()), Snapshot::default());
    }

    #[test]
    fn what_is_damaged_is_refused_by_name_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("inventory.redb");
        let refused = || {
            let kept = fs::read(&path).unwrap();
            let Err(why) = open(folder.path()) else { return false };
            let why = why.to_string();
            assert!(why.contains("inventory.redb: ") && why.contains("left as it is"), "{why}");
            assert_eq!(fs::read(&path).unwrap(), kept);
            true
        };

        open(folder.path()).unwrap().store.append(&records()).unwrap();
        let whole = fs::read(&path).unwrap();
        let mut damages = 0;
        for at in (0..whole.len()).filter(|at| whole[*at] != 0) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(&path, &damaged).unwrap();
            // What counts no more may be anything.
            match refused() {
                true => damages += 1,
                false => assert_eq!(open(folder.path()).unwrap().inventory, after_all(), "{at}"),
            }
        }
        assert!(damages > 300, "{damages}");

        for end in (1..whole.len()).step_by(8191) {
            fs::write(&path, &whole[..end]).unwrap();
            assert!(refused(), "{end}");
        }
        fs::write(&path, "not a database").unwrap();
        assert!(refused());
    }
}
