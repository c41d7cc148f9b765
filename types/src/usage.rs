//! Usage records: what one VM used in five minutes. Labels, P95, packing and limits are made from these.
//!
//! A record counts seconds. One in which the VM was throttled, or that could not be measured, is in no
//! bucket: it is missing, and never zero.

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

/// How many seconds were how busy.
///
/// Fifty buckets of 2 % of the VM's cores: bucket k counts seconds of at least 2k % and less than 2(k + 1) %;
/// the last one includes 100 %.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Histogram([u32; Self::BUCKETS]);

impl Histogram {
    /// How many buckets.
    pub const BUCKETS: usize = 50;
    /// The width of one.
    pub const WIDTH_PPM: u32 = FULL_PPM / Self::BUCKETS as u32;

    /// From the count of every bucket.
    pub const fn new(counts: [u32; Self::BUCKETS]) -> Self {
        Self(counts)
    }

    /// The count of every bucket.
    pub const fn counts(&self) -> &[u32; Self::BUCKETS] {
        &self.0
    }

    /// Counts one second; more than full counts as full.
    pub fn add(&mut self, use_ppm: u32) {
        let bucket = (use_ppm / Self::WIDTH_PPM) as usize;
        let count = &mut self.0[bucket.min(Self::BUCKETS - 1)];
        *count = count.saturating_add(1);
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

    /// What `share_ppm` of the seconds did not reach: the upper edge of the first bucket that, with those
    /// before it, has so many of them. Never less than the true quantile. `None` of nothing.
    pub fn quantile_ppm(&self, share_ppm: u32) -> Option<u32> {
        let samples = self.samples();
        let full = u64::from(FULL_PPM);
        let wanted = (samples * u64::from(share_ppm.min(FULL_PPM))).div_ceil(full).max(1);
        let mut seen = 0;
        let bucket = self.0.iter().position(|count| {
            seen += u64::from(*count);
            seen >= wanted
        })?;
        Some((bucket as u32 + 1) * Self::WIDTH_PPM)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self([0; Self::BUCKETS])
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
    /// How many CPUs it had: what its use is a share of.
    pub cores: u16,
    /// Its seconds, by use; those in which it was throttled are not among them.
    pub cpu: Histogram,
    /// The sum of their use, in parts per million of its cores.
    pub sum_ppm: u64,
    /// The busiest of them.
    pub peak_ppm: u32,
    /// Seconds in which it was throttled, by whatever the agent did.
    pub throttled_s: u32,
    /// The most memory that was seen in use; `None` if that could not be read.
    pub memory_peak_bytes: Option<u64>,
    /// Processes that the kernel killed because memory ran out.
    pub oom_kills: u32,
}

impl UsageRecord {
    /// One in which nothing was seen yet.
    pub fn empty(vm: VmId, start: VmStart, bin: UsageBin, cores: u16) -> Self {
        Self {
            vm,
            start,
            bin,
            cores,
            cpu: Histogram::default(),
            sum_ppm: 0,
            peak_ppm: 0,
            throttled_s: 0,
            memory_peak_bytes: None,
            oom_kills: 0,
        }
    }

    /// Counts one second of so much use.
    pub fn add(&mut self, use_ppm: u32) {
        let use_ppm = use_ppm.min(FULL_PPM);
        self.cpu.add(use_ppm);
        self.sum_ppm += u64::from(use_ppm);
        self.peak_ppm = self.peak_ppm.max(use_ppm);
    }

    /// Counts a look at its memory.
    pub fn saw_memory(&mut self, bytes: u64) {
        self.memory_peak_bytes = self.memory_peak_bytes.max(Some(bytes));
    }

    /// Whether nothing was seen.
    pub fn is_empty(&self) -> bool {
        self.cpu.samples() == 0
            && self.throttled_s == 0
            && self.memory_peak_bytes.is_none()
            && self.oom_kills == 0
    }

    /// Mean use over the seconds that were measured; `None` if there were none.
    pub fn mean(&self) -> Option<f64> {
        let samples = self.cpu.samples();
        (samples > 0).then(|| self.sum_ppm as f64 / samples as f64 / f64::from(FULL_PPM))
    }

    /// The same where the seconds suffice to stand for all five minutes: [`BIN_NEEDS_S`] of them.
    pub fn steady_mean(&self) -> Option<f64> {
        self.mean().filter(|_| self.cpu.samples() >= BIN_NEEDS_S)
    }

    /// Takes in another record of the same five minutes: of the agent's life before a restart. Where the two
    /// hold more seconds than there are (the clock went back), only the fuller one counts.
    pub fn merge(&mut self, other: Self) {
        let seen = |it: &Self| it.cpu.samples() + u64::from(it.throttled_s);
        // A second or two are counted twice where the first ended.
        if seen(self) + seen(&other) > BIN_S + 5 {
            if seen(&other) > seen(self) {
                *self = other;
            }
            return;
        }
        self.cores = other.cores;
        self.cpu.merge(&other.cpu);
        self.sum_ppm += other.sum_ppm;
        self.peak_ppm = self.peak_ppm.max(other.peak_ppm);
        self.throttled_s += other.throttled_s;
        self.memory_peak_bytes = self.memory_peak_bytes.max(other.memory_peak_bytes);
        self.oom_kills = self.oom_kills.saturating_add(other.oom_kills);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(uses: &[u32]) -> UsageRecord {
        let mut record = UsageRecord::empty(VmId::new("v").unwrap(), VmStart(1), UsageBin::of(0), 4);
        uses.iter().for_each(|ppm| record.add(*ppm));
        record
    }

    #[test]
    fn buckets_are_two_percent_wide_and_the_last_holds_full() {
        for (ppm, bucket) in [(0, 0), (19_999, 0), (20_000, 1), (500_000, 25), (979_999, 48), (980_000, 49)] {
            assert_eq!(record(&[ppm]).cpu.counts()[bucket], 1, "{ppm}");
        }
        let over = record(&[FULL_PPM, 3 * FULL_PPM]);
        assert_eq!((over.cpu.counts()[49], over.peak_ppm, over.mean()), (2, FULL_PPM, Some(1.0)));
    }

    #[test]
    fn quantiles_are_upper_edges() {
        let mut uses = vec![10_000; 95];
        uses.extend([610_000; 5]);
        for (share, edge) in [(0, 20_000), (950_000, 20_000), (950_001, 620_000), (FULL_PPM, 620_000)] {
            assert_eq!(record(&uses).cpu.quantile_ppm(share), Some(edge), "{share}");
        }
        assert_eq!(Histogram::default().quantile_ppm(950_000), None);
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
        let (mut half, rest) = (record(&[100_000; 150]), record(&[300_000; 150]));
        half.merge(rest);
        assert_eq!((half.cpu.samples(), half.mean()), (300, Some(0.2)));
        let (mut whole, back) = (record(&[100_000; 300]), record(&[300_000; 200]));
        whole.merge(back);
        assert_eq!((whole.cpu.samples(), whole.mean()), (300, Some(0.1)));
        assert_eq!(record(&[1; 149]).steady_mean(), None);
        assert!(record(&[1; 150]).steady_mean().is_some());
    }

    proptest! {
        #[test]
        fn a_quantile_is_never_below_the_true_one_nor_a_bucket_above(
            mut uses in proptest::collection::vec(0..=FULL_PPM, 1..200), share in 1..=FULL_PPM,
        ) {
            let edge = record(&uses).cpu.quantile_ppm(share).unwrap();
            uses.sort_unstable();
            let rank = (uses.len() as u64 * u64::from(share)).div_ceil(u64::from(FULL_PPM)).max(1);
            let exact = uses[rank as usize - 1];
            prop_assert!(edge >= exact && edge <= exact + Histogram::WIDTH_PPM);
        }
    }
}
