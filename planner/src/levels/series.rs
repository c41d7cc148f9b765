//! Draws by chassis and unit of time: sums over chassis need readings of the same unit.

use std::collections::BTreeMap;

use ballast_types::Watts;

use super::LevelsError;
use crate::histogram::Histogram;

/// Units of time that share a block.
const BLOCK: usize = 4096;
/// Blocks that fit: 512 MiB, or 268 million readings (1,440 chassis and 129 days of a reading a minute).
const MOST_BLOCKS: usize = 1 << 16;

type Block = [u16; BLOCK];

/// The draws of all chassis, in steps of the meter's resolution. The highest reading of a unit counts, so that their
/// order makes no difference; a unit without a reading is missing.
#[derive(Clone, Debug)]
pub struct Series {
    resolution: Watts,
    chassis: BTreeMap<String, Trace>,
    blocks: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) generation: String,
    /// Steps; 0 where nothing was read.
    blocks: BTreeMap<i64, Box<Block>>,
}

impl Series {
    /// None yet, in steps of `resolution`.
    #[must_use]
    pub fn new(resolution: Watts) -> Self {
        Self { resolution, chassis: BTreeMap::new(), blocks: 0 }
    }

    /// Takes the draw of a chassis in a unit of time.
    ///
    /// # Errors
    /// Where the draw has more than 65,535 steps, or memory is full.
    pub fn add(
        &mut self,
        chassis: &str,
        generation: &str,
        unit: i64,
        draw: Watts,
    ) -> Result<(), LevelsError> {
        let step = self.resolution.milli().max(1);
        let steps = u16::try_from(draw.milli().saturating_add(step / 2) / step);
        let steps =
            steps.map_err(|_| LevelsError::TooFine { draw, resolution: self.resolution })?;
        if !self.chassis.contains_key(chassis) {
            let trace = Trace { generation: generation.to_owned(), blocks: BTreeMap::new() };
            self.chassis.insert(chassis.to_owned(), trace);
        }
        let Some(trace) = self.chassis.get_mut(chassis) else { return Ok(()) };
        let size = BLOCK as i64;
        let key = unit.div_euclid(size);
        if !trace.blocks.contains_key(&key) {
            if self.blocks == MOST_BLOCKS {
                return Err(LevelsError::TooMuch);
            }
            self.blocks += 1;
        }
        let block = trace.blocks.entry(key).or_insert_with(|| Box::new([0; BLOCK]));
        let place = &mut block[unit.rem_euclid(size) as usize];
        *place = steps.max(*place);
        Ok(())
    }

    /// A histogram in its steps.
    pub(super) fn none_yet(&self) -> Result<Histogram, LevelsError> {
        Ok(Histogram::new(self.resolution)?)
    }

    pub(super) fn chassis(&self) -> impl Iterator<Item = (&str, &Trace)> {
        self.chassis.iter().map(|(name, trace)| (name.as_str(), trace))
    }

    pub(super) fn get(&self, chassis: &str) -> Option<&Trace> {
        self.chassis.get(chassis)
    }

    /// Adds the sums of these chassis to `sums`, one for each unit in which all of them were read. Says in how many
    /// units all were, and in how many any was.
    pub(super) fn sum(&self, of: &[&Trace], sums: &mut Histogram) -> (u64, u64) {
        let (mut complete, mut any) = (vec![], 0);
        let keys: std::collections::BTreeSet<i64> =
            of.iter().flat_map(|trace| trace.blocks.keys().copied()).collect();
        for key in keys {
            let (mut sum, mut read) = ([0_u32; BLOCK], [0_u32; BLOCK]);
            for block in of.iter().filter_map(|trace| trace.blocks.get(&key)) {
                for ((sum, read), &steps) in sum.iter_mut().zip(&mut read).zip(&block[..]) {
                    *sum = sum.saturating_add(steps.into());
                    *read += u32::from(steps > 0);
                }
            }
            any += read.iter().filter(|&&read| read > 0).count() as u64;
            let all = sum.iter().zip(read).filter(|&(_, read)| read as usize == of.len());
            complete.extend(all.map(|(&sum, _)| sum));
        }
        complete.sort_unstable();
        for run in complete.chunk_by(|a, b| a == b) {
            let draw = Watts::from_milli(self.resolution.milli() * i64::from(run[0]));
            sums.add(draw, run.len() as u64);
        }
        (complete.len() as u64, any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_units_with_all_readings_are_summed_and_order_makes_no_difference() {
        let readings = [
            ("a", 0, 10),
            ("a", 1, 11),
            ("a", 1, 9),
            ("a", -5000, 7),
            ("a", 3, 4),
            ("b", 0, 20),
            ("b", 1, 21),
            ("b", 2, 22),
            ("b", -5000, 8),
        ];
        let sums = |readings: &mut dyn Iterator<Item = &(&str, i64, i64)>| {
            let mut series = Series::new(Watts::from_whole(1));
            for &(chassis, unit, w) in readings {
                series.add(chassis, "", unit, Watts::from_whole(w)).unwrap();
            }
            let mut sums = Histogram::new(Watts::from_whole(1)).unwrap();
            let of = [series.get("a").unwrap(), series.get("b").unwrap()];
            assert_eq!(series.sum(&of, &mut sums), (3, 5));
            sums.iter().map(|(w, n)| (w.milli() / 1000, n)).collect::<Vec<_>>()
        };
        assert_eq!(sums(&mut readings.iter()), [(15, 1), (30, 1), (32, 1)]);
        assert_eq!(sums(&mut readings.iter().rev()), [(15, 1), (30, 1), (32, 1)]);
    }

    #[test]
    fn a_draw_of_too_many_steps_is_refused() {
        let mut series = Series::new(Watts::from_milli(10));
        let error = series.add("a", "", 0, Watts::from_whole(656)).unwrap_err();
        assert!(error.to_string().contains("656.0 W in steps of 0.0 W"), "{error}");
    }
}
