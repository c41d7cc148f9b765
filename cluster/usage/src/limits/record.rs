//! What an agent has recorded of a VM, as a recommender takes it.

use ballast_types::usage::{BIN_S, Histogram};
use ballast_types::{Counters, UsageRecord};

use super::bucket::UseBucket;

/// A VM that was stopped by its own limit for so many milliseconds of a record wanted more than it got.
const STOPPED_MIN_MS: u64 = BIN_S * 10;
/// By so much more than its peak.
const WANTED: f32 = 1.2;

/// The seconds of a record, as shares of so many cores. A second in which the agent throttled the VM counts with what it used at
/// least; one in which the VM's own limit stopped it counts with a fifth more than the peak, so that a limit that is too
/// low is seen in what was used under it.
pub fn cpu_samples(record: &UsageRecord, cores: u16) -> Vec<(UseBucket, f32)> {
    let full_mc = f32::from(cores) * 1000.0;
    let peak_mc = record.cpu.peak_mc.max(record.throttled.peak_mc);
    let counts = record.cpu.histogram.counts().iter().zip(record.throttled.histogram.counts()).enumerate();
    let mut samples: Vec<_> = counts
        .filter(|(_, (free, throttled))| **free + **throttled > 0)
        .filter_map(|(bucket, (free, throttled))| {
            let use_mc = Histogram::upper_mc(bucket).min(peak_mc);
            Some((UseBucket::of(use_mc as f32 / full_mc)?, (free + throttled) as f32))
        })
        .collect();

    let stopped_ms = counter(&record.counters, "stopped_ms").filter(|ms| *ms >= STOPPED_MIN_MS);
    if let Some(stopped_ms) = stopped_ms.filter(|_| !samples.is_empty())
        && let Some(wanted) = UseBucket::of(peak_mc as f32 / full_mc * WANTED)
    {
        samples.push((wanted, stopped_ms.min(BIN_S * 1000) as f32 / 1000.0));
    }
    samples
}

/// What the VM cannot give up of its memory, as a share of the most that there is; where the kernel does not tell that, all
/// that it used. `None` where neither is known.
pub fn memory_share(record: &UsageRecord, most_bytes: u64) -> Option<f32> {
    let memory = record.memory;
    let used = memory.working_set_bytes.or(memory.used_bytes).filter(|used| *used > 0)?;
    Some(used as f32 / most_bytes as f32)
}

/// How many of the VM's tasks were killed for lack of memory, as far as that is known.
pub fn oom_kills(record: &UsageRecord) -> u64 {
    counter(&record.counters, "oom_kills").unwrap_or(0)
}

fn counter(counters: &Counters, name: &str) -> Option<u64> {
    counters.named().find(|(known, _)| *known == name)?.1
}

#[cfg(test)]
mod tests {
    use ballast_types::{MemoryUse, UsageBin, VmId, VmStart};

    use super::*;

    #[test]
    fn seconds_are_shares_and_what_was_stopped_wanted_more() {
        let mut record = UsageRecord::empty(VmId::new("v").unwrap(), VmStart(1), UsageBin(7), 4);
        assert!(cpu_samples(&record, 4).is_empty() && memory_share(&record, 100).is_none());
        (0..200).for_each(|_| record.cpu.add(1000));
        (0..50).for_each(|_| record.throttled.add(2000));
        record.counters = Counters([Some(3), None, Some(40_000), None, None, None]);
        record.memory = MemoryUse { used_bytes: Some(50), ..MemoryUse::default() };

        let samples = cpu_samples(&record, 4);
        let close = |at: usize, share: f32, count: f32| {
            let (bucket, counted) = samples[at];
            assert!(bucket.edge() >= share && bucket.edge() <= share * 1.11, "{at}: {samples:?}");
            assert_eq!(counted, count, "{at}");
        };
        assert_eq!(samples.len(), 3);
        close(0, 0.25, 200.0);
        close(1, 0.5, 50.0);
        close(2, 0.6, 40.0);
        assert_eq!((memory_share(&record, 100), oom_kills(&record)), (Some(0.5), 3));
        record.counters.0[2] = Some(2999);
        assert_eq!(cpu_samples(&record, 4).len(), 2, "stops of less than 1 % are no want");
    }
}
