//! Telemetry as it comes: out of order, with gaps, doubles and nonsense.

use std::collections::{BTreeMap, BTreeSet};

use ballast_types::Watts;
use serde::{Deserialize, Serialize};

use crate::histogram::{Histogram, HistogramError};

/// Units of time that share a block of the memory of what was seen.
const BLOCK: i64 = 4096;
/// Blocks that fit: 512 MiB, or eight billion units of time.
const MOST_BLOCKS: usize = 1 << 20;
/// Units in events that fit: beyond, a budget is no budget.
const MOST_ABOVE: usize = 1 << 23;

/// What telemetry is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intake {
    /// The unit of time, in seconds: one reading of a chassis counts in each.
    pub period_s: u32,
    /// The meter's resolution.
    pub resolution: Watts,
    /// No chassis draws more: above stand sentinels such as 65535.
    pub most: Watts,
}

impl Intake {
    /// The draw that a reading of `watts` stands for; `None` where it cannot be one.
    #[must_use]
    pub fn draw(&self, watts: f64) -> Option<Watts> {
        Watts::from_f64(watts).filter(|&draw| draw > Watts::ZERO && draw <= self.most)
    }
}

/// Telemetry that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadingsError {
    /// No resolution, or two.
    #[error(transparent)]
    Histogram(#[from] HistogramError),
    /// A chassis is of one hardware generation.
    #[error("chassis {chassis} is of generation {before:?}, and now of {now:?}: it has one")]
    Generation {
        /// Which chassis.
        chassis: String,
        /// As it was first.
        before: String,
        /// As it is now.
        now: String,
    },
    /// Too much to remember.
    #[error(
        "too many chassis and units of time for one machine's memory: count a histogram \
         (generation, watts, count) where the telemetry is, and plan from that"
    )]
    TooMuch,
}

/// Readings that did not count, by their reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    /// No number.
    pub missing: u64,
    /// Zero or less: a chassis that is on draws something.
    pub not_above_zero: u64,
    /// More than any chassis draws.
    pub absurd: u64,
    /// Another reading of the same chassis and unit of time counted already.
    pub doubled: u64,
}

impl Rejected {
    /// All of them.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.missing + self.not_above_zero + self.absurd + self.doubled
    }
}

/// A chassis of [`Readings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChassisIndex(u32);

#[derive(Clone, Debug)]
struct Source {
    generation: usize,
    /// One bit a unit of time, by blocks.
    seen: BTreeMap<i64, Box<[u64; (BLOCK / 64) as usize]>>,
}

/// Counts readings into one histogram a hardware generation; each chassis once in each unit of time.
///
/// The first reading of a unit counts. Memory: a bit for each unit between a chassis's first and last
/// reading, in blocks of 512 bytes, up to 512 MiB.
#[derive(Clone, Debug)]
pub struct Readings {
    intake: Intake,
    generations: Vec<(String, Histogram)>,
    names: BTreeMap<String, ChassisIndex>,
    sources: Vec<Source>,
    blocks: usize,
    rejected: Rejected,
    span: Option<(i64, i64)>,
}

impl Readings {
    /// None yet.
    ///
    /// # Errors
    /// The resolution must be above 0 W.
    pub fn new(intake: Intake) -> Result<Self, ReadingsError> {
        Histogram::new(intake.resolution)?;
        Ok(Self {
            intake,
            generations: vec![],
            names: BTreeMap::new(),
            sources: vec![],
            blocks: 0,
            rejected: Rejected::default(),
            span: None,
        })
    }

    /// The chassis of that name, which is of that hardware generation.
    ///
    /// # Errors
    /// A chassis has one generation.
    pub fn chassis(&mut self, name: &str, of: &str) -> Result<ChassisIndex, ReadingsError> {
        if let Some(&index) = self.names.get(name) {
            let before = &self.generations[self.sources[index.0 as usize].generation].0;
            if before != of {
                let (before, now) = (before.clone(), of.to_owned());
                return Err(ReadingsError::Generation { chassis: name.to_owned(), before, now });
            }
            return Ok(index);
        }
        let known = self.generations.iter().position(|(generation, _)| generation == of);
        let generation = match known {
            Some(generation) => generation,
            None => {
                self.generations.push((of.to_owned(), Histogram::new(self.intake.resolution)?));
                self.generations.len() - 1
            }
        };
        let index = u32::try_from(self.sources.len()).map_err(|_| ReadingsError::TooMuch)?;
        self.sources.push(Source { generation, seen: BTreeMap::new() });
        self.names.insert(name.to_owned(), ChassisIndex(index));
        Ok(ChassisIndex(index))
    }

    /// Takes one reading: `watts` at `t_s` seconds. What cannot be a draw is counted as rejected.
    ///
    /// # Errors
    /// When the memory of what was seen is full.
    pub fn take(
        &mut self,
        chassis: ChassisIndex,
        t_s: i64,
        watts: f64,
    ) -> Result<(), ReadingsError> {
        let Some(draw) = self.intake.draw(watts) else {
            let reason = match watts {
                w if w.is_nan() => &mut self.rejected.missing,
                w if w <= self.intake.most.as_f64() => &mut self.rejected.not_above_zero,
                _ => &mut self.rejected.absurd,
            };
            *reason += 1;
            return Ok(());
        };
        if self.is_first(chassis, self.unit(t_s))? {
            let generation = self.sources[chassis.0 as usize].generation;
            self.generations[generation].1.add(draw, 1);
            let (from, to) = self.span.unwrap_or((t_s, t_s));
            self.span = Some((from.min(t_s), to.max(t_s)));
        } else {
            self.rejected.doubled += 1;
        }
        Ok(())
    }

    /// The unit of time that `t_s` lies in.
    #[must_use]
    pub fn unit(&self, t_s: i64) -> i64 {
        t_s.div_euclid(i64::from(self.intake.period_s.max(1)))
    }

    fn is_first(&mut self, chassis: ChassisIndex, unit: i64) -> Result<bool, ReadingsError> {
        let seen = &mut self.sources[chassis.0 as usize].seen;
        let key = unit.div_euclid(BLOCK);
        if !seen.contains_key(&key) {
            if self.blocks >= MOST_BLOCKS {
                return Err(ReadingsError::TooMuch);
            }
            self.blocks += 1;
        }
        let block = seen.entry(key).or_insert_with(|| Box::new([0; (BLOCK / 64) as usize]));
        let bit = unit.rem_euclid(BLOCK);
        let word = &mut block[(bit / 64) as usize];
        let mask = 1_u64 << (bit % 64);
        let first = *word & mask == 0;
        *word |= mask;
        Ok(first)
    }

    /// The draws, by hardware generation in the order of their names.
    #[must_use]
    pub fn histograms(&self) -> BTreeMap<&str, &Histogram> {
        self.generations.iter().map(|(name, histogram)| (name.as_str(), histogram)).collect()
    }

    /// The generation of a chassis.
    #[must_use]
    pub fn generation(&self, chassis: ChassisIndex) -> &str {
        &self.generations[self.sources[chassis.0 as usize].generation].0
    }

    /// What did not count.
    #[must_use]
    pub const fn rejected(&self) -> Rejected {
        self.rejected
    }

    /// How many chassis there are.
    #[must_use]
    pub fn chassis_count(&self) -> usize {
        self.sources.len()
    }

    /// The first and the last second with a reading that counted.
    #[must_use]
    pub const fn span_s(&self) -> Option<(i64, i64)> {
        self.span
    }
}

/// Finds the longest event: units of time in a row with a draw above the budget, of one chassis. It takes a
/// second look at the telemetry, in any order; a unit without a reading ends an event.
#[derive(Clone, Debug, Default)]
pub struct Longest {
    above: BTreeSet<(ChassisIndex, i64)>,
}

impl Longest {
    /// A unit of time in which a chassis drew more than its budget.
    ///
    /// # Errors
    /// When there are too many to remember.
    pub fn above(&mut self, chassis: ChassisIndex, unit: i64) -> Result<(), ReadingsError> {
        if self.above.len() >= MOST_ABOVE {
            return Err(ReadingsError::TooMuch);
        }
        self.above.insert((chassis, unit));
        Ok(())
    }

    /// How many units of time the longest event took.
    #[must_use]
    pub fn units(&self) -> u64 {
        let (mut longest, mut now, mut last) = (0, 0, None);
        for &(chassis, unit) in &self.above {
            now = if last == Some((chassis, unit - 1)) { now + 1 } else { 1 };
            longest = longest.max(now);
            last = Some((chassis, unit));
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn readings() -> Readings {
        let (resolution, most) = (Watts::from_whole(1), Watts::from_whole(5_000));
        Readings::new(Intake { period_s: 60, resolution, most }).unwrap()
    }

    #[test]
    fn what_cannot_be_a_draw_is_counted_by_its_reason() {
        let mut readings = readings();
        let one = readings.chassis("c1", "gen7").unwrap();
        for (t_s, watts) in [
            (0, f64::NAN),
            (0, 0.0),
            (0, -1.0),
            (0, 65_535.0),
            (0, f64::INFINITY),
            (0, 1e300),
            (0, 2_000.0),
            (59, 2_100.0),
            (60, 2_100.0),
            (-1, 2_200.0),
        ] {
            readings.take(one, t_s, watts).unwrap();
        }
        let rejected = Rejected { missing: 1, not_above_zero: 2, absurd: 3, doubled: 1 };
        assert_eq!((readings.rejected(), rejected.all()), (rejected, 7));
        assert_eq!(readings.histograms()["gen7"].readings(), 3);
        assert_eq!(readings.span_s(), Some((-1, 60)));
    }

    #[test]
    fn a_chassis_has_one_generation_and_each_generation_its_histogram() {
        let mut readings = readings();
        let one = readings.chassis("c1", "b").unwrap();
        let two = readings.chassis("c2", "a").unwrap();
        assert_eq!(readings.chassis("c1", "b"), Ok(one));
        let error = readings.chassis("c1", "a").unwrap_err().to_string();
        assert_eq!(error, "chassis c1 is of generation \"b\", and now of \"a\": it has one");
        readings.take(one, 0, 100.0).unwrap();
        readings.take(two, 0, 200.0).unwrap();
        let names: Vec<_> = readings.histograms().into_keys().collect();
        assert_eq!(
            (names, readings.generation(two), readings.chassis_count()),
            (vec!["a", "b"], "a", 2)
        );
    }

    #[test]
    fn the_longest_event_is_of_one_chassis_and_has_no_gap() {
        let mut readings = readings();
        let one = readings.chassis("c1", "").unwrap();
        let two = readings.chassis("c2", "").unwrap();
        let mut longest = Longest::default();
        assert_eq!(longest.units(), 0);
        for (chassis, unit) in
            [(one, 7), (one, 5), (two, 8), (one, 6), (two, 9), (one, 9), (one, 6)]
        {
            longest.above(chassis, unit).unwrap();
        }
        assert_eq!(longest.units(), 3);
    }

    proptest! {
        #[test]
        fn order_does_not_matter(mut units in prop::collection::btree_set(-10_000i64..10_000, 1..60)
            .prop_map(|set| set.into_iter().collect::<Vec<_>>()).prop_shuffle())
        {
            let of = |units: &[i64]| {
                let mut readings = readings();
                let one = readings.chassis("c1", "").unwrap();
                for unit in units {
                    readings.take(one, unit * 60, 1_000.0 + *unit as f64 / 100.0).unwrap();
                }
                assert_eq!(readings.rejected().all(), 0);
                readings.histograms()[""].clone()
            };
            let shuffled = of(&units);
            units.sort_unstable();
            prop_assert_eq!(shuffled, of(&units));
        }
    }
}
