//! What must be put back, on disk before anything is changed.
//!
//! The journal is written once, at start, with every original value, so that no write to disk stands
//! in the way of an alert. It exists exactly as long as something may be restricted: a clean restore
//! removes it. After a crash the next start reads it and knows what was there before.
//!
//! A journal of another boot is worthless (no cap survives a reboot). One that is damaged is set aside as
//! `journal.json.bad`, and the machine is taken as it stands. One that another version has written, or that
//! the disk does not give, is held: it may name caps, so what the machine shows is nobody's original.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ballast_types::BootId;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::bandwidth::QuotaOriginal;
use crate::binding::CpusetOriginal;
use crate::cpufreq::CpufreqOriginals;
use crate::durable;
use crate::error::{HwError, Operation};
use crate::rapl::RaplCapOriginal;

/// The format of the file; another number is not read.
const VERSION: u32 = 1;

/// Every value that may be changed, as it was before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Originals {
    pub cpufreq: Option<CpufreqOriginals>,
    /// RAPL limits, by zone name.
    #[serde(default)]
    pub powercap: BTreeMap<String, RaplCapOriginal>,
    /// CPU sets, by cgroup path.
    #[serde(default)]
    pub cpusets: BTreeMap<String, CpusetOriginal>,
    /// CPU bandwidths, by cgroup path.
    #[serde(default)]
    pub quotas: BTreeMap<String, QuotaOriginal>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    boot_id: BootId,
    originals: Originals,
}

/// What was on disk at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Nothing: the last end was clean, or this is the first start.
    Clean,
    /// A previous instance in this boot ended without putting these back.
    Adopted(Box<Originals>),
    /// The machine was rebooted since: nothing is restricted any more.
    OtherBoot,
    /// The file could not be understood; it was moved here.
    SetAside(PathBuf),
    /// The file stays as it is, and nothing may be changed: whoever can read it must put back what it names.
    Held(String),
}

/// What every version writes.
#[derive(Deserialize)]
struct Head {
    version: u64,
    boot_id: Option<String>,
}

/// The journal of one agent; holds a lock on its folder, so that two agents never share one.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    boot_id: BootId,
    /// Nothing will be changed, so nothing is written down; what is on disk stays.
    idle: bool,
    _lock: durable::Lock,
}

impl Journal {
    /// Its name in the state folder.
    pub const FILE: &str = "journal.json";

    /// Opens the journal in `state_dir`, which is made if it is not there. Fails if the folder cannot be
    /// used, or another agent holds it.
    pub fn open(state_dir: &Path, boot_id: &BootId) -> Result<(Self, Opened), HwError> {
        let failed = |allowed| move |e| HwError::io(state_dir, Operation::Write, allowed, e);
        fs::create_dir_all(state_dir).map_err(failed("a folder that can be written"))?;
        let lock = durable::lock(state_dir).map_err(failed("a folder that no other agent uses"))?;
        let dir = state_dir.to_owned();
        let mut journal = Self { dir, boot_id: boot_id.clone(), idle: false, _lock: lock };
        let opened = journal.read()?;
        journal.idle = matches!(opened, Opened::Held(_));
        Ok((journal, opened))
    }

    /// Which boot the journal in `state_dir` says that it is of.
    pub fn boot_of(state_dir: &Path) -> Option<BootId> {
        let bytes = fs::read(state_dir.join(Self::FILE)).ok()?;
        let head: Head = serde_json::from_slice(&bytes).ok()?;
        BootId::new(&head.boot_id?).ok()
    }

    /// What the journal in `state_dir` names, of whatever boot; `None` if there is none of this version.
    pub fn originals_of(state_dir: &Path) -> Option<Originals> {
        let bytes = fs::read(state_dir.join(Self::FILE)).ok()?;
        let record = serde_json::from_slice::<Record>(&bytes).ok()?;
        (record.version == VERSION).then_some(record.originals)
    }

    /// For one who will change nothing (a dry run): holds the lock alone. What a previous instance wrote down
    /// stays for one who may put it back.
    pub fn idle(self) -> Self {
        Self { idle: true, ..self }
    }

    /// Whether nothing may be changed under it.
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    fn read(&self) -> Result<Opened, HwError> {
        let path = self.file();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Opened::Clean),
            Err(e) => {
                let error = HwError::io(&path, Operation::Read, "a readable file", e);
                return Ok(Opened::Held(error.to_string()));
            }
        };

        let head = serde_json::from_slice::<Head>(&bytes).ok();
        let is_of_another_boot =
            |head: &Head| head.boot_id.as_deref().is_some_and(|it| it != self.boot_id.as_str());
        match head {
            Some(head) if is_of_another_boot(&head) => {
                // One that stays is known by its boot at the next start too.
                if let Err(error) = self.remove() {
                    warn!(%error, "the journal of another boot could not be removed: it is known as old by \
                                   its boot id");
                }
                Ok(Opened::OtherBoot)
            }
            Some(Head { version, .. }) if version != u64::from(VERSION) => {
                let path = path.display();
                Ok(Opened::Held(format!(
                    "{path} is of version {version}; this agent knows version {VERSION}"
                )))
            }
            _ => match serde_json::from_slice::<Record>(&bytes) {
                Ok(record) => Ok(Opened::Adopted(Box::new(record.originals))),
                Err(e) => self.set_aside(&e.to_string()),
            },
        }
    }

    /// Gives up what is held: it is moved to `journal.json.bad`.
    pub fn set_held_aside(self) -> Result<(), HwError> {
        self.set_aside("it was held, and a release has lifted what it could").map(drop)
    }

    fn set_aside(&self, why: &str) -> Result<Opened, HwError> {
        let (path, aside) = (self.file(), self.dir.join("journal.json.bad"));
        fs::rename(&path, &aside)
            .map_err(|e| HwError::io(&path, Operation::Write, "a file that can be moved", e))?;
        warn!(file = %aside.display(), why, "the journal cannot be understood and was set aside: caps of a \
            previous instance are not known, the machine is taken as it stands");
        Ok(Opened::SetAside(aside))
    }

    /// Writes every original down, safely on disk when this returns. Called before the first change. Fails if
    /// the folder cannot be written: then nothing may be changed.
    pub fn begin(&mut self, originals: &Originals) -> Result<(), HwError> {
        if self.idle {
            return Ok(());
        }
        let text = self.text(originals)?;
        // What an agent that died has left may be all of it, and then needs no room on the disk.
        if self.says(&text) {
            return Ok(());
        }
        durable::replace(&self.file(), &text).map_err(|e| self.unwritten(e))
    }

    /// Whether [`Journal::begin`] would succeed now; changes nothing.
    pub fn probe(&self, originals: &Originals) -> Result<(), HwError> {
        let text = self.text(originals)?;
        if self.idle || self.says(&text) {
            return Ok(());
        }
        durable::probe(&self.dir, text.len()).map_err(|e| self.unwritten(e))
    }

    fn text(&self, originals: &Originals) -> Result<Vec<u8>, HwError> {
        let (boot_id, originals) = (self.boot_id.clone(), originals.clone());
        let record = Record { version: VERSION, boot_id, originals };
        serde_json::to_vec_pretty(&record).map_err(|e| self.unwritten(e.into()))
    }

    fn says(&self, text: &[u8]) -> bool {
        fs::read(self.file()).is_ok_and(|on_disk| on_disk == text)
    }

    fn unwritten(&self, error: io::Error) -> HwError {
        HwError::io(&self.file(), Operation::Write, "a folder that can be written", error)
    }

    /// Says that everything is restored: removes the journal.
    pub fn finish(self) -> Result<(), HwError> {
        if self.idle { Ok(()) } else { self.remove() }
    }

    fn remove(&self) -> Result<(), HwError> {
        let path = self.file();
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(HwError::io(&path, Operation::Write, "a file that can be removed", e))
            }
            _ => Ok(()),
        }
    }

    fn file(&self) -> PathBuf {
        self.dir.join(Self::FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binding::Via;
    use ballast_types::{CoreId, KiloHertz, VmId};

    fn boot(n: u8) -> BootId {
        BootId::new(&format!("boot-{n}")).unwrap()
    }
    fn originals() -> Originals {
        let max_khz = [(0, 2400), (9, 2000)].map(|(core, mhz)| (CoreId(core), KiloHertz::from_mhz(mhz)));
        let cpufreq = CpufreqOriginals { driver: "intel_pstate".into(), max_khz: max_khz.into() };
        let (limit_uw, window_us) = (165_000_000, Some(999_424));
        let package = RaplCapOriginal { limit_uw, window_us, short_uw: None, enabled: true };

        let (path, unit) = ("machine.slice/b.scope".to_owned(), "b.scope".to_owned());
        let via = Via::Systemd { unit: unit.clone(), allowed: String::new() };
        let cpuset = CpusetOriginal { cpus: "0-7".into(), via };
        let (vm, cpu_max) = (VmId::new("b").unwrap(), "max 100000".parse().unwrap());
        let quota = QuotaOriginal { vm, cores: 4, cpu_max, unit: Some(unit) };

        Originals {
            cpufreq: Some(cpufreq),
            powercap: [("package-0".into(), package)].into(),
            cpusets: [(path.clone(), cpuset)].into(),
            quotas: [(path, quota)].into(),
        }
    }

    #[test]
    fn a_life_that_ends_cleanly_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/if/missing");
        let (mut journal, opened) = Journal::open(&state, &boot(1)).unwrap();
        assert_eq!(opened, Opened::Clean);
        journal.begin(&originals()).unwrap();
        assert!(state.join("journal.json").exists());
        journal.finish().unwrap();
        assert!(!state.join("journal.json").exists());
        assert_eq!(Journal::open(&state, &boot(1)).unwrap().1, Opened::Clean);
    }

    #[test]
    fn a_crash_is_adopted_in_the_same_boot_only() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path(), &boot(1)).unwrap();
        journal.begin(&originals()).unwrap();
        drop(journal);
        let (journal, opened) = Journal::open(dir.path(), &boot(1)).unwrap();
        assert_eq!(opened, Opened::Adopted(Box::new(originals())));
        drop(journal);
        let (journal, opened) = Journal::open(dir.path(), &boot(2)).unwrap();
        assert_eq!(opened, Opened::OtherBoot);
        drop(journal);
        assert_eq!(Journal::open(dir.path(), &boot(1)).unwrap().1, Opened::Clean);
    }

    #[test]
    fn a_journal_of_a_version_that_only_wrote_files_is_read() {
        let old = r#"{"cpus":"0-7"}"#;
        let read: CpusetOriginal = serde_json::from_str(old).unwrap();
        assert_eq!((read.cpus.as_str(), read.via), ("0-7", Via::Cgroup { inode: None }));
        let old = r#"{"vm":"b","cores":4,"cpu_max":"max 100000"}"#;
        assert_eq!(serde_json::from_str::<QuotaOriginal>(old).unwrap().unit, None);
    }

    #[test]
    fn what_cannot_be_understood_is_kept_aside() {
        for bad in ["", "{", "[]", r#"{"version":1,"boot_id":"boot-1","originals":[]}"#, "\u{0}"] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("journal.json"), bad).unwrap();
            let (_, opened) = Journal::open(dir.path(), &boot(1)).unwrap();
            let aside = dir.path().join("journal.json.bad");
            assert_eq!(opened, Opened::SetAside(aside.clone()), "{bad:?}");
            assert_eq!(fs::read_to_string(aside).unwrap(), bad);
            assert!(!dir.path().join("journal.json").exists());
        }
    }

    #[test]
    fn what_another_version_wrote_or_the_disk_does_not_give_is_held_and_never_overwritten() {
        let newer = r#"{"version":9,"boot_id":"boot-1","originals":{"cpufreq":[1,2]}}"#;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("journal.json");
        fs::write(&file, newer).unwrap();
        assert_eq!(Journal::boot_of(dir.path()), Some(boot(1)));
        let (mut journal, opened) = Journal::open(dir.path(), &boot(1)).unwrap();
        assert!(matches!(&opened, Opened::Held(why) if why.contains("version 9")), "{opened:?}");
        assert!(journal.is_idle());
        journal.begin(&originals()).unwrap();
        journal.finish().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), newer);

        // Whatever it says is over after a reboot.
        assert_eq!(Journal::open(dir.path(), &boot(2)).unwrap().1, Opened::OtherBoot);
        fs::create_dir(&file).unwrap();
        let (journal, opened) = Journal::open(dir.path(), &boot(1)).unwrap();
        assert!(matches!(&opened, Opened::Held(why) if why.contains("journal.json")), "{opened:?}");
        journal.set_held_aside().unwrap();
        assert_eq!(Journal::open(dir.path(), &boot(1)).unwrap().1, Opened::Clean);
    }

    #[test]
    fn a_half_written_journal_does_not_hide_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path(), &boot(1)).unwrap();
        journal.begin(&originals()).unwrap();
        fs::write(dir.path().join("journal.json.tmp"), "{\"ver").unwrap();
        drop(journal);
        assert!(matches!(Journal::open(dir.path(), &boot(1)).unwrap().1, Opened::Adopted(_)));
    }

    #[test]
    fn an_idle_journal_keeps_what_a_previous_instance_left() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(dir.path(), &boot(1)).unwrap();
        let mut journal = journal.idle();
        journal.begin(&originals()).unwrap();
        assert!(!dir.path().join("journal.json").exists());
        drop(journal);
        Journal::open(dir.path(), &boot(1)).unwrap().0.begin(&originals()).unwrap();
        let (journal, opened) = Journal::open(dir.path(), &boot(1)).unwrap();
        assert!(matches!(opened, Opened::Adopted(_)));
        journal.idle().finish().unwrap();
        assert!(dir.path().join("journal.json").exists());
    }

    #[test]
    fn two_agents_never_share_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let held = Journal::open(dir.path(), &boot(1)).unwrap();
        let e = Journal::open(dir.path(), &boot(1)).unwrap_err();
        assert!(e.to_string().contains("no other agent"), "{e}");
        drop(held);
        Journal::open(dir.path(), &boot(1)).unwrap();
    }
}
