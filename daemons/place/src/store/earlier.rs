//! The inventory as versions before the database wrote it: a snapshot, and a journal of what had changed since.
//! It is only read, once, to be taken over.
//!
//! ```text
//! inventory.snapshot    one frame: format, generation N, every host and VM
//! inventory.N.journal   frames of records, each written and synced as a whole
//! frame = 8 hex digits of CRC-32  space  JSON  newline
//! ```
//!
//! A frame was begun only when the one before it was on disk. So a broken frame with nothing good behind it is what a
//! crash has left of something that nobody was answered for: it is left out. Anything else that is broken has been
//! damaged, and is refused and kept.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use ballast_placement::inventory::{HostSpec, NamedHost, Placed, Snapshot};
use crc32fast::hash as crc32;
use serde::Deserialize;

use super::{damaged, named};

/// What those versions wrote.
const FORMAT: u32 = 1;

/// One change, told as what is there afterwards.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(rename_all = "snake_case")]
pub(super) enum OldRecord {
    Host(NamedHost),
    Hosts {
        set: Vec<NamedHost>,
        gone: Vec<String>,
    },
    /// A host is gone, with all its VMs.
    NoHost(String),
    Vms(Vec<Placed>),
    NoVm(String),
}

#[derive(Deserialize)]
struct Read {
    format: u32,
    generation: u64,
    hosts: Vec<NamedHost>,
    vms: Vec<Placed>,
}

/// What is in a folder; nothing at all is an empty inventory.
///
/// Fails when a file cannot be read, or is damaged: it is named, and left as it is.
pub(crate) fn read(folder: &Path) -> io::Result<Snapshot> {
    let path = folder.join("inventory.snapshot");
    let (mut map, generation) = match fs::read(&path) {
        Ok(bytes) => {
            let read = read_snapshot(&bytes).map_err(|why| damaged(&path, &why))?;
            (Map::of(read.hosts, read.vms), read.generation)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => (Map::default(), 0),
        Err(error) => return Err(named(&path, &error)),
    };

    // One of before was begun anew, or not taken away, when a snapshot was made.
    if let Some(later) = journals(folder)?.into_iter().find(|journal| journal.generation > generation) {
        let why = format!("it continues a snapshot {} that is not here", later.generation);
        return Err(damaged(&later.path, &why));
    }

    let journal = folder.join(format!("inventory.{generation}.journal"));
    let bytes = match fs::read(&journal) {
        Err(error) if error.kind() == ErrorKind::NotFound => vec![],
        read => read.map_err(|error| named(&journal, &error))?,
    };
    replay(&bytes, &mut map).map_err(|why| damaged(&journal, &why))?;

    Ok(map.into())
}

/// Takes the files away. One that stays is never read again.
pub(super) fn remove(folder: &Path) -> io::Result<()> {
    let journals = journals(folder)?.into_iter().map(|journal| journal.path);
    for path in journals.chain([folder.join("inventory.snapshot")]) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(named(&path, &error)),
            _ => {}
        }
    }

    Ok(())
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

/// Takes note of all records that are whole.
fn replay(bytes: &[u8], map: &mut Map) -> Result<(), String> {
    let mut broken = None;
    for (nth, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
        let records = line.strip_suffix(b"\n").and_then(payload);
        match (records, broken) {
            (Some(_), Some(broken)) => {
                return Err(format!("line {broken} is damaged, and later ones are not"));
            }
            (None, None) => broken = Some(nth),
            (None, Some(_)) => {}
            (Some(records), None) => {
                let records: Vec<OldRecord> =
                    serde_json::from_slice(records).map_err(|error| format!("line {nth}: {error}"))?;
                records.into_iter().for_each(|record| map.note(record));
            }
        }
    }

    Ok(())
}

/// An inventory by names alone.
#[derive(Default)]
struct Map {
    hosts: BTreeMap<String, HostSpec>,
    vms: BTreeMap<String, Placed>,
}

impl Map {
    fn of(hosts: Vec<NamedHost>, vms: Vec<Placed>) -> Self {
        let mut map = Self::default();
        hosts.into_iter().for_each(|host| map.note(OldRecord::Host(host)));
        map.note(OldRecord::Vms(vms));
        map
    }

    fn note(&mut self, record: OldRecord) {
        match record {
            OldRecord::Host(host) => {
                self.hosts.insert(host.name, host.spec);
            }
            OldRecord::Hosts { set, gone } => {
                self.hosts.extend(set.into_iter().map(|host| (host.name, host.spec)));
                gone.iter().for_each(|name| drop(self.hosts.remove(name)));
            }
            OldRecord::NoHost(name) => {
                self.hosts.remove(&name);
                self.vms.retain(|_, placed| placed.host != name);
            }
            OldRecord::Vms(vms) => {
                self.vms.extend(vms.into_iter().map(|placed| (placed.vm.name.clone(), placed)));
            }
            OldRecord::NoVm(name) => drop(self.vms.remove(&name)),
        }
    }
}

impl From<Map> for Snapshot {
    fn from(map: Map) -> Self {
        let hosts = map.hosts.into_iter().map(|(name, spec)| NamedHost { name, spec });
        Self { hosts: hosts.collect(), vms: map.vms.into_values().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{after_all, host, vm};
    use super::*;

    fn records() -> Vec<OldRecord> {
        vec![
            OldRecord::Host(host("s1")),
            OldRecord::Host(host("s2")),
            OldRecord::Vms(vec![vm("a", "s1"), vm("b", "s2")]),
            OldRecord::NoVm("a".into()),
            OldRecord::Vms(vec![vm("b", "s1"), vm("c", "s2")]),
            OldRecord::NoHost("s2".into()),
            OldRecord::Hosts { set: vec![host("s3")], gone: vec![] },
        ]
    }

    fn frame(json: &str) -> String {
        format!("{:08x} {json}\n", crc32(json.as_bytes()))
    }

    /// A journal line by line, a record in each, and its length after each.
    fn journal() -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut ends) = (vec![], vec![0]);
        for record in records() {
            bytes.extend(frame(&serde_json::to_string(&[record]).unwrap()).into_bytes());
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn snapshot(format: u32) -> String {
        let all = serde_json::to_string(&after_all()).unwrap();
        frame(&format!("{{\"format\":{format},\"generation\":1,{}", &all[1..]))
    }

    #[test]
    fn what_an_earlier_version_wrote_is_read() {
        let folder = tempfile::tempdir().unwrap();
        // Of a daemon that was killed.
        fs::write(folder.path().join("inventory.0.journal"), include_bytes!("inventory.0.journal")).unwrap();
        let found = read(folder.path()).unwrap();
        let hosts: Vec<_> = found.hosts.iter().map(|host| host.name.as_str()).collect();
        let vms: Vec<_> = found.vms.iter().map(|it| (it.vm.name.as_str(), it.host.as_str())).collect();
        assert_eq!((hosts, vms), (vec!["s1", "s2", "s3"], vec![("a", "s3")]));
        assert_eq!(found.vms[0].vm.spec.deployment.as_deref(), Some("d1"));

        // A journal of before the snapshot that was not yet taken away counts no more.
        fs::write(folder.path().join("inventory.snapshot"), snapshot(1)).unwrap();
        assert_eq!(read(folder.path()).unwrap(), after_all());
        let more = frame(&serde_json::to_string(&[OldRecord::Vms(vec![vm("d", "s3")])]).unwrap());
        fs::write(folder.path().join("inventory.1.journal"), more).unwrap();
        assert_eq!(read(folder.path()).unwrap().vms, [vm("b", "s1"), vm("d", "s3")]);
        remove(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(read(folder.path()).unwrap(), Snapshot::default());
    }

    #[test]
    fn a_journal_that_ends_anywhere_gives_whole_frames() {
        let (whole, ends) = journal();
        let of = |bytes: &[u8]| {
            let mut map = Map::default();
            replay(bytes, &mut map).unwrap();
            Snapshot::from(map)
        };

        assert_eq!(of(&whole), after_all());
        for end in 0..=whole.len() {
            // What was never synced may be any bytes.
            for rubbish in [&b""[..], &[0; 9], b"x\n\n", b"0badc0de [1]\n"] {
                let frames = ends.iter().rposition(|good| *good <= end).unwrap();
                assert_eq!(of(&[&whole[..end], rubbish].concat()), of(&whole[..ends[frames]]), "{end}");
            }
        }
    }

    #[test]
    fn what_is_damaged_is_refused_by_name_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |says: &str| {
            let why = read(folder.path()).unwrap_err().to_string();
            assert!(why.contains(says) && why.contains("left as it is"), "{says}: {why}");
        };

        let mut bytes = journal().0;
        bytes[20] ^= 1;
        let path = folder.path().join("inventory.0.journal");
        fs::write(&path, &bytes).unwrap();
        refused("inventory.0.journal: line 1 is damaged, and later ones are not");
        assert_eq!(fs::read(&path).unwrap(), bytes);
        fs::rename(path, folder.path().join("inventory.1.journal")).unwrap();
        refused("inventory.1.journal: it continues a snapshot 1 that is not here");

        let path = folder.path().join("inventory.snapshot");
        let whole = snapshot(1).into_bytes();
        for n in (0..whole.len()).step_by(7) {
            let mut damaged = whole.clone();
            damaged[n] ^= 1;
            fs::write(&path, &damaged).unwrap();
            refused("inventory.snapshot: ");
            fs::write(&path, &whole[..n]).unwrap();
            refused("inventory.snapshot: it is cut short");
        }

        fs::write(&path, snapshot(2)).unwrap();
        refused("format 2: this daemon reads 1");
    }
}
