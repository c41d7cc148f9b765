//! The bytes of a day's file.
//!
//! ```text
//! file   = header frame*
//! header = "ballastU"  version: u16  zero: u16  day: u32  crc: u32 of what is before
//! frame  = length: u16  crc: u32 of the payload  payload
//! payload = 1 vm start: u64 id                                     a VM, and the number that it has here
//!         | 2 vm slot cores sum peak throttled kills memory bucket*   a record; slots from 0 at midnight
//! bucket = buckets skipped, count
//! ```
//! Fixed numbers are little-endian, all others LEB128. `memory` is 0 where it is not known, else one more
//! than the bytes. `sum` and `peak` are in parts per million, see [`UsageRecord`]. The checksum is that of
//! zlib (CRC-32). A frame that does not check is dropped; where even its length is impossible, so is the
//! rest.

use crc32fast::hash as crc32;
use std::collections::BTreeMap;
use std::io::{self, Read};

use ballast_types::usage::FULL_PPM;
use ballast_types::{Histogram, UsageBin, UsageRecord, VmId, VmStart};

/// What a file begins with.
const MAGIC: &[u8; 8] = b"ballastU";
/// The version of this layout.
pub(super) const VERSION: u16 = 1;
pub(super) const HEADER: usize = 20;
/// Length of what is before a payload.
const PREFIX: usize = 6;
/// The longest payload; a record with every bucket used has some 200 bytes.
const LONGEST: usize = 1024;
/// Slots of a day.
const SLOTS: u32 = 288;

/// Why a file cannot be read at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Not a file of records, or its header is damaged.
    #[error("not a file of usage records, or its header is damaged")]
    Header,
    /// Of a version that this program does not know.
    #[error("version {0}; this program reads version {VERSION}")]
    Version(u16),
    /// Of another day than its name says.
    #[error("it holds the records of another day than its name says")]
    Day,
}

pub(super) fn header(day: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&day.to_le_bytes());
    let crc = crc32(&header[..16]);
    header[16..].copy_from_slice(&crc.to_le_bytes());
    header
}

pub(super) fn check_header(header: &[u8; HEADER], day: u32) -> Result<(), Damage> {
    let version = u16::from_le_bytes([header[8], header[9]]);
    if header[..8] != *MAGIC || header[16..] != crc32(&header[..16]).to_le_bytes() {
        return Err(Damage::Header);
    }
    if version != VERSION {
        return Err(Damage::Version(version));
    }
    if header[12..16] != day.to_le_bytes() { Err(Damage::Day) } else { Ok(()) }
}

/// Appends a frame that `payload` fills.
fn frame(into: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) {
    let at = into.len();
    into.extend([0; PREFIX]);
    payload(into);
    let length = (into.len() - at - PREFIX) as u16;
    let crc = crc32(&into[at + PREFIX..]);
    into[at..at + 2].copy_from_slice(&length.to_le_bytes());
    into[at + 2..at + PREFIX].copy_from_slice(&crc.to_le_bytes());
}

/// Appends a VM, with the number that stands for it from here on.
pub(super) fn write_vm(into: &mut Vec<u8>, number: u32, vm: &VmId, start: VmStart) {
    frame(into, |to| {
        to.push(1);
        write_number(to, number.into());
        to.extend(start.0.to_le_bytes());
        to.extend(vm.as_str().as_bytes());
    });
}

/// Appends a record of the VM with this number.
pub(super) fn write_record(into: &mut Vec<u8>, vm: u32, record: &UsageRecord) {
    frame(into, |to| {
        to.push(2);
        for number in [
            vm.into(),
            (record.bin.0 % SLOTS).into(),
            record.cores.into(),
            record.sum_ppm,
            record.peak_ppm.into(),
            record.throttled_s.into(),
            record.oom_kills.into(),
            record.memory_peak_bytes.map_or(0, |bytes| bytes.saturating_add(1)),
        ] {
            write_number(to, number);
        }

        let mut next = 0;

        for (bucket, count) in record.cpu.counts().iter().enumerate() {
            if *count > 0 {
                write_number(to, (bucket - next) as u64);
                write_number(to, (*count).into());
                next = bucket + 1;
            }
        }
    });
}

fn write_number(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Takes a number from the front.
fn number(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// The frames of a file, one after the other.
pub(super) struct Frames<R> {
    from: R,
    day: u32,
    vms: BTreeMap<u32, (VmId, VmStart)>,
    /// Bytes up to the end of the last frame whose length was possible, and whole.
    pub(super) whole: u64,
    /// Frames that did not check, a cut tail among them.
    pub(super) dropped: u64,
}

impl<R: Read> Frames<R> {
    /// Of what follows the header of this day's file.
    pub(super) fn new(from: R, day: u32) -> Self {
        Self { from, day, vms: BTreeMap::new(), whole: HEADER as u64, dropped: 0 }
    }

    /// The VMs so far, by number.
    pub(super) fn into_vms(self) -> BTreeMap<u32, (VmId, VmStart)> {
        self.vms
    }

    /// The next record that checks; `None` at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<UsageRecord>> {
        let mut payload = [0; LONGEST];
        loop {
            let mut prefix = [0; PREFIX];
            let got = fill(&mut self.from, &mut prefix)?;
            let [a, b, crc @ ..] = prefix;
            let length = usize::from(u16::from_le_bytes([a, b]));
            let possible = got == PREFIX && (1..=LONGEST).contains(&length);

            if got == 0 {
                return Ok(None);
            }
            if !possible || fill(&mut self.from, &mut payload[..length])? < length {
                self.dropped += 1;
                return Ok(None);
            }

            self.whole += (PREFIX + length) as u64;
            let payload = &payload[..length];
            let sound = crc == crc32(payload).to_le_bytes();

            match sound.then(|| self.decode(payload)).flatten() {
                Some(None) => {}
                Some(record) => return Ok(record),
                None => self.dropped += 1,
            }
        }
    }

    /// The record that a payload holds; `Some(None)` if it holds a VM, which is known then.
    fn decode(&mut self, payload: &[u8]) -> Option<Option<UsageRecord>> {
        let (kind, mut rest) = payload.split_first()?;
        let rest = &mut rest;
        let vm = u32::try_from(number(rest)?).ok()?;

        if *kind == 1 {
            let (start, id) = rest.split_first_chunk()?;
            let id = VmId::new(str::from_utf8(id).ok()?).ok()?;
            self.vms.insert(vm, (id, VmStart(u64::from_le_bytes(*start))));
            return Some(None);
        }

        let (vm, start) = self.vms.get(&vm).filter(|_| *kind == 2)?;
        let slot = u32::try_from(number(rest)?).ok().filter(|slot| *slot < SLOTS)?;
        let cores = number(rest)?.try_into().ok()?;
        let slot = UsageBin(self.day.checked_mul(SLOTS)?.checked_add(slot)?);
        let mut record = UsageRecord::empty(vm.clone(), *start, slot, cores);
        record.sum_ppm = number(rest)?;
        record.peak_ppm = number(rest)?.try_into().ok()?;
        record.throttled_s = number(rest)?.try_into().ok()?;
        record.oom_kills = number(rest)?.try_into().ok()?;
        record.memory_peak_bytes = number(rest)?.checked_sub(1);
        let (mut counts, mut bucket) = ([0; Histogram::BUCKETS], 0usize);

        while !rest.is_empty() {
            bucket = bucket.checked_add(usize::try_from(number(rest)?).ok()?)?;
            *counts.get_mut(bucket)? = number(rest)?.try_into().ok()?;
            bucket += 1;
        }

        record.cpu = Histogram::new(counts);
        let most = record.cpu.samples() * u64::from(FULL_PPM);
        let sound = record.sum_ppm <= most && record.peak_ppm <= FULL_PPM;

        sound.then_some(Some(record))
    }
}

/// Reads until it is full, or the end.
pub(super) fn fill(from: &mut impl Read, mut into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while !into.is_empty() {
        match from.read(into) {
            Ok(0) => break,
            Ok(n) => {
                got += n;
                into = &mut into[n..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
