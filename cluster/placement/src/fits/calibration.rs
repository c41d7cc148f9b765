//! How far an estimator's word can be trusted: what it said of hosts, against what was measured there.
//!
//! VMs that peak together break a promise that takes them for independent, and VMs that avoid each other leave room. Both
//! show in the hours in which a host's risk was said to be so much. A [`Calibration`] goes by them: it says which risk may be
//! allowed so that the target is kept, and chooses anew each day.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Risks that may be allowed, in targets, the wary ones first.
pub const STEPS: [f64; 11] = [0.001, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0];
/// The estimator's word as it is: where it begins.
pub const AT_ITS_WORD: usize = 6;
/// So many whole days are looked back at.
const DAYS: u64 = 7;
/// So many measured seconds speak for or against a step: a hundred hours of hosts.
const ENOUGH_S: u64 = 360_000;

/// For how long hosts were measured, and for how long of that their VMs demanded too much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overflow {
    /// Seconds, over all hosts.
    pub measured_s: u64,
    /// Those in which VMs demanded more than the host has; at most as many.
    pub over_s: u64,
}

impl Overflow {
    /// The share of the time; `None` where too little was measured.
    fn share(self) -> Option<f64> {
        (self.measured_s >= ENOUGH_S).then(|| self.over_s as f64 / self.measured_s as f64)
    }
}

/// What was said and measured on the last days, and what is allowed by that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Which of [`STEPS`] is in force.
    step: usize,
    /// The day on which it was chosen.
    chosen: u64,
    /// By day, since 1970, and by the step that the risk said was at most.
    days: BTreeMap<u64, [Overflow; STEPS.len()]>,
}

impl Default for Calibration {
    fn default() -> Self {
        Self { step: AT_ITS_WORD, chosen: 0, days: BTreeMap::new() }
    }
}

impl Calibration {
    /// Which of [`STEPS`] is in force.
    pub fn step(&self) -> usize {
        self.step.min(STEPS.len() - 1)
    }

    /// The risk, in targets, that an estimator may say of a host with a newcomer.
    pub fn allowed(&self) -> f64 {
        STEPS[self.step()]
    }

    /// What was measured on a day on hosts of which a risk of so many targets was said. Hosts without risk, and those with
    /// more than any step allows, say nothing about a step.
    pub fn add(&mut self, day: u64, said: f64, measured: Overflow) {
        let Some(step) = STEPS.iter().position(|step| said <= *step).filter(|_| said > 0.0) else { return };
        let sum = &mut self.days.entry(day).or_default()[step];
        sum.measured_s = sum.measured_s.saturating_add(measured.measured_s);
        sum.over_s = sum.over_s.saturating_add(measured.over_s.min(measured.measured_s));
    }

    /// Chooses by the days before this one, once a day. A step that broke the target closes itself and all above; one that
    /// kept half of it opens the next, by a step a day. Where a clock
    /// has gone back nothing is chosen until the day after.
    pub fn choose(&mut self, today: u64, target: f64) {
        let before = core::mem::replace(&mut self.chosen, today);
        if today <= before {
            return;
        }
        self.days.retain(|day, _| (today.saturating_sub(DAYS)..=today).contains(day));
        let share = |step: usize| {
            let sum = self.days.range(..today).fold(Overflow::default(), |sum, (_, day)| Overflow {
                measured_s: sum.measured_s.saturating_add(day[step].measured_s),
                over_s: sum.over_s.saturating_add(day[step].over_s),
            });
            sum.share()
        };

        let step = self.step();
        let broke = (0..STEPS.len()).find(|step| share(*step).is_some_and(|share| share > target));
        let kept_half = share(step).is_some_and(|share| share <= 0.5 * target);
        self.step = match broke {
            Some(broke) if broke <= step => broke.saturating_sub(1),
            Some(broke) if kept_half => (step + 1).min(broke - 1),
            None if kept_half => (step + 1).min(STEPS.len() - 1),
            _ => step,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: f64 = 0.01;

    /// The steps of so many days on each of which hosts are filled up to what is allowed, and overflow `times` what is said.
    fn steps(days: u64, times: impl Fn(u64) -> f64) -> Vec<usize> {
        let mut it = Calibration::default();
        let day = |day: u64| {
            it.choose(day, TARGET);
            let said = it.allowed();
            // Twenty hosts that are full, and twenty that are half as full.
            for said in [said, said / 2.0] {
                let over_s = (said * TARGET * times(day) * 1_728_000.0).min(1_728_000.0) as u64;
                it.add(day, said, Overflow { measured_s: 1_728_000, over_s });
            }
            it.step()
        };
        (1..=days).map(day).collect()
    }

    #[test]
    fn what_keeps_the_target_is_found_and_kept() {
        assert!(steps(20, |_| 1.0).iter().all(|step| *step == AT_ITS_WORD), "its word is right");
        // Three times too low, and thirty times: a third and a thirtieth of the target are allowed.
        assert_eq!(steps(20, |_| 2.9)[1..5], [4, 4, 4, 4]);
        assert_eq!(steps(9, |_| 29.0)[1..5], [4, 2, 2, 2]);
        // Too high: one step a day, up to where the next might break it.
        assert_eq!(steps(20, |_| 0.24)[..6], [6, 7, 8, 8, 8, 8]);
        assert_eq!(steps(30, |_| 0.0).last(), Some(&10));
        // What changes is followed: a week after the last bad day, room is given back.
        let changed = steps(40, |day| if day < 10 { 9.0 } else { 0.4 });
        assert_eq!((changed[8], *changed.last().unwrap()), (3, 7), "{changed:?}");
    }

    #[test]
    fn what_says_nothing_changes_nothing() {
        let hour = |over_s| Overflow { measured_s: 3_600, over_s };
        let after = |all: &[(f64, Overflow)]| {
            let mut it = Calibration::default();
            all.iter().for_each(|(said, measured)| it.add(1, *said, *measured));
            it.choose(2, TARGET);
            it.step()
        };
        let many = |said: f64, over_s| vec![(said, hour(over_s)); 100];
        assert_eq!(after(&many(1.0, 360)), 5);
        assert_eq!(after(&many(1.0, 360)[1..]), AT_ITS_WORD, "too little");
        for said in [0.0, f64::NAN, 10.1, -1.0] {
            assert_eq!(after(&many(said, 360)), AT_ITS_WORD, "{said}");
        }
        // Hosts that are fuller than what is allowed close nothing below.
        assert_eq!(after(&many(2.0, 360)), AT_ITS_WORD);
        // More seconds than were measured are as many as were.
        assert_eq!(after(&many(1e-9, u64::MAX)), 0);
    }

    #[test]
    fn today_counts_tomorrow_and_a_clock_that_went_back_chooses_nothing() {
        let mut it = Calibration::default();
        it.choose(5, TARGET);
        it.add(5, 1.0, Overflow { measured_s: ENOUGH_S, over_s: ENOUGH_S });
        for today in [5, 4, 0] {
            it.choose(today, TARGET);
            assert_eq!(it.step(), AT_ITS_WORD);
        }
        // Then days go on from there.
        it.choose(6, TARGET);
        assert_eq!(it.step(), 5);
        // Long after that the day is forgotten, and nothing is known.
        it.choose(20, TARGET);
        assert_eq!((it.step(), it.days.len()), (5, 0));
    }
}
