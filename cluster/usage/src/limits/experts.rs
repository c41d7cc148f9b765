//! Many simple limits, of which each job follows the one that would have served it best of late.
//!
//! Source: Autopilot, Section 3.2.2, its outer loop alone; what it chooses among are percentiles, peaks, and what was used at
//! this hour of other days, each with three margins.

use super::bucket::UseBucket;
use super::history::{Decayed, HourlyPeaks};
use super::{Costs, Recommender, UseWindow};

/// The shares of the load below the percentiles, in two half-lives each.
const SHARES: [f32; 4] = [0.98, 0.95, 0.9, 0.75];
const HALF_LIVES_H: [f32; 2] = [12.0, 48.0];
/// Percentiles, the peaks of a day and a week, and those of this hour on three and seven days.
const BASES: usize = SHARES.len() * HALF_LIVES_H.len() + 4;
const MARGINS: [f32; 3] = [1.0, 1.1, 1.3];
const EXPERTS: usize = BASES * MARGINS.len();

#[derive(Clone, Debug)]
pub struct Experts {
    costs: Costs,
    loads: [Decayed; 2],
    peaks: HourlyPeaks,
    /// What every expert would have cost.
    spent: [f32; EXPERTS],
    bases: [UseBucket; BASES],
    followed: usize,
    seen: bool,
}

impl Experts {
    /// Nothing was seen yet: the first window is followed by its own peak.
    pub fn new(costs: Costs) -> Self {
        Self {
            costs,
            loads: HALF_LIVES_H.map(Decayed::new),
            peaks: HourlyPeaks::new(),
            spent: [0.0; EXPERTS],
            bases: [UseBucket::default(); BASES],
            followed: 0,
            seen: false,
        }
    }

    fn limit_of(&self, expert: usize) -> f32 {
        (self.bases[expert / MARGINS.len()].edge() * MARGINS[expert % MARGINS.len()]).min(1.0)
    }

    /// What every base says of the window that comes next.
    fn bases(&self, next: u64) -> [UseBucket; BASES] {
        let [short, long] = [self.loads[0].quantiles(SHARES), self.loads[1].quantiles(SHARES)];
        let peaks = [
            self.peaks.last(24),
            self.peaks.week(),
            self.peaks.of_hour(next, 3),
            self.peaks.of_hour(next, 6),
        ];
        let mut bases = [UseBucket::default(); BASES];
        bases
            .iter_mut()
            .zip(short.into_iter().chain(long).chain(peaks))
            .for_each(|(base, says)| *base = says);
        bases
    }
}

impl Recommender for Experts {
    fn observe(&mut self, window: &UseWindow<'_>) {
        if window.samples.is_empty() {
            return;
        }
        if self.seen {
            let count = window.count();
            for expert in 0..EXPERTS {
                let (over, slack) = window.over_and_slack(self.limit_of(expert), count);
                let cost = self.costs.over * over + slack;
                self.spent[expert] += self.costs.newest * (cost - self.spent[expert]);
            }
        }

        self.loads.iter_mut().for_each(|loads| loads.add(window, UseBucket::edge));
        self.peaks.add(window);
        let bases = self.bases(window.number + 1);
        if self.seen {
            for (base, (before, after)) in self.bases.iter().zip(&bases).enumerate() {
                if before != after {
                    let spent = &mut self.spent[base * MARGINS.len()..][..MARGINS.len()];
                    spent.iter_mut().for_each(|spent| *spent += self.costs.newest * self.costs.change);
                }
            }
        }
        self.bases = bases;
        self.seen = true;

        let cost = |expert: usize| {
            self.spent[expert] + if expert == self.followed { 0.0 } else { self.costs.switch }
        };
        let best = (0..EXPERTS).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
        self.followed = best.unwrap_or(self.followed);
    }

    fn limit(&self) -> Option<f32> {
        self.seen.then(|| self.limit_of(self.followed))
    }
}
