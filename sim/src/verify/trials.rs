//! Plans of the past, held against what came after them: how much room above the lowest budget they needed.
//!
//! The history is walked day by day. Each trial plans from everything before it, a week or more, and counts on
//! its own day how low a budget the controllers could have kept ([`HeldOut`]: by arithmetic, no replay). That
//! every day keeps the promise by itself asks for more than the promise, which is of all days together: the rest
//! is what a month needs that is unlike the last.

use ballast_planner::{
    Approach, Chassis, ClassLoad, HeldOut, Histogram, HistogramError, Plan, Terms, buffer_needed, propose,
};
use ballast_types::Watts;
use serde::Serialize;

use super::{Draws, Measured, Planned, Verdict};

/// How long one trial is, in seconds.
const TRIAL_S: u64 = 24 * 3600;
/// What the first one is planned from.
const FIRST_S: u64 = 7 * TRIAL_S;

/// With fewer trials, 8 weeks, the buffer is not below that of the terms: days of one month say little of how
/// months differ.
const MANY: usize = 56;

/// Readings of one hardware generation, all from the same moment on.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    pub draws: &'a [Draws],
    /// When the first unit begins, in seconds.
    pub start_s: i64,
    pub chassis: &'a Chassis,
    pub terms: &'a Terms,
    pub resolution: Watts,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// Planned from everything before this second, and held against what came until the other.
    pub from_s: i64,
    pub until_s: i64,
    /// The lowest budget of the plan.
    #[serde(rename = "p_min_w")]
    pub planned: Watts,
    /// The lowest budget that would have been kept.
    #[serde(rename = "needed_w")]
    pub needed: Watts,
    /// What `needed` is above `planned`, as a share of it: below 0 where less would have done.
    pub needed_buffer: f64,
}

/// What the trials of one approach came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackTest {
    #[serde(rename = "policy")]
    pub approach: &'static str,
    pub trials: Vec<Trial>,
    /// The smallest buffer that held in all trials, as a share of the lowest budget.
    pub held_buffer: f64,
    /// The one to plan with, in millionths.
    #[serde(rename = "buffer_ppm")]
    pub proposed_ppm: u32,
    /// How often the worst day was replayed with the real controllers, each time with more buffer, until the
    /// promise was kept there too; 0 where it was not replayed.
    pub replays: u32,
}

/// More buffer after a replay that broke the promise, in millionths.
const MORE_PPM: u32 = 20_000;

impl Past<'_> {
    /// A trial of every day after the first week, the last one at the end. `None` where there are fewer than
    /// two, or nothing to plan.
    pub fn back_test(&self, approach: &Approach) -> Result<Option<BackTest>, HistogramError> {
        let all = self.draws.iter().map(Draws::len).max().unwrap_or(0);
        let in_units = |s: u64| (s / self.terms.period.as_secs().max(1)).max(1) as usize;
        let (units, first) = (in_units(TRIAL_S), in_units(FIRST_S));
        let mut history = Histogram::new(self.resolution)?;
        let (mut from, mut trials) = (0, Vec::new());

        // What is more than whole trials is planned from.
        for until in (all % units..all).step_by(units).filter(|until| *until >= first) {
            for draws in self.draws {
                (from..until).filter_map(|unit| draws.get(unit)).for_each(|draw| history.add(draw, 1));
            }

            from = until;
            let trial = self.trial(approach, &history, until, until + units)?;
            trials.extend(trial);
        }

        let needed: Vec<f64> = trials.iter().map(|trial| trial.needed_buffer).collect();
        let held = needed.iter().copied().fold(0.0, f64::max);

        let least_ppm = if needed.len() < MANY { self.terms.buffer_ppm } else { 0 };

        Ok(propose(&needed).map(|proposed_ppm| BackTest {
            approach: approach.name,
            trials,
            held_buffer: held,
            proposed_ppm: proposed_ppm.max(least_ppm),
            replays: 0,
        }))
    }

    /// Replays the day that needed most, planned from what came before it, and raises the buffer until the
    /// promise is kept there. `replay` runs these draws under that plan.
    pub fn confirm<E: From<HistogramError>>(
        &self,
        approach: &Approach,
        test: &mut BackTest,
        replay: impl Fn(&[Draws], &Planned) -> Result<Measured, E>,
    ) -> Result<(), E> {
        let worst = test.trials.iter().max_by(|a, b| a.needed_buffer.total_cmp(&b.needed_buffer));
        let Some(&Trial { from_s, until_s, .. }) = worst else { return Ok(()) };
        let period_s = self.terms.period.as_secs().max(1);
        let unit = |t_s: i64| (t_s.abs_diff(self.start_s) / period_s) as usize;
        let (from, until) = (unit(from_s), unit(until_s));
        let at_peak = peaks(self.draws, from).or(self.chassis.at_peak);
        let chassis = Chassis { at_peak, ..*self.chassis };
        let day: Vec<Draws> = self.draws.iter().map(|draws| draws.between(from, until)).collect();
        let mut history = Histogram::new(self.resolution)?;
        for draws in self.draws {
            (0..from).filter_map(|unit| draws.get(unit)).for_each(|draw| history.add(draw, 1));
        }

        let terms = Terms { buffer_ppm: test.proposed_ppm, ..*self.terms };
        let held = buffer_that_holds(&history, approach, &chassis, terms, |planned| replay(&day, planned))?;
        if let Some((buffer_ppm, replays)) = held {
            (test.proposed_ppm, test.replays) = (buffer_ppm, test.replays + replays);
        }
        Ok(())
    }

    fn trial(
        &self,
        approach: &Approach,
        history: &Histogram,
        from: usize,
        until: usize,
    ) -> Result<Option<Trial>, HistogramError> {
        let at_peak = peaks(self.draws, from).or(self.chassis.at_peak);
        let chassis = Chassis { at_peak, ..*self.chassis };
        let plan = Plan::make(history, approach, &chassis, self.terms);
        let needed = self.needed(approach, &chassis, from, until)?;
        let period_s = i64::try_from(self.terms.period.as_secs()).unwrap_or(i64::MAX);
        let second = |unit: usize| self.start_s.saturating_add(period_s.saturating_mul(unit as i64));

        Ok(plan.zip(needed).map(|(plan, needed)| Trial {
            from_s: second(from),
            until_s: second(until),
            planned: plan.p_min,
            needed,
            needed_buffer: buffer_needed(needed, plan.p_min),
        }))
    }

    /// The lowest budget that the controllers would have kept in these units; what a unit could shed is its own
    /// load's where that is known. `None` without readings.
    pub fn needed(
        &self,
        approach: &Approach,
        chassis: &Chassis,
        from: usize,
        until: usize,
    ) -> Result<Option<Watts>, HistogramError> {
        let usual = chassis.reductions(&approach.policy, approach.treated);
        let mut held_out = HeldOut::new(self.resolution)?;
        for draws in self.draws {
            let shed = |load: Option<ClassLoad>| {
                load.map_or(usual, |load| chassis.reductions_of(load, &approach.policy, approach.treated))
            };
            let load = |unit| draws.loads().and_then(|loads| loads.sum(unit));
            let units = from..until.min(draws.len());
            held_out.add(units.filter_map(|unit| Some((unit as i64, draws.get(unit)?, shed(load(unit))))));
        }
        Ok(held_out.lowest(&approach.policy))
    }
}

/// The first buffer, in millionths, from that of the terms on, with which a replay keeps the promise or the budget is
/// all there is; and how many replays that took. `None` where there is nothing to plan from.
pub fn buffer_that_holds<E>(
    history: &Histogram,
    approach: &Approach,
    chassis: &Chassis,
    mut terms: Terms,
    replay: impl Fn(&Planned) -> Result<Measured, E>,
) -> Result<Option<(u32, u32)>, E> {
    for replays in 1.. {
        let Some(plan) = Plan::make(history, approach, chassis, &terms) else { break };
        let planned = Planned { approach: *approach, plan, chassis: *chassis, period: terms.period };
        let measured = replay(&planned)?;
        let kept = Verdict::of(&planned, &measured).is_none_or(|verdict| verdict.kept);
        if kept || plan.budget >= terms.provisioned {
            return Ok(Some((terms.buffer_ppm, replays)));
        }
        terms.buffer_ppm += MORE_PPM;
    }
    Ok(None)
}

/// What the chassis had to shed at their peaks before that unit; `None` where no loads are known.
pub fn peaks(draws: &[Draws], before: usize) -> Option<ClassLoad> {
    let peaks: Vec<_> = draws.iter().filter_map(|draws| draws.peak(before)).collect();
    ClassLoad::at_peaks(&peaks)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::super::ServerLoads;
    use super::*;

    /// Two chassis of two servers, ten units a day; `highest` is the one peak of each.
    fn past(highest: &[f64], others: f32) -> Vec<Draws> {
        let watts = |unit: usize| match unit % 10 {
            4 => highest[unit / 10],
            _ => 300.0,
        };
        let one = |name| {
            let draws = (0..10 * highest.len()).map(|unit| Watts::from_f64(watts(unit)));
            let loads = vec![[0.1, others]; 10 * highest.len()];
            Draws::new(name, draws).with_loads(ServerLoads::new([loads.clone(), loads]))
        };
        vec![one("c1"), one("c2")]
    }

    fn tested(highest: &[f64]) -> Option<BackTest> {
        let chassis = Chassis { servers: 2, ..Chassis::default() };
        let terms = Terms { period: Duration::from_secs(TRIAL_S / 10), ..Terms::paper(&chassis) };
        // At half frequency two servers that are half busy with others' work shed 140 W.
        let draws = past(highest, 0.5);
        let resolution = Watts::from_milli(100);
        let past = Past { draws: &draws, start_s: 6000, chassis: &chassis, terms: &terms, resolution };
        past.back_test(&Approach::named("no-impact").unwrap()).unwrap()
    }

    #[test]
    fn a_trial_plans_from_the_past_alone() {
        let mut days = vec![500.0; 8];
        assert_eq!(tested(&days), None, "one trial");
        days.push(600.0);
        let found = tested(&days).unwrap();
        let [first, second] = found.trials[..] else { panic!("{found:?}") };
        let day = TRIAL_S as i64;
        let times = (first.from_s, first.until_s, second.until_s);
        assert_eq!(times, (6000 + 7 * day, 6000 + 8 * day, 6000 + 9 * day));
        assert_eq!((first.planned, second.planned), (Watts::from_whole(500), Watts::from_whole(500)));

        // One unit in ten has a peak: the rate decides, at the manager's 98 %.
        assert!((first.needed_buffer - 2.0 / 98.0).abs() < 1e-3, "{first:?}");
        assert!((second.needed_buffer - (600.0 / 490.0 - 1.0)).abs() < 1e-3, "{second:?}");
        assert!(found.held_buffer == second.needed_buffer && found.proposed_ppm > 1_000 * 224);

        // Nothing but what was known: a month of that says little, 8 weeks are enough.
        let proposed = |days: usize| tested(&vec![500.0; days]).unwrap().proposed_ppm;
        assert_eq!((proposed(62), proposed(63)), (100_000, 25_000));
    }

    #[test]
    fn the_worst_day_is_replayed_until_the_promise_is_kept() {
        let mut days = vec![500.0; 9];
        days[7] = 600.0;
        let mut test = tested(&days).unwrap();
        let chassis = Chassis { servers: 2, ..Chassis::default() };
        let terms = Terms { period: Duration::from_secs(TRIAL_S / 10), ..Terms::paper(&chassis) };
        let draws = past(&days, 0.5);
        let resolution = Watts::from_milli(100);
        let past = Past { draws: &draws, start_s: 6000, chassis: &chassis, terms: &terms, resolution };
        let before = test.proposed_ppm;

        // The promise breaks as long as the budget is below 700 W.
        let replay = |day: &[Draws], planned: &Planned| {
            assert_eq!((day.len(), day[0].len(), day[0].get(4)), (2, 10, Some(Watts::from_whole(600))));
            let over_budget_s_max = if planned.plan.budget < Watts::from_whole(700) { 9.0 } else { 0.0 };
            Ok::<_, HistogramError>(Measured { units: 20, over_budget_s_max, ..Measured::default() })
        };
        past.confirm(&Approach::named("no-impact").unwrap(), &mut test, replay).unwrap();
        assert!(
            test.proposed_ppm >= 400_000.max(before) && test.proposed_ppm < 420_000.max(before + 1),
            "{test:?}"
        );
        assert!(test.replays > 0, "{test:?}");
    }

    #[test]
    fn the_peak_is_that_of_the_time_before() {
        let mut draws = past(&[500.0, 600.0], 0.25);
        assert_eq!(peaks(&draws[..0], 20), None);
        let load = peaks(&draws, 10).unwrap();
        assert!((load.user_facing - 0.2).abs() < 1e-4 && (load.others - 0.5).abs() < 1e-4, "{load:?}");

        // Another half of the servers is busy in the later, higher peak.
        let busier = |unit: usize| [0.1, if unit < 10 { 0.25 } else { 0.75 }];
        let loads = ServerLoads::new([(0..20).map(busier).collect(), (0..20).map(busier).collect()]);
        draws[0] = draws[0].clone().with_loads(loads);
        assert_eq!(draws[0].peak(10).map(|load| libm::round(10.0 * load.others)), Some(5.0));
        assert_eq!(draws[0].peak(20).map(|load| libm::round(10.0 * load.others)), Some(15.0));
    }
}
