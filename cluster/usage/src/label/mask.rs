//! Interruptions: stretches of a week that say nothing about its days.
//!
//! The paper names them as the first reason why periods are not found: a workload with clear days is
//! interrupted by hours of constant or of random load.

use super::median::percentile;
use crate::week::HALF_HOURS;
use ballast_types::median;

/// A constant stretch is at least this long: shorter ones happen.
const SHORTEST: usize = 6;
/// Half hours to each side in which a step's neighbours are looked at.
const REACH: usize = 3;
/// Steps so much larger than the usual one are a burst.
const BURST: f64 = 3.5;
/// Steps so much smaller than the usual one are constant.
const STILL: f64 = 0.3;

/// A week with its interruptions taken out.
#[derive(Clone, Debug)]
pub(super) struct Masked {
    /// The values; interruptions are NaN.
    pub(super) values: [f64; HALF_HOURS],
    /// The share of constant stretches.
    pub(super) still: f64,
    pub(super) bursts: f64,
    /// The usual step from one half hour to the next.
    pub(super) step: f64,
}

impl Masked {
    pub(super) fn new(x: &[f64; HALF_HOURS]) -> Self {
        let steps: Vec<f64> = x.windows(2).map(|w| (w[1] - w[0]).abs()).collect();
        let mut known: Vec<f64> = steps.iter().copied().filter(|s| !s.is_nan()).collect();
        let step = percentile(&mut known, 0.5);

        // The usual step near each half hour.
        let near: [f64; HALF_HOURS] = core::array::from_fn(|i| {
            let around = &steps[i.saturating_sub(REACH)..(i + REACH).min(steps.len())];
            let mut around: Vec<f64> = around.iter().copied().filter(|s| !s.is_nan()).collect();
            median(&mut around)
        });

        let burst = near.map(|s| s > BURST * step);
        let still = runs(&near.map(|s| s < STILL * step));
        let share =
            |mask: &[bool; HALF_HOURS]| mask.iter().filter(|m| **m).count() as f64 / HALF_HOURS as f64;
        let mut values = *x;
        let masked = |mask: &[bool; HALF_HOURS], i: usize| {
            mask[i.saturating_sub(1)..(i + 2).min(HALF_HOURS)].contains(&true)
        };

        // Where half of the week or more is out of the ordinary, it is the ordinary.
        let (stills, bursts) = (share(&still), share(&burst));

        if stills + bursts < 0.5 {
            for (i, value) in values.iter_mut().enumerate() {
                if masked(&burst, i) || masked(&still, i) {
                    *value = f64::NAN;
                }
            }
        }

        Self { values, still: stills, bursts, step }
    }
}

fn runs(marked: &[bool; HALF_HOURS]) -> [bool; HALF_HOURS] {
    let mut long = [false; HALF_HOURS];
    let mut begin = 0;
    for run in marked.chunk_by(|a, b| a == b) {
        if run[0] && run.len() >= SHORTEST {
            long[begin..begin + run.len()].fill(true);
        }
        begin += run.len();
    }
    long
}
