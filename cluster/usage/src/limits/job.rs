//! The limit of one resource of one job in service: window by window, within what the user allows, and what the limits of the last
//! week came to.

use std::collections::VecDeque;

use super::bucket::{BUCKETS, UseBucket};
use super::family::Settings;
use super::replay::{JobDay, LOOK_BACK, Score};
use super::{DAY, Recommender, UseWindow};

/// A task that was killed for lack of memory needs this much more than it had.
const BUMP: f32 = 1.2;
/// A window was above its limit where more than this share of its samples was.
const OVER: f32 = 0.05;

fn is_above(window: &UseWindow<'_>, limit: f32) -> bool {
    window.over(limit) > OVER
}

/// What the user allows, in shares of the most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Beyond the family's own.
    pub margin: f32,
    pub min: f32,
    pub max: f32,
}

pub struct JobLimit {
    recommender: Box<dyn Recommender + Send>,
    bounds: Bounds,
    /// How many windows had samples, and the newest of them.
    windows: u64,
    newest: Option<u64>,
    /// Until this window the limit is no lower: a task was killed for lack of memory.
    floor: Option<(u64, f32)>,
    before: Option<f32>,
    today: JobDay,
    uses_today: [f32; BUCKETS],
    days: VecDeque<JobDay>,
}

impl JobLimit {
    /// Knows nothing of the job yet.
    pub fn new(settings: Settings, bounds: Bounds) -> Self {
        Self {
            recommender: settings.recommender(DAY),
            bounds,
            windows: 0,
            newest: None,
            floor: None,
            before: None,
            today: JobDay::default(),
            uses_today: [0.0; BUCKETS],
            days: VecDeque::new(),
        }
    }

    /// Learns what was used; a window that is older than the newest, or has no sample, says nothing.
    pub fn observe(&mut self, window: &UseWindow<'_>) {
        let number = window.number;
        if window.samples.is_empty() || self.newest.is_some_and(|newest| number < newest) {
            return;
        }
        if self.newest.is_some_and(|newest| newest / DAY as u64 != number / DAY as u64) {
            self.end_day();
        }

        if let Some(limit) = self.limit() {
            self.judge(window, limit);
        }
        self.recommender.observe(window);
        self.windows += u64::from(self.newest != Some(number));
        self.newest = Some(number);
        self.floor = self.floor.filter(|(until, _)| number < *until);
    }

    /// Learns that a task was killed for lack of memory in this window, by which the job had used so much. For a week the limit
    /// is a fifth above that, whatever the family says.
    pub fn handle_oom(&mut self, number: u64, used: f32) {
        self.recommender.handle_oom(number, used);
        let had = self.limit().unwrap_or(0.0).max(used);
        let until = number + (LOOK_BACK * DAY) as u64;
        self.floor = Some((until, (had * BUMP).min(1.0)));
    }

    /// What the limit of the next window should be, a share of the most; `None` before a whole day was seen.
    pub fn limit(&self) -> Option<f32> {
        let Bounds { margin, min, max } = self.bounds;
        let recommended = self.recommender.limit().filter(|_| self.windows >= DAY as u64)?;
        let floor = self.floor.map_or(0.0, |(_, floor)| floor);
        Some((recommended * (1.0 + margin)).max(floor).max(min).min(max))
    }

    /// Whether a window that comes next is above its limit, where there is one.
    pub(super) fn is_over(&self, window: &UseWindow<'_>) -> bool {
        self.limit().is_some_and(|limit| is_above(window, limit))
    }

    /// How many windows were seen.
    pub const fn windows(&self) -> u64 {
        self.windows
    }

    /// What the limits of the last seven days and of today came to.
    pub fn score(&self) -> Score {
        let mut score = Score::default();
        self.days.iter().for_each(|day| score.add(day));
        score.add(&self.judged_today());
        score
    }

    fn judge(&mut self, window: &UseWindow<'_>, limit: f32) {
        let count = window.count().max(f32::MIN_POSITIVE);
        let used: f32 = window.samples.iter().map(|(bucket, count)| bucket.edge() * count).sum();
        self.today.windows += 1;
        self.today.overruns += u32::from(is_above(window, limit));
        self.today.changes += u32::from(self.before.is_some_and(|before| before != limit));
        self.today.limits += f64::from(limit);
        self.today.used += f64::from(used / count);
        window.samples.iter().for_each(|(bucket, count)| self.uses_today[bucket.index()] += count);
        self.before = Some(limit);
    }

    fn judged_today(&self) -> JobDay {
        let share = 0.95 * self.uses_today.iter().sum::<f32>();
        let mut below = 0.0;
        let nth = self.uses_today.iter().position(|count| {
            below += count;
            *count > 0.0 && below >= share
        });
        JobDay { p95: nth.map_or(0.0, |nth| UseBucket::from_index(nth).edge()), ..self.today }
    }

    fn end_day(&mut self) {
        if self.days.len() == LOOK_BACK {
            self.days.pop_front();
        }
        self.days.push_back(self.judged_today());
        (self.today, self.uses_today) = (JobDay::default(), [0.0; BUCKETS]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::family::{Family, Resource};
    use super::*;

    fn share(share: f32) -> UseBucket {
        UseBucket::of(share).unwrap()
    }

    fn job(family: Family, bounds: Bounds) -> JobLimit {
        JobLimit::new(Settings::usual(family, Resource::Memory), bounds)
    }

    const FREE: Bounds = Bounds { margin: 0.0, min: 0.0, max: 1.0 };

    #[test]
    fn nothing_is_said_before_a_day_and_never_outside_what_the_user_allows() {
        let bounds = Bounds { margin: 0.5, min: 0.2, max: 0.3 };
        let (mut free, mut bound) = (job(Family::Peak, FREE), job(Family::Peak, bounds));
        let mut limits = vec![];
        for number in 0..2 * DAY as u64 {
            let used = if number < DAY as u64 + 20 { 0.01 } else { 0.6 };
            assert_eq!(free.limit().is_some(), number >= DAY as u64, "{number}");
            for job in [&mut free, &mut bound] {
                job.observe(&UseWindow { number, samples: &[(share(used), 1.0)] });
            }
            limits.extend(bound.limit());
        }
        assert_eq!((limits[0], limits.last()), (0.2, Some(&0.3)));
        assert_eq!(free.limit(), Some((share(0.6).edge() * 1.1).min(1.0)));
        let score = free.score();
        assert_eq!((score.job_days(), score.overruns()), (1, 1.0 / DAY as f64), "one window came unforeseen");
        assert_eq!(score.changes_per_job_day(), 1.0);
    }

    #[test]
    fn whatever_the_family_a_kill_raises_the_limit_for_a_week() {
        for family in [Family::Window, Family::Peak, Family::Vpa, Family::Experts, Family::Quiet] {
            let mut job = job(family, FREE);
            let mut number = 0;
            let mut go = |job: &mut JobLimit, windows: usize| {
                for _ in 0..windows {
                    job.observe(&UseWindow { number, samples: &[(share(0.1), 1.0)] });
                    number += 1;
                }
                number
            };
            let now = go(&mut job, 2 * DAY);
            let before = job.limit().unwrap();
            job.handle_oom(now, before);
            let raised = job.limit().unwrap();
            assert!(raised >= before * BUMP, "{family:?}: {before} {raised}");
            go(&mut job, 6 * DAY);
            assert!(job.limit().unwrap() >= before * BUMP, "{family:?}");
        }
    }

    #[test]
    fn what_is_old_or_empty_says_nothing() {
        let mut job = job(Family::Peak, FREE);
        for number in [5, 6, 6, 3] {
            job.observe(&UseWindow { number, samples: &[(share(0.1), 1.0)] });
        }
        job.observe(&UseWindow { number: 9, samples: &[] });
        assert_eq!(job.windows(), 2);
    }
}
