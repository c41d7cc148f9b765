//! How many tasks a job needs.
//!
//! Source: Autopilot, Section 3.3.

use std::collections::VecDeque;

use super::HOUR;

/// How a job is scaled.
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

/// The number of tasks of one job.
#[derive(Clone, Debug)]
pub struct Tasks {
    scaling: Scaling,
    /// What was used in each window.
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
}
