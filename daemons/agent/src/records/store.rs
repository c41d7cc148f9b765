//! Writing records, and keeping what there is within bounds.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use ballast_types::wire::{Alarm, AlarmId};
use ballast_types::{UsageRecord, VmId, VmStart};

use super::codec::{self, Frames, HEADER};
use super::{days, file_name, named};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// So many days beside the newest.
    pub days: usize,
    /// So many bytes; the oldest days go first.
    pub bytes: u64,
}

/// Writes records into a folder that is its own.
///
/// Each call of [`Store::append`] is on disk when it returns. One that a crash or a full disk has cut short
/// leaves a tail that does not check: the next one cuts it off, and counts it.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    limits: Limits,
    open: Option<Open>,
    /// Pieces that were found damaged.
    damaged: u64,
    /// Files that were set aside, each with the reason.
    aside: Vec<Alarm>,
}

/// The file that is being written.
#[derive(Debug)]
struct Open {
    day: u32,
    file: File,
    vms: BTreeMap<(VmId, VmStart), u32>,
}

impl Store {
    /// Takes the folder, made if it is not there.
    pub fn open(folder: &Path, limits: Limits) -> io::Result<Self> {
        fs::create_dir_all(folder).map_err(|error| named(folder, &error))?;
        let folder = folder.to_owned();
        let store = Self { folder, limits, open: None, damaged: 0, aside: vec![] };
        store.prune()?;
        Ok(store)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Pieces of files that were damaged, and cut off.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Files that could not be understood, and were set aside.
    pub fn aside(&self) -> &[Alarm] {
        &self.aside
    }

    pub fn bytes(&self) -> io::Result<u64> {
        Ok(days(&self.folder)?.iter().map(|(_, _, size)| size).sum())
    }

    /// Writes records, each into the file of its day, and then to disk. Fails if they cannot be written: some
    /// of them may be all the same.
    pub fn append(&mut self, records: &[UsageRecord]) -> io::Result<()> {
        for of_day in records.chunk_by(|a, b| a.bin.day() == b.bin.day()) {
            let day = of_day[0].bin.day();
            let mut open = match self.open.take() {
                Some(open) if open.day == day => open,
                _ => {
                    let open = self.open_day(day)?;
                    self.prune()?;
                    open
                }
            };
            open.write(of_day).map_err(|error| named(&self.folder, &error))?;
            // After a failure it is opened anew, and what was written in part is cut off.
            self.open = Some(open);
        }
        Ok(())
    }

    fn open_day(&mut self, day: u32) -> io::Result<Open> {
        let name = file_name(day).ok_or_else(|| io::Error::other("a day beyond the year 9999"))?;
        let path = self.folder.join(name);
        if let Some(open) = self.reopen(&path, day).map_err(|error| named(&path, &error))? {
            return Ok(open);
        }
        let make = || {
            let mut file = File::create_new(&path)?;
            file.write_all(&codec::header(day))?;
            file.sync_all()?;
            File::open(&self.folder)?.sync_all()?;
            Ok(Open { day, file, vms: BTreeMap::new() })
        };
        make().map_err(|error| named(&path, &error))
    }

    /// Goes on with a file that is there, without a tail that does not check; `None` if there is none, or
    /// none that can be understood.
    fn reopen(&mut self, path: &Path, day: u32) -> io::Result<Option<Open>> {
        let mut file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };

        let mut header = [0; HEADER];
        codec::fill(&mut file, &mut header)?;

        if let Err(damage) = codec::check_header(&header, day) {
            let aside = free_name(path);
            fs::rename(path, &aside)?;
            let (path, aside) = (path.display(), aside.display());
            let message = format!("usage records: {path}: {damage}; set aside as {aside}");
            self.aside.push(Alarm::about(AlarmId::RecordsSetAside, path, message));
            return Ok(None);
        }

        let mut frames = Frames::new(BufReader::new(&file), day);
        while frames.next()?.is_some() {}
        let (whole, dropped) = (frames.whole, frames.dropped);
        let vms = frames.into_vms().into_iter().map(|(number, vm)| (vm, number)).collect();
        self.damaged += dropped;
        file.set_len(whole)?;
        file.seek(SeekFrom::Start(whole))?;

        Ok(Some(Open { day, file, vms }))
    }

    /// Removes the oldest days beyond the limits, never the newest. Days are counted by their files and not
    /// by a clock: one that is wrong must not cost what was recorded.
    fn prune(&self) -> io::Result<()> {
        let days = days(&self.folder)?;
        let mut bytes: u64 = days.iter().map(|(_, _, size)| size).sum();
        for (n, (_, path, size)) in days.iter().enumerate().take(days.len().saturating_sub(1)) {
            if days.len() - n > self.limits.days + 1 || bytes > self.limits.bytes {
                fs::remove_file(path).map_err(|error| named(path, &error))?;
                bytes -= size;
            }
        }
        Ok(())
    }
}

impl Open {
    fn write(&mut self, records: &[UsageRecord]) -> io::Result<()> {
        let mut bytes = vec![];
        for record in records {
            let next = self.vms.values().max().map_or(0, |number| number + 1);
            let vm = *self.vms.entry((record.vm.clone(), record.start)).or_insert_with(|| {
                codec::write_vm(&mut bytes, next, &record.vm, record.start);
                next
            });
            codec::write_record(&mut bytes, vm, record);
        }
        self.file.write_all(&bytes)?;
        self.file.sync_data()
    }
}

/// A name beside `path` that nothing has yet.
fn free_name(path: &Path) -> PathBuf {
    let name = |n: u32| path.with_extension(format!("usage.bad{n}"));
    (1..).map(name).find(|path| !path.exists()).unwrap_or_else(|| name(0))
}

#[cfg(test)]
impl Store {
    /// What is appended next goes to this file.
    pub(super) fn fail_with(&mut self, file: File) {
        if let Some(open) = &mut self.open {
            open.file = file;
        }
    }
}
