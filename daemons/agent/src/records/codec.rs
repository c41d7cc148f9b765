//! The bytes of a day's file.
//!
//! ```text
//! file   = header frame*
//! header = "ballastU"  version: u16  zero: u16  day: u32  crc: u32 of what is before
//! frame  = length: u16  crc: u32 of the payload  payload
//! payload = 1 vm start: u64 id                          a VM, and the number that it has here
//!         | 3 vm slot cores cpu throttled memory counter*   a record; slots from 0 at midnight
//! cpu, throttled = bucket* 0, and unless there is none: sum peak squares?
//! bucket = a byte: 32 times the buckets skipped and the count; then, where it says 7 or 31, how many more than that
//! memory = used? (zigzag: peak - used)? (zigzag: used - working set)?   in KiB
//! ```
//! Fixed numbers are little-endian, all others LEB128; one with `?` is 0 where it is not known, else one more than the
//! number. Use of CPU is in millicores, counters are in the order of [`Counters::NAMES`], see [`UsageRecord`]. The checksum
//! is that of zlib (CRC-32). A frame that does not check is dropped; where even its length is impossible, so is the rest.

use crc32fast::hash as crc32;
use std::collections::BTreeMap;
use std::io::{self, Read};

use ballast_types::{Counters, CpuSeconds, Histogram, MemoryUse, UsageBin, UsageRecord, VmId, VmStart};

/// What a file begins with.
const MAGIC: &[u8; 8] = b"ballastU";
/// The version of this layout.
const VERSION: u16 = 2;
pub(super) const HEADER: usize = 20;
/// The first byte of a payload: a VM, or a record.
const VM: u8 = 1;
const RECORD: u8 = 3;
/// Length of what is before a payload.
const PREFIX: usize = 6;
/// The longest payload; a record with every bucket used has some 700 bytes.
const LONGEST: usize = 1024;
/// Slots of a day.
const SLOTS: u32 = 288;
/// A bucket's byte has no room for as many skipped, nor for such a count.
const SKIPPED_MAX: u64 = 7;
const COUNT_MAX: u64 = 31;

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

/// Checks that the header is whole, of this version and of this day.
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
        to.push(VM);
        write_number(to, number.into());
        to.extend(start.0.to_le_bytes());
        to.extend(vm.as_str().as_bytes());
    });
}

/// Appends a record of the VM with this number.
pub(super) fn write_record(into: &mut Vec<u8>, vm: u32, record: &UsageRecord) {
    frame(into, |to| {
        to.push(RECORD);
        write_number(to, vm.into());
        write_number(to, (record.bin.0 % SLOTS).into());
        write_number(to, record.cores.into());
        write_cpu(to, &record.cpu);
        write_cpu(to, &record.throttled);

        let kib = |bytes: Option<u64>| bytes.map(|bytes| bytes.div_ceil(1024));
        let MemoryUse { used_bytes, peak_bytes, working_set_bytes } = record.memory;
        let used = kib(used_bytes);
        let base = used.unwrap_or(0);
        write_optional(to, used);
        write_optional(to, kib(peak_bytes).map(|peak| zigzag(peak.wrapping_sub(base))));
        write_optional(to, kib(working_set_bytes).map(|working| zigzag(base.wrapping_sub(working))));
        record.counters.0.iter().for_each(|counter| write_optional(to, *counter));
    });
}

fn write_cpu(to: &mut Vec<u8>, cpu: &CpuSeconds) {
    let (counts, mut next) = (cpu.histogram.counts(), 0);
    for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (skipped, count) = ((bucket - next) as u64, u64::from(*count));
        to.push((skipped.min(SKIPPED_MAX) << 5 | count.min(COUNT_MAX)) as u8);
        for (number, max) in [(skipped, SKIPPED_MAX), (count, COUNT_MAX)] {
            if number >= max {
                write_number(to, number - max);
            }
        }
        next = bucket + 1;
    }
    to.push(0);

    if next > 0 {
        write_number(to, cpu.sum_mc);
        write_number(to, cpu.peak_mc.into());
        write_optional(to, cpu.squares_mc2);
    }
}

fn write_optional(to: &mut Vec<u8>, number: Option<u64>) {
    write_number(to, number.map_or(0, |number| number.saturating_add(1)));
}

/// A difference whose sign stands in the lowest bit, so that small ones are short.
fn zigzag(difference: u64) -> u64 {
    let signed = difference.cast_signed();
    (signed << 1 ^ signed >> 63).cast_unsigned()
}

fn unzigzag(number: u64) -> u64 {
    number >> 1 ^ (number & 1).wrapping_neg()
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

        if *kind == VM {
            let (start, id) = rest.split_first_chunk()?;
            let id = VmId::new(str::from_utf8(id).ok()?).ok()?;
            self.vms.insert(vm, (id, VmStart(u64::from_le_bytes(*start))));
            return Some(None);
        }
        if *kind != RECORD {
            return None;
        }

        let (vm, start) = self.vms.get(&vm)?;
        let slot = u32::try_from(number(rest)?).ok().filter(|slot| *slot < SLOTS)?;
        let cores = number(rest)?.try_into().ok()?;
        let slot = UsageBin(self.day.checked_mul(SLOTS)?.checked_add(slot)?);
        let mut record = UsageRecord::empty(vm.clone(), *start, slot, cores);
        read_record(rest, &mut record)?;

        rest.is_empty().then_some(Some(record))
    }
}

fn read_record(rest: &mut &[u8], record: &mut UsageRecord) -> Option<()> {
    record.cpu = read_cpu(rest)?;
    record.throttled = read_cpu(rest)?;

    let used = optional(rest)?;
    let base = used.unwrap_or(0);
    let peak = optional(rest)?.map(|peak| base.wrapping_add(unzigzag(peak)));
    let working = optional(rest)?.map(|working| base.wrapping_sub(unzigzag(working)));
    record.memory = MemoryUse {
        used_bytes: in_bytes(used)?,
        peak_bytes: in_bytes(peak)?,
        working_set_bytes: in_bytes(working)?,
    };

    let mut counters = Counters::default();
    for counter in &mut counters.0 {
        *counter = optional(rest)?;
    }
    record.counters = counters;
    Some(())
}

/// Whether seconds of at most the peak can have this sum, and these squares: else nobody has written them.
fn can_be(cpu: &CpuSeconds) -> bool {
    let samples: u128 = cpu.histogram.counts().iter().map(|count| u128::from(*count)).sum();
    let (peak, most) = (u128::from(cpu.peak_mc), samples * u128::from(cpu.peak_mc));
    let squares = cpu.squares_mc2.is_none_or(|squares| u128::from(squares) <= most * peak);
    u128::from(cpu.sum_mc) <= most && squares
}

fn read_cpu(rest: &mut &[u8]) -> Option<CpuSeconds> {
    let (mut counts, mut next) = ([0; Histogram::BUCKETS], 0usize);
    loop {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        if *byte == 0 {
            break;
        }
        let mut more = |number_here: u64, max| match number_here == max {
            true => number(rest)?.checked_add(max),
            false => Some(number_here),
        };
        let skipped = more(u64::from(byte >> 5), SKIPPED_MAX)?;
        let count = more(u64::from(byte & 31), COUNT_MAX)?;
        next = next.checked_add(usize::try_from(skipped).ok()?)?;
        *counts.get_mut(next)? = u32::try_from(count).ok().filter(|count| *count > 0)?;
        next += 1;
    }

    if next == 0 {
        return Some(CpuSeconds::default());
    }
    let (sum_mc, peak_mc) = (number(rest)?, u32::try_from(number(rest)?).ok()?);
    let cpu = CpuSeconds { histogram: Histogram::new(counts), sum_mc, squares_mc2: optional(rest)?, peak_mc };
    can_be(&cpu).then_some(cpu)
}

/// KiB in bytes; what no `u64` of bytes holds was never written.
fn in_bytes(kib: Option<u64>) -> Option<Option<u64>> {
    kib.map_or(Some(None), |kib| kib.checked_mul(1024).map(Some))
}

/// Takes a number that may be unknown from the front.
fn optional(from: &mut &[u8]) -> Option<Option<u64>> {
    Some(number(from)?.checked_sub(1))
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
