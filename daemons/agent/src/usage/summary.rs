//! What `GET /v1/usage` tells of every VM: its records of the last days, added up.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use ballast_types::wire::VmCpuUse;
use ballast_types::{CpuSeconds, Histogram, UsageBin, VmId, VmStart};

use crate::records;

/// Records of so many days count, and of today.
const DAYS: u32 = 7;

#[derive(Default)]
struct Sum {
    start: VmStart,
    cores: u16,
    until: UsageBin,
    cpu: CpuSeconds,
    throttled_s: u64,
}

/// The newest instance of every VM with a record of the days up to this moment. What lies in the future was written by a
/// clock that was wrong, and does not count.
pub(super) fn make(folder: &Path, unix_s: u64) -> io::Result<BTreeMap<VmId, VmCpuUse>> {
    let now = UsageBin::of(unix_s);
    let mut sums: BTreeMap<VmId, Sum> = BTreeMap::new();
    records::read(folder, now.day().saturating_sub(DAYS)..=now.day(), |record| {
        if record.bin > now {
            return;
        }
        let sum = sums.entry(record.vm).or_default();
        if sum.start != record.start {
            // Within a day the instances of a VM are told one after the other, in any order.
            if record.bin < sum.until {
                return;
            }
            *sum = Sum { start: record.start, ..Sum::default() };
        }
        (sum.cores, sum.until) = (record.cores, sum.until.max(record.bin));
        sum.cpu.merge(&record.cpu);
        sum.throttled_s += record.throttled.samples();
    })?;

    let told = |sum: Sum| VmCpuUse {
        cores: sum.cores,
        until_unix_s: UsageBin(sum.until.0.saturating_add(1)).start_s(),
        throttled_s: sum.throttled_s,
        seconds: seconds(&sum.cpu),
    };
    Ok(sums.into_iter().map(|(vm, sum)| (vm, told(sum))).collect())
}

fn seconds(cpu: &CpuSeconds) -> Vec<(u32, u64)> {
    let counts = cpu.histogram.counts().iter().enumerate().filter(|(_, count)| **count > 0);
    counts.map(|(bucket, count)| (Histogram::upper_mc(bucket).min(cpu.peak_mc), u64::from(*count))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Limits, Store};
    use ballast_types::UsageRecord;

    #[test]
    fn the_newest_instance_is_told_and_neither_old_days_nor_the_future() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path(), Limits { days: 30, bytes: 1 << 20 }).unwrap();
        let day = 20_778;
        let mut write = |day: u32, slot: u32, start: u64, mc: u32| {
            let vm = VmId::new("v").unwrap();
            let mut record = UsageRecord::empty(vm, VmStart(start), UsageBin(day * 288 + slot), 2);
            (0..300).for_each(|_| record.cpu.add(mc));
            record.throttled.add(2000);
            store.append(&[record]).unwrap();
        };
        write(day - 8, 0, 7, 11);
        write(day - 1, 3, 1, 12);
        write(day, 4, 9, 500);
        write(day, 5, 9, 700);
        write(day, 200, 9, 13);

        let told = make(dir.path(), u64::from(day) * 86_400 + 7 * 300).unwrap();
        let until_unix_s = u64::from(day) * 86_400 + 6 * 300;
        let seconds = vec![(525, 300), (700, 300)];
        let expected = VmCpuUse { cores: 2, until_unix_s, throttled_s: 2, seconds };
        assert_eq!(told.into_values().collect::<Vec<_>>(), [expected]);
    }
}
