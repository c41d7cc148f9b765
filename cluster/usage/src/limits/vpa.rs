//! What Kubernetes' Vertical Pod Autoscaler recommends, as its peer.
//!
//! Source: kubernetes/autoscaler, vertical-pod-autoscaler/pkg/recommender: decayed histograms with a half-life of 24 hours, the
//! 90th percentile of samples with a margin of 15 %; of memory one peak a day, and a bump where a task was killed for lack of it.

use super::bucket::UseBucket;
use super::history::Decayed;
use super::{DAY, Recommender, UseWindow};

const HALF_LIFE_H: f32 = 24.0;
const MARGIN: f32 = 0.15;
const PERCENTILE: f32 = 0.9;
/// A task that was killed counts as one that used so much more. VPA's least of 100 MiB more is left out: shares know no bytes.
const BUMP: f32 = 1.2;

#[derive(Clone, Debug)]
pub struct Vpa {
    uses: Decayed,
    percentile: f32,
    /// Of memory: the day, and its peak.
    day: Option<(u64, UseBucket)>,
    peaks_only: bool,
}

impl Vpa {
    /// Of CPU: every window counts.
    pub fn cpu() -> Self {
        Self { uses: Decayed::new(HALF_LIFE_H), percentile: PERCENTILE, day: None, peaks_only: false }
    }

    /// Of memory: every day counts once, with its peak.
    pub fn memory() -> Self {
        Self { peaks_only: true, ..Self::cpu() }
    }

    /// The same at another percentile: VPA's own is a request, which may be exceeded.
    pub fn at(self, percentile: f32) -> Self {
        Self { percentile, ..self }
    }
}

impl Recommender for Vpa {
    fn observe(&mut self, window: &UseWindow<'_>) {
        let (Some(peak), number) = (window.peak(), window.number) else { return };
        if !self.peaks_only {
            self.uses.add(window, |_| 1.0);
            return;
        }
        let day = number / DAY as u64;
        match self.day {
            Some((today, known)) if today == day => {
                if peak > known {
                    let samples = [(known, -1.0), (peak, 1.0)];
                    // As of the day's first window, so that what is taken away is what was given.
                    self.uses.add(&UseWindow { number: day * DAY as u64, samples: &samples }, |_| 1.0);
                    self.day = Some((day, peak));
                }
            }
            _ => {
                let samples = [(peak, 1.0)];
                self.uses.add(&UseWindow { number: day * DAY as u64, samples: &samples }, |_| 1.0);
                self.day = Some((day, peak));
            }
        }
    }

    fn handle_oom(&mut self, number: u64, used: f32) {
        if let Some(bumped) = UseBucket::of(used * BUMP) {
            self.observe(&UseWindow { number, samples: &[(bumped, 1.0)] });
        }
    }

    fn limit(&self) -> Option<f32> {
        let [used] = self.uses.quantiles([self.percentile]);
        (!self.uses.is_empty()).then(|| (used.edge() * (1.0 + MARGIN)).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(number: u64, share: f32) -> (u64, [(UseBucket, f32); 1]) {
        (number, [(UseBucket::of(share).unwrap(), 1.0)])
    }

    #[test]
    fn memory_counts_the_peak_of_each_day_and_a_kill_raises_it() {
        let mut vpa = Vpa::memory();
        for day in 0..8u64 {
            for (at, share) in [(0, 0.1), (3, 0.3), (9, 0.2)] {
                let (number, samples) = window(day * DAY as u64 + at, share);
                vpa.observe(&UseWindow { number, samples: &samples });
            }
        }
        let at = |share: f32| UseBucket::of(share).unwrap().edge() * 1.15;
        assert_eq!(vpa.limit(), Some(at(0.3)));

        vpa.handle_oom(8 * DAY as u64, 0.35);
        assert_eq!(vpa.limit(), Some(at(0.42)), "the newest of a few days is more than a tenth of them");
    }
}
