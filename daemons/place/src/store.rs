//! The inventory on disk: a snapshot, and a journal of what has changed since.
//!
//! ```text
//! inventory.snapshot    one frame: format, generation N, every host and VM
//! inventory.N.journal   frames of records, each written and synced as a whole
//! frame = 8 hex digits of CRC-32  space  JSON  newline
//! ```
//!
//! A frame is begun only when the one before it is on disk. So a broken frame with nothing good behind it is
//! what a crash has left of something that nobody was answered for: it is cut off. Anything else that is
//! broken has been damaged, and is refused and kept.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use ballast_hw::durable;
use ballast_placement::inventory::{HostSpec, NamedHost, NamedVm, Placed, Snapshot, VmSpec};
use ballast_types::Instant;
use serde::{Deserialize, Serialize};

use crc32fast::hash as crc32;

/// What this daemon writes and reads.
const FORMAT: u32 = 1;
/// A shorter journal is not worth a new snapshot.
const JOURNAL_MIN: u64 = 8 << 20;

/// One change, told as what is there afterwards: taking note of it twice is as good as once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// A host is gone, with all its VMs.
    NoHost(String),
    /// VMs are there, and are so: all of a request in one record, so that they are there all or none.
    Vms(Vec<Placed>),
    NoVm(String),
}

#[derive(Serialize)]
struct Written<'a> {
    format: u32,
    generation: u64,
    #[serde(flatten)]
    inventory: &'a Snapshot,
}

#[derive(Deserialize)]
struct Read {
    format: u32,
    generation: u64,
    hosts: Vec<NamedHost>,
    vms: Vec<Placed>,
}

/// Snapshot and journal of one folder, which is this process's alone.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    generation: u64,
    /// `None` while the disk does not let it be opened: then only [`Store::renew`] helps.
    journal: Option<File>,
    /// How long the journal is.
    bytes: u64,
    snapshot_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) store: Store,
    pub(super) inventory: Snapshot,
    /// How much of the journal was cut off, in bytes.
    pub(super) cut: u64,
    /// Why nothing can be written, if it cannot.
    pub(super) problem: Option<io::Error>,
}

/// Opens what is in a folder; nothing at all is an empty inventory.
///
/// A disk that is full or takes no writes is no error: what it holds can be read. Fails when a file cannot be
/// read, or is damaged: it is named, and left as it is.
pub(super) fn open(folder: &Path) -> io::Result<Recovered> {
    let path = folder.join("inventory.snapshot");
    let (mut map, generation, snapshot_bytes) = match fs::read(&path) {
        Ok(bytes) => {
            let read = read_snapshot(&bytes).map_err(|why| damaged(&path, &why))?;
            (Map::of(read.hosts, read.vms), read.generation, bytes.len() as u64)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => (Map::default(), 0, 0),
        Err(error) => return Err(named(&path, &error)),
    };

    let journal = journal_of(folder, generation);

    for stale in journals(folder)? {
        // Begun, or not taken away, when a snapshot was made. One of later is not stale: its snapshot is
        // missing.
        if stale.generation > generation {
            let why = format!("it continues a snapshot {} that is not here", stale.generation);
            return Err(damaged(&stale.path, &why));
        }

        if stale.path != journal {
            // One that stays is stale at the next start too.
            let _ = fs::remove_file(&stale.path);
        }
    }

    let bytes = match fs::read(&journal) {
        Err(error) if error.kind() == ErrorKind::NotFound => vec![],
        read => read.map_err(|error| named(&journal, &error))?,
    };

    let good = replay(&bytes, &mut map).map_err(|why| damaged(&journal, &why))?;
    let goes_on = || {
        let file = OpenOptions::new().create(true).append(true).open(&journal)?;
        file.set_len(good)?;
        file.sync_all()?;
        File::open(folder)?.sync_all()?;

        Ok(file)
    };

    let (journal, problem) = match goes_on() {
        Ok(file) => (Some(file), None),
        Err(error) => (None, Some(named(&journal, &error))),
    };

    let folder = folder.to_owned();
    let store = Store { folder, generation, journal, bytes: good, snapshot_bytes };

    Ok(Recovered { store, inventory: map.into(), cut: bytes.len() as u64 - good, problem })
}

impl Store {
    /// Puts records on disk, all or none of them.
    ///
    /// # Errors
    /// What the file system says; then what is on disk is known again only after [`Store::renew`].
    pub(super) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let frame = frame(&records)?;
        let path = || journal_of(&self.folder, self.generation);
        let closed = || named(&path(), &ErrorKind::NotFound.into());
        let journal = self.journal.as_mut().ok_or_else(closed)?;
        journal.write_all(&frame).map_err(|error| named(&path(), &error))?;
        journal.sync_data().map_err(|error| named(&path(), &error))?;
        self.bytes += frame.len() as u64;
        Ok(())
    }

    /// Puts a whole inventory on disk, and begins a new journal.
    ///
    /// # Errors
    /// What the file system says; then the old ones are still there.
    pub(super) fn renew(&mut self, inventory: &Snapshot) -> io::Result<()> {
        let path = self.folder.join("inventory.snapshot");
        let generation = self.generation + 1;
        let frame = frame(&Written { format: FORMAT, generation, inventory })?;
        let next = journal_of(&self.folder, generation);
        durable::replace(&path, &frame).map_err(|error| named(&path, &error))?;

        // From here on the new snapshot counts; a journal that is not there is an empty one.
        let old = journal_of(&self.folder, self.generation);
        self.generation = generation;
        let mut options = OpenOptions::new();
        let journal = options.create(true).append(true).open(&next);
        let journal = journal.map_err(|error| named(&next, &error))?;
        journal.set_len(0)?;
        self.journal = Some(journal);
        File::open(&self.folder)?.sync_all()?;
        (self.bytes, self.snapshot_bytes) = (0, frame.len() as u64);

        // One that stays is taken away at the next start.
        let _ = fs::remove_file(old);

        Ok(())
    }

    /// With a journal on a device that takes nothing.
    #[cfg(test)]
    pub(super) fn full(mut self) -> Self {
        self.journal = OpenOptions::new().append(true).open("/dev/full").ok();
        self
    }

    /// Whether the journal has grown so long that a new snapshot pays.
    pub(super) fn is_long(&self) -> bool {
        self.bytes > JOURNAL_MIN.max(2 * self.snapshot_bytes)
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn damaged(path: &Path, why: &str) -> io::Error {
    let path = path.display();
    let text = format!(
        "{path}: {why}; it is left as it is. To start without it, move the inventory.* files away, then tell \
         hosts and VMs again"
    );
    io::Error::new(ErrorKind::InvalidData, text)
}

fn journal_of(folder: &Path, generation: u64) -> PathBuf {
    folder.join(format!("inventory.{generation}.journal"))
}

struct Journal {
    path: PathBuf,
    generation: u64,
}

fn journals(folder: &Path) -> io::Result<Vec<Journal>> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).map_err(|error| named(folder, &error))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix("inventory.").and_then(|n| n.strip_suffix(".journal"));
        if let Some(generation) = number.and_then(|number| number.parse().ok()) {
            found.push(Journal { path, generation });
        }
    }
    Ok(found)
}

fn frame<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
    // Room for the checksum, which is known afterwards.
    let mut frame = b"00000000 ".to_vec();
    serde_json::to_writer(&mut frame, value)?;
    let sum = format!("{:08x}", crc32(&frame[9..]));
    frame[..8].copy_from_slice(sum.as_bytes());
    frame.push(b'\n');
    Ok(frame)
}

/// What is in a frame, given without its newline; `None` where it is broken.
fn payload(line: &[u8]) -> Option<&[u8]> {
    let (sum, rest) = line.split_at_checked(8)?;
    let payload = rest.strip_prefix(b" ")?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (sum == crc32(payload)).then_some(payload)
}

fn read_snapshot(bytes: &[u8]) -> Result<Read, String> {
    let line = bytes.strip_suffix(b"\n").ok_or("it is cut short")?;
    let payload = payload(line).ok_or("its checksum does not fit: it is damaged")?;
    let read: Read = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
    if read.format != FORMAT {
        return Err(format!("format {}: this daemon reads {FORMAT}", read.format));
    }
    Ok(read)
}

/// Takes note of all records; says how many bytes are good.
fn replay(bytes: &[u8], map: &mut Map) -> Result<u64, String> {
    let (mut good, mut broken) = (0, None);
    for (nth, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        let records = line.strip_suffix(b"\n").and_then(payload);
        match (records, broken) {
            (Some(_), Some(broken)) => {
                return Err(format!("line {broken} is damaged, and later ones are not"));
            }
            (None, None) => broken = Some(nth),
            (None, Some(_)) => {}
            (Some(records), None) => {
                let records: Vec<Record> =
                    serde_json::from_slice(records).map_err(|error| format!("line {nth}: {error}"))?;
                records.into_iter().for_each(|record| map.note(record));
                good += line.len() as u64;
            }
        }
    }

    Ok(good)
}

/// A VM without its name: what it is, on which host, since when.
type PlacedSpec = (VmSpec, String, Option<Instant>);

/// An inventory by names alone.
#[derive(Default)]
struct Map {
    hosts: BTreeMap<String, HostSpec>,
    vms: BTreeMap<String, PlacedSpec>,
}

impl Map {
    fn of(hosts: Vec<NamedHost>, vms: Vec<Placed>) -> Self {
        let mut map = Self::default();
        hosts.into_iter().for_each(|host| map.note(Record::Host(host)));
        map.note(Record::Vms(vms));
        map
    }

    fn note(&mut self, record: Record) {
        match record {
            Record::Host(host) => {
                self.hosts.insert(host.name, host.spec);
            }
            Record::Hosts { set, gone } => {
                self.hosts.extend(set.into_iter().map(|host| (host.name, host.spec)));
                gone.iter().for_each(|name| drop(self.hosts.remove(name)));
            }
            Record::NoHost(name) => {
                self.hosts.remove(&name);
                self.vms.retain(|_, (_, host, _)| *host != name);
            }
            Record::Vms(vms) => {
                let entry = |placed: Placed| (placed.vm.name, (placed.vm.spec, placed.host, placed.since));
                self.vms.extend(vms.into_iter().map(entry));
            }
            Record::NoVm(name) => drop(self.vms.remove(&name)),
        }
    }
}

impl From<Map> for Snapshot {
    fn from(map: Map) -> Self {
        let hosts = map.hosts.into_iter().map(|(name, spec)| NamedHost { name, spec });
        let vms = map.vms.into_iter().map(|(name, (spec, host, since))| {
            let vm = NamedVm { name, spec };
            Placed { vm, host, since }
        });
        Self { hosts: hosts.collect(), vms: vms.collect() }
    }
}

#[cfg(test)]
mod tests {
    use ballast_placement::{MemoryKb, MilliCores, Resources};

    use super::*;

    fn host(name: &str) -> NamedHost {
        let capacity =
            Resources { cores: MilliCores::from_cores(40), memory: MemoryKb::from_gb(160.0).unwrap() };
        let spec = HostSpec { chassis: "c1".into(), capacity, state: Default::default() };
        NamedHost { name: name.into(), spec }
    }

    fn vm(name: &str, host: &str) -> Placed {
        let resources =
            Resources { cores: MilliCores::from_cores(4), memory: MemoryKb::from_gb(16.0).unwrap() };
        let vm = NamedVm { name: name.into(), spec: VmSpec::new(resources) };
        Placed { vm, host: host.into(), since: Some(Instant::from_millis(1_764_000_000_000)) }
    }

    fn records() -> Vec<Record> {
        vec![
            Record::Host(host("s1")),
            Record::Host(host("s2")),
            Record::Vms(vec![vm("a", "s1"), vm("b", "s2")]),
            Record::NoVm("a".into()),
            Record::Vms(vec![vm("b", "s1"), vm("c", "s2")]),
            Record::NoHost("s2".into()),
            Record::Hosts { set: vec![host("s3")], gone: vec![] },
        ]
    }

    fn after_all() -> Snapshot {
        Snapshot { hosts: vec![host("s1"), host("s3")], vms: vec![vm("b", "s1")] }
    }

    fn journal(folder: &Path) -> PathBuf {
        journal_of(folder, open(folder).unwrap().store.generation)
    }

    #[test]
    fn what_was_appended_is_there_again_before_and_after_a_snapshot() {
        let folder = tempfile::tempdir().unwrap();
        let mut found = open(folder.path()).unwrap();
        assert_eq!(found.inventory, Snapshot::default());
        let records = records();
        let (first, second) = records.split_at(3);
        found.store.append(first).unwrap();
        let mut found = open(folder.path()).unwrap();
        assert_eq!((found.inventory.vms.len(), found.cut), (2, 0));
        found.store.renew(&found.inventory).unwrap();
        assert_eq!(open(folder.path()).unwrap().inventory, found.inventory);

        for record in second {
            found.store.append(std::slice::from_ref(record)).unwrap();
        }
        assert_eq!(open(folder.path()).unwrap().inventory, after_all());
        let names = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["inventory.1.journal", "inventory.snapshot"]);
    }

    #[test]
    fn a_journal_that_ends_anywhere_gives_whole_frames_and_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(folder.path()).unwrap().store;
        let mut ends = vec![0];

        for record in records() {
            store.append(&[record]).unwrap();
            ends.push(store.bytes as usize);
        }

        let path = journal(folder.path());
        let whole = fs::read(&path).unwrap();

        for end in 0..=whole.len() {
            // What was never synced may be any bytes.
            for rubbish in [&b""[..], &[0; 9], b"x\n\n", b"0badc0de [1]\n"] {
                let torn = [&whole[..end], rubbish].concat();
                let mut map = Map::default();
                let good = replay(&torn, &mut map).unwrap();
                let frames = ends.iter().rposition(|good| *good <= end).unwrap();
                assert_eq!(good as usize, ends[frames], "{end}");
            }
        }

        fs::write(&path, &whole[..ends[6] + 5]).unwrap();
        let mut found = open(folder.path()).unwrap();
        assert_eq!(found.cut, 5);
        found.store.append(&records()[6..]).unwrap();
        let found = open(folder.path()).unwrap();
        assert_eq!((found.inventory, found.cut), (after_all(), 0));
    }

    #[test]
    fn what_is_damaged_is_refused_by_name_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut found = open(folder.path()).unwrap();
        found.store.append(&records()[..3]).unwrap();
        found.store.append(&records()[3..]).unwrap();
        let path = journal(folder.path());
        let whole = fs::read(&path).unwrap();
        let refused = |says: &str| {
            let why = open(folder.path()).unwrap_err().to_string();
            assert!(why.contains(says) && why.contains("left as it is"), "{says}: {why}");
        };

        let mut damaged = whole.clone();
        damaged[20] ^= 1;
        fs::write(&path, &damaged).unwrap();
        refused("inventory.0.journal: line 1 is damaged, and later ones are not");
        assert_eq!(fs::read(&path).unwrap(), damaged);
        fs::write(&path, &whole).unwrap();

        let mut found = open(folder.path()).unwrap();
        found.store.renew(&found.inventory).unwrap();
        let path = folder.path().join("inventory.snapshot");
        let whole = fs::read(&path).unwrap();

        for n in (0..whole.len()).step_by(7) {
            let mut damaged = whole.clone();
            damaged[n] ^= 1;
            fs::write(&path, &damaged).unwrap();
            refused("inventory.snapshot: ");
            assert_eq!(fs::read(&path).unwrap(), damaged);
            fs::write(&path, &whole[..n]).unwrap();
            refused("inventory.snapshot: it is cut short");
        }

        let newer = frame(&Written { format: 2, generation: 1, inventory: &after_all() }).unwrap();
        fs::write(&path, newer).unwrap();
        refused("format 2: this daemon reads 1");
        fs::remove_file(&path).unwrap();
        refused("inventory.1.journal: it continues a snapshot 1 that is not here");
    }

    #[test]
    fn a_crash_while_a_snapshot_is_made_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut found = open(folder.path()).unwrap();
        found.store.append(&records()).unwrap();
        let old = fs::read(journal(folder.path())).unwrap();
        found.store.renew(&after_all()).unwrap();
        // The old journal was not yet away, the new one not yet there.
        fs::write(folder.path().join("inventory.0.journal"), old).unwrap();
        fs::remove_file(folder.path().join("inventory.1.journal")).unwrap();
        let found = open(folder.path()).unwrap();
        assert_eq!((found.inventory, found.store.generation), (after_all(), 1));
        assert!(!folder.path().join("inventory.0.journal").exists());
    }
}
