//! The table on disk: rows are appended, and a table that has grown too long is written anew.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, BufReader, BufWriter, ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ballast_types::Instant;
use csv::ByteRecord;

use super::HistoryRow;

/// As `ballast train --target lifetime` knows them.
const COLUMNS: [&str; 10] = [
    "vm_id",
    "start_s",
    "end_s",
    "tenant",
    "cores",
    "memory_gb",
    "vm_type",
    "deployment",
    "batch_vms",
    "labels",
];
const ID: usize = 0;
const START: usize = 1;
const END: usize = 2;
/// After a table could not be written anew, until the next try.
const RETRY: Duration = Duration::from_secs(60);

/// A VM's name, as good as: no two of a table have one hash.
type Key = (u64, i64);

pub(super) struct HistoryTable {
    path: PathBuf,
    bytes_max: u64,
    file: Option<File>,
    bytes: u64,
    /// VMs that started before are not in the table.
    begun_s: i64,
    /// It is too long, and was tried to be written anew.
    tried: Option<Instant>,
}

/// What a table says of a VM.
struct LastRow {
    number: u64,
    bytes: u64,
    ended: bool,
}

#[derive(Default)]
struct Scanned {
    last: HashMap<Key, LastRow>,
    first_s: Option<i64>,
    latest_s: i64,
}

impl HistoryTable {
    /// Of a file that is opened later.
    pub(super) fn new(path: PathBuf, bytes_max: u64, now: Instant) -> Self {
        Self { path, bytes_max, file: None, bytes: 0, begun_s: seconds(now), tried: None }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Goes on with what is there. VMs that it calls running and that are not among `there` have ended: a crash has cost
    /// that row, and the end is the last time in the table.
    pub(super) fn open(&mut self, there: &[(String, Instant)]) -> io::Result<()> {
        self.try_open(there).map_err(|error| named(&self.path, &error))
    }

    fn try_open(&mut self, there: &[(String, Instant)]) -> io::Result<()> {
        let open = || OpenOptions::new().create(true).append(true).read(true).open(&self.path);
        let mut file = open()?;
        self.bytes = without_half_row(&file)?;

        if self.bytes > 0 && !has_header(&self.path)? {
            let aside = self.path.with_extension("csv.bad");
            tracing::error!(
                path = %self.path.display(), aside = %aside.display(),
                "no history of lifetimes: it is renamed, and begun anew"
            );
            fs::rename(&self.path, aside)?;
            file = open()?;
            self.bytes = 0;
        }
        if self.bytes == 0 {
            file.write_all(format!("{}\n", COLUMNS.join(",")).as_bytes())?;
            self.bytes = file.metadata()?.len();
        }
        self.file = Some(file);

        let scanned = self.scan()?;
        self.begun_s = scanned.first_s.unwrap_or(self.begun_s);
        let there: HashMap<Key, ()> =
            there.iter().map(|(vm, since)| (key(vm.as_bytes(), *since), ())).collect();
        let mut lost = csv::Writer::from_writer(vec![]);
        self.each_row(|number, row, key| {
            let last = scanned.last.get(&key).filter(|last| last.number == number && !last.ended);
            if last.is_some() && !there.contains_key(&key) {
                let end_s = scanned.latest_s.max(key.1).to_string();
                let fields = row.iter().enumerate();
                lost.write_record(fields.map(|(n, field)| if n == END { end_s.as_bytes() } else { field }))?;
            }
            Ok(())
        })?;
        self.write(&lost.into_inner().map_err(|error| io::Error::other(error.to_string()))?)
    }

    /// Appends rows of VMs that started since the table begins.
    pub(super) fn append(&mut self, rows: &[HistoryRow], now: Instant) -> io::Result<()> {
        let text = self.rows(rows)?;
        self.make_room(text.len() as u64, now)
            .and_then(|()| self.write(&text))
            .map_err(|error| named(&self.path, &error))
    }

    fn rows(&self, rows: &[HistoryRow]) -> io::Result<Vec<u8>> {
        let mut text = csv::Writer::from_writer(vec![]);
        for (placed, end) in rows {
            let start_s = seconds(placed.since);
            if start_s < self.begun_s {
                continue;
            }
            let (spec, traits) = (&placed.vm.spec, &placed.vm.spec.traits);
            let labels = match traits.labels.is_empty() {
                true => String::new(),
                false => serde_json::to_string(&traits.labels)?,
            };
            text.write_record([
                &placed.vm.name,
                &start_s.to_string(),
                &end.map(|end| seconds(end).to_string()).unwrap_or_default(),
                spec.tenant.as_deref().unwrap_or_default(),
                &spec.resources.cores.cores().to_string(),
                &spec.resources.memory.gb().to_string(),
                traits.vm_type.as_deref().unwrap_or_default(),
                spec.deployment.as_deref().unwrap_or_default(),
                &traits.batch_vms.map(|vms| vms.to_string()).unwrap_or_default(),
                &labels,
            ])?;
        }
        text.into_inner().map_err(|error| io::Error::other(error.to_string()))
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let Some(file) = self.file.as_mut().filter(|_| !text.is_empty()) else { return Ok(()) };
        let written = file.write_all(text);
        if written.is_err() {
            // What a full disk has taken of it.
            let _ = file.set_len(self.bytes);
        } else {
            self.bytes += text.len() as u64;
        }
        written
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data).map_err(|error| named(&self.path, &error))
    }

    /// Writes the table anew where it would get too long: half of what is allowed, of the VMs that started last.
    fn make_room(&mut self, more: u64, now: Instant) -> io::Result<()> {
        if self.bytes + more <= self.bytes_max {
            return Ok(());
        }
        if self.tried.is_some_and(|tried| now.since(tried) < RETRY && now >= tried) {
            return Err(io::Error::other("too long, and could not be written anew"));
        }
        self.tried = Some(now);

        let scanned = self.scan()?;
        let mut sizes: Vec<(i64, u64)> = scanned.last.iter().map(|(key, row)| (key.1, row.bytes)).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut room = (self.bytes_max / 2).saturating_sub(more);
        let fits = sizes.iter().take_while(|(_, bytes)| {
            let fits = room >= *bytes;
            room = room.saturating_sub(*bytes);
            fits
        });
        // All of a second, or none.
        let left_out = fits.count();
        let first_s = sizes.get(left_out).map_or(i64::MIN, |(start_s, _)| start_s + 1);

        let new = self.path.with_extension("csv.new");
        let mut table = csv::Writer::from_writer(BufWriter::new(File::create(&new)?));
        table.write_record(COLUMNS)?;
        self.each_row(|number, row, key| {
            let counts = scanned.last.get(&key).is_some_and(|last| last.number == number);
            if counts && key.1 >= first_s {
                table.write_byte_record(row)?;
            }
            Ok(())
        })?;
        let file = table.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&new, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()?;

        let file = OpenOptions::new().append(true).read(true).open(&self.path)?;
        self.bytes = file.metadata()?.len();
        (self.file, self.tried, self.begun_s) = (Some(file), None, self.begun_s.max(first_s));
        match self.bytes + more <= self.bytes_max {
            true => Ok(()),
            false => {
                Err(io::Error::other(format!("{more} bytes at once are too many for {}", self.bytes_max)))
            }
        }
    }

    fn scan(&self) -> io::Result<Scanned> {
        let mut scanned = Scanned::default();
        self.each_row(|number, row, key| {
            let end_s = number_of(row.get(END));
            let bytes = row.as_slice().len() + row.len();
            scanned.last.insert(key, LastRow { number, bytes: bytes as u64, ended: end_s.is_some() });
            scanned.first_s = Some(scanned.first_s.map_or(key.1, |first_s| first_s.min(key.1)));
            scanned.latest_s = scanned.latest_s.max(key.1).max(end_s.unwrap_or(key.1));
            Ok(())
        })?;
        Ok(scanned)
    }

    /// Gives every row that is whole, with its number and what it is known by.
    fn each_row(&self, mut each: impl FnMut(u64, &ByteRecord, Key) -> io::Result<()>) -> io::Result<()> {
        let reader = BufReader::with_capacity(1 << 16, File::open(&self.path)?);
        let mut table = csv::ReaderBuilder::new().flexible(true).from_reader(reader);
        let mut row = ByteRecord::new();
        for number in 0.. {
            if !table.read_byte_record(&mut row)? {
                break;
            }
            if let (COLUMNS_LEN, Some(start_s)) = (row.len(), number_of(row.get(START))) {
                each(number, &row, (hash(&row[ID]), start_s))?;
            }
        }
        Ok(())
    }
}

const COLUMNS_LEN: usize = COLUMNS.len();

fn seconds(at: Instant) -> i64 {
    (at.as_millis() / 1000) as i64
}

fn key(vm: &[u8], since: Instant) -> Key {
    (hash(vm), seconds(since))
}

fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

fn number_of(field: Option<&[u8]>) -> Option<i64> {
    str::from_utf8(field?).ok()?.parse().ok()
}

/// Cuts off half a row that a crash has left at the end; how long the file is now.
fn without_half_row(file: &File) -> io::Result<u64> {
    let mut bytes = file.metadata()?.len();
    let mut last = [0];
    while bytes > 0 {
        file.read_exact_at(&mut last, bytes - 1)?;
        if last == *b"\n" {
            break;
        }
        bytes -= 1;
    }
    file.set_len(bytes)?;
    Ok(bytes)
}

fn has_header(path: &Path) -> io::Result<bool> {
    let mut table = csv::ReaderBuilder::new().flexible(true).from_path(path)?;
    Ok(table.byte_headers()?.iter().eq(COLUMNS.map(str::as_bytes)))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    let kind = if error.kind() == ErrorKind::Other { ErrorKind::Other } else { error.kind() };
    io::Error::new(kind, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests;
