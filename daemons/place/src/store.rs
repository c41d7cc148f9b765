//! The inventory on disk: a database of hosts and VMs, each by its name, in one file.
//!
//! A change is a transaction, on disk when it is committed; a crash leaves it whole or not at all. Every start checks
//! all of the file: without that a flipped bit is read as if it were true. After an error the database takes nothing
//! more, a full disk included, so it is opened anew. A journal with snapshots was as fast, but let everybody wait 0.3 s
//! for each snapshot of 100,000 VMs (`docs/evidence/results.md`).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use ballast_placement::inventory::{NamedHost, Placed, Snapshot};
use ballast_types::Instant;
use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase as _, ReadableTable as _, StorageBackend,
    TableDefinition, WriteTransaction,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admission::record::DeploymentRecord;
use crate::drains::record::Drain;

/// In JSON what is known of each.
type Definition = TableDefinition<'static, &'static str, &'static [u8]>;

/// A row of a table, and the key that it is stored under.
pub(super) trait Row: Serialize + DeserializeOwned {
    const TABLE: Definition;
    fn key(&self) -> Cow<'_, str>;
}

impl Row for NamedHost {
    const TABLE: Definition = TableDefinition::new("hosts");
    fn key(&self) -> Cow<'_, str> {
        (&self.name).into()
    }
}

impl Row for Placed {
    const TABLE: Definition = TableDefinition::new("vms");
    fn key(&self) -> Cow<'_, str> {
        (&self.vm.name).into()
    }
}

impl Row for Drain {
    const TABLE: Definition = TableDefinition::new("drains");
    fn key(&self) -> Cow<'_, str> {
        drain_key(self.id).into()
    }
}

impl Row for DeploymentRecord {
    const TABLE: Definition = TableDefinition::new("deployments");
    fn key(&self) -> Cow<'_, str> {
        (&self.key).into()
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Contents {
    pub(super) inventory: Snapshot,
    pub(super) drains: Vec<Drain>,
    pub(super) deployments: Vec<DeploymentRecord>,
}

/// What is kept of the file in memory: everything is in the inventory as well.
const CACHE: usize = 4 << 20;

/// One change, as the rows that it leaves: idempotent. It is written as a whole or not at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Record {
    /// New and changed hosts.
    pub(super) hosts: Vec<NamedHost>,
    pub(super) gone_hosts: Vec<String>,
    /// New and changed VMs.
    pub(super) vms: Vec<Placed>,
    /// VMs that have ended, with the time of each.
    pub(super) ended: Vec<(Placed, Instant)>,
    pub(super) drains: Vec<Drain>,
    pub(super) gone_drains: Vec<u64>,
    /// New and changed observations of deployments.
    pub(super) deployments: Vec<DeploymentRecord>,
    pub(super) gone_deployments: Vec<String>,
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
    pub(super) contents: Contents,
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
        let contents = Contents::default();
        let problem = store.renew(&contents).err();
        return Ok(Recovered { store, contents, problem });
    }

    let (database, problem) = match checked().open(&store.path).map_err(io_error) {
        Ok(database) => (database, None),
        Err(error) if error.kind() == ErrorKind::InvalidData => return Err(damaged(&store.path, &error)),
        // It cannot be written, so perhaps not mended after a crash either: a copy can.
        Err(error) => (copy(&store.path)?, Some(named(&store.path, &error))),
    };

    let contents = read(&database).map_err(|error| damaged(&store.path, &error))?;
    store.database = problem.is_none().then_some(database);

    Ok(Recovered { store, contents, problem })
}

impl Store {
    /// Puts records on disk, all or none of them.
    ///
    /// # Errors
    /// What the file system says; then what is on disk is known again only after [`Store::renew`].
    pub(super) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let closed = || ErrorKind::NotFound.into();
        let written = self.database.as_ref().ok_or_else(closed).and_then(|database| {
            change(database, |write| records.iter().try_for_each(|record| note(record, write)))
        });
        written.map_err(|error| named(&self.path, &error))
    }

    /// Makes what is on disk a whole inventory. The database is opened anew, or made: after an error it takes nothing
    /// more.
    ///
    /// # Errors
    /// What the file system says; then what was there before still is.
    pub(super) fn renew(&mut self, contents: &Contents) -> io::Result<()> {
        self.database = None;
        let renewed = self.renewed(contents).map_err(|error| named(&self.path, &error));
        self.database = Some(renewed?);
        Ok(())
    }

    fn renewed(&self, contents: &Contents) -> io::Result<Database> {
        if self.path.try_exists()? {
            let database = checked().open(&self.path).map_err(io_error)?;
            change(&database, |write| replace_all(contents, write))?;
            return Ok(database);
        }

        // Under another name until it is whole: half a file would be a damaged one.
        let new = self.path.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let database = checked().create(&new).map_err(io_error)?;
        change(&database, |write| replace_all(contents, write))?;
        fs::rename(&new, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(database)
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

fn read(database: &Database) -> io::Result<Contents> {
    let read = database.begin_read().map_err(io_error)?;
    Ok(Contents {
        inventory: Snapshot { hosts: all_of(&read)?, vms: all_of(&read)? },
        drains: all_of(&read)?,
        deployments: all_of(&read)?,
    })
}

fn all_of<T: Row>(read: &ReadTransaction) -> io::Result<Vec<T>> {
    let table = read.open_table(T::TABLE).map_err(io_error)?;
    let rows = table.iter().map_err(io_error)?.map(|row| {
        let json = row.map_err(io_error)?.1;
        serde_json::from_slice(json.value()).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    });
    rows.collect()
}

/// One transaction: on disk as a whole when this comes back, or not at all.
fn change(database: &Database, change: impl FnOnce(&WriteTransaction) -> io::Result<()>) -> io::Result<()> {
    let write = database.begin_write().map_err(io_error)?;
    change(&write)?;
    write.commit().map_err(io_error)
}

fn note(record: &Record, write: &WriteTransaction) -> io::Result<()> {
    set(write, &record.hosts)?;
    set(write, &record.vms)?;
    set(write, &record.drains)?;
    set(write, &record.deployments)?;
    remove::<Placed, _>(write, &record.ended, |(placed, _)| placed.key())?;
    remove::<NamedHost, _>(write, &record.gone_hosts, |name| name.into())?;
    remove::<Drain, _>(write, &record.gone_drains, |id| drain_key(*id).into())?;
    remove::<DeploymentRecord, _>(write, &record.gone_deployments, |key| key.into())
}

fn replace_all(contents: &Contents, write: &WriteTransaction) -> io::Result<()> {
    replace(write, &contents.inventory.hosts)?;
    replace(write, &contents.inventory.vms)?;
    replace(write, &contents.drains)?;
    replace(write, &contents.deployments)
}

/// Writes only rows that differ: a transaction needs disk space beside the rows that it replaces.
fn replace<T: Row>(write: &WriteTransaction, rows: &[T]) -> io::Result<()> {
    let keys: BTreeSet<Cow<'_, str>> = rows.iter().map(Row::key).collect();
    let mut table = write.open_table(T::TABLE).map_err(io_error)?;
    table.retain(|key, _| keys.contains(key)).map_err(io_error)?;
    drop(table);
    set(write, rows)
}

fn set<T: Row>(write: &WriteTransaction, rows: &[T]) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut table = write.open_table(T::TABLE).map_err(io_error)?;
    for row in rows {
        let (key, json) = (row.key(), serde_json::to_vec(row)?);
        let same = table.get(&*key).map_err(io_error)?.is_some_and(|stored| stored.value() == json);
        if !same {
            table.insert(&*key, json.as_slice()).map_err(io_error)?;
        }
    }
    Ok(())
}

fn remove<T: Row, Gone>(
    write: &WriteTransaction,
    gone: &[Gone],
    key: impl Fn(&Gone) -> Cow<'_, str>,
) -> io::Result<()> {
    if gone.is_empty() {
        return Ok(());
    }
    let mut table = write.open_table(T::TABLE).map_err(io_error)?;
    gone.iter().try_for_each(|gone| table.remove(&*key(gone)).map(drop)).map_err(io_error)
}

/// In the order of numbers.
fn drain_key(id: u64) -> String {
    format!("{id:020}")
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

    use ballast_placement::inventory::{HostSpec, NamedVm, VmSpec};
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
        Placed { vm, host: host.into(), since: Instant::from_millis(1_764_000_000_000) }
    }

    fn added_host(name: &str) -> Record {
        Record { hosts: vec![host(name)], ..Record::default() }
    }

    fn ended(vm: Placed) -> Record {
        Record { ended: vec![(vm, Instant::ZERO)], ..Record::default() }
    }

    fn records() -> Vec<Record> {
        vec![
            added_host("s1"),
            added_host("s2"),
            Record { vms: vec![vm("a", "s1"), vm("b", "s2")], ..Record::default() },
            ended(vm("a", "s1")),
            Record { vms: vec![vm("b", "s1"), vm("c", "s2")], ..Record::default() },
            Record { gone_hosts: vec!["s2".into()], ..ended(vm("c", "s2")) },
            added_host("s3"),
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
        open(copy.path()).unwrap().contents.inventory
    }

    #[test]
    fn what_was_appended_is_there_after_a_kill_and_after_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut found = open(folder.path()).unwrap();
        assert!(found.problem.is_none());
        assert_eq!(found.contents.inventory, Snapshot::default());

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
        assert_eq!(found.contents.inventory, after_all());
        let other = Snapshot { hosts: vec![host("s1"), host("s4")], vms: vec![vm("b", "s4")] };
        found.store.renew(&Contents { inventory: other.clone(), ..Contents::default() }).unwrap();
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
        assert_eq!(found.contents.inventory, after_all());
        assert!(found.problem.unwrap().to_string().contains("inventory.redb: "));
        assert!(found.store.append(&records()).is_err());
        drop(store);
        found.store.renew(&Contents::default()).unwrap();
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
                false => assert_eq!(open(folder.path()).unwrap().contents.inventory, after_all(), "{at}"),
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
