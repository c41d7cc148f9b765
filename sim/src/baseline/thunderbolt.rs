//! The open baseline of the field: two thresholds and a cut of the batch VMs' CPU time.
//!
//! Once a second the meter is looked at. From 98 % of the limit the quota of CPU time is multiplied by
//! 0.01, from 96 % by 0.75; after a random 1 to 10 s without a cut it grows by 5 % of the cores a second.
//! All batch VMs are cut alike. As public descriptions give it: Li et al., "Thunderbolt", OSDI 2020.

use core::time::Duration;

use ballast_types::{Instant, VmId, Watts};

use super::batch_vms;
use super::supplies::supplies_w;
use crate::plant::{CpuQuota, Plant};
use crate::rng::{Purpose, Stream};

/// That of the scheduler's bandwidth control.
const PERIOD: Duration = Duration::from_millis(100);
/// Between two looks at the meter.
const LOOP: Duration = Duration::from_secs(1);
/// From this share of the limit, in parts per million, the cut is hard.
const HARD: (u32, f64) = (980_000, 0.01);
/// And from this one soft.
const SOFT: (u32, f64) = (960_000, 0.75);
/// Nothing is cut below this share of its cores.
const LEAST: f64 = 0.01;
const STEP: f64 = 0.05;
/// Without a cut for as long, in seconds, the quota grows again.
const WAIT_S: (f64, f64) = (1.0, 10.0);

#[derive(Clone, Debug)]
pub(crate) struct Thunderbolt {
    limit: Watts,
    /// Every batch VM: its server, its name, its cores.
    batch: Vec<(usize, VmId, f64)>,
    rng: Stream,
    next: Instant,
    /// The share of their cores that batch VMs may use.
    quota: f64,
    release_at: Instant,
}

impl Thunderbolt {
    pub(crate) fn new(limit: Watts, plant: &Plant, seed: u64) -> Self {
        let batch = batch_vms(plant).map(|(n, vm)| (n, vm.id.clone(), vm.cores.len() as f64));
        Self {
            limit,
            batch: batch.collect(),
            rng: Stream::new(seed, Purpose::Baseline, 0, 0),
            next: Instant::ZERO + LOOP,
            quota: 1.0,
            release_at: Instant::ZERO,
        }
    }

    pub(super) fn act(&mut self, now: Instant, plant: &mut Plant) {
        if now < self.next {
            return;
        }
        self.next = now + LOOP;
        let draw = supplies_w(plant);
        let cut = [HARD, SOFT].into_iter().find(|(ppm, _)| draw >= self.limit.ppm(*ppm));
        let quota = match cut {
            Some((_, times)) => {
                let wait_s = WAIT_S.0 + (WAIT_S.1 - WAIT_S.0) * self.rng.uniform();
                self.release_at = now + Duration::from_secs_f64(wait_s);
                (self.quota * times).max(LEAST)
            }
            None if now >= self.release_at => (self.quota + STEP).min(1.0),
            None => self.quota,
        };

        if quota != self.quota {
            self.quota = quota;
            for (server, vm, cores) in &self.batch {
                let limit = CpuQuota { cores: quota * cores, period: PERIOD };
                plant.set_vm_quota(*server, vm, (quota < 1.0).then_some(limit));
            }
        }
    }
}
