//! Models of lifetimes, learnt from another stretch of a pool.

use ballast_placement::Resources;
use ballast_predict::lifetime::data::TooFewLifetimes;
use ballast_predict::lifetime::{LifetimeModel, LifetimeScores, LifetimeTrial, Lifetimes, VmEnd, VmLifetime};
use ballast_sim::rng::{Purpose, Stream};
use ballast_types::survival::{EDGES, bin_of};
use serde::Serialize;

use super::workload::{PoolVm, Workload};

const MIX: usize = 512;

/// How good a model is on VMs that came after what it learnt from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelQuality {
    pub pool: String,
    pub number: u64,
    pub prediction: String,
    pub columns: String,
    pub curves: u64,
    pub scores: LifetimeScores,
    /// Of the estimator of Kaplan and Meier for all VMs alike.
    pub kaplan_meier: LifetimeScores,
}

/// A stretch of a pool that only models see.
pub(super) struct Stretch {
    vms: Vec<PoolVm>,
    until_s: i64,
}

impl Stretch {
    pub(super) fn of(mut workload: impl Workload, until_ms: u64) -> Self {
        let (mut vms, mut batch) = (Vec::new(), Vec::new());
        while workload.next_batch(&mut batch).is_some_and(|at_ms| at_ms < until_ms) {
            vms.append(&mut batch);
        }
        Self { vms, until_s: (until_ms / 1000) as i64 }
    }

    /// The VMs as a table has them at the end of the stretch. Shuffled, each has the lifetime of another.
    pub(super) fn table(&self, shuffle: Option<u64>) -> Vec<VmLifetime> {
        let mut lives_s: Vec<i64> = self.vms.iter().map(|vm| (vm.lifetime_ms / 1000) as i64).collect();
        if let Some(seed) = shuffle {
            let mut chance = Stream::new(seed, Purpose::Lifetimes, 0, 5);
            (1..lives_s.len()).rev().for_each(|n| lives_s.swap(n, chance.below(n + 1)));
        }
        let row = |(vm, life_s): (&PoolVm, i64)| {
            let seen_s = self.until_s - vm.start_s;
            VmLifetime {
                start_s: vm.start_s,
                end: if life_s > seen_s { VmEnd::Running { seen_s } } else { VmEnd::At(vm.start_s + life_s) },
                deployment: vm.batch.to_string(),
                features: vm.features(),
            }
        };
        self.vms.iter().zip(lives_s).map(row).collect()
    }

    /// How many live how long, by bins.
    pub(super) fn lives(&self) -> [f64; EDGES] {
        let mut lives = [0.0; EDGES];
        self.vms.iter().for_each(|vm| lives[bin_of(vm.lifetime_ms as f32 / 1e3)] += 1.0);
        lives
    }

    /// VMs drawn by their core-hours.
    pub(super) fn mix(&self, seed: u64) -> Vec<Resources> {
        let weight = |vm: &PoolVm| vm.lifetime_ms as f64 * vm.resources.cores.cores();
        let mut upto = 0.0;
        let sums: Vec<f64> = self
            .vms
            .iter()
            .map(|vm| {
                upto += weight(vm);
                upto
            })
            .collect();
        let mut chance = Stream::new(seed, Purpose::Lifetimes, 0, 6);
        let draws = if self.vms.is_empty() { 0 } else { MIX };
        let one = |_| {
            let at = chance.uniform() * upto;
            self.vms[sums.partition_point(|sum| *sum <= at).min(sums.len() - 1)].resources
        };
        (0..draws).map(one).collect()
    }
}

/// Learns from a table; the quality is that of a model which has not seen the newest third.
pub fn learn(
    pool: &str,
    number: u64,
    prediction: &str,
    table: Vec<VmLifetime>,
) -> Result<(LifetimeModel, ModelQuality), TooFewLifetimes> {
    let lifetimes = Lifetimes::new(table);
    let file = LifetimeTrial::new(&lifetimes)?.learn_all();
    let [best, plain, ..] = &file.about.arms[..] else { unreachable!("a trial has its arms") };
    let columns: Vec<&str> = file.about.columns.iter().map(|column| column.name()).collect();
    let quality = ModelQuality {
        pool: pool.to_owned(),
        number,
        prediction: prediction.to_owned(),
        columns: columns.join(", "),
        curves: file.about.curves,
        scores: best.scores.clone(),
        kaplan_meier: plain.scores.clone(),
    };
    Ok((file.model, quality))
}
