//! From how sure a model says it is to how often it is right.
//!
//! Isotonic regression (Zadrozny and Elkan, KDD 2002): the share of right answers as a function of the raw
//! score that never falls, learnt from rows that the model has not seen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Less weight than this says nothing by itself.
const MIN_WEIGHT: f64 = 20.0;
/// And no more steps than this are told apart.
const MAX_STEPS: f64 = 50.0;

/// Points of a line that never falls, with straight stretches between them and level ends. Without a point
/// everything stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Calibration(Vec<(f32, f32)>);

/// Rows with neighbouring scores, by weight.
#[derive(Clone, Copy)]
struct Block {
    rows: f64,
    raw: f64,
    right: f64,
}

impl Calibration {
    /// Learns from raw scores, whether each came true, and the groups of rows that share their fate; a score
    /// that is not a number is left out. Rows come in the order of time, and the newest half is learnt from:
    /// what is seldom right in the beginning is right more often when more is known.
    pub(crate) fn learn(scored: &[(f32, bool)], groups: &[u32]) -> Self {
        let newest = scored.len() / 2;
        let (scored, groups) = (&scored[newest..], &groups[newest..]);
        let mut sizes: BTreeMap<u32, f64> = BTreeMap::new();
        groups.iter().for_each(|group| *sizes.entry(*group).or_default() += 1.0);
        let weighed = scored.iter().zip(groups).filter(|((raw, _), _)| !raw.is_nan());
        let mut scored: Vec<(f32, bool, f64)> =
            weighed.map(|((raw, right), group)| (*raw, *right, 1.0 / sizes[group].sqrt())).collect();
        scored.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.total_cmp(&b.2)));
        let all: f64 = scored.iter().map(|(.., weight)| weight).sum();
        let least = MIN_WEIGHT.max(all / MAX_STEPS);
        let mut blocks: Vec<Block> = Vec::new();

        // Equal scores stay together, and blocks are of some size before any is compared.
        for same in scored.chunk_by(|a, b| a.0 == b.0) {
            let weight = |picked: fn(&bool) -> bool| -> f64 {
                same.iter().filter(|(_, right, _)| picked(right)).map(|(.., weight)| weight).sum()
            };
            let (right, rows) = (weight(|right| *right), weight(|_| true));
            let block = Block { rows, raw: f64::from(same[0].0) * rows, right };
            match blocks.last_mut() {
                Some(last) if last.rows < least => last.take(block),
                _ => blocks.push(block),
            }
        }
        if let [.., before, last] = blocks.as_mut_slice()
            && last.rows < least
        {
            before.take(*last);
            blocks.pop();
        }

        // Neighbours in the wrong order become one.
        let mut level: Vec<Block> = Vec::new();
        for mut block in blocks {
            while let Some(last) = level.pop_if(|last| last.right * block.rows >= block.right * last.rows) {
                block.take(last);
            }
            level.push(block);
        }

        // A block without any mistake may still make one: half of one more row.
        let mut floor = 0.0;
        let point = |block: &Block| {
            floor = f64::max(floor, (block.right + 0.5) / (block.rows + 1.0));
            ((block.raw / block.rows) as f32, floor as f32)
        };
        Self(level.iter().map(point).collect())
    }

    /// How often a raw score comes true.
    pub(crate) fn of(&self, raw: f32) -> f32 {
        let Self(points) = self;
        let after = points.partition_point(|(x, _)| *x <= raw);
        match (after.checked_sub(1).map(|before| points[before]), points.get(after).copied()) {
            (Some((x0, y0)), Some((x1, y1))) => y0 + (y1 - y0) * (raw - x0) / (x1 - x0),
            (Some((_, y)), None) | (None, Some((_, y))) => y,
            (None, None) => raw,
        }
    }

    /// Whether it can be used as it was read.
    pub(crate) fn check(&self) -> Result<(), String> {
        let share = |value: &f32| (0.0..=1.0).contains(value);
        let sound = self.0.iter().all(|(x, y)| share(x) && share(y));
        let rises = self.0.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        if sound && rises { Ok(()) } else { Err("a calibration that falls, or leaves 0 to 1".to_owned()) }
    }
}

impl Block {
    fn take(&mut self, other: Self) {
        self.rows += other.rows;
        self.raw += other.raw;
        self.right += other.right;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    fn learn(scored: &[(f32, bool)]) -> Calibration {
        Calibration::learn(scored, &(0..scored.len() as u32).collect::<Vec<_>>())
    }

    /// Scores from 0 to 1, in an order that is not theirs.
    fn by_score(right: fn(u16) -> bool) -> Vec<(f32, bool)> {
        let score = |n: u16| n * 7 % 1000;
        (0..1000).map(|n| (f32::from(score(n)) / 1000.0, right(score(n)))).collect()
    }

    #[test]
    fn the_newest_half_is_learnt_from_and_a_group_is_no_crowd() {
        // Wrong in the beginning, right in the end.
        let turned: Vec<_> = (0..400).map(|n| (0.5, n >= 200)).collect();
        assert!(learn(&turned).of(0.5) > 0.95);
        // Hundred rows of one group are wrong, hundred of as many groups are right.
        let groups: Vec<u32> = (0..400).map(|n| if n < 300 { 0 } else { n }).collect();
        let found = Calibration::learn(&(0..400).map(|n| (0.5, n >= 300)).collect::<Vec<_>>(), &groups);
        assert!(found.of(0.5) > 0.85, "{}", found.of(0.5));
    }

    #[test]
    fn an_overconfident_score_becomes_how_often_it_is_right() {
        // It says x and is right x² of the time.
        let mut random = Stream::new(1, 1);
        let rows = (0..40_000).map(|_| random.uniform()).collect::<Vec<_>>();
        let scored: Vec<_> = rows.iter().map(|x| (*x as f32, random.chance(x * x))).collect();
        let found = learn(&scored);
        found.check().unwrap();
        for n in 1..10_u8 {
            let x = f32::from(n) / 10.0;
            assert!((found.of(x) - x * x).abs() < 0.03, "{x}: {}", found.of(x));
        }
    }

    #[test]
    fn it_never_falls_and_never_says_always() {
        // The wrong way round: the higher the score, the seldomer right.
        let wrong = learn(&by_score(|n| n < 500));
        assert_eq!(wrong.of(0.1), wrong.of(0.9));
        let always = learn(&by_score(|_| true));
        assert!(always.of(1.0) > 0.95 && always.of(1.0) < 1.0, "{}", always.of(1.0));
        assert_eq!(learn(&[]).of(0.7), 0.7);
        assert_eq!(learn(&[(f32::NAN, true)]), Calibration::default());
    }

    #[test]
    fn a_damaged_one_is_refused() {
        for points in [vec![(0.5, 0.5), (0.4, 0.6)], vec![(0.1, 0.5), (0.4, 0.3)], vec![(0.1, f32::NAN)]] {
            assert!(Calibration(points).check().is_err());
        }
    }
}
