//! Labelled weeks, drawn from a seed: two generators that have nothing in common but the question.
//!
//! No week of a public trace has a label of what its VM was for, so labellers are judged on synthetic ones. A
//! labeller that is right about one generator may have learnt how that one draws; the other says so. Neither
//! has chosen a threshold that ships.

use core::f64::consts::TAU;

use crate::rng::Stream;
use ballast_types::VmClass;
use ballast_usage::week::{DAY, DAYS, HALF_HOURS, Week};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generator {
    /// Curves with normal noise on them: sines, squares, steps and walks.
    Shapes,
    /// What makes the load: people who come and go, queues of jobs, timers, restarts.
    Mechanisms,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LabelledWeek {
    pub kind: &'static str,
    pub user_facing: bool,
    pub week: Week,
}

type Values = [f64; HALF_HOURS];
/// A kind's name, whether it serves people, and how a week of it is drawn.
type Drawn = (&'static str, bool, fn(&mut Stream) -> Values);

/// One of the kinds of either generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(usize);

impl Kind {
    fn all() -> impl Iterator<Item = &'static Drawn> {
        SHAPES.iter().chain(&MECHANISMS)
    }

    fn of(class: VmClass) -> Vec<usize> {
        let serves = class == VmClass::UserFacing;
        let of_class = Self::all().enumerate().filter(|(_, (_, user_facing, _))| *user_facing == serves);
        of_class.map(|(number, _)| number).collect()
    }

    /// Any kind of workloads of this class, each as likely.
    pub(crate) fn draw(random: &mut Stream, class: VmClass) -> Self {
        let kinds = Self::of(class);
        Self(kinds[random.pick(&vec![1.0; kinds.len()])])
    }

    /// The first of them.
    pub(crate) fn first(class: VmClass) -> Self {
        Self(Self::of(class)[0])
    }

    /// Five days of it, in percent.
    pub(crate) fn days(self, random: &mut Stream) -> [f64; HALF_HOURS] {
        let (.., values) =
            if self.0 < SHAPES.len() { SHAPES[self.0] } else { MECHANISMS[self.0 - SHAPES.len()] };
        values(random).map(|value| value.clamp(0.0, 100.0))
    }
}

static SHAPES: [Drawn; 14] = [
    ("diurnal", true, |r| wave(r, 24.0, (8.0, 25.0), 0.4)),
    ("weak-diurnal", true, |r| wave(r, 24.0, (4.0, 8.0), 1.2)),
    ("growing-diurnal", true, |r| {
        let (day, growth) = (wave(r, 24.0, (8.0, 15.0), 0.4), r.between(1.0, 2.5));
        each(|i| day[i] * (1.0 + growth * i as f64 / HALF_HOURS as f64))
    }),
    ("interrupted-diurnal", true, |r| {
        let (mut day, from) = (wave(r, 24.0, (8.0, 25.0), 0.4), r.pick(&[1.0; HALF_HOURS - DAY]));
        day[from..from + DAY].fill_with(|| 60.0 * r.uniform());
        day
    }),
    ("office-hours", true, |r| {
        let (from, hours) = (r.pick(&[1.0; 24]), 16 + r.pick(&[1.0; 8]));
        let (low, high) = (r.between(3.0, 15.0), r.between(30.0, 70.0));
        each(|i| if (i + DAY - from) % DAY < hours { high } else { low } + 5.0 * r.normal())
    }),
    ("noise", false, |r| {
        let (mean, sd) = (r.between(20.0, 60.0), r.between(3.0, 12.0));
        each(|_| mean + sd * r.normal())
    }),
    ("8-h", false, |r| wave(r, 8.0, (8.0, 25.0), 0.4)),
    ("4-h", false, |r| wave(r, 4.0, (8.0, 25.0), 0.4)),
    ("6-h", false, |r| wave(r, 6.0, (8.0, 25.0), 0.4)),
    ("12-h", false, |r| wave(r, 12.0, (8.0, 25.0), 0.4)),
    ("nightly", false, |r| {
        let (from, length) = (r.pick(&[1.0; DAY]), 2 + r.pick(&[1.0; 5]));
        let (low, high) = (r.between(3.0, 15.0), r.between(40.0, 90.0));
        each(|i| if (i + DAY - from) % DAY < length { high } else { low } + 4.0 * r.normal())
    }),
    ("random-walk", false, |r| {
        let (mut at, step) = (r.between(20.0, 60.0), r.between(0.5, 3.0));
        each(|_| {
            at = (at + step * r.normal()).clamp(0.0, 100.0);
            at
        })
    }),
    ("steps", false, |r| {
        let mut level = r.between(10.0, 90.0);
        each(|_| {
            if r.chance(0.03) {
                level = r.between(10.0, 90.0);
            }
            level + 2.0 * r.normal()
        })
    }),
    ("spikes", false, |r| {
        let (base, share) = (r.between(2.0, 10.0), r.between(0.02, 0.15));
        each(|_| if r.chance(share) { r.between(40.0, 100.0) } else { base + r.normal() })
    }),
];

static MECHANISMS: [Drawn; 13] = [
    ("sessions", true, |r| people(r, 400.0, 0.0)),
    ("few-sessions", true, |r| people(r, 25.0, 0.0)),
    ("sessions-and-upkeep", true, |r| {
        let (people, jobs) = (people(r, 200.0, 0.0), queue(r, 0.15, 2.0));
        each(|i| 0.7 * people[i] + 0.3 * jobs[i])
    }),
    ("two-markets", true, |r| {
        let (one, other) = (people(r, 200.0, 0.0), people(r, 120.0, 0.0));
        each(|i| 0.6 * one[i] + 0.4 * other[i])
    }),
    ("sessions-with-outages", true, |r| people(r, 300.0, 0.02)),
    ("job-queue", false, |r| queue(r, 0.8, 6.0)),
    ("long-jobs", false, |r| queue(r, 0.06, 40.0)),
    ("builds", false, |r| {
        // Busy and idle in turn, whatever the hour.
        let (mut busy, often, long) = (false, r.between(0.05, 0.3), r.between(0.1, 0.5));
        each(|_| {
            busy = if busy { !r.chance(long) } else { r.chance(often) };
            if busy { r.between(50.0, 100.0) } else { r.between(1.0, 6.0) }
        })
    }),
    ("timer", false, |r| timer(r, &[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0])),
    ("odd-timer", false, |r| timer(r, &[2.5, 5.0, 7.0, 9.0, 10.0, 11.0])),
    ("backup", false, |r| {
        // Every night, for as long as there is to be copied.
        let (start, mean) = (r.between(0.0, 48.0), r.between(2.0, 8.0));
        let runs: Vec<(f64, f64)> = (0..DAYS)
            .map(|day| {
                let from = (day * DAY) as f64 + start + 0.7 * r.normal();
                (from, from + mean * r.between(0.6, 1.4))
            })
            .collect();
        each(|i| {
            let on = runs.iter().any(|(from, to)| (*from..*to).contains(&(i as f64)));
            if on { r.between(35.0, 60.0) } else { r.between(2.0, 6.0) }
        })
    }),
    ("leak-and-restart", false, |r| {
        let (rise, restart) = (r.between(0.4, 2.0), r.between(50.0, 90.0));
        let mut at = r.between(10.0, 50.0);
        each(|_| {
            at = if at > restart + 4.0 * r.normal() { 10.0 } else { at + rise * r.between(0.5, 1.5) };
            at
        })
    }),
    ("steady-stream", false, |r| {
        let (mean, stays) = (r.between(15.0, 70.0), r.between(0.5, 0.98));
        let mut off = 0.0;
        each(|_| {
            off = stays * off + 3.0 * r.normal();
            mean + off
        })
    }),
];

impl Generator {
    pub const ALL: [Self; 2] = [Self::Shapes, Self::Mechanisms];

    pub fn name(self) -> &'static str {
        match self {
            Self::Shapes => "shapes",
            Self::Mechanisms => "mechanisms",
        }
    }

    /// So many weeks of every kind. The same seed draws the same weeks.
    pub fn weeks(self, seed: u64, each: usize) -> Vec<LabelledWeek> {
        let (kinds, first) = match self {
            Self::Shapes => (&SHAPES[..], 0),
            Self::Mechanisms => (&MECHANISMS[..], 1 << 32),
        };
        let draw = |(number, (kind, user_facing, values)): (usize, &Drawn)| {
            let mut random = Stream::new(seed, first + number as u64);
            let week = move |_| {
                let values = values(&mut random).map(|value| value.clamp(0.0, 100.0));
                LabelledWeek { kind, user_facing: *user_facing, week: Week::new(values) }
            };
            (0..each).map(week).collect::<Vec<_>>()
        };
        kinds.iter().enumerate().flat_map(draw).collect()
    }
}

fn each(value: impl FnMut(usize) -> f64) -> Values {
    core::array::from_fn(value)
}

/// A sine of so many hours, its height out of a range, and noise of a part of that.
fn wave(random: &mut Stream, hours: f64, heights: (f64, f64), noise: f64) -> Values {
    let (height, mean) = (random.between(heights.0, heights.1), random.between(30.0, 50.0));
    let (phase, sd) = (random.uniform(), height * noise * random.between(0.5, 1.0));
    each(|i| mean + height * libm::sin(TAU * (i as f64 / (2.0 * hours) + phase)) + sd * random.normal())
}

/// People who are there by day, more of them on some days than on others; each costs what they do. Now and then
/// nobody can come for a while.
fn people(random: &mut Stream, at_most: f64, outage: f64) -> Values {
    let (wakes, evening) = (random.between(0.0, 24.0), random.between(0.2, 1.0));
    let (night, top) = (random.between(0.02, 0.3), random.between(25.0, 80.0));
    let days: Vec<f64> = (0..=DAYS).map(|_| random.between(0.8, 1.2)).collect();
    let mut down = 0;
    each(|i| {
        let hour = (i as f64 / 2.0 - wakes).rem_euclid(24.0);
        let hump = |at: f64, wide: f64| libm::exp(-0.5 * ((hour - at) / wide) * ((hour - at) / wide));
        let there = night + (1.0 - night) * (hump(4.0, 2.0) + evening * hump(11.0, 2.5)).min(1.0);
        let expected = at_most * there * days[i / DAY];
        // Of many who come by themselves: Poisson's spread.
        let come = (expected + libm::sqrt(expected) * random.normal()).max(0.0);
        down =
            if random.chance(outage) { 1 + random.pick(&[1.0; 8]) } else { usize::saturating_sub(down, 1) };
        if down > 0 { 1.0 } else { top * come / at_most }
    })
}

/// Jobs that come at any hour, so many in a half hour, and take so many half hours, on four slots.
fn queue(random: &mut Stream, jobs: f64, long: f64) -> Values {
    let (mut slots, mut waiting) = ([0.0_f64; 4], 0);
    let cost = random.between(15.0, 25.0);
    each(|_| {
        waiting += usize::from(random.chance(jobs.min(1.0)));
        let mut busy = 0.0;
        for slot in &mut slots {
            if *slot <= 0.0 && waiting > 0 {
                waiting -= 1;
                *slot = -long * libm::log(1.0 - random.uniform());
            }
            busy += slot.clamp(0.0, 1.0);
            *slot -= 1.0;
        }
        cost * busy + random.between(1.0, 4.0)
    })
}

/// Work that begins every so many hours, a little early or late.
fn timer(random: &mut Stream, hours: &[f64]) -> Values {
    let every = 2.0 * hours[random.pick(&vec![1.0; hours.len()])];
    let (phase, share) = (random.uniform() * every, random.between(0.15, 0.6));
    let (low, high) = (random.between(2.0, 20.0), random.between(35.0, 90.0));
    each(|i| {
        let into = (i as f64 + phase + 0.3 * random.normal()).rem_euclid(every);
        let base = if into < share * every { high } else { low };
        base + 3.0 * random.normal()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::{Pattern, PatternOptions};

    #[test]
    fn a_seed_draws_the_same_weeks_and_every_kind_has_its_own() {
        for generator in Generator::ALL {
            let weeks = generator.weeks(1, 3);
            assert_eq!(weeks, generator.weeks(1, 3));
            assert_ne!(weeks, generator.weeks(2, 3));
            assert!(weeks.iter().all(|week| week.week.check().is_ok()));
            assert!(weeks.iter().all(|a| weeks.iter().filter(|b| a.week == b.week).count() == 1));
        }
    }

    /// Recall and precision of the labeller on a generator.
    fn reached(generator: Generator, guard12: bool) -> (f64, f64) {
        let pattern = Pattern::new(PatternOptions { guard12, ..PatternOptions::default() });
        let (mut right, mut said, mut all) = (0.0, 0.0, 0.0);
        for LabelledWeek { user_facing, week, .. } in generator.weeks(1, 40) {
            let says = pattern.label(&week).user_facing;
            all += f64::from(u8::from(user_facing));
            said += f64::from(u8::from(says));
            right += f64::from(u8::from(says && user_facing));
        }
        (right / all, right / said)
    }

    #[test]
    fn the_guard_is_worth_its_place_on_generators_that_did_not_choose_it() {
        assert!(PatternOptions::default().guard12);
        for generator in Generator::ALL {
            let ((recall, precision), (without, less)) =
                (reached(generator, true), reached(generator, false));
            let name = generator.name();
            assert!(precision > less + 0.03, "{name}: {precision} {less}");
            assert!(recall > without - 0.02, "{name}: {recall} {without}");
        }
    }
}
