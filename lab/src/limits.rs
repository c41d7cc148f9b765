//! What limits of jobs would have come to: every recommender with every setting on what jobs used, and who would have been chosen
//! among them without knowing what came.
//!
//! Source: Rzadca et al., "Autopilot: workload autoscaling at Google", EuroSys 2020, Section 4.

use ballast_predict::limits::WINDOW_S;
use ballast_predict::limits::family::{Family, Resource, Settings};
use ballast_predict::limits::replay::{Days, Overrun, Score, replay, select, select_for};
use ballast_sim::packing::Fleet;
use serde::Serialize;
use thiserror::Error;

/// A job and what it used.
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
    #[error("a reading every {0} s: 5 minutes must be a whole number of readings")]
    Period(f64),
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

/// What a job's limits came to.
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

    /// The VMs of a fleet, each a job; of several readings in a window the mean counts.
    pub fn of_fleet(resource: Resource, fleet: &Fleet) -> Result<Self, LimitsError> {
        let (window_s, period_s) = (WINDOW_S as f64, fleet.period_s());
        let each = (window_s / period_s).round();
        if each < 1.0 || (each * period_s - window_s).abs() > 1e-6 * window_s {
            return Err(LimitsError::Period(period_s));
        }
        let mean = |readings: &[f32]| {
            let there = readings.iter().filter(|used| !used.is_nan());
            let (sum, count) = there.fold((0.0, 0.0), |(sum, count), used| (sum + used, count + 1.0));
            sum / count
        };
        let jobs = fleet.vms().iter().map(|vm| {
            let used = vm.used.chunks_exact(each as usize).map(|readings| mean(readings) / vm.cores);
            LimitedJob { name: vm.name.clone(), most: f64::from(vm.cores), used: used.collect() }
        });
        Self::new(resource, jobs.collect(), (fleet.start_s() / window_s) as u64)
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

    pub fn tried(&self, settings: Settings) -> Tried {
        let (family, days) = (settings.family(), self.scores(settings));
        Tried { family: family.name(), settings: settings.to_string(), auto: AUTO.contains(&family), days }
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

/// All settings of these families.
pub fn settings(families: &[Family], resource: Resource) -> Vec<Settings> {
    families.iter().flat_map(|family| family.settings(resource)).collect()
}

/// What is allowed of the windows: each of these shares may be above its limit.
pub const OVERRUNS: [f64; 3] = [0.005, 0.002, 0.001];

/// What one family came to on one set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitsRow {
    pub set: String,
    /// `auto` chooses among all families but `manual` and `learned`.
    pub family: &'static str,
    /// The share of windows that may be above the limit.
    pub overruns: f64,
    /// Whether the settings are those that turned out best; else those that the days before spoke for.
    pub hindsight: bool,
    /// The settings that turned out best.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
    pub realised_overruns: f64,
    pub slack: f64,
    pub footprint: f64,
    pub changes_per_job_day: f64,
    pub unchanged_days_ratio: f64,
    pub clean_days_ratio: f64,
    pub severe_days_ratio: f64,
}

impl LimitsRow {
    fn new(set: &str, family: &'static str, overruns: f64, settings: Option<String>, score: &Score) -> Self {
        Self {
            set: set.to_owned(),
            family,
            overruns,
            hindsight: settings.is_some(),
            settings,
            realised_overruns: score.overruns(),
            slack: score.slack(),
            footprint: score.footprint(),
            changes_per_job_day: score.changes_per_job_day(),
            unchanged_days_ratio: score.unchanged_days(),
            clean_days_ratio: score.clean_days(),
            severe_days_ratio: score.severe_days(),
        }
    }
}

/// Settings with what every day came to under them.
#[derive(Clone, Debug)]
pub struct Tried {
    pub family: &'static str,
    pub settings: String,
    /// Whether `auto` may choose them.
    pub auto: bool,
    pub days: Vec<Score>,
}

/// All rows of a set: of each family the best in hindsight, where any of its settings keeps within what is allowed, and the one
/// that was chosen without it; then of `auto`.
pub fn rows(name: &str, days: &Days, tried: &[Tried]) -> Vec<LimitsRow> {
    let mut families: Vec<&'static str> = tried.iter().map(|tried| tried.family).collect();
    families.dedup();
    let chosen = |family, overruns, of: &dyn Fn(&&Tried) -> bool| {
        let scores: Vec<Vec<Score>> = tried.iter().filter(of).map(|tried| tried.days.clone()).collect();
        let row = || LimitsRow::new(name, family, overruns, None, &selected(days, &scores, overruns));
        (!scores.is_empty()).then(row)
    };

    let mut rows = Vec::new();
    for overruns in OVERRUNS {
        for family in &families {
            let own = tried.iter().filter(|tried| tried.family == *family);
            let kept = own.map(|tried| (&tried.settings, judged(days, &tried.days)));
            let kept = kept.filter(|(_, score)| score.overruns() <= overruns);
            let best = kept.min_by(|a, b| a.1.slack().total_cmp(&b.1.slack()));
            let best = best.map(|(settings, score)| (settings.clone(), score));
            rows.extend(best.map(|(own, score)| LimitsRow::new(name, family, overruns, Some(own), &score)));
            rows.extend(chosen(family, overruns, &|tried| tried.family == *family));
        }
        rows.extend(chosen("auto", overruns, &|tried| tried.auto));
    }
    rows
}

/// What the judged days came to.
pub(crate) fn judged(days: &Days, scores: &[Score]) -> Score {
    let mut sum = Score::default();
    scores[days.judged()].iter().for_each(|score| sum.merge(score));
    sum
}

/// What the judged days came to where each was served by what the days before it spoke for.
fn selected(days: &Days, scores: &[Vec<Score>], overruns: f64) -> Score {
    let mut sum = Score::default();
    let taken = select(scores, days, overruns);
    days.judged().zip(taken).for_each(|(day, taken)| sum.merge(&scores[taken][day]));
    sum
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

    /// A job that is busy for an hour each day, another that works evenly.
    fn set() -> JobSet {
        let day = 288;
        let daily = |at: usize| if at % day / 12 == 9 { 0.6 } else { 0.05 };
        let jobs = vec![
            job("daily", (0..20 * day).map(daily).collect()),
            job("even", (0..20 * day).map(|at| 0.2 + 0.01 * (at % 3) as f32).collect()),
        ];
        JobSet::new(Resource::Cpu, jobs, 0).unwrap()
    }

    #[test]
    fn jobs_outcomes_add_up_to_what_is_selected() {
        let set = set();
        let settings = settings(&AUTO, Resource::Cpu);
        let scores: Vec<Vec<Score>> = settings.iter().map(|settings| set.scores(*settings)).collect();
        let (_, outcomes) = set.outcomes(&settings, &scores, 0.001);
        let mut sum = Score::default();
        outcomes.iter().for_each(|outcome| sum.merge(&outcome.score));

        let selected = selected(set.days(), &scores, 0.001);
        assert_eq!(sum.job_days(), selected.job_days());
        assert_eq!(sum.overruns(), selected.overruns());
        assert!((sum.slack() - selected.slack()).abs() < 1e-9, "{sum:?} {selected:?}");
        assert!(selected.overruns() <= 0.001, "{selected:?}");
        // The even job is told apart from the daily one.
        assert!((0.2..0.35).contains(&outcomes[1].limit), "{:?}", outcomes[1]);
    }

    #[test]
    fn a_job_that_is_busy_at_one_hour_of_the_day_has_less_slack_by_experts_than_by_its_peak() {
        let set = set();
        let settings = settings(&Family::ALL, Resource::Cpu);
        let tried: Vec<Tried> = settings.into_iter().map(|settings| set.tried(settings)).collect();
        let rows = rows("test", set.days(), &tried);
        let slack = |family: &str| {
            let row = rows.iter().find(|row| row.family == family && !row.hindsight && row.overruns == 0.001);
            row.map(|row| row.slack).unwrap()
        };
        assert!(slack("experts") < slack("peak"), "{rows:?}");
        assert!(slack("auto") <= slack("experts") + 1e-9);
        assert!(slack("peak") < slack("manual") + 1e-9);
    }
}
