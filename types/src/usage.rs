//! Usage records: what one VM used in five minutes. Labels, P95, packing and limits are made from these.
//!
//! A record counts seconds. One that could not be measured is in no bucket: it is missing, and never zero. Of one in which
//! the VM was throttled no more is known than that the VM would have used at least so much.

use serde::{Deserialize, Serialize};

use crate::VmId;

/// Seconds of a record.
pub const BIN_S: u64 = 300;
/// Seconds that a record must have measured for its mean to stand for all of it.
pub const BIN_NEEDS_S: u64 = BIN_S / 2;

/// Parts per million of a VM's cores: all of them, all the time.
pub const FULL_PPM: u32 = 1_000_000;

/// Which five minutes: counted from 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UsageBin(pub u32);

impl UsageBin {
    /// The one that holds this second since 1970; the last one for times beyond the year 42000.
    pub fn of(unix_s: u64) -> Self {
        Self(u32::try_from(unix_s / BIN_S).unwrap_or(u32::MAX))
    }

    /// When it begins, in seconds since 1970.
    pub const fn start_s(self) -> u64 {
        self.0 as u64 * BIN_S
    }

    /// The day that it lies in, counted from 1970-01-01 in UTC.
    pub const fn day(self) -> u32 {
        self.0 / (86_400 / BIN_S as u32)
    }
}

/// One instance of a VM: from the making of its cgroup to its end. A VM that is started anew, under whatever
/// name, is another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VmStart(pub u64);

impl VmStart {
    /// From what tells one cgroup from every other: the machine's boot, the group's path and its inode, which
    /// is used again only after a reboot. (FNV-1a of the three.)
    pub fn of(boot_id: &str, cgroup: &str, inode: u64) -> Self {
        let inode = inode.to_le_bytes();
        let parts = [boot_id.as_bytes(), &[0], cgroup.as_bytes(), &[0], &inode];
        let bytes = parts.into_iter().flatten();
        Self(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }
}

/// How many seconds used how much CPU, in millicores: thousandths of one core's time.
///
/// Below 20 millicores each has a bucket of its own; from there on the upper edge of a bucket is 5 % above its lower one,
/// rounded down to whole millicores. A VM's buckets do not depend on its size. The last one is open.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Histogram([u32; Self::BUCKETS]);

impl Histogram {
    /// How many buckets: enough for a VM of 4,096 CPUs.
    pub const BUCKETS: usize = 271;
    /// So many are one millicore wide.
    const LINEAR: usize = 20;
    /// The lower edge of every bucket, in millicores.
    const EDGES_MC: [u32; Self::BUCKETS] = {
        let (mut edges, mut n) = ([0; Self::BUCKETS], 0);
        let mut fixed = (Self::LINEAR as u64) << 32;
        while n < Self::BUCKETS {
            if n < Self::LINEAR {
                edges[n] = n as u32;
            } else {
                edges[n] = (fixed >> 32) as u32;
                fixed = fixed / 20 * 21;
            }
            n += 1;
        }
        edges
    };

    /// From the count of every bucket.
    pub const fn new(counts: [u32; Self::BUCKETS]) -> Self {
        Self(counts)
    }

    /// The count of every bucket.
    pub const fn counts(&self) -> &[u32; Self::BUCKETS] {
        &self.0
    }

    /// What every second of this bucket uses less than, in millicores.
    pub fn upper_mc(bucket: usize) -> u32 {
        Self::EDGES_MC.get(bucket + 1).copied().unwrap_or(u32::MAX)
    }

    fn add(&mut self, use_mc: u32, seconds: u32) {
        // The first edge is 0.
        let bucket = Self::EDGES_MC.partition_point(|edge| *edge <= use_mc) - 1;
        self.0[bucket] = self.0[bucket].saturating_add(seconds);
    }

    /// Adds all that another one has counted.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(more);
        }
    }

    /// Seconds counted.
    pub fn samples(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self([0; Self::BUCKETS])
    }
}

/// The CPU use of some seconds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CpuSeconds {
    /// The seconds, by use.
    pub histogram: Histogram,
    /// The sum of their use, in millicores.
    pub sum_mc: u64,
    /// The sum of the squares of their use; `None` if it is unknown.
    pub squares_mc2: Option<u64>,
    /// The busiest of them.
    pub peak_mc: u32,
}

impl Default for CpuSeconds {
    fn default() -> Self {
        Self { histogram: Histogram::default(), sum_mc: 0, squares_mc2: Some(0), peak_mc: 0 }
    }
}

impl CpuSeconds {
    /// Counts one second of so much use.
    pub fn add(&mut self, use_mc: u32) {
        let mc = u64::from(use_mc);
        self.histogram.add(use_mc, 1);
        self.sum_mc += mc;
        self.squares_mc2 = self.squares_mc2.map(|sum| sum.saturating_add(mc * mc));
        self.peak_mc = self.peak_mc.max(use_mc);
    }

    /// Adds all that another one has counted.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.merge(&other.histogram);
        self.sum_mc = self.sum_mc.saturating_add(other.sum_mc);
        self.squares_mc2 = self.squares_mc2.zip(other.squares_mc2).map(|(a, b)| a.saturating_add(b));
        self.peak_mc = self.peak_mc.max(other.peak_mc);
    }

    /// Seconds counted.
    pub fn samples(&self) -> u64 {
        self.histogram.samples()
    }

    /// What `share_ppm` of the seconds did not exceed, in millicores: the upper edge of the first bucket that, with those
    /// before it, has so many of them, and no more than the busiest second. Never less than the true quantile, and at
    /// most 5 % and one millicore more. `None` of nothing.
    pub fn quantile_mc(&self, share_ppm: u32) -> Option<u32> {
        let full = u64::from(FULL_PPM);
        let rank = (self.samples() * u64::from(share_ppm.min(FULL_PPM))).div_ceil(full).max(1);
        let mut counted = 0;
        let bucket = self.histogram.0.iter().position(|count| {
            counted += u64::from(*count);
            counted >= rank
        })?;
        Some(Histogram::upper_mc(bucket).min(self.peak_mc))
    }
}

/// The memory of a VM's cgroup. What could not be read is `None`, and never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryUse {
    /// In use, page cache included: `memory.current`.
    pub used_bytes: Option<u64>,
    /// `memory.peak`: kernels before 5.19 do not tell.
    pub peak_bytes: Option<u64>,
    /// `memory.current` without `inactive_file` of `memory.stat`: what cannot be given up without harm.
    pub working_set_bytes: Option<u64>,
}

impl MemoryUse {
    /// What it knows, by name.
    pub const fn named(self) -> [(&'static str, Option<u64>); 3] {
        [
            ("memory_used_bytes", self.used_bytes),
            ("memory_peak_bytes", self.peak_bytes),
            ("working_set_bytes", self.working_set_bytes),
        ]
    }

    /// The larger of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            used_bytes: self.used_bytes.max(other.used_bytes),
            peak_bytes: self.peak_bytes.max(other.peak_bytes),
            working_set_bytes: self.working_set_bytes.max(other.working_set_bytes),
        }
    }
}

/// What the kernel counts of a VM's cgroup beside its CPU time. What could not be read is `None`, and never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters(pub [Option<u64>; Self::NAMES.len()]);

impl Counters {
    /// What is counted, in this order: `oom_kill` of `memory.events`; `nr_throttled` and `throttled_usec` of `cpu.stat`;
    /// the totals of `some` of `cpu.pressure`, and of `some` and `full` of `memory.pressure`.
    pub const NAMES: [&'static str; 6] = [
        "oom_kills",
        "stopped_periods",
        "stopped_ms",
        "cpu_pressure_ms",
        "memory_pressure_ms",
        "memory_full_pressure_ms",
    ];

    /// What was counted, by name.
    pub fn named(self) -> impl Iterator<Item = (&'static str, Option<u64>)> {
        Self::NAMES.into_iter().zip(self.0)
    }

    /// Adds what is known of the other one.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = match (*sum, more) {
                (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
                (sum, more) => sum.or(more),
            };
        }
        self
    }

    /// What was counted since `before`, which is brought up to date: where this look knows nothing `before` stands, so that
    /// the next one tells both. What went back is missing.
    pub fn since(self, before: &mut Self) -> Self {
        let mut more = Self::default();
        for ((more, now), before) in more.0.iter_mut().zip(self.0).zip(&mut before.0) {
            let Some(now) = now else { continue };
            *more = before.replace(now).and_then(|before| now.checked_sub(before));
        }
        more
    }
}

/// What one VM used in five minutes, or in a part of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UsageRecord {
    /// The VM that this is about.
    pub vm: VmId,
    /// Which instance of it.
    pub start: VmStart,
    /// The five minutes that it covers.
    pub bin: UsageBin,
    /// How many CPUs it had.
    pub cores: u16,
    /// Its seconds; those in which it was throttled are not among them.
    pub cpu: CpuSeconds,
    /// Seconds in which it was throttled, by whatever the agent did: it would have used at least this much.
    pub throttled: CpuSeconds,
    /// The most memory that was seen.
    pub memory: MemoryUse,
    /// What the kernel counted meanwhile.
    pub counters: Counters,
}

impl UsageRecord {
    /// One in which nothing was seen yet.
    pub fn empty(vm: VmId, start: VmStart, bin: UsageBin, cores: u16) -> Self {
        Self {
            vm,
            start,
            bin,
            cores,
            cpu: CpuSeconds::default(),
            throttled: CpuSeconds::default(),
            memory: MemoryUse::default(),
            counters: Counters::default(),
        }
    }

    /// Whether nothing was seen.
    pub fn is_empty(&self) -> bool {
        let nothing = Self::empty(self.vm.clone(), self.start, self.bin, self.cores);
        *self == nothing
    }

    /// What the record does not know, by name.
    pub fn missing(&self) -> impl Iterator<Item = &'static str> {
        let squares = ("cpu_squares", self.cpu.squares_mc2);
        let values = self.memory.named().into_iter().chain(self.counters.named()).chain([squares]);
        values.filter(|(_, value)| value.is_none()).map(|(name, _)| name)
    }

    /// Mean use over the seconds that were measured, as a share of its cores and no more than all of them; `None` if
    /// there were none.
    pub fn mean(&self) -> Option<f64> {
        let samples = self.cpu.samples();
        let full_mc = samples as f64 * 1000.0 * f64::from(self.cores);
        (full_mc > 0.0).then(|| (self.cpu.sum_mc as f64 / full_mc).min(1.0))
    }

    /// The same where the seconds suffice to stand for all five minutes: [`BIN_NEEDS_S`] of them.
    pub fn steady_mean(&self) -> Option<f64> {
        self.mean().filter(|_| self.cpu.samples() >= BIN_NEEDS_S)
    }

    /// Takes in another record of the same five minutes: of the agent's life before a restart. Where the two
    /// hold more seconds than there are (the clock went back), only the fuller one counts.
    pub fn merge(&mut self, other: Self) {
        let seconds = |it: &Self| it.cpu.samples() + it.throttled.samples();
        // A second or two are counted twice where the first ended.
        if seconds(self) + seconds(&other) > BIN_S + 5 {
            if seconds(&other) > seconds(self) {
                *self = other;
            }
            return;
        }
        self.cores = other.cores;
        self.cpu.merge(&other.cpu);
        self.throttled.merge(&other.throttled);
        self.memory = self.memory.max(other.memory);
        self.counters = self.counters.plus(other.counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(uses: &[u32]) -> UsageRecord {
        let mut record = UsageRecord::empty(VmId::new("v").unwrap(), VmStart(1), UsageBin::of(0), 4);
        uses.iter().for_each(|mc| record.cpu.add(*mc));
        record
    }

    #[test]
    fn buckets_are_as_wide_as_files_say_they_are() {
        // What a file counts by bucket is read by these edges: they must stay what they are.
        let edges = Histogram::EDGES_MC;
        assert_eq!((edges[19], edges[20], edges[21], edges[100], edges[270]), (19, 20, 21, 991, 3_966_018));
        assert!(Histogram::EDGES_MC.is_sorted_by(|a, b| a < b));
        let over = record(&[u32::MAX, 4000, 8000]);
        assert_eq!(
            (over.cpu.histogram.counts()[270], over.cpu.peak_mc, over.mean()),
            (1, u32::MAX, Some(1.0))
        );
    }

    #[test]
    fn a_counter_that_cannot_be_read_or_went_back_is_missing_and_never_zero() {
        let mut before = Counters::default();
        let mut look = |kills| Counters([kills, None, None, None, None, None]).since(&mut before).0[0];
        let looks = [Some(3), Some(3), None, Some(5), Some(1), Some(2)].map(&mut look);
        assert_eq!(looks, [None, Some(0), None, Some(2), None, Some(1)]);
        let mut record = record(&[1]);
        assert_eq!(record.missing().count(), 9);
        record.counters = Counters([Some(0); 6]);
        record.memory.used_bytes = Some(1);
        assert_eq!(record.missing().collect::<Vec<_>>(), ["memory_peak_bytes", "working_set_bytes"]);
    }

    #[test]
    fn bins_are_five_minutes_of_utc() {
        assert_eq!((UsageBin::of(299).0, UsageBin::of(300).0, UsageBin::of(86_399).day()), (0, 1, 0));
        assert_eq!((UsageBin::of(86_400).day(), UsageBin(288).start_s()), (1, 86_400));
        assert_eq!(UsageBin::of(u64::MAX).0, u32::MAX);
    }

    #[test]
    fn a_start_is_told_by_boot_path_and_inode() {
        let start = VmStart::of("boot", "a.slice/v.scope", 7);
        assert_eq!(start, VmStart::of("boot", "a.slice/v.scope", 7));
        for other in [
            VmStart::of("boot2", "a.slice/v.scope", 7),
            VmStart::of("boot", "a.slice/w.scope", 7),
            VmStart::of("boot", "a.slice/v.scope", 8),
        ] {
            assert_ne!(start, other);
        }
        // Written into files: it must stay what it is.
        assert_eq!(start, VmStart(0x3664_16bc_e75e_ae64));
    }

    #[test]
    fn parts_of_five_minutes_add_up_and_more_than_five_minutes_do_not() {
        let (mut half, rest) = (record(&[400; 150]), record(&[1200; 150]));
        half.merge(rest);
        assert_eq!((half.cpu.samples(), half.mean()), (300, Some(0.2)));
        let (mut whole, back) = (record(&[400; 300]), record(&[1200; 200]));
        whole.merge(back);
        assert_eq!((whole.cpu.samples(), whole.mean()), (300, Some(0.1)));
        assert_eq!(record(&[1; 149]).steady_mean(), None);
        assert!(record(&[1; 150]).steady_mean().is_some());
    }

    proptest! {
        #[test]
        fn a_quantile_is_never_below_the_true_one_nor_a_bucket_above(
            mut uses in proptest::collection::vec((0..=4_096_000u32).prop_flat_map(|most| 0..=most), 1..200),
            share in 1..=FULL_PPM,
        ) {
            let edge = record(&uses).cpu.quantile_mc(share).unwrap();
            uses.sort_unstable();
            let rank = (uses.len() as u64 * u64::from(share)).div_ceil(u64::from(FULL_PPM)).max(1);
            let exact = uses[rank as usize - 1];
            prop_assert!(edge >= exact && edge <= exact + exact / 20 + 2, "{edge} of {exact}");
        }
    }
}
