//! The moving window: a statistic of what was used, the older the less, and a margin.
//!
//! Source: Autopilot, Section 3.2.1. The printed weight of its example, 10 × 10, contradicts its own formula: 10 is meant.

use std::collections::VecDeque;

use super::bucket::UseBucket;
use super::history::{Decayed, HourlyPeaks};
use super::{HOUR, Recommender, UseWindow};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Statistic {
    Average,
    /// Below it lies this share of the load, not of the samples.
    Percentile(f32),
    /// The peak of the last hours, a week at most; it does not fade.
    Peak {
        hours: usize,
    },
    /// The larger of a percentile and half of the peak of the last day: memory of jobs that bear little.
    PercentileOrHalfPeak(f32),
}

/// The paper's first recommender.
#[derive(Clone, Debug)]
pub struct MovingWindow {
    statistic: Statistic,
    margin: f32,
    loads: Decayed,
    counts: Decayed,
    peaks: HourlyPeaks,
    /// What was recommended in the last hour.
    recent: VecDeque<f32>,
}

impl MovingWindow {
    /// Samples count half as much after each `half_life_h`, 12 hours for CPU and 48 for memory in the paper. The limit is
    /// 1 + `margin` times the statistic: 0.1 to 0.15 there.
    pub fn new(statistic: Statistic, half_life_h: f32, margin: f32) -> Self {
        let (loads, counts) = (Decayed::new(half_life_h), Decayed::new(half_life_h));
        Self { statistic, margin, loads, counts, peaks: HourlyPeaks::new(), recent: VecDeque::new() }
    }

    fn statistic(&self) -> f32 {
        match self.statistic {
            Statistic::Average => self.counts.mean(),
            Statistic::Percentile(share) => self.loads.quantiles([share])[0].edge(),
            Statistic::Peak { hours } => self.peaks.last(hours).edge(),
            Statistic::PercentileOrHalfPeak(share) => {
                self.loads.quantiles([share])[0].edge().max(self.peaks.last(24).edge() / 2.0)
            }
        }
    }
}

impl Recommender for MovingWindow {
    fn observe(&mut self, window: &UseWindow<'_>) {
        if window.samples.is_empty() {
            return;
        }
        match self.statistic {
            Statistic::Average => self.counts.add(window, |_| 1.0),
            Statistic::Percentile(_) => self.loads.add(window, UseBucket::edge),
            Statistic::Peak { .. } => self.peaks.add(window),
            Statistic::PercentileOrHalfPeak(_) => {
                self.loads.add(window, UseBucket::edge);
                self.peaks.add(window);
            }
        }
        if self.recent.len() == HOUR {
            self.recent.pop_front();
        }
        self.recent.push_back((self.statistic() * (1.0 + self.margin)).min(1.0));
    }

    fn limit(&self) -> Option<f32> {
        self.recent.iter().copied().reduce(f32::max)
    }
}
