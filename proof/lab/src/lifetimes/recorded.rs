//! Pools of recorded arrivals: random quarters of the batches, with lifetimes drawn within what is known of each.

use ballast_placement::{MemoryKb, MilliCores, Resources};
use ballast_predict::lifetime::{VmEnd, VmLifetime};
use ballast_sim::rng::{Purpose, Stream};

use super::workload::{LONGEST_MS, PoolVm, Workload};
use crate::OptionError;

/// A pool has one batch of so many.
const POOLS: usize = 4;
/// No VM lives shorter, in milliseconds.
const SHORTEST_MS: f64 = 1_000.0;

#[derive(Clone, Copy, Debug)]
struct RecordedVm {
    start_s: i64,
    /// It lived at least so long, and at most; where the record ends before it, there is no most.
    from_s: u32,
    to_s: Option<u32>,
    resources: Resources,
    batch: u32,
    batch_vms: u32,
}

/// Arrivals of a file, in the order of time and batches. It takes 48 bytes a VM.
#[derive(Clone, Debug)]
pub struct Recording {
    pub name: String,
    vms: Vec<RecordedVm>,
    first_s: i64,
    /// From the first to the last arrival, and the width of the last bin.
    span_ms: u64,
}

impl Recording {
    /// VMs with cores and memory, whose deployments are their batches.
    pub fn new(name: &str, vms: &[VmLifetime]) -> Result<Self, OptionError> {
        let wrong = |value: String, allowed: &str| OptionError::new("input", value, allowed);
        let mut order: Vec<&VmLifetime> = vms.iter().collect();
        order.sort_by(|a, b| (a.start_s, &a.deployment).cmp(&(b.start_s, &b.deployment)));
        let (Some(first), Some(last)) = (order.first(), order.last()) else {
            return Err(wrong(name.to_owned(), "a table with at least one VM"));
        };
        let (first_s, last_s) = (first.start_s, last.start_s);
        if last_s - first_s < 86_400 {
            return Err(wrong(format!("{name}, {} s", last_s - first_s), "arrivals of a day or more"));
        }

        let mut recorded = Vec::with_capacity(order.len());
        let alike = |a: &&VmLifetime, b: &&VmLifetime| {
            a.start_s == b.start_s && a.deployment == b.deployment && !a.deployment.is_empty()
        };
        for (batch, together) in order.chunk_by(alike).enumerate() {
            for vm in together {
                let resources = resources(vm).ok_or_else(|| {
                    wrong(
                        format!("{name}, a VM that starts at {} s", vm.start_s),
                        "VMs with cores and memory",
                    )
                })?;
                let seconds = |s: i64| u32::try_from(s.max(0)).unwrap_or(u32::MAX);
                let (from_s, to_s) = match vm.end {
                    VmEnd::Running { seen_s } => (seconds(seen_s), None),
                    VmEnd::At(end_s) => (seconds(end_s - vm.start_s), Some(seconds(end_s - vm.start_s))),
                    VmEnd::Between { from_s, to_s } => (seconds(from_s), Some(seconds(to_s))),
                };
                let (batch, batch_vms) = (batch as u32, together.len() as u32);
                recorded.push(RecordedVm { start_s: vm.start_s, from_s, to_s, resources, batch, batch_vms });
            }
        }
        let span_ms = (last_s - first_s + 300).unsigned_abs() * 1000;
        Ok(Self { name: name.to_owned(), vms: recorded, first_s, span_ms })
    }

    pub fn span_ms(&self) -> u64 {
        self.span_ms
    }

    /// So often the record is played before itself, so that all who could be there are there.
    pub fn copies_before(&self) -> u64 {
        LONGEST_MS.div_ceil(self.span_ms)
    }

    /// When the copy begins that is scored, in milliseconds of the pool's time.
    pub fn begins_ms(&self) -> u64 {
        self.copies_before() * self.span_ms
    }

    /// The second of the record's calendar at this time of the scored copy.
    pub fn calendar_s(&self, after_ms: u64) -> i64 {
        self.first_s + (after_ms / 1000) as i64
    }
}

fn resources(vm: &VmLifetime) -> Option<Resources> {
    let milli = (vm.features.cores? * 1e3).ceil();
    let cores = MilliCores::from_milli(milli as u64).filter(|cores| *cores > MilliCores::ZERO)?;
    Some(Resources::new(cores, MemoryKb::from_gb(vm.features.memory_gb?)?))
}

/// A pool of a recording, copy after copy.
pub struct RecordedPool<'a> {
    recording: &'a Recording,
    seed: u64,
    copy: u64,
    next: usize,
}

impl<'a> RecordedPool<'a> {
    /// Another seed gives another quarter, and other lifetimes.
    pub fn new(recording: &'a Recording, seed: u64) -> Self {
        Self { recording, seed, copy: 0, next: 0 }
    }

    fn has(&self, batch: u32) -> bool {
        Stream::new(self.seed, Purpose::Lifetimes, batch.into(), 2).below(POOLS) == 0
    }

    fn lifetime_ms(&self, vm: &RecordedVm, id: u64) -> u64 {
        let chance = Stream::new(self.seed, Purpose::Lifetimes, id, 3).uniform();
        let from_s = f64::from(vm.from_s);
        let life_s = match vm.to_s {
            Some(to_s) => from_s + (f64::from(to_s) - from_s).max(0.0) * chance,
            // Pareto with α = 1.
            None => from_s / (1.0 - chance),
        };
        ((life_s * 1e3).max(SHORTEST_MS) as u64).min(LONGEST_MS)
    }
}

impl Workload for RecordedPool<'_> {
    fn next_batch(&mut self, batch: &mut Vec<PoolVm>) -> Option<u64> {
        batch.clear();
        let (vms, count) = (&self.recording.vms, self.recording.vms.len() as u64);
        loop {
            if self.copy > self.recording.copies_before() {
                return None;
            }
            let Some(first) = vms.get(self.next) else {
                (self.copy, self.next) = (self.copy + 1, 0);
                continue;
            };
            let from = self.next;
            self.next += vms[from..].iter().take_while(|vm| vm.batch == first.batch).count();
            if !self.has(first.batch) {
                continue;
            }

            batch.extend(vms[from..self.next].iter().zip(from as u64..).map(|(vm, number)| {
                let id = self.copy * count + number;
                PoolVm {
                    id,
                    batch: self.copy * count + u64::from(vm.batch),
                    batch_vms: vm.batch_vms,
                    resources: vm.resources,
                    kind: None,
                    start_s: vm.start_s,
                    lifetime_ms: self.lifetime_ms(vm, id),
                }
            }));
            let after_ms = (first.start_s - self.recording.first_s).unsigned_abs() * 1000;
            return Some(self.copy * self.recording.span_ms + after_ms);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use ballast_predict::lifetime::LifetimeFeatures;

    use super::*;

    /// A batch of four VMs every five minutes for two days; every tenth VM still runs.
    pub(crate) fn vms() -> Vec<VmLifetime> {
        let vm = |n: i64| {
            let start_s = n / 4 * 300;
            let (lasts_s, end_s) = (600 * (1 + n % 50), 2 * 86_400);
            VmLifetime {
                start_s,
                end: if n % 10 == 0 || start_s + lasts_s > end_s {
                    VmEnd::Running { seen_s: end_s - start_s }
                } else {
                    VmEnd::Between { from_s: lasts_s, to_s: lasts_s + 300 }
                },
                deployment: (n / 4).to_string(),
                features: LifetimeFeatures {
                    cores: Some(4.0),
                    memory_gb: Some(16.0),
                    ..LifetimeFeatures::default()
                },
            }
        };
        (0..2304).map(vm).collect()
    }

    #[test]
    fn a_pool_is_a_quarter_of_the_batches_copy_after_copy() {
        let recording = Recording::new("test", &vms()).unwrap();
        let mut pool = RecordedPool::new(&recording, 7);
        let (mut batch, mut last_ms, mut batches) = (Vec::new(), 0, 0);
        while let Some(at_ms) = pool.next_batch(&mut batch) {
            assert!(at_ms >= last_ms && batch.len() == 4 && batch.iter().all(|vm| vm.batch_vms == 4));
            for vm in &batch {
                let known = recording.vms[(vm.id % 2304) as usize];
                let from_ms = u64::from(known.from_s) * 1000;
                assert!(vm.lifetime_ms >= from_ms.max(1000) && vm.lifetime_ms <= LONGEST_MS);
                assert!(known.to_s.is_none_or(|to_s| vm.lifetime_ms <= u64::from(to_s) * 1000));
            }
            (last_ms, batches) = (at_ms, batches + 1);
        }
        assert!(last_ms >= recording.begins_ms());
        let copies = recording.copies_before() as f64 + 1.0;
        // The same quarter in every copy.
        assert_eq!(f64::from(batches) % copies, 0.0);
        assert!((100.0..190.0).contains(&(f64::from(batches) / copies)), "{batches}");
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        assert!(Recording::new("x", &[]).unwrap_err().to_string().contains("at least one VM"));
        let mut short = vms();
        short.truncate(40);
        assert!(Recording::new("x", &short).unwrap_err().to_string().contains("a day or more"));
        let mut bare = vms();
        bare[3].features.cores = None;
        assert!(Recording::new("x", &bare).unwrap_err().to_string().contains("cores and memory"));
    }
}
