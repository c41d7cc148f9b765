//! How many tasks a job needs.
//!
//! Source: Autopilot, Section 3.3.

use std::collections::VecDeque;

use super::{DAY, HOUR};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// What a task is to use in the mean, in the unit of the use.
    pub per_task: f64,
    /// The job needs what it used at this share of the last `look_back_h`; 1 is the peak.
    pub percentile: f64,
    pub look_back_h: usize,
    /// No fewer tasks than the most that were needed in this time: 48 or 72 hours are common.
    pub stabilise_h: usize,
    /// Tasks that are too many are halved in this time.
    pub halve_h: f64,
    /// A change by less than this share is none.
    pub ignore: f64,
    /// No more than this share of the tasks that are ready may be starting.
    pub starting: f64,
    pub tasks_min: u32,
    pub tasks_max: u32,
}

impl Scaling {
    /// The paper's usual settings, where a task is to use so much.
    pub const fn usual(per_task: f64) -> Self {
        Self {
            per_task,
            percentile: 0.95,
            look_back_h: 72,
            stabilise_h: 48,
            halve_h: 1.0,
            ignore: 0.05,
            starting: 0.5,
            tasks_min: 1,
            tasks_max: u32::MAX,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Tasks {
    scaling: Scaling,
    used: VecDeque<f64>,
    /// What was needed in each window, where it was more than in all after it.
    needed: VecDeque<(u64, f64)>,
    window: u64,
    /// Before it is rounded up.
    goal: Option<f64>,
    tasks: Option<u32>,
}

impl Tasks {
    pub fn new(scaling: Scaling) -> Self {
        let (used, needed) = (VecDeque::new(), VecDeque::new());
        Self { scaling, used, needed, window: 0, goal: None, tasks: None }
    }

    /// A window's use by all tasks together, of which so many are ready. A use that is no number, or below nothing, says
    /// nothing.
    pub fn observe(&mut self, used: f64, ready: u32) {
        if !(used >= 0.0 && used.is_finite()) {
            return;
        }
        self.window += 1;
        if self.used.len() == self.scaling.look_back_h * HOUR {
            self.used.pop_front();
        }
        self.used.push_back(used);

        let needed = self.most_needed();
        let excess = self.goal.map_or(0.0, |goal| (goal - needed).max(0.0));
        // What is too many fades; what is too few comes at once.
        let fading = libm::exp2(-1.0 / (self.scaling.halve_h * HOUR as f64));
        let goal = needed + excess * fading;
        self.goal = Some(goal);

        self.tasks = Some(self.next(goal, ready));
    }

    /// How many tasks there should be; `None` where nothing was used yet.
    pub const fn tasks(&self) -> Option<u32> {
        self.tasks
    }

    /// The most tasks that were needed for a while, not rounded.
    fn most_needed(&mut self) -> f64 {
        let mut uses: Vec<f64> = self.used.iter().copied().collect();
        let nth = (self.scaling.percentile * uses.len() as f64).ceil().max(1.0) as usize - 1;
        let last = uses.len() - 1;
        let now = *uses.select_nth_unstable_by(nth.min(last), f64::total_cmp).1 / self.scaling.per_task;

        while self.needed.back().is_some_and(|(_, less)| *less <= now) {
            self.needed.pop_back();
        }
        self.needed.push_back((self.window, now));
        let stabilised = (self.scaling.stabilise_h * HOUR) as u64;
        while self.needed.front().is_some_and(|(at, _)| self.window - at >= stabilised.max(1)) {
            self.needed.pop_front();
        }
        self.needed.front().map_or(now, |(_, most)| *most)
    }

    fn next(&self, goal: f64, ready: u32) -> u32 {
        let Scaling { ignore, starting, tasks_min, tasks_max, .. } = self.scaling;
        let goal = (goal.ceil().min(f64::from(u32::MAX)) as u32).clamp(tasks_min, tasks_max.max(tasks_min));
        let goal = match self.tasks {
            Some(tasks) if f64::from(tasks.abs_diff(goal)) < ignore * f64::from(tasks) => tasks,
            _ => goal,
        };
        // One may always start.
        let most = f64::from(ready) * (1.0 + starting);
        goal.min(most.max(f64::from(ready) + 1.0) as u32).max(tasks_min)
    }
}

/// How a floor is laid under the number of tasks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FloorSettings {
    /// So many days before are looked at.
    pub days: usize,
    /// The floor is what this share of them needed at most; 1 is the most.
    pub quantile: f64,
    /// So many times that.
    pub factor: f64,
}

/// No fewer tasks than were needed at this time of the days before: a floor for whoever scales by the load of the moment, such as
/// `minReplicas` of Kubernetes' Horizontal Pod Autoscaler. Whoever starts tasks only when the load is there is late by the time
/// that tasks take to start.
#[derive(Clone, Debug)]
pub struct DailyFloor {
    settings: FloorSettings,
    /// The most that was used at once in each window, in tasks; NaN is a gap.
    peaks: VecDeque<f64>,
}

/// The floor is what was needed from a window before this one to so many after it: a day is not like the other to the minute,
/// and tasks take time to start.
const AHEAD: usize = 3;

impl DailyFloor {
    pub fn new(settings: FloorSettings) -> Self {
        Self { settings, peaks: VecDeque::new() }
    }

    /// The most that was used at once in the window that ends, in tasks that do nothing else. What is no number, or below
    /// nothing, is a gap.
    pub fn observe(&mut self, peak: f64) {
        if self.peaks.len() == self.settings.days * DAY + 1 {
            self.peaks.pop_front();
        }
        self.peaks.push_back(if peak >= 0.0 && peak.is_finite() { peak } else { f64::NAN });
    }

    /// For the window that comes; `None` where no day before is known.
    pub fn tasks(&self) -> Option<u32> {
        let now = self.peaks.len();
        let day = |day: usize| {
            let then = now.checked_sub(day * DAY)?;
            let around = self.peaks.range(then.saturating_sub(1)..(then + AHEAD).min(now));
            around.copied().filter(|peak| !peak.is_nan()).max_by(f64::total_cmp)
        };
        let mut needed: Vec<f64> = (1..=self.settings.days).filter_map(day).collect();
        needed.sort_unstable_by(f64::total_cmp);
        let nth = (self.settings.quantile * needed.len() as f64).ceil().max(1.0) as usize - 1;
        Some((self.settings.factor * needed.get(nth)?).ceil().min(f64::from(u32::MAX)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(tasks: &mut Tasks, hours: usize, used: f64) -> u32 {
        for _ in 0..hours * HOUR {
            let ready = tasks.tasks().unwrap_or(1);
            tasks.observe(used, ready);
        }
        tasks.tasks().unwrap()
    }

    #[test]
    fn tasks_come_with_the_load_and_go_slowly() {
        let scaling = Scaling { percentile: 1.0, look_back_h: 2, stabilise_h: 3, ..Scaling::usual(10.0) };
        let mut tasks = Tasks::new(scaling);
        assert_eq!(after(&mut tasks, 1, 95.0), 10);
        assert_eq!(after(&mut tasks, 1, 395.0), 40, "half as many as are ready may start at a time");
        // For two hours the peak is remembered, for three more what was needed then.
        assert_eq!(after(&mut tasks, 4, 95.0), 40);
        let (three, four) = (after(&mut tasks, 2, 95.0), after(&mut tasks, 1, 95.0));
        assert!((15..=30).contains(&three), "{three}");
        assert!(four < three && four > 10, "{four}");
        assert_eq!(after(&mut tasks, 12, 95.0), 10);
    }

    #[test]
    fn small_changes_and_bad_readings_change_nothing() {
        let scaling = Scaling { percentile: 1.0, ..Scaling::usual(1.0) };
        let mut tasks = Tasks::new(scaling);
        assert_eq!(after(&mut tasks, 1, 100.0), 100);
        tasks.observe(103.0, 100);
        assert_eq!(tasks.tasks(), Some(100));
        for bad in [f64::NAN, -1.0, f64::INFINITY] {
            tasks.observe(bad, 100);
            assert_eq!(tasks.tasks(), Some(100));
        }
        tasks.observe(120.0, 100);
        assert_eq!(tasks.tasks(), Some(120));
    }

    #[test]
    fn few_may_start_at_a_time() {
        let mut tasks = Tasks::new(Scaling { percentile: 1.0, ..Scaling::usual(1.0) });
        tasks.observe(1000.0, 10);
        assert_eq!(tasks.tasks(), Some(15));
        tasks.observe(1000.0, 1);
        assert_eq!(tasks.tasks(), Some(2));
    }

    #[test]
    fn the_floor_comes_before_the_load_of_each_day() {
        let mut floor = DailyFloor::new(FloorSettings { days: 3, quantile: 0.5, factor: 1.5 });
        // Nine o'clock needs 40 tasks, but for one day that had 400 of them; another was not seen.
        let peak = |at: usize| match (at / DAY, at % DAY / HOUR) {
            (1, 9) => 400.0,
            (2, 9) => f64::NAN,
            (_, 9) => 40.0,
            _ => 4.0,
        };
        let mut said = Vec::new();
        for at in 0..5 * DAY {
            said.push(floor.tasks());
            floor.observe(peak(at));
        }
        let at = |day: usize, window: usize| said[day * DAY + window];
        assert_eq!(at(0, DAY - 1), None);
        assert_eq!(
            (at(1, 9 * HOUR - 3), at(1, 9 * HOUR - 2)),
            (Some(6), Some(60)),
            "two windows before the load"
        );
        assert_eq!((at(1, 10 * HOUR), at(1, 10 * HOUR + 1)), (Some(60), Some(6)), "and one after it");
        assert_eq!(at(4, 9 * HOUR + 3), Some(60), "the smaller of the two days that were seen");
    }
}
