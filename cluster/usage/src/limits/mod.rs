//! How much a job should be given: limits of CPU and memory from what it has used, and how many tasks it needs.
//!
//! A recommender is shown one window of use after the other, five minutes each, and says after each what the limit of the
//! next should be. All replicas of a job share one limit: their samples go into the same window. Use and limits are shares of
//! the most that the job could use, such as the cores of its server; a limit is never more than 1.
//!
//! Source: Rzadca et al., "Autopilot: workload autoscaling at Google", EuroSys 2020, Section 3.

pub mod bucket;
pub mod choice;
pub mod experts;
pub mod family;
mod history;
pub mod job;
pub mod jobs;
pub mod learned;
pub mod record;
pub mod replay;
pub mod steady;
pub mod tasks;
pub mod vpa;
pub mod window;

use bucket::UseBucket;

pub const WINDOW_S: u64 = 300;
/// Windows in an hour.
pub const HOUR: usize = 12;
/// Windows in a day.
pub const DAY: usize = 24 * HOUR;

/// What it costs to be wrong, in units of a limit that stands wholly unused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Of a window that was above the limit in all its samples.
    pub over: f32,
    /// Of another limit than in the window before.
    pub change: f32,
    /// Of following another of the recommender's candidates than before.
    pub switch: f32,
    /// How much the newest window counts against all before it.
    pub newest: f32,
}

/// What was used in five minutes, by all tasks of a job.
#[derive(Clone, Copy, Debug)]
pub struct UseWindow<'a> {
    /// Which window this is, counted from any midnight: gaps are numbers that are left out.
    pub number: u64,
    /// How many samples were in which bucket. Of memory only the peak counts: one sample.
    pub samples: &'a [(UseBucket, f32)],
}

impl UseWindow<'_> {
    /// How many samples there are.
    fn count(&self) -> f32 {
        self.samples.iter().map(|sample| sample.1).sum()
    }

    fn peak(&self) -> Option<UseBucket> {
        self.samples.iter().map(|sample| sample.0).max()
    }

    /// Which share of the samples a limit would have been too low for.
    fn over(&self, limit: f32) -> f32 {
        let over = self.samples.iter().filter(|(bucket, _)| bucket.edge() > limit);
        over.map(|sample| sample.1).sum::<f32>() / self.count().max(f32::MIN_POSITIVE)
    }

    /// Which share of a limit its samples would have left unused, in the mean.
    fn slack(&self, limit: f32) -> f32 {
        self.over_and_slack(limit, self.count()).1
    }

    /// [`Self::over`] and [`Self::slack`] in one pass without divisions, for those who ask for many limits; `count` is
    /// [`Self::count`].
    fn over_and_slack(&self, limit: f32, count: f32) -> (f32, f32) {
        let (mut above, mut below, mut used) = (0.0, 0.0, 0.0);
        for (bucket, samples) in self.samples {
            let edge = bucket.edge();
            let fits = if edge <= limit { *samples } else { 0.0 };
            above += samples - fits;
            below += fits;
            used += fits * edge;
        }
        let count = count.max(f32::MIN_POSITIVE);
        (above / count, (below - used / limit).max(0.0) / count)
    }
}

/// Says what a job's limit should be.
pub trait Recommender {
    /// Learns what was used. Windows come in the order of their numbers; one without samples says nothing.
    fn observe(&mut self, window: &UseWindow<'_>);

    /// Learns that a task was killed for lack of memory in this window, by which it had used so much.
    fn handle_oom(&mut self, _number: u64, _used: f32) {}

    /// What the limit of the next window should be; `None` where nothing was seen yet.
    fn limit(&self) -> Option<f32>;
}

#[cfg(test)]
mod tests {
    use ballast_types::SplitMix64;

    use super::*;

    #[test]
    fn the_pass_over_the_samples_is_the_definition() {
        let mut numbers = SplitMix64::new(5);
        let mut random = || (numbers.draw() >> 40) as f32 / (1u64 << 24) as f32;
        for _ in 0..200 {
            let samples: Vec<_> = (0..8).filter_map(|_| Some((UseBucket::of(random())?, random()))).collect();
            let (window, limit) = (UseWindow { number: 0, samples: &samples }, random().max(1e-4));
            let (over, slack) = window.over_and_slack(limit, window.count());

            let unused = |(bucket, count): &(UseBucket, f32)| count * (1.0 - bucket.edge() / limit).max(0.0);
            let expected = samples.iter().map(unused).sum::<f32>() / window.count();
            assert!((slack - expected).abs() < 1e-5, "{samples:?} {limit}: {slack} {expected}");
            assert_eq!(over, window.over(limit));
        }
        let one = [(UseBucket::of(0.3).unwrap(), 1.0)];
        let window = UseWindow { number: 0, samples: &one };
        assert_eq!(window.over_and_slack(0.9, 1.0), (0.0, 1.0 - one[0].0.edge() / 0.9));
    }
}
