//! How much a job should be given: limits of CPU and memory from what it has used, and how many tasks it needs.
//!
//! A recommender is shown one window of use after the other, five minutes each, and says after each what the limit of the
//! next should be. All replicas of a job share one limit: their samples go into the same window. Use and limits are shares of
//! the most that the job could use, such as the cores of its server; a limit is never more than 1.
//!
//! Source: Rzadca et al., "Autopilot: workload autoscaling at Google", EuroSys 2020, Section 3.

pub mod bucket;
pub mod experts;
pub mod family;
mod history;
pub mod job;
pub mod learned;
pub mod record;
pub mod replay;
pub mod steady;
pub mod tasks;
pub mod vpa;
pub mod window;

use bucket::UseBucket;

/// How long a window is, in seconds.
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
        let unused = |(bucket, count): &(UseBucket, f32)| count * (1.0 - bucket.edge() / limit).max(0.0);
        self.samples.iter().map(unused).sum::<f32>() / self.count().max(f32::MIN_POSITIVE)
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
