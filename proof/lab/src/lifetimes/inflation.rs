//! Stranding by inflation: VMs come to a snapshot of a pool until none fits; what is then left is stranded.
//!
//! Source: LAVA, arXiv 2412.09840, section 6, and Barbalho et al., OSDI 2023.

use ballast_placement::{Cluster, Resources};
use ballast_sim::rng::{Purpose, Stream};

/// So many VMs in a row that find no room end an inflation.
const REFUSED: u32 = 200;

/// Inflates a pool again and again.
pub(super) struct Inflation<'a> {
    /// VMs as they come, weighted by their core-hours.
    mix: &'a [Resources],
    seed: u64,
    every_ms: u64,
    draws: u64,
    /// `None` before anything is scored.
    next_ms: Option<u64>,
    count: u64,
}

impl<'a> Inflation<'a> {
    pub(super) fn new(mix: &'a [Resources], seed: u64, every_ms: u64, draws: u64) -> Self {
        Self { mix, seed, every_ms, draws, next_ms: None, count: 0 }
    }

    pub(super) fn begin(&mut self, at_ms: u64) {
        self.next_ms.get_or_insert(at_ms);
    }

    /// What is stranded, of cores and of memory, if a snapshot is due before `to_ms`; the mean over its draws.
    pub(super) fn due(&mut self, cluster: &Cluster, from_ms: u64, to_ms: u64) -> Option<[f64; 2]> {
        let next_ms = self.next_ms.filter(|next_ms| *next_ms < to_ms && !self.mix.is_empty())?;
        debug_assert!(next_ms >= from_ms);
        self.next_ms = Some(next_ms + self.every_ms);
        self.count += 1;

        let free: Vec<Resources> = cluster.ids().map(|host| cluster.free(host)).collect();
        let host = cluster.ids().next().map(|host| cluster.host(host).capacity)?;
        let mut sum = [0.0; 2];
        for draw in 0..self.draws {
            let chance = Stream::new(self.seed, Purpose::Lifetimes, self.count * 1000 + draw, 4);
            let left = inflate(free.clone(), host, self.mix, chance);
            sum = [0, 1].map(|n| sum[n] + left[n] / self.draws as f64);
        }
        Some(sum)
    }
}

/// What is left once nothing fits: the shares of all cores and of all memory.
fn inflate(mut free: Vec<Resources>, host: Resources, mix: &[Resources], mut chance: Stream) -> [f64; 2] {
    let (cores, kb) = (f64::from(host.cores.milli()), host.memory.kb() as f64);
    let mut refused = 0;
    // What does not fit once does not fit later: nobody leaves.
    let mut smallest_refused: Vec<Resources> = Vec::new();
    while refused < REFUSED {
        let vm = mix[chance.below(mix.len())];
        if smallest_refused.iter().any(|other| vm.hold(*other)) {
            refused += 1;
            continue;
        }

        let left = |free: &Resources| {
            let left = free.checked_sub(vm)?;
            Some((f64::from(left.cores.milli()) / cores).max(left.memory.kb() as f64 / kb))
        };
        let room = free.iter().enumerate().filter_map(|(n, free)| Some((left(free)?, n)));
        match room.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((_, n)) => {
                free[n] = free[n].checked_sub(vm).unwrap_or_default();
                refused = 0;
            }
            None => {
                smallest_refused.push(vm);
                refused += 1;
            }
        }
    }

    let hosts = free.len().max(1) as f64;
    let milli: f64 = free.iter().map(|free| f64::from(free.cores.milli())).sum();
    let memory: f64 = free.iter().map(|free| free.memory.kb() as f64).sum();
    [milli / (hosts * cores), memory / (hosts * kb)]
}

#[cfg(test)]
mod tests {
    use ballast_placement::{MemoryKb, MilliCores};

    use super::*;

    #[test]
    fn what_no_vm_can_take_is_stranded() {
        let size =
            |cores, gb: f64| Resources::new(MilliCores::from_cores(cores), MemoryKb::from_gb(gb).unwrap());
        let chance = || Stream::new(1, Purpose::Lifetimes, 0, 4);
        let host = size(64, 256.0);
        // Three cores are left of one host, and 13 of the other: VMs of four take twelve of them.
        let free = vec![size(3, 256.0), size(13, 256.0)];
        let left = inflate(free.clone(), host, &[size(4, 16.0)], chance());
        assert_eq!(left, [4.0 / 128.0, (512.0 - 48.0) / 512.0]);
        // Memory ends first.
        let left = inflate(free, host, &[size(1, 200.0)], chance());
        assert_eq!(left, [14.0 / 128.0, 112.0 / 512.0]);
    }
}
