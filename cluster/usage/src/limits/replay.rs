//! How a recommender would have done on what a job used.

use core::ops::Range;

use super::bucket::UseBucket;
use super::{DAY, Recommender, UseWindow};

/// How a file of so many windows is cut into days, each judged by limits that are learnt from all before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Days {
    days: Vec<Range<usize>>,
    /// The first of them that counts; those before it are looked back at.
    judged: usize,
}

/// So many days are looked back at.
pub const LOOK_BACK: usize = 7;

impl Days {
    /// Of a file of 9 days or more the second week and what follows counts. Of a shorter one the second half is one day, and the
    /// second quarter is looked back at. `None` where there are fewer than four windows.
    pub fn of(windows: usize) -> Option<Self> {
        if windows < 4 {
            return None;
        }
        let whole = windows / DAY;
        if whole < LOOK_BACK + 2 {
            let (quarter, half) = (windows / 4, windows / 2);
            return Some(Self { days: vec![quarter..half, half..windows], judged: 1 });
        }
        Some(Self {
            days: (1..whole).map(|day: usize| day * DAY..(day + 1) * DAY).collect(),
            judged: LOOK_BACK,
        })
    }

    pub fn days(&self) -> &[Range<usize>] {
        &self.days
    }

    /// Which of the days count.
    pub fn judged(&self) -> Range<usize> {
        self.judged..self.days.len()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobDay {
    /// Windows with a reading.
    pub windows: u32,
    /// Windows in which more was used than the limit.
    pub overruns: u32,
    /// How often the limit was another than in the window before.
    pub changes: u32,
    /// The sum of the limits, in windows of the most.
    pub limits: f64,
    /// The sum of what was used.
    pub used: f64,
    /// Below it lie 95 % of the windows' use.
    pub p95: f32,
}

impl JobDay {
    /// Which share of the mean limit the 95th percentile of use leaves: the paper's relative slack.
    pub fn slack(&self) -> f64 {
        let limit = self.limits / f64::from(self.windows.max(1));
        1.0 - f64::from(self.p95) / limit
    }
}

/// What a window above its limit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrun {
    /// The job is slowed, and its use is seen nevertheless: CPU.
    Slowed,
    /// A task is killed, and the recommender hears of that: memory.
    Killed,
}

/// What a job's limits would have come to on each of these days, by its use in each window, a share of the most; NaN is a gap.
/// Where a recommender says nothing, the limit is the most.
pub fn replay(
    used: &[f32],
    first: u64,
    days: &Days,
    overrun: Overrun,
    recommender: &mut dyn Recommender,
) -> Vec<JobDay> {
    let mut judged = Vec::with_capacity(days.days.len());
    let (mut day, mut used_today) = (JobDay::default(), Vec::with_capacity(DAY));
    let mut before = None;
    let mut coming = days.days.iter().peekable();

    for (at, used) in used.iter().enumerate() {
        if coming.peek().is_some_and(|today| at == today.end) {
            judged.push(ended(core::mem::take(&mut day), &mut used_today));
            coming.next();
        }
        let Some(bucket) = UseBucket::of(*used) else { continue };
        let limit = recommender.limit().unwrap_or(1.0);
        let used = used.min(1.0);
        let is_over = used > limit;

        if coming.peek().is_some_and(|today| today.contains(&at)) {
            day.windows += 1;
            day.overruns += u32::from(is_over);
            day.changes += u32::from(before.is_some_and(|before| before != limit));
            day.limits += f64::from(limit);
            day.used += f64::from(used);
            used_today.push(used);
        }
        before = Some(limit);

        let number = first + at as u64;
        recommender.observe(&UseWindow { number, samples: &[(bucket, 1.0)] });
        if is_over && overrun == Overrun::Killed {
            recommender.handle_oom(number, used);
        }
    }
    if coming.next().is_some() {
        judged.push(ended(day, &mut used_today));
    }
    judged
}

fn ended(day: JobDay, used: &mut Vec<f32>) -> JobDay {
    if used.is_empty() {
        return day;
    }
    let nth = (used.len() * 95).div_ceil(100) - 1;
    let p95 = *used.select_nth_unstable_by(nth, f32::total_cmp).1;
    used.clear();
    JobDay { p95, ..day }
}

/// Which candidate is taken on each judged day: of those whose overruns over the last days were no more than the target, the one
/// with the least slack; where none was, the one with the fewest overruns. `scores` has a row for each candidate, with a score for
/// each day.
pub fn select(scores: &[Vec<Score>], days: &Days, target: f64) -> Vec<usize> {
    days.judged().map(|day| select_for(scores, day, target)).collect()
}

/// The candidate for a day, by the days before it.
pub fn select_for(scores: &[Vec<Score>], day: usize, target: f64) -> usize {
    let behind = |days: &Vec<Score>| {
        let mut sum = Score::default();
        days[day.saturating_sub(LOOK_BACK)..day].iter().for_each(|day| sum.merge(day));
        sum
    };
    let behind: Vec<Score> = scores.iter().map(behind).collect();
    best(&behind, target)
}

/// Of candidates with these scores: the one with the least slack of those whose overruns were no more than the target; where none
/// was, the one with the fewest overruns.
pub fn best(scores: &[Score], target: f64) -> usize {
    let key = |score: &Score| {
        let overruns = score.overruns();
        if overruns <= target { (0.0, score.slack()) } else { (overruns, score.slack()) }
    };
    let best = (0..scores.len()).min_by(|a, b| {
        let (a, b) = (key(&scores[*a]), key(&scores[*b]));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    best.unwrap_or(0)
}

/// What many days of many jobs come to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    days: u64,
    windows: u64,
    overruns: u64,
    changes: u64,
    unchanged_days: u64,
    clean_days: u64,
    severe_days: u64,
    slack: f64,
    limits: f64,
    used: f64,
}

/// A day with so many overruns is one of a job that is seriously hit.
const SEVERE: u32 = 4;

impl Score {
    /// Counts a day that has a reading.
    pub fn add(&mut self, day: &JobDay) {
        if day.windows == 0 {
            return;
        }
        self.days += 1;
        self.windows += u64::from(day.windows);
        self.overruns += u64::from(day.overruns);
        self.changes += u64::from(day.changes);
        self.unchanged_days += u64::from(day.changes == 0);
        self.clean_days += u64::from(day.overruns == 0);
        self.severe_days += u64::from(day.overruns >= SEVERE);
        self.slack += day.slack();
        self.limits += day.limits;
        self.used += day.used;
    }

    pub fn merge(&mut self, other: &Self) {
        self.days += other.days;
        self.windows += other.windows;
        self.overruns += other.overruns;
        self.changes += other.changes;
        self.unchanged_days += other.unchanged_days;
        self.clean_days += other.clean_days;
        self.severe_days += other.severe_days;
        self.slack += other.slack;
        self.limits += other.limits;
        self.used += other.used;
    }

    pub const fn job_days(&self) -> u64 {
        self.days
    }

    /// How many windows were judged.
    pub const fn windows(&self) -> u64 {
        self.windows
    }

    /// The mean over job-days of [`JobDay::slack`].
    pub fn slack(&self) -> f64 {
        self.slack / self.days.max(1) as f64
    }

    /// The sum of limits for each unit that was used.
    pub fn footprint(&self) -> f64 {
        self.limits / self.used.max(f64::MIN_POSITIVE)
    }

    /// The mean limit, a share of the most.
    pub fn mean_limit(&self) -> f64 {
        self.limits / self.windows.max(1) as f64
    }

    /// The share of windows above their limit.
    pub fn overruns(&self) -> f64 {
        self.overruns as f64 / self.windows.max(1) as f64
    }

    pub fn changes_per_job_day(&self) -> f64 {
        self.changes as f64 / (self.windows.max(1) as f64 / DAY as f64)
    }

    /// The share of job-days without a change.
    pub fn unchanged_days(&self) -> f64 {
        self.unchanged_days as f64 / self.days.max(1) as f64
    }

    /// The share of job-days without an overrun.
    pub fn clean_days(&self) -> f64 {
        self.clean_days as f64 / self.days.max(1) as f64
    }

    /// The share of job-days with at least four overruns.
    pub fn severe_days(&self) -> f64 {
        self.severe_days as f64 / self.days.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Always the same.
    struct Fixed(f32);
    impl Recommender for Fixed {
        fn observe(&mut self, _: &UseWindow<'_>) {}
        fn limit(&self) -> Option<f32> {
            Some(self.0)
        }
    }

    #[test]
    fn days_are_counted_as_a_hand_counts_them() {
        // Two weeks at a tenth; on the tenth day six windows at nine tenths; the eleventh is a gap but for one window.
        let mut used = vec![0.1; 14 * DAY];
        used[9 * DAY..9 * DAY + 6].fill(0.9);
        used[10 * DAY..11 * DAY].fill(f32::NAN);
        used[10 * DAY + 7] = 0.4;
        let days = Days::of(used.len()).unwrap();
        let each = replay(&used, 0, &days, Overrun::Slowed, &mut Fixed(0.5));
        assert_eq!((each.len(), days.judged()), (13, 7..13));

        let (tenth, eleventh) = (each[8], each[9]);
        assert_eq!((tenth.windows, tenth.overruns, tenth.changes), (DAY as u32, 6, 0));
        assert!((tenth.slack() - 0.8).abs() < 1e-6, "{tenth:?}");
        assert_eq!((eleventh.windows, eleventh.overruns, eleventh.p95), (1, 0, 0.4));

        let mut score = Score::default();
        [tenth, eleventh, JobDay::default()].iter().for_each(|day| score.add(day));
        assert_eq!((score.job_days(), score.severe_days(), score.unchanged_days()), (2, 0.5, 1.0));
        assert!((score.slack() - 0.5).abs() < 1e-6, "{score:?}");
        assert!((score.overruns() - 6.0 / (DAY as f64 + 1.0)).abs() < 1e-12, "{score:?}");
    }

    #[test]
    fn a_short_file_is_judged_by_its_second_half() {
        assert_eq!(Days::of(3), None);
        let days = Days::of(DAY).unwrap();
        assert_eq!((days.days(), days.judged()), (&[72..144, 144..288][..], 1..2));
    }

    #[test]
    fn what_kept_the_target_with_the_least_slack_is_taken() {
        let day = |overruns: u32, limits: f64| {
            let mut score = Score::default();
            score.add(&JobDay { windows: 100, overruns, limits, p95: 0.1, ..JobDay::default() });
            score
        };
        let wide = vec![day(0, 50.0); 3];
        let close = vec![day(1, 20.0), day(1, 20.0), day(9, 20.0)];
        let loose = vec![day(50, 5.0); 3];
        let scores = [wide, close, loose];
        assert_eq!(select_for(&scores, 2, 0.01), 1);
        assert_eq!(select_for(&scores, 3, 0.01), 0, "the last day broke the target");
        assert_eq!(select_for(&scores[1..], 3, 0.01), 0, "none kept the target: the fewest overruns");
    }
}
