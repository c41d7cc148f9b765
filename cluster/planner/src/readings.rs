//! Telemetry as it comes: out of order, with gaps, doubles and nonsense.

use std::collections::{BTreeMap, BTreeSet};

use ballast_types::Watts;
use serde::{Deserialize, Serialize};

use crate::cells::{BlockSums, Cells, Full, Room};
use crate::histogram::{Histogram, HistogramError};

/// What readings may take of memory unless told otherwise: 512 MiB, or 268 million draws.
const ROOM: usize = 512 << 20;
/// When memory is full, one in so many chassis waits for another look.
const PUT_OFF: usize = 16;
/// Draws below so many steps are counted in an array.
const DENSE: usize = 1 << 16;

/// What telemetry is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intake {
    /// The unit of time, in seconds: one reading of a chassis counts in each.
    pub period_s: u32,
    pub resolution: Watts,
    /// No chassis draws more: above stand sentinels such as 65535.
    pub max: Watts,
}

/// Why a reading cannot be a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfit {
    Missing,
    NotAboveZero,
    Implausible,
}

impl Intake {
    /// The draw that a reading of `watts` stands for, at the meter's resolution (halves go up); `None` where
    /// it cannot be one.
    pub fn draw(&self, watts: f64) -> Option<Watts> {
        self.step(watts).ok().map(|step| self.at(step))
    }

    /// The unit of time that `t_s` lies in.
    pub fn unit(&self, t_s: i64) -> i64 {
        t_s.div_euclid(i64::from(self.period_s.max(1)))
    }

    fn at(&self, step: u32) -> Watts {
        Watts::from_milli(i64::from(step) * self.resolution.milli())
    }

    /// How many steps of the resolution a reading is, 1 or more.
    fn step(&self, watts: f64) -> Result<u32, Unfit> {
        let Some(draw) = Watts::from_f64(watts).filter(|&draw| draw <= self.max) else {
            return Err(match watts {
                w if w.is_nan() => Unfit::Missing,
                w if w > 0.0 => Unfit::Implausible,
                _ => Unfit::NotAboveZero,
            });
        };
        let step = self.resolution.milli();
        // `Readings::new` has seen to it that every draw up to the most fits.
        match u32::try_from((draw.milli() + step / 2).div_euclid(step)) {
            Ok(step) if step > 0 => Ok(step),
            _ => Err(Unfit::NotAboveZero),
        }
    }
}

/// Telemetry that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadingsError {
    /// No resolution, or two.
    #[error(transparent)]
    Histogram(#[from] HistogramError),
    /// More steps than are counted.
    #[error("a resolution of {resolution} is too fine for draws up to {max}: at most 2^32 steps are allowed")]
    TooFine { resolution: Watts, max: Watts },
    /// A chassis is of one hardware generation.
    #[error("chassis {chassis} is of generation {before:?}, and now of {now:?}: it has one")]
    Generation { chassis: String, before: String, now: String },
    /// One chassis alone outgrows the memory.
    #[error(
        "chassis {0} has readings in too many units of time for one machine's memory: are its times right?"
    )]
    TooMuch(String),
}

/// Readings that did not count, by their reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejected {
    pub missing: u64,
    /// Less than half a step of the meter's resolution: a chassis that is on draws something.
    pub not_above_zero: u64,
    /// More than any chassis draws.
    pub implausible_values: u64,
    /// Another reading of the same chassis and unit of time counted.
    pub duplicates: u64,
    /// A stuck meter's repetitions, where these are looked for.
    pub stuck: u64,
}

impl Rejected {
    pub const fn all(&self) -> u64 {
        self.missing + self.not_above_zero + self.implausible_values + self.duplicates + self.stuck
    }

    pub const fn add(&mut self, other: &Self) {
        self.missing += other.missing;
        self.not_above_zero += other.not_above_zero;
        self.implausible_values += other.implausible_values;
        self.duplicates += other.duplicates;
        self.stuck += other.stuck;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChassisIndex(u32);

/// When a chassis's readings are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Now,
    /// In another look: now there is no room.
    Later,
    Over,
}

#[derive(Clone, Debug)]
struct Source {
    name: String,
    generation: usize,
    turn: Turn,
    cells: Cells,
    /// Readings that can be draws, doubles among them.
    fit: u64,
    rejected: Rejected,
}

/// The draws of all chassis, each once in each unit of time.
///
/// The **highest** draw of a unit counts, so the answer does not depend on the order of readings, and a
/// missing or double reading never makes a draw look lower than it was.
///
/// Memory is bounded: two bytes for each unit between a chassis's first and last reading, in blocks of 8 KiB
/// (four bytes where a draw is 65536 steps of the resolution or more), up to 512 MiB. Chassis that do not fit
/// wait: give the same telemetry again after [`Readings::next_look`]. Each look has all readings of its
/// chassis.
#[derive(Clone, Debug)]
pub struct Readings {
    intake: Intake,
    generations: Vec<String>,
    names: BTreeMap<String, ChassisIndex>,
    sources: Vec<Source>,
    room: Room,
    /// Whether any chassis waits for another look.
    waiting: bool,
}

impl Readings {
    /// None yet. The resolution must be above 0 W, and not finer than 2^32 steps up to the highest draw.
    pub fn new(intake: Intake) -> Result<Self, ReadingsError> {
        Self::within(intake, ROOM)
    }

    /// None yet, and so many bytes for their draws.
    pub fn within(intake: Intake, bytes: usize) -> Result<Self, ReadingsError> {
        let Intake { resolution, max, .. } = intake;
        Histogram::new(resolution)?;
        if max.milli() / resolution.milli() >= i64::from(u32::MAX) {
            return Err(ReadingsError::TooFine { resolution, max });
        }
        Ok(Self {
            intake,
            generations: vec![],
            names: BTreeMap::new(),
            sources: vec![],
            room: Room(bytes),
            waiting: false,
        })
    }

    /// The chassis of that name, which is of that hardware generation. A chassis has one generation.
    pub fn chassis(&mut self, name: &str, of: &str) -> Result<ChassisIndex, ReadingsError> {
        if let Some(&index) = self.names.get(name) {
            let before = self.generation(index);
            if before != of {
                let (before, now) = (before.to_owned(), of.to_owned());
                return Err(ReadingsError::Generation { chassis: name.to_owned(), before, now });
            }

            return Ok(index);
        }

        let index = u32::try_from(self.sources.len()).map_err(|_| ReadingsError::TooMuch(name.to_owned()))?;
        let known = self.generations.iter().position(|generation| generation == of);
        let generation = known.unwrap_or_else(|| {
            self.generations.push(of.to_owned());
            self.generations.len() - 1
        });

        self.sources.push(Source {
            name: name.to_owned(),
            generation,
            // Nothing that is new comes before what waits already.
            turn: if self.waiting { Turn::Later } else { Turn::Now },
            cells: Cells::default(),
            fit: 0,
            rejected: Rejected::default(),
        });

        self.names.insert(name.to_owned(), ChassisIndex(index));

        Ok(ChassisIndex(index))
    }

    /// Takes one reading: `watts` at `t_s` seconds. What cannot be a draw is counted as rejected.
    /// This fails when this chassis alone outgrows the memory.
    pub fn take(&mut self, chassis: ChassisIndex, t_s: i64, watts: f64) -> Result<(), ReadingsError> {
        let (unit, step) = (self.intake.unit(t_s), self.intake.step(watts));
        let source = &mut self.sources[chassis.0 as usize];
        if source.turn != Turn::Now {
            return Ok(());
        }
        match step {
            Ok(step) => match source.cells.raise(unit, step, &mut self.room) {
                Ok(()) => source.fit += 1,
                Err(Full) => {
                    self.put_off(chassis)?;
                    return self.take(chassis, t_s, watts);
                }
            },
            Err(Unfit::Missing) => source.rejected.missing += 1,
            Err(Unfit::NotAboveZero) => source.rejected.not_above_zero += 1,
            Err(Unfit::Implausible) => source.rejected.implausible_values += 1,
        }

        Ok(())
    }

    /// Makes room for `needy`: the chassis that came last wait for another look.
    fn put_off(&mut self, needy: ChassisIndex) -> Result<(), ReadingsError> {
        let here = |source: &Source| source.turn == Turn::Now && !source.cells.is_empty();
        let held = self.sources.iter().filter(|source| here(source)).count();
        let alone = here(&self.sources[needy.0 as usize]);
        if held == 0 || (held == 1 && alone) {
            return Err(ReadingsError::TooMuch(self.name(needy).to_owned()));
        }
        let last = self.sources.iter_mut().rev().filter(|source| here(source));
        for source in last.take(held.div_ceil(PUT_OFF)) {
            source.turn = Turn::Later;
            source.cells.clear(&mut self.room);
            (source.fit, source.rejected) = (0, Rejected::default());
        }
        self.waiting = true;
        Ok(())
    }

    /// Ends a look: forgets the draws of its chassis, and turns to those that found no room. Says whether
    /// there are any; then all telemetry must be given again.
    pub fn next_look(&mut self) -> bool {
        for source in &mut self.sources {
            source.turn = match source.turn {
                Turn::Later => Turn::Now,
                _ => Turn::Over,
            };
            source.cells.clear(&mut self.room);
        }
        std::mem::replace(&mut self.waiting, false)
    }

    pub const fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// Takes a stuck meter's repetitions out: where `units` or more in a row are the same to the meter's
    /// resolution, only the first stays. Call it once, at the end of a look.
    pub fn drop_stuck(&mut self, units: u64) {
        for source in &mut self.sources {
            source.rejected.stuck += source.cells.drop_stuck(units);
        }
    }

    fn here(&self) -> impl Iterator<Item = (ChassisIndex, &Source)> {
        let all = (0_u32..).map(ChassisIndex).zip(&self.sources);
        all.filter(|(_, source)| source.turn == Turn::Now)
    }

    /// The draws of this look, by hardware generation in the order of their names.
    /// This never fails: the resolution was checked.
    pub fn histograms(&self) -> Result<BTreeMap<&str, Histogram>, HistogramError> {
        let mut all = BTreeMap::new();
        for (at, generation) in self.generations.iter().enumerate() {
            let mut draws = Histogram::new(self.intake.resolution)?;
            let mut dense = vec![0_u64; DENSE];
            for (_, source) in self.here().filter(|(_, source)| source.generation == at) {
                for (_, step) in source.cells.iter() {
                    match dense.get_mut(step as usize) {
                        Some(count) => *count += 1,
                        None => draws.add(self.intake.at(step), 1),
                    }
                }
            }

            for (step, &count) in (0..).zip(&dense) {
                draws.add(self.intake.at(step), count);
            }
            all.insert(generation.as_str(), draws);
        }

        Ok(all)
    }

    /// The chassis of this look.
    pub fn all(&self) -> impl Iterator<Item = ChassisIndex> {
        self.here().map(|(index, _)| index)
    }

    /// The draws of a chassis in time, each with its unit: the `n`-th begins at `n` times the period.
    pub fn draws(&self, chassis: ChassisIndex) -> impl Iterator<Item = (i64, Watts)> {
        let cells = self.sources[chassis.0 as usize].cells.iter();
        cells.map(|(unit, step)| (unit, self.intake.at(step)))
    }

    /// Sums of these chassis' draws, one for each unit in which all of them were read; in how many units all
    /// were, and in how many any was. This never fails: the resolution was checked.
    pub(crate) fn sums(&self, of: &[ChassisIndex]) -> Result<(Histogram, u64, u64), HistogramError> {
        let cells = || of.iter().map(|chassis| &self.sources[chassis.0 as usize].cells);
        let blocks: BTreeSet<i64> = cells().flat_map(Cells::blocks).collect();
        let (mut complete, mut any) = (vec![], 0);

        for key in blocks {
            let mut sums: BlockSums = [(0, 0); _];
            cells().for_each(|cells| cells.add_block(key, &mut sums));
            any += sums.iter().filter(|(_, read)| *read > 0).count() as u64;
            let all = sums.iter().filter(|(_, read)| *read as usize == of.len());
            complete.extend(all.map(|(sum, _)| *sum));
        }

        complete.sort_unstable();
        let mut draws = Histogram::new(self.intake.resolution)?;

        for run in complete.chunk_by(|a, b| a == b) {
            let step = i64::try_from(run[0]).unwrap_or(i64::MAX);
            let draw = step.saturating_mul(self.intake.resolution.milli());
            draws.add(Watts::from_milli(draw), run.len() as u64);
        }

        Ok((draws, complete.len() as u64, any))
    }

    /// How many units in a row a chassis of that generation drew more than `budget`, at most. A unit without
    /// a draw ends an event.
    pub fn longest_above(&self, generation: &str, budget: Watts) -> u64 {
        let mut longest = 0;
        for chassis in self.all().filter(|&chassis| self.generation(chassis) == generation) {
            let (mut now, mut last) = (0, None);
            for (unit, _) in self.draws(chassis).filter(|&(_, draw)| draw > budget) {
                now = if last == Some(unit - 1) { now + 1 } else { 1 };
                longest = longest.max(now);
                last = Some(unit);
            }
        }
        longest
    }

    pub fn generation(&self, chassis: ChassisIndex) -> &str {
        &self.generations[self.sources[chassis.0 as usize].generation]
    }

    pub fn name(&self, chassis: ChassisIndex) -> &str {
        &self.sources[chassis.0 as usize].name
    }

    /// What of this look did not count.
    pub fn rejected(&self) -> Rejected {
        let mut all = Rejected::default();
        for (_, source) in self.here() {
            let counted = source.cells.iter().count() as u64 + source.rejected.stuck;
            all.add(&Rejected { duplicates: source.fit - counted, ..source.rejected });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const INTAKE: Intake =
        Intake { period_s: 60, resolution: Watts::from_whole(1), max: Watts::from_whole(5_000) };

    fn readings() -> Readings {
        Readings::new(INTAKE).unwrap()
    }

    #[test]
    fn what_cannot_be_a_draw_is_counted_by_its_reason() {
        let mut readings = readings();
        let one = readings.chassis("c1", "gen7").unwrap();
        for (t_s, watts) in [
            (0, f64::NAN),
            (0, 0.0),
            (0, 0.4),
            (0, -1.0),
            (0, -1e300),
            (0, 65_535.0),
            (0, f64::INFINITY),
            (0, 1e300),
            (0, 2_000.0),
            (59, 2_100.0),
            (60, 2_100.5),
            (-1, 0.5),
        ] {
            readings.take(one, t_s, watts).unwrap();
        }

        let rejected =
            Rejected { missing: 1, not_above_zero: 4, implausible_values: 3, duplicates: 1, stuck: 0 };

        assert_eq!((readings.rejected(), readings.rejected().all()), (rejected, 9));
        let draws: Vec<_> = readings.draws(one).map(|(unit, w)| (unit, w.milli() / 1000)).collect();
        assert_eq!(draws, [(-1, 1), (0, 2_100), (1, 2_101)]);
        assert_eq!(readings.histograms().unwrap()["gen7"].readings(), 3);
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
        let names: Vec<_> = readings.histograms().unwrap().into_keys().collect();
        assert_eq!((names, readings.generation(two), readings.name(two)), (vec!["a", "b"], "a", "c2"));
    }

    #[test]
    fn only_units_that_all_were_read_in_are_summed() {
        let mut readings = readings();
        let index = |readings: &mut Readings, name| readings.chassis(name, "").unwrap();
        let (a, b) = (index(&mut readings, "a"), index(&mut readings, "b"));

        for (chassis, unit, w) in [
            (a, 0, 10),
            (a, 1, 11),
            (a, -5000, 7),
            (a, 3, 4),
            (b, 0, 20),
            (b, 1, 21),
            (b, 2, 22),
            (b, -5000, 8),
        ] {
            readings.take(chassis, unit * 60, f64::from(w)).unwrap();
        }

        let (sums, complete, any) = readings.sums(&[a, b]).unwrap();
        let sums: Vec<_> = sums.iter().map(|(w, n)| (w.milli() / 1000, n)).collect();
        assert_eq!((sums, complete, any), (vec![(15, 1), (30, 1), (32, 1)], 3, 5));
    }

    #[test]
    fn impossible_resolutions_are_refused() {
        let none = Intake { resolution: Watts::ZERO, ..INTAKE };
        assert!(Readings::new(none).is_err());
        let fine = Intake { resolution: Watts::from_milli(1), max: Watts::from_whole(5_000_000), ..INTAKE };
        let error = Readings::new(fine).unwrap_err().to_string();
        assert!(error.contains("is too fine for draws up to"), "{error}");
    }

    #[test]
    fn the_longest_event_is_of_one_chassis_and_has_no_gap() {
        let mut readings = readings();
        let one = readings.chassis("c1", "").unwrap();
        let two = readings.chassis("c2", "").unwrap();
        let other = readings.chassis("c3", "other").unwrap();
        assert_eq!(readings.longest_above("", Watts::ZERO), 0);
        for (chassis, unit) in [(one, 7), (one, 5), (two, 8), (one, 6), (two, 9), (one, 9), (one, 6)] {
            readings.take(chassis, unit * 60, 2_001.0).unwrap();
        }
        for unit in 0..9 {
            readings.take(other, unit * 60, 2_001.0).unwrap();
        }
        assert_eq!(readings.longest_above("", Watts::from_whole(2_000)), 3);
        assert_eq!(readings.longest_above("", Watts::from_whole(2_001)), 0);
    }

    #[test]
    fn a_stuck_meters_repetitions_do_not_count() {
        let mut readings = readings();
        let one = readings.chassis("c1", "").unwrap();
        for unit in 0..100 {
            let watts = if unit < 70 { 1_500.0 } else { 1_500.0 + f64::from(unit) };
            readings.take(one, i64::from(unit) * 60, watts).unwrap();
        }
        readings.take(one, 0, 1.0).unwrap();
        readings.drop_stuck(60);
        assert_eq!(readings.rejected(), Rejected { stuck: 69, duplicates: 1, ..Rejected::default() });
        assert_eq!(readings.histograms().unwrap()[""].readings(), 31);
    }

    /// All looks' histograms, with what did not count.
    fn looks(all: &[(u8, i64, f64)], bytes: usize) -> (BTreeMap<String, Histogram>, Rejected, u32) {
        let mut readings = Readings::within(INTAKE, bytes).unwrap();
        let mut sums: BTreeMap<String, Histogram> = BTreeMap::new();
        let (mut rejected, mut looks) = (Rejected::default(), 0);

        loop {
            looks += 1;
            for &(chassis, t_s, watts) in all {
                let of = if chassis % 2 == 0 { "even" } else { "odd" };
                let chassis = readings.chassis(&format!("c{chassis}"), of).unwrap();
                readings.take(chassis, t_s, watts).unwrap();
            }

            for (of, draws) in readings.histograms().unwrap() {
                match sums.get_mut(of) {
                    Some(sum) => sum.merge(&draws).unwrap(),
                    None => drop(sums.insert(of.to_owned(), draws)),
                }
            }

            rejected.add(&readings.rejected());

            if !readings.next_look() {
                return (sums, rejected, looks);
            }
        }
    }

    #[test]
    fn what_does_not_fit_waits_for_another_look() {
        let all: Vec<_> =
            (0..40 * 50).map(|i| ((i % 40) as u8, i64::from(i) * 60, f64::from(1_000 + i))).collect();
        let (whole, none, once) = looks(&all, ROOM);
        assert_eq!((once, none.all()), (1, 0));
        // Nine chassis fit at a time.
        let (parts, _, often) = looks(&all, 9 * 8192);
        assert_eq!((parts, often > 3), (whole, true));
        let mut readings = Readings::within(INTAKE, 8192).unwrap();
        let one = readings.chassis("c1", "").unwrap();
        readings.take(one, 0, 1.0).unwrap();
        let error = readings.take(one, 1 << 40, 1.0).unwrap_err();
        assert_eq!(error, ReadingsError::TooMuch("c1".to_owned()));
    }

    fn dirty() -> impl Strategy<Value = Vec<(u8, i64, f64)>> {
        let watts = prop_oneof![
            8 => (1i32..50_000).prop_map(|tenths| f64::from(tenths) / 10.0),
            1 => prop::sample::select(vec![0.0, -1.0, 65_535.0, f64::NAN, f64::INFINITY, 5_000.4]),
        ];
        prop::collection::vec((0u8..12, -20_000i64..1_000_000, watts), 1..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn neither_order_nor_room_matters(
            (all, shuffled) in dirty().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
            blocks in 6usize..20,
        ) {
            let whole = looks(&all, ROOM);
            let other = looks(&shuffled, blocks * 8192);
            prop_assert_eq!((whole.0, whole.1), (other.0, other.1));
        }

        #[test]
        fn parts_of_other_chassis_or_times_add_up_to_the_same(all in dirty(), cut in 0i64..15_000) {
            let (whole, rejected, _) = looks(&all, ROOM);
            let by_time = |all: &[(u8, i64, f64)]| -> (Vec<_>, Vec<_>) {
                all.iter().partition(|reading| reading.1 < cut * 60)
            };
            let by_chassis = |all: &[(u8, i64, f64)]| -> (Vec<_>, Vec<_>) {
                all.iter().partition(|reading| reading.0 < 5)
            };

            for (some, others) in [by_time(&all), by_chassis(&all)] {
                let (mut sums, mut sum, _) = looks(&some, ROOM);
                let (parts, part, _) = looks(&others, ROOM);
                sum.add(&part);

                for (of, draws) in parts {
                    match sums.get_mut(&of) {
                        Some(all) => all.merge(&draws).unwrap(),
                        None => drop(sums.insert(of, draws)),
                    }
                }

                prop_assert_eq!((&sums, sum), (&whole, rejected));
            }
        }
    }
}
