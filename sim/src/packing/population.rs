//! Tasks like those of the paper, made from seeds: its own samples are gone.
//!
//! Sixteen kinds of tasks with the published shares; the shape of each kind is ours, chosen such that means, deviations and the
//! numbers of machines come near the published ones. What holds here holds for light tails and independent tasks: with a spike
//! coefficient of variation of 0.7 instead of 0.25 the Gaussian test breaks here, too.
//!
//! Source of the shares: Janus and Rzadca, SoCC 2017, Figure 4.

use crate::rng::{Purpose, Stream};

/// How a kind of task uses CPU, as shares of a machine.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Nearly idle, with a spike with this chance.
    Spiky {
        chance: f64,
    },
    Exponential {
        mean: f64,
    },
    /// One of two levels, the upper with this chance.
    TwoLevels {
        chance: f64,
        upper: f64,
        lower: f64,
    },
    /// Normal, cut off at zero.
    Normal {
        mean: f64,
    },
}

use Kind::{Exponential, Normal, Spiky, TwoLevels};

/// The share of tasks in percent, and what they do: the paper's kinds a to p.
const KINDS: [(f64, Kind); 16] = [
    (1.42, Normal { mean: 0.110 }),
    (5.47, Exponential { mean: 0.012 }),
    (17.62, Spiky { chance: 0.04 }),
    (3.11, Normal { mean: 0.072 }),
    (4.27, Normal { mean: 0.055 }),
    (13.70, Spiky { chance: 0.10 }),
    (3.77, Normal { mean: 0.062 }),
    (2.27, TwoLevels { chance: 0.40, upper: 0.105, lower: 0.020 }),
    (2.93, Normal { mean: 0.090 }),
    (3.48, TwoLevels { chance: 0.50, upper: 0.080, lower: 0.020 }),
    (15.22, Spiky { chance: 0.07 }),
    (4.38, Normal { mean: 0.042 }),
    (6.96, TwoLevels { chance: 0.50, upper: 0.050, lower: 0.010 }),
    (5.77, Normal { mean: 0.030 }),
    (6.54, Normal { mean: 0.018 }),
    (3.09, Exponential { mean: 0.024 }),
];
/// All means are multiplied by this, and by a task's own factor: lognormal with mean 1 and this deviation of its logarithm.
const SCALE: f64 = 1.119;
const OWN: f64 = 0.25;
/// A five-minute average is made of so many draws; its deviation is this share of an instant's.
const DRAWS: usize = 6;
const AVERAGE_DEVIATION: f64 = 0.85;

/// The usual coefficient of variation of a spike.
pub const SPIKE_VARIATION: f64 = 0.25;
/// One with which the Gaussian test breaks.
pub const HEAVY_SPIKE_VARIATION: f64 = 0.7;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Population {
    pub tasks: usize,
    pub samples: usize,
    pub spike_variation: f64,
    pub seed: u64,
}

impl Population {
    /// Each task's use at independent instants, as shares of a machine, 0 to 1.
    pub fn draw(&self) -> Vec<Vec<f32>> {
        let total: f64 = KINDS.iter().map(|(share, _)| share).sum();
        let task = |n: usize| {
            let mut stream = Stream::new(self.seed, Purpose::Packing, n as u64, 0);
            let mut place = stream.uniform() * total;
            let kind = KINDS.iter().find(|(share, _)| {
                place -= share;
                place < 0.0
            });
            let (_, kind) = kind.unwrap_or(&KINDS[KINDS.len() - 1]);
            let factor = SCALE * libm::exp(OWN * stream.normal() - 0.5 * OWN * OWN);
            let sample = |_| (factor * self.sample(*kind, &mut stream)).clamp(0.0, 1.0) as f32;
            (0..self.samples).map(sample).collect()
        };
        (0..self.tasks).map(task).collect()
    }

    fn sample(&self, kind: Kind, stream: &mut Stream) -> f64 {
        let gamma = |stream: &mut Stream, mean: f64, variation: f64| {
            let shape = 1.0 / (variation * variation);
            mean / shape * stream.gamma(shape)
        };
        match kind {
            Spiky { chance } => {
                let spike =
                    if stream.uniform() < chance { gamma(stream, 0.055, self.spike_variation) } else { 0.0 };
                0.001 * stream.exponential() + spike
            }
            Exponential { mean } => mean * stream.exponential(),
            TwoLevels { chance, upper, .. } if stream.uniform() < chance => gamma(stream, upper, 0.2),
            TwoLevels { lower, .. } => gamma(stream, lower, 0.4),
            Normal { mean } => (mean + (0.45 * mean + 0.008) * stream.normal()).max(0.0),
        }
    }
}

/// What five-minute averages of these tasks would show: fewer peaks, and a smaller deviation.
pub fn averages(tasks: &[Vec<f32>], seed: u64) -> Vec<Vec<f32>> {
    let stretch = AVERAGE_DEVIATION * libm::sqrt(DRAWS as f64);
    let average = |(n, task): (usize, &Vec<f32>)| {
        let mut stream = Stream::new(seed, Purpose::Packing, n as u64, 1);
        let mean = task.iter().map(|used| f64::from(*used)).sum::<f64>() / task.len().max(1) as f64;
        let mut draws = || {
            let drawn = (0..DRAWS).map(|_| f64::from(task[stream.below(task.len())]));
            drawn.sum::<f64>() / DRAWS as f64
        };
        let one = |_| (mean + stretch * (draws() - mean)).clamp(0.0, 1.0) as f32;
        (0..task.len()).map(one).collect()
    };
    tasks.iter().enumerate().map(average).collect()
}
