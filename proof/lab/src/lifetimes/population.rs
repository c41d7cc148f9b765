//! Synthetic pools: kinds of VMs with their own laws of lifetimes, and batches of them that come by day and night.
//!
//! The shares are those of LAVA (arXiv 2412.09840, section 2): nine of ten VMs live less than an hour, and nearly all
//! core-hours are of the others.

use ballast_placement::{MemoryKb, MilliCores, Resources};
use ballast_sim::rng::{Purpose, Stream};
use serde::{Deserialize, Serialize};

use super::options::TIGHT_GB;
use super::workload::{DAY_MS, LONGEST_MS, PoolVm, Workload};

/// No VM lives shorter, in seconds.
const SHORTEST_S: f64 = 30.0;
/// By so much more than on average VMs come at the busiest hour.
const DIURNAL: f64 = 0.4;
/// Share, and the least and the greatest number of VMs of a batch.
const BATCHES: [(f64, u32, u32); 5] =
    [(0.55, 1, 1), (0.15, 2, 2), (0.15, 3, 5), (0.10, 6, 10), (0.05, 11, 20)];
const BATCH_CORES: u32 = 32;
/// Share and cores of a kind's VMs, and share and GB for each core.
const CORES: [(f64, u16); 6] = [(0.22, 1), (0.28, 2), (0.26, 4), (0.16, 8), (0.06, 16), (0.02, 32)];
const GB_PER_CORE: [(f64, u8); 3] = [(0.50, 2), (0.41, 4), (0.09, 8)];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Population {
    /// 120 kinds with wide laws, and long VMs among short ones.
    Syn,
    /// 300 kinds with narrower laws: they are easier to predict.
    Synp,
}

struct Range {
    /// Of all kinds, and of all batches.
    kinds: f64,
    batches: f64,
    /// Medians are between these, in hours.
    median_h: (f64, f64),
}

const SHORT: Range = Range { kinds: 0.5, batches: 0.905, median_h: (0.02, 0.25) };
const RANGES: [Range; 3] = [
    SHORT,
    Range { kinds: 0.25, batches: 0.065, median_h: (1.0, 16.0) },
    Range { kinds: 0.25, batches: 0.030, median_h: (24.0, 300.0) },
];
/// VMs among short kinds that live for long: their median in hours, and the deviation of its logarithm.
const LEAKED: (f64, f64) = (48.0, 1.0);

#[derive(Clone, Debug, PartialEq)]
struct VmKind {
    resources: Resources,
    cores: u16,
    law: LogNormal,
    /// The share of its VMs that live for long, whatever its law is.
    leak: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct LogNormal {
    /// The logarithm of the median in seconds.
    mean: f64,
    deviation: f64,
}

impl LogNormal {
    fn new(median_h: f64, deviation: f64) -> Self {
        Self { mean: libm::log(median_h * 3600.0), deviation }
    }

    fn draw_s(self, chance: &mut Stream) -> f64 {
        libm::exp(self.mean + self.deviation * chance.normal())
    }

    /// The mean, where what exceeds the longest life counts as that.
    fn mean_s(self) -> f64 {
        let below = |at: f64| 0.5 * libm::erfc(-at * core::f64::consts::FRAC_1_SQRT_2);
        let (longest_s, deviation) = (LONGEST_MS as f64 / 1e3, self.deviation);
        let at = (libm::log(longest_s) - self.mean) / deviation;
        libm::exp(self.mean + deviation * deviation / 2.0) * below(at - deviation)
            + longest_s * (1.0 - below(at))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Kinds {
    kinds: Vec<VmKind>,
    /// Of each kind the share of batches that are of it or of one before it.
    upto: Vec<f64>,
}

impl Population {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Syn => "syn",
            Self::Synp => "synp",
        }
    }

    fn kinds(self) -> usize {
        match self {
            Self::Syn => 120,
            Self::Synp => 300,
        }
    }

    /// The deviation of a kind's logarithm of lifetimes, and the share of short kinds' VMs that live for long.
    const fn width(self) -> (f64, f64) {
        match self {
            Self::Syn => (1.0, 0.010),
            Self::Synp => (0.5, 0.004),
        }
    }
}

impl Kinds {
    pub fn new(population: Population, seed: u64) -> Self {
        let mut chance = Stream::new(seed, Purpose::Lifetimes, population as u64, 0);
        let (deviation, leak) = population.width();
        let (mut kinds, mut weights) = (Vec::new(), Vec::new());
        for range in &RANGES {
            let count = (range.kinds * population.kinds() as f64).round() as usize;
            let shares: Vec<f64> = (0..count).map(|_| 0.3 + chance.exponential()).collect();
            let all: f64 = shares.iter().sum();
            weights.extend(shares.iter().map(|share| range.batches * share / all));

            kinds.extend((0..count).map(|_| {
                let cores = CORES[pick(&mut chance, CORES.iter().map(|it| it.0))].1;
                let gb = GB_PER_CORE[pick(&mut chance, GB_PER_CORE.iter().map(|it| it.0))].1;
                let (low, high) = range.median_h;
                let median_h = low * libm::pow(high / low, chance.uniform());
                let is_short = range.median_h == SHORT.median_h;
                VmKind {
                    // Each must have room on the smallest hosts, too.
                    resources: resources(cores, (u16::from(gb) * cores).min(TIGHT_GB)),
                    cores,
                    law: LogNormal::new(median_h, deviation * (0.7 + 0.6 * chance.uniform())),
                    leak: if is_short { 2.0 * leak * chance.uniform() } else { 0.0 },
                }
            }));
        }

        let mut sum = 0.0;
        let upto = weights.iter().map(|weight| {
            sum += weight;
            sum
        });
        Self { upto: upto.collect(), kinds }
    }

    /// What a batch takes on average, in core-seconds.
    fn batch_core_s(&self) -> f64 {
        let (long_s, mut before) = (LogNormal::new(LEAKED.0, LEAKED.1).mean_s(), 0.0);
        let each = self.kinds.iter().zip(&self.upto).map(|(kind, upto)| {
            let share = upto - before;
            before = *upto;
            let life_s = (1.0 - kind.leak) * kind.law.mean_s() + kind.leak * long_s;
            share * life_s * f64::from(kind.cores) * kind.batch_vms()
        });
        each.sum()
    }
}

impl VmKind {
    fn most_vms(&self) -> u32 {
        (BATCH_CORES / u32::from(self.cores)).max(1)
    }

    /// How many VMs a batch has on average.
    fn batch_vms(&self) -> f64 {
        let mean = |(share, low, high): &(f64, u32, u32)| {
            let sizes = (*low..=*high).map(|vms| f64::from(vms.min(self.most_vms())));
            share * sizes.sum::<f64>() / f64::from(high - low + 1)
        };
        BATCHES.iter().map(mean).sum()
    }
}

fn resources(cores: u16, gb: u16) -> Resources {
    Resources::new(MilliCores::from_cores(cores), MemoryKb::from_gb(gb.into()).unwrap_or(MemoryKb::ZERO))
}

/// One of these, by their shares.
fn pick(chance: &mut Stream, shares: impl ExactSizeIterator<Item = f64>) -> usize {
    let (mut left, last) = (chance.uniform(), shares.len() - 1);
    for (n, share) in shares.enumerate() {
        left -= share;
        if left < 0.0 {
            return n;
        }
    }
    last
}

/// Batches that come one after the other, for ever.
pub struct Synthetic<'a> {
    kinds: &'a Kinds,
    chance: Stream,
    /// Batches in a second, on average.
    rate: f64,
    at_s: f64,
    vms: u64,
    batches: u64,
}

impl<'a> Synthetic<'a> {
    /// As many as take so many cores on average. Streams of one seed with other numbers are independent.
    pub fn new(kinds: &'a Kinds, seed: u64, stream: u64, cores: f64) -> Self {
        let chance = Stream::new(seed, Purpose::Lifetimes, stream, 1);
        Self { kinds, chance, rate: cores / kinds.batch_core_s(), at_s: 0.0, vms: 0, batches: 0 }
    }

    fn size(&mut self, kind: &VmKind) -> u32 {
        let (_, low, high) = BATCHES[pick(&mut self.chance, BATCHES.iter().map(|it| it.0))];
        let vms = low + self.chance.below((high - low + 1) as usize) as u32;
        vms.min(kind.most_vms())
    }

    fn lifetime_ms(&mut self, kind: &VmKind) -> u64 {
        let law = match kind.leak > 0.0 && self.chance.uniform() < kind.leak {
            true => LogNormal::new(LEAKED.0, LEAKED.1),
            false => kind.law,
        };
        let life_s = law.draw_s(&mut self.chance).max(SHORTEST_S);
        ((life_s * 1e3) as u64).min(LONGEST_MS)
    }
}

impl Workload for Synthetic<'_> {
    fn next_batch(&mut self, batch: &mut Vec<PoolVm>) -> Option<u64> {
        batch.clear();
        let day_s = DAY_MS as f64 / 1e3;
        // Of batches that come at the busiest hour's rate so many come as the hour says (thinning).
        loop {
            self.at_s += self.chance.exponential() / (self.rate * (1.0 + DIURNAL));
            let hour = 1.0 + DIURNAL * libm::sin(2.0 * core::f64::consts::PI * self.at_s / day_s);
            if self.chance.uniform() * (1.0 + DIURNAL) < hour {
                break;
            }
        }

        let at = self.chance.uniform();
        let number = self.kinds.upto.partition_point(|upto| *upto <= at).min(self.kinds.kinds.len() - 1);
        let kind = &self.kinds.kinds[number];
        let batch_vms = self.size(kind);
        for _ in 0..batch_vms {
            batch.push(PoolVm {
                id: self.vms,
                batch: self.batches,
                batch_vms,
                resources: kind.resources,
                kind: Some(number as u32),
                start_s: self.at_s as i64,
                lifetime_ms: self.lifetime_ms(kind),
            });
            self.vms += 1;
        }
        self.batches += 1;
        Some((self.at_s * 1e3) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vms(population: Population, seed: u64, days: u64) -> Vec<(u64, PoolVm)> {
        let kinds = Kinds::new(population, seed);
        let mut synthetic = Synthetic::new(&kinds, seed, 1, 8_960.0);
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        while let Some(at_ms) = synthetic.next_batch(&mut batch).filter(|at_ms| *at_ms < days * DAY_MS) {
            all.extend(batch.iter().map(|vm| (at_ms, *vm)));
        }
        all
    }

    #[test]
    fn every_kind_has_room_on_the_smallest_hosts() {
        let kinds = (0..40).flat_map(|seed| Kinds::new(Population::Synp, seed).kinds);
        let largest = kinds.map(|kind| kind.resources.memory).max();
        assert_eq!(largest, MemoryKb::from_gb(TIGHT_GB.into()), "and some kind needs all of one");
    }

    /// The properties that `lifetimes.md` and the paper state, over five pools of each population.
    #[test]
    fn short_vms_are_many_and_long_vms_have_the_core_hours() {
        for population in [Population::Syn, Population::Synp] {
            let all: Vec<_> = (1..=5).flat_map(|seed| vms(population, seed, 14)).collect();
            let count = all.len() as f64;
            let hour = 3_600_000;
            let is_short = |vm: &&(u64, PoolVm)| vm.1.lifetime_ms < hour;
            let short = all.iter().filter(is_short).count() as f64 / count;
            assert!((0.87..0.93).contains(&short), "{population:?}: {short} of the VMs live less than 1 h");

            let core_ms = |vm: &(u64, PoolVm)| vm.1.lifetime_ms as f64 * vm.1.resources.cores.cores();
            let whole: f64 = all.iter().map(core_ms).sum();
            let long = 1.0 - all.iter().filter(is_short).map(core_ms).sum::<f64>() / whole;
            assert!((0.97..0.995).contains(&long), "{population:?}: {long} of the core-hours");

            let days = |ms: f64| ms / DAY_MS as f64;
            let at_start = days(all.iter().map(|vm| vm.1.lifetime_ms as f64).sum::<f64>() / count);
            assert!((0.1..0.3).contains(&at_start), "{population:?}: {at_start} d at the start");
            let day_old: Vec<f64> = all
                .iter()
                .filter_map(|vm| vm.1.lifetime_ms.checked_sub(DAY_MS))
                .map(|left_ms| days(left_ms as f64))
                .collect();
            let later = day_old.iter().sum::<f64>() / day_old.len() as f64;
            assert!((4.0..7.0).contains(&later), "{population:?}: {later} d after a day");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_pool_and_streams_differ() {
        let first = vms(Population::Syn, 3, 1);
        assert_eq!(first, vms(Population::Syn, 3, 1));
        assert!(first != vms(Population::Syn, 4, 1));
        let kinds = Kinds::new(Population::Syn, 3);
        let mut other = Synthetic::new(&kinds, 3, 2, 8_960.0);
        let mut batch = Vec::new();
        assert!(other.next_batch(&mut batch) != Some(first[0].0));
    }

    #[test]
    fn as_many_come_as_take_the_load() {
        // Little's law: what comes in a day, times its life, is what is there.
        let (mut asked, days) = (0.0, 28);
        for seed in 1..=4 {
            let core_s = |vm: &(u64, PoolVm)| vm.1.lifetime_ms as f64 / 1e3 * vm.1.resources.cores.cores();
            asked += vms(Population::Syn, seed, days).iter().map(core_s).sum::<f64>();
        }
        let cores = asked / (4.0 * days as f64 * 86_400.0);
        assert!((cores / 8_960.0 - 1.0).abs() < 0.05, "{cores}");
    }
}
