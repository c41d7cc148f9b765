//! A limit on a VM's CPU time, as the scheduler keeps it (`cpu.max`).
//!
//! A VM runs freely until the CPU time of its period is used up, then it stops until the next period. So
//! at full load it draws full power for part of each period and none for the rest: a sawtooth, the finer
//! the shorter the period. On the plant's grid a period is a whole number of steps, one at least. What
//! has no state of its own stops within a step; a queue runs a step whole or not at all, and what it ran
//! too much is taken off its next period, as the scheduler does with the slices that it hands to cores.
//!
//! Source: Documentation/scheduler/sched-bwc.rst.

use core::time::Duration;

use super::{STEP, STEP_S};

/// A VM may use `cores` × `period` of CPU time in every `period`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuQuota {
    /// CPU seconds a second.
    pub cores: f64,
    /// The kernel's default is 100 ms.
    pub period: Duration,
}

/// What the scheduler counts in `cpu.stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuStops {
    /// Periods under a limit.
    pub periods: u64,
    pub stopped_periods: u64,
    /// Core-seconds that wanted to run and were stopped.
    pub stopped_core_s: f64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bandwidth {
    cores: f64,
    /// Steps of a period, and which one it is.
    steps: u64,
    step: u64,
    /// CPU seconds left in this period.
    left_s: f64,
    stopped: bool,
    /// Core-seconds stopped in the current step.
    pub(super) stopped_s: f64,
}

impl Bandwidth {
    /// In force from the next step on: a period begins.
    pub(super) fn new(quota: CpuQuota) -> Self {
        let steps = libm::round(quota.period.as_secs_f64() / STEP.as_secs_f64()).max(1.0) as u64;
        // A quota that is no number stops nothing.
        let cores = if quota.cores >= 0.0 { quota.cores } else { f64::INFINITY };
        Self { cores, steps, step: 0, left_s: 0.0, stopped: false, stopped_s: 0.0 }
    }

    /// Another quota: the period goes on, with all of its time to come.
    pub(super) fn change(&mut self, quota: CpuQuota) {
        let new = Self::new(quota);
        if new.steps != self.steps {
            self.step = 0;
        }
        (self.cores, self.steps) = (new.cores, new.steps);
        self.left_s = self.left_s.min(0.0) + self.period_s();
    }

    fn period_s(&self) -> f64 {
        self.cores * self.steps as f64 * STEP_S
    }

    /// The share of what `wanted` cores want that they get in this step.
    pub(super) fn part(&mut self, wanted: f64, stops: &mut CpuStops) -> f64 {
        self.begin(stops);
        let want_s = wanted * STEP_S;
        let got_s = want_s.min(self.left_s.max(0.0));
        self.book(want_s, got_s, stops);
        if want_s > 0.0 { got_s / want_s } else { 1.0 }
    }

    /// Whether a queue may run in this step. It then says what it used by [`Bandwidth::used`]; one that
    /// may not, and of which so many cores want to run, is stopped.
    pub(super) fn may_run(&mut self, wanted: f64, stops: &mut CpuStops) -> bool {
        self.begin(stops);
        let runs = self.left_s > 0.0;
        if !runs {
            self.book(wanted * STEP_S, 0.0, stops);
        }
        runs
    }

    /// A queue ran for this long, in core-seconds.
    pub(super) fn used(&mut self, seconds: f64) {
        self.left_s -= seconds;
    }

    fn begin(&mut self, stops: &mut CpuStops) {
        if self.step == 0 {
            // What was left is lost, what was too much is owed.
            self.left_s = self.left_s.min(0.0) + self.period_s();
            self.stopped = false;
            stops.periods += 1;
        }
        self.step = (self.step + 1) % self.steps;
        self.stopped_s = 0.0;
    }

    fn book(&mut self, want_s: f64, got_s: f64, stops: &mut CpuStops) {
        self.left_s -= got_s;
        self.stopped_s = want_s - got_s;
        if self.stopped_s > 0.0 {
            stops.stopped_core_s += self.stopped_s;
            stops.stopped_periods += u64::from(!core::mem::replace(&mut self.stopped, true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(cores: f64, ms: u64) -> CpuQuota {
        CpuQuota { cores, period: Duration::from_millis(ms) }
    }

    #[test]
    fn a_vm_runs_freely_until_its_time_is_used_up() {
        let (mut it, mut stops) = (Bandwidth::new(quota(5.0, 50)), CpuStops::default());
        // 0.25 core-seconds a period: two and a half steps of ten cores.
        let parts: Vec<_> = (0..10).map(|_| it.part(10.0, &mut stops)).collect();
        let period = [1.0, 1.0, 0.5, 0.0, 0.0];
        for (got, want) in parts.iter().zip(period.iter().cycle()) {
            assert!((got - want).abs() < 1e-9, "{parts:?}");
        }
        assert_eq!((stops.periods, stops.stopped_periods), (2, 2));
        assert!((stops.stopped_core_s - 0.5).abs() < 1e-9);
        // Below its quota it is never stopped, and saves nothing up.
        let parts: Vec<_> = (0..10).map(|_| it.part(4.0, &mut stops)).collect();
        assert_eq!((parts, stops.stopped_periods), (vec![1.0; 10], 2));
    }

    #[test]
    fn a_queue_owes_what_it_ran_too_much() {
        let (mut it, mut stops) = (Bandwidth::new(quota(6.0, 20)), CpuStops::default());
        let mut used = 0.0;
        for _ in 0..1000 {
            if it.may_run(10.0, &mut stops) {
                it.used(10.0 * STEP_S);
                used += 10.0 * STEP_S;
            }
        }
        assert!((used - 60.0).abs() < 0.3, "{used} core-seconds in 10 s");
        assert!((stops.stopped_core_s - (100.0 - used)).abs() < 1e-6);
    }

    #[test]
    fn senseless_quotas_stop_all_or_nothing() {
        let mut stops = CpuStops::default();
        assert_eq!(Bandwidth::new(quota(f64::NAN, 0)).part(4.0, &mut stops), 1.0);
        assert_eq!(Bandwidth::new(quota(0.0, 0)).part(4.0, &mut stops), 0.0);
        assert_eq!(Bandwidth::new(quota(0.0, 100)).part(0.0, &mut stops), 1.0);
    }
}
