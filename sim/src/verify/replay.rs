//! The stretches of time that can see capping, run with the real controllers.

use core::hash::Hasher;
use core::time::Duration;

use ballast_types::{Instant, Watts};
use siphasher::sip::SipHasher13;

use super::load::{Kind, Loads};
use super::{Draws, Measured, Options, Planned};
use crate::plant::{Plant, STEP};
use crate::scenario::{Probe, Run, Scenario};
use crate::world::{Checks, Violation, World};

/// A run begins so long before its first unit that counts, so that the controllers know the chassis.
const LEAD: Duration = Duration::from_secs(10);
/// A run ends after so many units; then the next begins.
const MOST_UNITS: usize = 1024;
/// The chassis manager alerts at this share of the budget, in millionths: its default.
const ALERT_PPM: u32 = 980_000;
/// A meter's error is cut off at so many standard deviations ([`crate::rng::Stream::normal`]).
const SIGMAS: f64 = 4.0;
/// What rounding may add to a reading.
const ROUNDING: Watts = Watts::from_whole(1);
/// Without a draw to begin with, a run begins at this share of the budget, in millionths.
const CALM_PPM: u32 = 900_000;

/// Replays one chassis's draws under the plan's budget. `each` is told the units that are done.
///
/// Only stretches are run that can see capping: from a unit whose draw a meter might show at the alert
/// threshold (98 % of the budget) until the draw is below that again and nothing is restricted any more.
/// Everything else is uncapped: no reading reaches the threshold. The same seed gives the same result, and
/// a chassis's does not depend on others.
/// This fails when a controller does not let go of its timer, which none does.
pub fn replay(
    draws: &Draws,
    planned: &Planned,
    options: &Options,
    mut each: impl FnMut(usize),
) -> Result<Measured, Violation> {
    let budget = planned.plan.budget;
    let loads = Loads::new(draws, planned, options, seed(options, draws.name(), 0));
    let mut measured = Measured { chassis: 1, ..Measured::default() };

    for draw in draws.iter() {
        measured.units += 1;
        measured.readings_above_budget += u64::from(draw > budget);
        measured.highest_above = measured.highest_above.max(draw - budget);
        measured.beyond_full_load += u64::from(draw > planned.chassis.nameplate());
        measured.below_idle += u64::from(draw < planned.idle());
    }

    let mut replayer = Replayer {
        draws,
        planned,
        options,
        kinds: loads.kinds(),
        loads,
        threshold: threshold(budget, options),
        books: Books { measured, run_of_events: (0, 0) },
    };

    let mut unit = 0;

    while unit < draws.len() {
        if replayer.may_alert(unit) {
            unit = replayer.run(unit)?;
        } else {
            unit += 1;
        }

        each(unit);
    }

    Ok(replayer.books.measured)
}

/// The lowest draw that meters might show at the alert threshold.
fn threshold(budget: Watts, options: &Options) -> Watts {
    let alert = budget.ppm(ALERT_PPM);
    let most = 1.0 + SIGMAS * f64::from(options.meter_noise_ppm) * 1e-6;
    Watts::from_f64(alert.as_f64() / most).unwrap_or(alert) - ROUNDING
}

fn seed(options: &Options, name: &str, unit: u64) -> u64 {
    let mut hash = SipHasher13::new();
    hash.write_u64(options.seed.to_le());
    hash.write(name.as_bytes());
    hash.write_u64(unit.to_le());
    hash.finish()
}

struct Replayer<'a> {
    draws: &'a Draws,
    planned: &'a Planned,
    options: &'a Options,
    loads: Loads<'a>,
    /// Server, VM and kind of every VM.
    kinds: Vec<(usize, usize, Kind)>,
    threshold: Watts,
    books: Books,
}

/// What is known of the units so far.
struct Books {
    measured: Measured,
    /// Where the current run of units with events ends, and how long it is.
    run_of_events: (usize, u64),
}

impl Replayer<'_> {
    fn may_alert(&self, unit: usize) -> bool {
        let draw = self.draws.get(unit);
        draw.is_some_and(|draw| self.options.everything || draw >= self.threshold)
    }

    /// Runs from `first` on; gives the first unit that was not run.
    fn run(&mut self, first: usize) -> Result<usize, Violation> {
        let units = self.draws.len().min(first + MOST_UNITS);
        let known: Vec<_> = (first..units).map_while(|unit| self.draws.get(unit)).collect();

        // Before the first reading, or after a gap, the chassis counts as calm.
        let own = self.draws.get(first).unwrap_or(Watts::ZERO);
        let before = first.checked_sub(1).and_then(|unit| self.draws.get(unit)).unwrap_or(own);
        let lead = before.min(self.planned.plan.budget.ppm(CALM_PPM));

        let scenario = self.scenario(first, lead, &known);
        let mut stretch = Stretch::new(self, first, known);
        scenario.run(&mut [&mut stretch]).kept()?;
        Ok(stretch.unit)
    }

    fn scenario(&self, first: usize, lead: Watts, known: &[Watts]) -> Scenario {
        let period = self.planned.period;
        let mut points = vec![(0.0, first.saturating_sub(1), lead)];
        points.extend(
            known
                .iter()
                .enumerate()
                .map(|(n, draw)| ((LEAD + period * n as u32).as_secs_f64(), first + n, *draw)),
        );
        let length = LEAD + period * known.len() as u32;

        let plant = self.loads.plant(&points);
        let seed = seed(self.options, self.draws.name(), first as u64 + 1);
        let mut scenario = Scenario::new(plant, self.loads.agents(), seed, length);
        scenario.checks = Checks::NONE;
        scenario.chassis.alert_ppm = ALERT_PPM;
        scenario.chassis.shared_floor = Some(Watts::ZERO);
        scenario.chassis.shares = self.options.shares;

        scenario.limit_no_lower_than_hardware(&self.planned.chassis.server);
        for agent in &mut scenario.agents {
            self.loads.set_floors(agent);
        }

        scenario
    }
}

impl Books {
    /// Adds what unit `number` came to.
    fn add(&mut self, number: usize, unit: &Unit) {
        let measured = &mut self.measured;
        measured.replayed_units += 1;
        measured.events_user_facing += u64::from(unit.user_facing);
        measured.events_batch += u64::from(unit.batch && !unit.user_facing);
        measured.events_hardware += u64::from(unit.hardware);
        if !(unit.user_facing || unit.batch) {
            return;
        }
        measured.deepest = measured.deepest.max(unit.shed);
        measured.deepest_moment = measured.deepest_moment.max(unit.shed_moment);
        measured.shed += unit.shed;
        let (end, length) = self.run_of_events;
        let length = if end == number { length + 1 } else { 1 };
        self.run_of_events = (number + 1, length);
        measured.longest_event_units = measured.longest_event_units.max(length);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Unit {
    /// A core was held down: of a user-facing VM, of another one, by hardware.
    user_facing: bool,
    batch: bool,
    hardware: bool,
    /// The mean, and the most in any step.
    shed: Watts,
    shed_moment: Watts,
}

/// Looks at a stretch of units, step by step.
struct Stretch<'a, 'b> {
    replayer: &'a mut Replayer<'b>,
    /// The draws of its units, from `first` on.
    draws: Vec<Watts>,
    first: usize,
    /// The unit that is run, or that would be next.
    unit: usize,
    /// When that unit ends.
    until: Instant,
    now: UnitSoFar,
    /// Core-seconds of every VM at the unit's start: held down by anything, and by hardware.
    throttled: Vec<(f64, f64)>,
    hardware_s: f64,
    /// Steps in a row above the budget.
    over_steps: u64,
    is_done: bool,
}

/// What is known of the unit that is run.
#[derive(Clone, Copy, Debug)]
struct UnitSoFar {
    /// The sum of the draws of its steps, in milliwatts.
    energy: i64,
    steps: u64,
    least: Watts,
    /// Core-seconds of all VMs since the start that something held down.
    held_s: f64,
}

impl Probe for Stretch<'_, '_> {
    fn next(&self, now: Instant) -> Instant {
        let begin = Instant::ZERO + LEAD;
        if now < begin { begin } else { (now + STEP).min(self.until) }
    }

    fn begins(&mut self, run: &Run) {
        if run.now() < Instant::ZERO + LEAD {
            return;
        }
        let plant = run.plant();
        let measured = &mut self.replayer.books.measured;

        // A step's draw holds until its end.
        let power = plant.power();
        self.now.energy += power.milli();
        self.now.steps += 1;
        self.now.least = self.now.least.min(power);

        let over = power > plant.spec().budget;
        self.over_steps = if over { self.over_steps + 1 } else { 0 };
        measured.over_budget_s += f64::from(u8::from(over)) * STEP.as_secs_f64();
        let over_s = self.over_steps as f64 * STEP.as_secs_f64();
        measured.over_budget_s_max = measured.over_budget_s_max.max(over_s);
    }

    fn ends(&mut self, run: &Run) {
        let plant = run.plant();
        if run.now() <= Instant::ZERO + LEAD {
            self.throttled = throttled(plant).collect();
            self.hardware_s = plant.truth().hardware_engaged_s;
            return self.begin_unit(plant);
        }

        let held_s = all_held_s(plant);
        if held_s > self.now.held_s {
            self.now.held_s = held_s;
            self.frequencies(plant);
        }
        if run.now() >= self.until {
            self.end_unit(plant);
            let calm = run.world().is_some_and(World::is_quiet);
            self.is_done = calm && !self.replayer.may_alert(self.unit);
        }
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}

impl<'a, 'b> Stretch<'a, 'b> {
    fn new(replayer: &'a mut Replayer<'b>, first: usize, draws: Vec<Watts>) -> Self {
        Self {
            replayer,
            draws,
            first,
            unit: first,
            until: Instant::ZERO + LEAD,
            now: UnitSoFar { energy: 0, steps: 0, least: Watts::ZERO, held_s: 0.0 },
            throttled: Vec::new(),
            hardware_s: 0.0,
            over_steps: 0,
            is_done: false,
        }
    }

    /// The draw of the unit that is run, as it was read.
    fn draw(&self) -> Watts {
        self.draws.get(self.unit - self.first).copied().unwrap_or_default()
    }

    fn begin_unit(&mut self, plant: &Plant) {
        self.until += self.replayer.planned.period;
        self.now = UnitSoFar { energy: 0, steps: 0, least: self.draw(), held_s: all_held_s(plant) };
    }

    fn frequencies(&mut self, plant: &Plant) {
        let Replayer { kinds, books, .. } = &mut *self.replayer;
        for (server, vm, kind) in kinds.iter() {
            let lowest = if kind.is_user_facing() {
                &mut books.measured.lowest_user_facing_frequency
            } else {
                &mut books.measured.lowest_batch_frequency
            };
            *lowest = lowest.min(plant.vm_frequency_ratio_min(*server, *vm));
        }
    }

    fn end_unit(&mut self, plant: &Plant) {
        let (draw, so_far) = (self.draw(), self.now);
        let shed = (draw - Watts::from_milli(so_far.energy).per(so_far.steps)).at_least_zero();
        let mut unit = Unit { shed, shed_moment: draw - so_far.least, ..Unit::default() };

        let Replayer { kinds, books, .. } = &mut *self.replayer;
        let vms = throttled(plant).zip(&mut self.throttled).zip(kinds.iter());
        for (((all, hardware), before), (_, _, kind)) in vms {
            let more = all - before.0;
            if more > 0.0 {
                if kind.is_user_facing() {
                    unit.user_facing = true;
                    books.measured.user_facing_throttled_core_s += more;
                } else {
                    unit.batch = true;
                    books.measured.batch_throttled_core_s += more;
                }
                unit.hardware |= hardware > before.1;
            }
            *before = (all, hardware);
        }

        let hardware_s = plant.truth().hardware_engaged_s;
        books.measured.hardware_s += hardware_s - self.hardware_s;
        self.hardware_s = hardware_s;

        books.add(self.unit, &unit);
        self.unit += 1;
        self.begin_unit(plant);
    }
}

/// Core-seconds of every VM since the start: held down by anything, and by hardware.
fn throttled(plant: &Plant) -> impl Iterator<Item = (f64, f64)> {
    plant.truth().vms.iter().map(|vm| {
        let held = vm.throttled_core_s;
        (held.total(), held.rapl + held.out_of_band + held.supply)
    })
}

fn all_held_s(plant: &Plant) -> f64 {
    let truth = plant.truth();
    truth.user_facing_throttled_core_s.total() + truth.batch_throttled_core_s.total()
}
