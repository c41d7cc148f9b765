//! What limits of jobs would have come to: every recommender with every setting, in hindsight and without.
//!
//! Source: Rzadca et al., "Autopilot: workload autoscaling at Google", EuroSys 2020, Section 4.

use ballast_usage::limits::family::Settings;
use ballast_usage::limits::jobs::{AUTO, JobSet};
use ballast_usage::limits::replay::{Days, Score, select};
use serde::Serialize;

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
    pub auto: bool,
    pub days: Vec<Score>,
}

impl Tried {
    pub fn new(set: &JobSet, settings: Settings) -> Self {
        let (family, days) = (settings.family(), set.scores(settings));
        Self { family: family.name(), settings: settings.to_string(), auto: AUTO.contains(&family), days }
    }
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
    use ballast_usage::limits::family::{Family, Resource};
    use ballast_usage::limits::jobs::{LimitedJob, settings};

    use super::*;

    fn job(name: &str, used: Vec<f32>) -> LimitedJob {
        LimitedJob { name: name.to_owned(), most: 4.0, used }
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
        let tried: Vec<Tried> = settings.into_iter().map(|settings| Tried::new(&set, settings)).collect();
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
