//! Jobs whose limits are replayed together, and the settings that would have been chosen for them without knowing what came.
//!
//! Source: Rzadca et al., "Autopilot: workload autoscaling at Google", EuroSys 2020, Section 4.

use thiserror::Error;

use super::family::{Family, Resource, Settings};
use super::replay::{Days, Overrun, Score, replay, select, select_for};

#[derive(Clone, Debug, PartialEq)]
pub struct LimitedJob {
    pub name: String,
    /// The most that it could use, in cores or whatever the use is measured in.
    pub most: f64,
    /// In each window of five minutes, a share of the most; NaN is a gap.
    pub used: Vec<f32>,
}

/// Why nothing can be recommended.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum LimitsError {
    #[error("no job has a reading")]
    Empty,
    #[error("job {name} has {windows} windows, the first job {first}: all need the same")]
    Length { name: String, windows: usize, first: usize },
    #[error("{0} windows of five minutes: at least 4 are needed")]
    Short(usize),
}

/// Jobs with their use in the same windows.
#[derive(Clone, Debug)]
pub struct JobSet {
    resource: Resource,
    jobs: Vec<LimitedJob>,
    /// The number of the first window, counted from a midnight.
    first: u64,
    days: Days,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobOutcome<'a> {
    pub job: &'a LimitedJob,
    /// Over the judged days.
    pub score: Score,
    /// For the window that comes next, a share of the most.
    pub limit: f64,
}

impl JobSet {
    /// Jobs without a reading are left out.
    pub fn new(resource: Resource, mut jobs: Vec<LimitedJob>, first: u64) -> Result<Self, LimitsError> {
        jobs.retain(|job| job.used.iter().any(|used| !used.is_nan()));
        let Some(windows) = jobs.first().map(|job| job.used.len()) else { return Err(LimitsError::Empty) };
        if let Some(other) = jobs.iter().find(|job| job.used.len() != windows) {
            let (name, other) = (other.name.clone(), other.used.len());
            return Err(LimitsError::Length { name, windows: other, first: windows });
        }
        let days = Days::of(windows).ok_or(LimitsError::Short(windows))?;
        Ok(Self { resource, jobs, first, days })
    }

    pub const fn resource(&self) -> Resource {
        self.resource
    }

    pub fn jobs(&self) -> &[LimitedJob] {
        &self.jobs
    }

    pub const fn days(&self) -> &Days {
        &self.days
    }

    /// What every day came to under these settings, all jobs together.
    pub fn scores(&self, settings: Settings) -> Vec<Score> {
        let mut scores = vec![Score::default(); self.days.days().len()];
        for job in &self.jobs {
            let mut recommender = settings.recommender(self.look());
            let days = replay(&job.used, self.first, &self.days, self.overrun(), &mut *recommender);
            scores.iter_mut().zip(&days).for_each(|(score, day)| score.add(day));
        }
        scores
    }

    /// The same job by job; and the settings for the next day, with each job's limit.
    pub fn outcomes(
        &self,
        settings: &[Settings],
        scores: &[Vec<Score>],
        overruns: f64,
    ) -> (Settings, Vec<JobOutcome<'_>>) {
        let taken = select(scores, &self.days, overruns);
        let next = select_for(scores, self.days.days().len(), overruns);
        let mut used: Vec<usize> = taken.iter().copied().chain([next]).collect();
        used.sort_unstable();
        used.dedup();

        let outcome = |job: &'_ LimitedJob| {
            let (mut score, mut limit) = (Score::default(), 1.0);
            for candidate in &used {
                let mut recommender = settings[*candidate].recommender(self.look());
                let days = replay(&job.used, self.first, &self.days, self.overrun(), &mut *recommender);
                let judged = self.days.judged().zip(&taken).filter(|(_, taken)| *taken == candidate);
                judged.for_each(|(day, _)| days.get(day).into_iter().for_each(|day| score.add(day)));
                if *candidate == next {
                    limit = f64::from(recommender.limit().unwrap_or(1.0));
                }
            }
            (score, limit)
        };
        let outcomes = self.jobs.iter().map(|job| {
            let (score, limit) = outcome(job);
            JobOutcome { job, score, limit }
        });
        (settings[next], outcomes.collect())
    }

    /// Who sets limits by hand looks at so many windows before anything is judged.
    fn look(&self) -> usize {
        self.days.days()[self.days.judged().start].start
    }

    const fn overrun(&self) -> Overrun {
        match self.resource {
            Resource::Cpu => Overrun::Slowed,
            Resource::Memory => Overrun::Killed,
        }
    }
}

/// The families among which `auto` chooses: all that follow the use.
pub const AUTO: [Family; 5] = [Family::Window, Family::Peak, Family::Vpa, Family::Experts, Family::Quiet];

pub fn settings(families: &[Family], resource: Resource) -> Vec<Settings> {
    families.iter().flat_map(|family| family.settings(resource)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, used: Vec<f32>) -> LimitedJob {
        LimitedJob { name: name.to_owned(), most: 4.0, used }
    }

    #[test]
    fn what_cannot_be_replayed_is_named() {
        let new = |jobs| JobSet::new(Resource::Cpu, jobs, 0).map(drop);
        assert_eq!(new(vec![]), Err(LimitsError::Empty));
        assert_eq!(new(vec![job("a", vec![f32::NAN; 9])]), Err(LimitsError::Empty));
        assert_eq!(new(vec![job("a", vec![0.1; 3])]), Err(LimitsError::Short(3)));
        let unequal = new(vec![job("a", vec![0.1; 9]), job("b", vec![0.1; 8])]);
        assert_eq!(unequal, Err(LimitsError::Length { name: "b".to_owned(), windows: 8, first: 9 }));
    }
}
