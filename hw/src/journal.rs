//! What must be put back, in a file before anything is changed.
//!
//! The journal is written once, at start, with every original value, so that no write of a file stands
//! in the way of an alert. It exists exactly as long as something may be restricted: a clean restore
//! removes it. After a crash the next start reads it and knows what was there before.
//!
//! It lies in memory (`/run`), since a reboot voids it, and a disk that is full or read-only must not keep an
//! agent from acting. Where that folder cannot be written, it lies in the state folder.
//!
//! A journal of another boot is worthless (no cap survives a reboot). One that is damaged is set aside as
//! `journal.json.bad` before a new one is written, and the machine is taken as it stands. One that another version
//! has written, or that the disk does not give, is held: it may name caps, so what the machine shows is nobody's
//! original. Where both folders have one, what is worse counts.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use ballast_types::BootId;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::bandwidth::QuotaOriginal;
use crate::binding::CpusetOriginal;
use crate::cpufreq::CpufreqOriginals;
use crate::durable;
use crate::error::{HwError, Operation};
use crate::memory_limits::MemoryOriginal;
use crate::rapl::RaplCapOriginal;

/// The format of the file; another number is not read.
const VERSION: u32 = 1;

/// Every value that may be changed, as it was before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Originals {
    pub cpufreq: Option<CpufreqOriginals>,
    /// RAPL limits, by zone name.
    pub powercap: BTreeMap<String, RaplCapOriginal>,
    /// CPU sets, by cgroup path.
    pub cpusets: BTreeMap<String, CpusetOriginal>,
    /// CPU bandwidths, by cgroup path.
    pub quotas: BTreeMap<String, QuotaOriginal>,
    /// Memory limits, by cgroup path.
    pub memory: BTreeMap<String, MemoryOriginal>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    boot_id: BootId,
    originals: Originals,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Nothing: the last end was clean, or this is the first start.
    Clean,
    /// A previous instance in this boot ended without putting these back.
    Adopted(Box<Originals>),
    /// The machine was rebooted since: nothing is restricted any more.
    OtherBoot,
    /// The file cannot be understood, and is set aside before another is written; why.
    Damaged(String),
    /// The file stays as it is, and nothing may be changed: whoever can read it must put back what it names.
    Held(String),
}

/// What every version writes.
#[derive(Deserialize)]
struct Head {
    version: u64,
    boot_id: Option<String>,
}

/// Where one agent's journal may lie: in the first of these folders that can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalFolders(Vec<PathBuf>);

impl JournalFolders {
    /// Where an installed agent keeps what a reboot voids, and what outlives one.
    pub const RUN_DIR: &str = "/run/ballast-agent";
    pub const STATE_DIR: &str = "/var/lib/ballast-agent";

    /// In memory, and on disk.
    pub fn new(run_dir: &Path, state_dir: &Path) -> Self {
        let mut folders = vec![run_dir.to_owned(), state_dir.to_owned()];
        folders.dedup();
        Self(folders)
    }

    /// Of an agent that was told its `state_dir` alone. One that is not the installed agent's holds the journal too.
    pub fn of(state_dir: &Path) -> Self {
        let is_installed = state_dir == Path::new(Self::STATE_DIR);
        Self::new(if is_installed { Path::new(Self::RUN_DIR) } else { state_dir }, state_dir)
    }

    /// The one that is written while it can be.
    pub fn first(&self) -> &Path {
        self.0.first().map_or(Path::new(""), PathBuf::as_path)
    }

    pub fn iter(&self) -> impl Iterator<Item = &PathBuf> {
        self.0.iter()
    }

    /// Whether a journal lies in any of them. What cannot be looked for counts as there.
    pub fn hold_a_journal(&self) -> bool {
        self.files().any(|file| is_there(&file))
    }

    pub fn boot_of(&self) -> Option<BootId> {
        let head: Head = serde_json::from_slice(&self.bytes()?).ok()?;
        BootId::new(&head.boot_id?).ok()
    }

    /// What the journal names, of whatever boot; `None` if there is none of this version.
    pub fn originals_of(&self) -> Option<Originals> {
        let record = serde_json::from_slice::<Record>(&self.bytes()?).ok()?;
        (record.version == VERSION).then_some(record.originals)
    }

    /// Whether a journal of so many bytes could be written now: writes as many, and removes them.
    pub fn have_room_for(&self, bytes: usize) -> io::Result<()> {
        let mut failed = None;
        for folder in &self.0 {
            match durable::probe(folder, bytes) {
                Ok(()) => return Ok(()),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    #[must_use]
    pub fn missing(&self) -> Self {
        Self(self.0.iter().filter(|folder| !folder.exists()).cloned().collect())
    }

    /// Removes folders that nobody uses but for their lock; others stay.
    pub fn remove_unused(&self) {
        for folder in &self.0 {
            let _ = fs::remove_file(folder.join("lock")).and_then(|()| fs::remove_dir(folder));
        }
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.0.iter().map(|folder| folder.join(Journal::FILE))
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        self.files().find_map(|file| fs::read(file).ok())
    }
}

/// The journal of one agent; holds a lock on its folders, so that two agents never share one.
#[derive(Debug)]
pub struct Journal {
    /// Each once, by whatever path it was named.
    folders: JournalFolders,
    boot_id: BootId,
    /// Nothing will be changed, so nothing is written down; what is on disk stays.
    idle: bool,
    _locks: Vec<durable::Lock>,
}

impl Journal {
    pub const FILE: &str = "journal.json";

    /// Opens the journal in its folders, which are made if they are not there. Fails if none of them can be
    /// used, or another agent holds one.
    pub fn open(folders: &JournalFolders, boot_id: &BootId) -> Result<(Self, Opened), HwError> {
        let (mut used, mut inodes, mut locks) = (vec![], vec![], vec![]);
        let (mut unusable, mut held) = (None, None);
        for folder in folders.iter() {
            let failed = |allowed| move |e| HwError::io(folder, Operation::Write, allowed, e);
            let made = fs::create_dir_all(folder).and_then(|()| fs::metadata(folder));
            let locked = made.map_err(failed("a folder that can be written")).and_then(|made| {
                let inode = (made.dev(), made.ino());
                if inodes.contains(&inode) {
                    return Ok(());
                }
                locks.push(durable::lock(folder).map_err(failed("a folder that no other agent uses"))?);
                inodes.push(inode);
                used.push(folder.clone());
                Ok(())
            });
            match locked {
                Err(error) if error.is_locked() => return Err(error),
                Err(error) => {
                    held = held.or(is_there(&folder.join(Self::FILE)).then(|| error.to_string()));
                    unusable = Some(error);
                }
                Ok(()) => {}
            }
        }

        match unusable {
            Some(error) if used.is_empty() => return Err(error),
            Some(error) => warn!(%error, "the journal has only one folder to be in"),
            None => {}
        }

        let folders = JournalFolders(used);
        let mut journal = Self { folders, boot_id: boot_id.clone(), idle: false, _locks: locks };
        let opened = held.map_or_else(|| journal.read(), Opened::Held);
        journal.idle = matches!(opened, Opened::Held(_));
        Ok((journal, opened))
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

    /// Of several the worst, and of those alike the one that is written first.
    fn read(&self) -> Opened {
        let rank = |opened: &Opened| match opened {
            Opened::Held(_) => 0,
            Opened::Adopted(_) => 1,
            Opened::Damaged(_) => 2,
            Opened::OtherBoot => 3,
            Opened::Clean => 4,
        };
        let found = self.folders.files().map(|path| self.read_file(&path));
        found.min_by_key(rank).unwrap_or(Opened::Clean)
    }

    fn read_file(&self, path: &Path) -> Opened {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Opened::Clean,
            Err(e) => {
                let error = HwError::io(path, Operation::Read, "a readable file", e);
                return Opened::Held(error.to_string());
            }
        };

        let head = serde_json::from_slice::<Head>(&bytes).ok();
        let is_of_another_boot =
            |head: &Head| head.boot_id.as_deref().is_some_and(|it| it != self.boot_id.as_str());
        match head {
            Some(head) if is_of_another_boot(&head) => {
                // One that stays is known by its boot at the next start too.
                if let Err(error) = remove(path) {
                    warn!(%error, "the journal of another boot could not be removed: it is known as old by \
                                   its boot id");
                }
                Opened::OtherBoot
            }
            Some(Head { version, .. }) if version != u64::from(VERSION) => {
                let path = path.display();
                Opened::Held(format!("{path} is of version {version}; this agent knows version {VERSION}"))
            }
            _ => match serde_json::from_slice::<Record>(&bytes) {
                Ok(record) => Opened::Adopted(Box::new(record.originals)),
                Err(error) => Opened::Damaged(format!("{}: {error}", path.display())),
            },
        }
    }

    /// What each journal names that is whole and of this boot, whatever the other one says.
    pub fn adopted(&self) -> Vec<Originals> {
        let whole = |file: PathBuf| match self.read_file(&file) {
            Opened::Adopted(originals) => Some(*originals),
            _ => None,
        };
        self.folders.files().filter_map(whole).collect()
    }

    /// Gives up what is there: it is moved to `journal.json.bad`.
    pub fn set_all_aside(self) -> Result<(), HwError> {
        self.folders.files().filter(|file| is_there(file)).try_for_each(|file| set_aside(&file))
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
        let damaged = |file: &PathBuf| matches!(self.read_file(file), Opened::Damaged(_));
        self.folders.files().filter(damaged).try_for_each(|file| set_aside(&file))?;

        let (mut before, mut failed) = (vec![], None);
        for path in self.folders.files() {
            match durable::replace(&path, &text) {
                Ok(()) => {
                    // An older one must not be read in its place; one that is read after it does no harm.
                    before.iter().try_for_each(|it: &PathBuf| remove(it))?;
                    for after in self.folders.files().skip(before.len() + 1) {
                        if let Err(error) = remove(&after) {
                            warn!(%error, "an older journal stays, and does not count");
                        }
                    }
                    return Ok(());
                }
                Err(error) => failed = failed.or(Some(unwritten(&path, error))),
            }
            before.push(path);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether [`Journal::begin`] would succeed now; changes nothing.
    pub fn probe(&self, originals: &Originals) -> Result<(), HwError> {
        let text = self.text(originals)?;
        if self.idle || self.says(&text) {
            return Ok(());
        }
        self.folders.have_room_for(text.len()).map_err(|e| unwritten(self.folder(), e))
    }

    fn text(&self, originals: &Originals) -> Result<Vec<u8>, HwError> {
        let (boot_id, originals) = (self.boot_id.clone(), originals.clone());
        let record = Record { version: VERSION, boot_id, originals };
        serde_json::to_vec_pretty(&record).map_err(|e| unwritten(self.folder(), e.into()))
    }

    fn says(&self, text: &[u8]) -> bool {
        self.folders.bytes().is_some_and(|on_disk| on_disk == text)
    }

    /// Says that everything is restored: removes the journal.
    pub fn finish(self) -> Result<(), HwError> {
        if self.idle {
            return Ok(());
        }
        let done = self.folders.files().map(|file| match self.read_file(&file) {
            // One of another boot is known as old wherever it stays.
            Opened::OtherBoot | Opened::Clean => Ok(()),
            Opened::Damaged(why) => {
                warn!(why, "a damaged journal beside one that was put back is moved aside");
                set_aside(&file)
            }
            Opened::Adopted(_) | Opened::Held(_) => remove(&file),
        });
        let done: Vec<_> = done.collect();
        done.into_iter().collect()
    }

    /// Where it is written while that can be written.
    pub fn folder(&self) -> &Path {
        self.folders.first()
    }
}

fn unwritten(path: &Path, error: io::Error) -> HwError {
    HwError::io(path, Operation::Write, "a folder that can be written", error)
}

fn remove(path: &Path) -> Result<(), HwError> {
    match fs::remove_file(path) {
        // A disk that is only read refuses before it looks.
        Err(e) if !matches!(path.try_exists(), Ok(false)) => {
            Err(HwError::io(path, Operation::Write, "a file that can be removed", e))
        }
        _ => Ok(()),
    }
}

/// Whether there is such a file. What cannot be looked for counts as there.
fn is_there(file: &Path) -> bool {
    let no = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    !fs::symlink_metadata(file).is_err_and(|error| no.contains(&error.kind()))
}

/// Moves a journal to where nobody reads it.
fn set_aside(path: &Path) -> Result<(), HwError> {
    let aside = path.with_extension("json.bad");
    fs::rename(path, &aside)
        .map_err(|e| HwError::io(path, Operation::Write, "a file that can be moved", e))?;
    warn!(file = %aside.display(), "the journal cannot be understood and was set aside: caps of a previous \
        instance are not known, the machine is taken as it stands");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binding::Via;
    use crate::memory_limits::MemoryPair;
    use ballast_types::{CoreId, KiloHertz, VmId};

    fn boot(n: u8) -> BootId {
        BootId::new(&format!("boot-{n}")).unwrap()
    }
    fn folder(dir: &Path) -> JournalFolders {
        JournalFolders::of(dir)
    }
    fn open(dir: &Path, n: u8) -> Result<(Journal, Opened), HwError> {
        Journal::open(&folder(dir), &boot(n))
    }
    fn originals() -> Originals {
        let max_khz = [(0, 2400), (9, 2000)].map(|(core, mhz)| (CoreId(core), KiloHertz::from_mhz(mhz)));
        let cpufreq = CpufreqOriginals { driver: "intel_pstate".into(), max_khz: max_khz.into() };
        let (limit_uw, window_us) = (165_000_000, Some(999_424));
        let package = RaplCapOriginal { limit_uw, window_us, short_uw: None, enabled: true };

        let (path, unit) = ("machine.slice/b.scope".to_owned(), "b.scope".to_owned());
        let via = Via::Systemd { unit: unit.clone(), allowed: String::new() };
        let cpuset = CpusetOriginal { cpus: "0-7".into(), via };
        let (vm, limit) = (VmId::new("b").unwrap(), "max 100000".parse().unwrap());
        let quota = QuotaOriginal { vm, cores: 4, limit, unit: Some(unit) };

        let limits = MemoryPair { high_bytes: None, max_bytes: Some(1 << 30) };
        let memory = MemoryOriginal { vm: quota.vm.clone(), inode: 7, limits, unit: None };

        Originals {
            cpufreq: Some(cpufreq),
            powercap: [("package-0".into(), package)].into(),
            cpusets: [(path.clone(), cpuset)].into(),
            quotas: [(path.clone(), quota)].into(),
            memory: [(path, memory)].into(),
        }
    }

    #[test]
    fn a_life_that_ends_cleanly_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/if/missing");
        let (mut journal, opened) = open(&state, 1).unwrap();
        assert_eq!(opened, Opened::Clean);
        journal.begin(&originals()).unwrap();
        assert!(state.join("journal.json").exists());
        journal.finish().unwrap();
        assert!(!state.join("journal.json").exists());
        assert_eq!(open(&state, 1).unwrap().1, Opened::Clean);
    }

    #[test]
    fn a_crash_is_adopted_in_the_same_boot_only() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(dir.path(), 1).unwrap();
        journal.begin(&originals()).unwrap();
        drop(journal);
        let (journal, opened) = open(dir.path(), 1).unwrap();
        assert_eq!(opened, Opened::Adopted(Box::new(originals())));
        drop(journal);
        let (journal, opened) = open(dir.path(), 2).unwrap();
        assert_eq!(opened, Opened::OtherBoot);
        drop(journal);
        assert_eq!(open(dir.path(), 1).unwrap().1, Opened::Clean);
    }

    #[test]
    fn what_cannot_be_understood_is_kept_aside() {
        for bad in ["", "{", "[]", r#"{"version":1,"boot_id":"boot-1","originals":[]}"#, "\u{0}"] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("journal.json"), bad).unwrap();
            let (mut journal, opened) = open(dir.path(), 1).unwrap();
            let aside = dir.path().join("journal.json.bad");
            assert!(matches!(opened, Opened::Damaged(_)), "{bad:?}");
            assert!(!aside.exists(), "who only looks leaves it for one who puts back");
            journal.begin(&originals()).unwrap();
            drop(journal);
            assert_eq!(fs::read_to_string(aside).unwrap(), bad);
            assert!(matches!(open(dir.path(), 1).unwrap().1, Opened::Adopted(_)));
        }
    }

    #[test]
    fn what_another_version_wrote_or_the_disk_does_not_give_is_held_and_never_overwritten() {
        let newer = r#"{"version":9,"boot_id":"boot-1","originals":{"cpufreq":[1,2]}}"#;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("journal.json");
        fs::write(&file, newer).unwrap();
        assert_eq!(folder(dir.path()).boot_of(), Some(boot(1)));
        let (mut journal, opened) = open(dir.path(), 1).unwrap();
        assert!(matches!(&opened, Opened::Held(why) if why.contains("version 9")), "{opened:?}");
        assert!(journal.is_idle());
        journal.begin(&originals()).unwrap();
        journal.finish().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), newer);

        // Whatever it says is over after a reboot.
        assert_eq!(open(dir.path(), 2).unwrap().1, Opened::OtherBoot);
        fs::create_dir(&file).unwrap();
        let (journal, opened) = open(dir.path(), 1).unwrap();
        assert!(matches!(&opened, Opened::Held(why) if why.contains("journal.json")), "{opened:?}");
        journal.set_all_aside().unwrap();
        assert_eq!(open(dir.path(), 1).unwrap().1, Opened::Clean);
    }

    #[test]
    fn a_half_written_journal_does_not_hide_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(dir.path(), 1).unwrap();
        journal.begin(&originals()).unwrap();
        fs::write(dir.path().join("journal.json.tmp"), "{\"ver").unwrap();
        drop(journal);
        assert!(matches!(open(dir.path(), 1).unwrap().1, Opened::Adopted(_)));
    }

    #[test]
    fn an_idle_journal_keeps_what_a_previous_instance_left() {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = open(dir.path(), 1).unwrap();
        let mut journal = journal.idle();
        journal.begin(&originals()).unwrap();
        assert!(!dir.path().join("journal.json").exists());
        drop(journal);
        open(dir.path(), 1).unwrap().0.begin(&originals()).unwrap();
        let (journal, opened) = open(dir.path(), 1).unwrap();
        assert!(matches!(opened, Opened::Adopted(_)));
        journal.idle().finish().unwrap();
        assert!(dir.path().join("journal.json").exists());
    }

    #[test]
    fn two_agents_never_share_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let held = open(dir.path(), 1).unwrap();
        let e = open(dir.path(), 1).unwrap_err();
        assert!(e.to_string().contains("no other agent"), "{e}");
        drop(held);
        open(dir.path(), 1).unwrap();
    }

    #[test]
    fn only_the_installed_agents_journal_is_in_memory_unless_told_otherwise() {
        let of = |run: Option<&str>, state: &str| {
            let state = Path::new(state);
            let folders = run
                .map_or_else(|| JournalFolders::of(state), |run| JournalFolders::new(Path::new(run), state));
            folders.iter().map(|it| it.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of(None, "/var/lib/ballast-agent"), "/run/ballast-agent /var/lib/ballast-agent");
        assert_eq!(of(None, "/s"), "/s");
        assert_eq!(of(Some("/r"), "/s"), "/r /s");
        assert_eq!(of(Some("/s/"), "/s"), "/s/");
    }

    /// The agent's two folders, in `dir`; a file stands where one of them cannot be.
    fn two(dir: &Path) -> (JournalFolders, [PathBuf; 2]) {
        let [run, state] = ["run", "state"].map(|name| dir.join(name));
        let files = [&run, &state].map(|folder| folder.join(Journal::FILE));
        (JournalFolders::new(&run, &state), files)
    }

    #[test]
    fn it_lies_in_memory_and_where_that_cannot_be_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let (folders, [in_memory, on_disk]) = two(dir.path());
        let (mut journal, _) = Journal::open(&folders, &boot(1)).unwrap();
        journal.begin(&originals()).unwrap();
        assert!(in_memory.exists() && !on_disk.exists());
        // Whoever has one of the folders in common is kept out.
        for shared in ["run", "state"] {
            assert!(open(&dir.path().join(shared), 1).unwrap_err().is_locked(), "{shared}");
        }

        // No room in memory for more than what is there.
        let blocked = in_memory.with_extension("json.tmp");
        fs::create_dir(&blocked).unwrap();
        let more = Originals { cpufreq: None, ..originals() };
        journal.probe(&more).unwrap();
        journal.begin(&more).unwrap();
        assert!(!in_memory.exists() && on_disk.exists(), "the older one would be read");
        drop(journal);
        let (mut journal, opened) = Journal::open(&folders, &boot(1)).unwrap();
        assert_eq!(opened, Opened::Adopted(Box::new(more.clone())));

        // And none on disk either.
        let full = [on_disk.with_extension("json.tmp"), dir.path().join("state/probe.tmp.tmp")];
        full.iter().for_each(|it| fs::create_dir(it).unwrap());
        fs::create_dir(dir.path().join("run/probe.tmp.tmp")).unwrap();
        assert!(journal.probe(&originals()).is_err() && journal.begin(&originals()).is_err());
        journal.begin(&more).unwrap();
        journal.finish().unwrap();
        assert!(!folders.hold_a_journal());
    }

    #[test]
    fn one_that_an_earlier_version_has_left_on_disk_is_adopted_and_moves() {
        let dir = tempfile::tempdir().unwrap();
        let (folders, [in_memory, on_disk]) = two(dir.path());
        open(&dir.path().join("state"), 1).unwrap().0.begin(&originals()).unwrap();
        assert!(on_disk.exists() && folders.hold_a_journal());
        assert_eq!((folders.boot_of(), folders.originals_of()), (Some(boot(1)), Some(originals())));
        let (mut journal, opened) = Journal::open(&folders, &boot(1)).unwrap();
        assert_eq!(opened, Opened::Adopted(Box::new(originals())));
        journal.begin(&Originals::default()).unwrap();
        assert!(in_memory.exists() && !on_disk.exists());
        drop(journal);
        assert_eq!(Journal::open(&folders, &boot(2)).unwrap().1, Opened::OtherBoot);
        assert!(!folders.hold_a_journal());
    }

    #[test]
    fn one_folder_is_enough_by_whatever_path_it_comes() {
        let dir = tempfile::tempdir().unwrap();
        let (folders, [in_memory, on_disk]) = two(dir.path());
        fs::write(dir.path().join("run"), "no folder").unwrap();
        let (mut journal, _) = Journal::open(&folders, &boot(1)).unwrap();
        journal.begin(&originals()).unwrap();
        assert!(on_disk.exists());
        drop(journal);

        fs::remove_file(dir.path().join("run")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("state"), dir.path().join("run")).unwrap();
        let (mut journal, opened) = Journal::open(&folders, &boot(1)).unwrap();
        assert!(matches!(opened, Opened::Adopted(_)));
        journal.begin(&Originals::default()).unwrap();
        assert!(in_memory.exists() && on_disk.exists(), "they are one");
        drop(journal);

        for name in ["run", "state"] {
            let _ =
                fs::remove_file(dir.path().join(name)).or_else(|_| fs::remove_dir_all(dir.path().join(name)));
            fs::write(dir.path().join(name), "no folder").unwrap();
        }
        let error = Journal::open(&folders, &boot(1)).unwrap_err();
        assert!(!error.is_locked() && error.to_string().contains("state"), "{error}");
    }

    #[test]
    fn of_two_journals_the_worse_counts_and_none_is_lost() {
        let ours = Record { version: VERSION, boot_id: boot(1), originals: originals() };
        let ours = serde_json::to_string(&ours).unwrap();
        let newer = r#"{"version":9,"boot_id":"boot-1"}"#;
        let old = r#"{"version":1,"boot_id":"boot-0","originals":{"cpufreq":null}}"#;
        for (first, second, expected) in [
            (ours.as_str(), newer, "held"),
            (newer, ours.as_str(), "held"),
            ("{", ours.as_str(), "adopted"),
            (ours.as_str(), "{", "adopted"),
            (old, ours.as_str(), "adopted"),
            (old, "{", "damaged"),
            (old, old, "of another boot"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let (folders, files) = two(dir.path());
            for (file, text) in files.iter().zip([first, second]) {
                fs::create_dir(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            let (mut journal, opened) = Journal::open(&folders, &boot(1)).unwrap();
            let is = match opened {
                Opened::Held(_) => "held",
                Opened::Adopted(_) => "adopted",
                Opened::Damaged(_) => "damaged",
                Opened::OtherBoot => "of another boot",
                Opened::Clean => "clean",
            };
            assert_eq!(is, expected, "{first} {second}");
            journal.begin(&originals()).unwrap();
            journal.finish().unwrap();
            let kept = files.each_ref().map(|file| fs::read_to_string(file).ok());
            assert_eq!(kept.iter().flatten().any(|text| text == newer), expected == "held");
            let aside = files.iter().any(|file| file.with_extension("json.bad").exists());
            assert_eq!(aside, first == "{" || second == "{");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_looked_into_may_hold_caps() {
        let dir = tempfile::tempdir().unwrap();
        let (folders, _) = two(dir.path());
        std::os::unix::fs::symlink("state", dir.path().join("state")).unwrap();
        let (journal, opened) = Journal::open(&folders, &boot(1)).unwrap();
        assert!(matches!(&opened, Opened::Held(why) if why.contains("state")), "{opened:?}");
        assert!(journal.is_idle());
    }
}
