//! The best split of one node by one feature.

use crate::sums::Sums;

/// A split: bins up to `bin` go left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split<S> {
    /// By how much the two sides score higher than the node.
    pub(crate) gain: f64,
    pub(crate) bin: u8,
    pub(crate) missing_left: bool,
    pub(crate) left: S,
}

/// What a split must keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demands<U> {
    pub(crate) unit: U,
    /// The least weight of either side, in fixed point.
    pub(crate) min_leaf: i64,
    /// The gain is above this.
    pub(crate) min_gain: f64,
}

/// A gain below this part of the score is rounding.
const ROUNDING: f64 = 1e-12;

/// The best split of a node of these `sums` by its `histogram`, the last cell of which is of missing values.
/// They try both sides. The first of equals is taken.
pub(crate) fn best<S: Sums>(histogram: &[S], sums: &S, demands: &Demands<S::Unit>) -> Option<Split<S>> {
    let (missing, bins) = histogram.split_last()?;
    let any_missing = missing.weight() > 0;
    let whole = sums.score(demands.unit);
    let mut least = demands.min_gain.max(whole.abs() * ROUNDING);
    let mut best = None;
    let mut consider = |bin: usize, missing_left: bool, left: S| {
        let mut right = *sums;
        right.subtract(&left);
        if left.weight().min(right.weight()) < demands.min_leaf {
            return;
        }
        let gain = left.score(demands.unit) + right.score(demands.unit) - whole;

        if gain > least {
            least = gain;
            best = Some(Split { gain, bin: bin as u8, missing_left, left });
        }
    };

    let mut left = S::default();

    for (bin, cell) in bins.iter().enumerate() {
        if cell.weight() == 0 {
            continue;
        }
        left.add(cell);
        consider(bin, false, left);

        if any_missing {
            let mut with_missing = left;
            with_missing.add(missing);
            consider(bin, true, with_missing);
        }
    }

    let mut found: Split<S> = best?;

    if !any_missing {
        // Nothing is known of missing values: they go where more rows go.
        found.missing_left = 2 * found.left.weight() >= sums.weight();
    }

    Some(found)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;
    use crate::FeatureTable;
    use crate::bins::{Column, MISSING, bin};
    use crate::grow::{Entry, Grower, Plan};
    use crate::rng::{Purpose, Stream};
    use crate::sums::{GradientRow, GradientUnit, Gradients, VoteRow, Votes};

    /// The highest gain that any split of these rows can have, by trying all of them on the rows themselves.
    fn by_force<S: Sums>(columns: &[Column], rows: &[Entry<S::Row>], demands: &Demands<S::Unit>) -> f64 {
        let score = |picked: &dyn Fn(&Entry<S::Row>) -> bool| {
            let mut sums = S::default();
            rows.iter().filter(|row| picked(row)).for_each(|row| sums.add_row(row.stat));
            (sums.weight(), sums.score(demands.unit))
        };

        let whole = score(&|_| true).1;
        let mut most = 0.0;

        for column in columns {
            for (last, missing_left) in (0..column.count()).flat_map(|last| [(last, false), (last, true)]) {
                let left = |row: &Entry<S::Row>| match column.bins[row.row as usize] {
                    MISSING => missing_left,
                    bin => usize::from(bin) <= last,
                };

                let (a, b) = (score(&left), score(&|row| !left(row)));
                if a.0.min(b.0) >= demands.min_leaf {
                    most = f64::max(most, a.1 + b.1 - whole);
                }
            }
        }

        most
    }

    /// Grows a whole tree; every inner node must have the split with the highest gain, and every leaf none.
    fn check<S: Sums>(
        columns: &[Column],
        mut rows: Vec<Entry<S::Row>>,
        demands: Demands<S::Unit>,
        threads: usize,
        max_leaves: Option<u32>,
    ) {
        let all = rows.clone();
        let plan = Plan {
            max_depth: 4,
            max_leaves,
            demands,
            features: columns.len(),
            chance: Stream::new(1, Purpose::Features, 0, 0),
            threads: NonZeroUsize::new(threads).unwrap(),
        };

        let grown = Grower::<S>::new(columns).grow(&mut rows, plan);
        let tree = &grown.tree;

        // Every row walks down; each node keeps its own.
        let mut nodes = vec![Vec::new(); tree.splits.len()];
        let mut leaves = vec![Vec::new(); tree.splits.len() + 1];
        let mut depths = vec![0; leaves.len()];

        for row in all {
            let mut at = if tree.splits.is_empty() { -1 } else { 0 };
            let mut depth = 0;
            while at >= 0 {
                let node = at as usize;
                nodes[node].push(row);
                let column = &columns[usize::from(tree.splits[node] / 2)];
                let left = match column.bins[row.row as usize] {
                    MISSING => tree.splits[node] % 2 == 1,
                    bin => bin <= grown.bins[node],
                };

                at = if left { tree.left[node] } else { tree.right[node] };
                depth += 1;
            }

            leaves[!at as usize].push(row);
            depths[!at as usize] = depth;
            assert_eq!(tree.leaf(&grown.bins, columns, row.row as usize), !at as usize);
        }

        let sum = |rows: &[Entry<S::Row>]| {
            let mut sums = S::default();
            rows.iter().for_each(|row| sums.add_row(row.stat));
            sums
        };

        let mut gains = 0.0;
        let mut by_node = vec![];

        for (node, rows_here) in nodes.iter().enumerate() {
            let most = by_force::<S>(columns, rows_here, &demands);
            let part = |child: i32| match child {
                0.. => sum(&nodes[child as usize]).score(demands.unit),
                _ => sum(&leaves[!child as usize]).score(demands.unit),
            };

            let gain = part(tree.left[node]) + part(tree.right[node]) - sum(rows_here).score(demands.unit);
            assert!((gain - most).abs() <= 1e-9 * (1.0 + most), "{gain} {most}");
            gains += gain;
            by_node.push(gain);
        }

        // Leaf by leaf: who was there when a node was split, and was not split, gained no more.
        let born = |child: i32| {
            let mut children = tree.left.iter().zip(&tree.right);
            children.position(|(left, right)| *left == child || *right == child)
        };
        let waited = |child: i32, gain: f64, until: usize| {
            let others = born(child).map_or(0, |parent| parent + 1)..until;
            max_leaves.is_none() || by_node[others].iter().all(|other| gain <= other + 1e-9 * (1.0 + other))
        };
        assert!((0..by_node.len()).all(|node| waited(node as i32, by_node[node], node)));
        let is_full = max_leaves == Some(grown.leaves.len() as u32);
        assert!(max_leaves.is_none_or(|leaves| grown.leaves.len() <= leaves as usize));

        assert!((gains - grown.gains.iter().sum::<f64>()).abs() <= 1e-9 * (1.0 + gains));

        for (number, ((leaf, (range, sums)), depth)) in
            (0..).zip(leaves.iter().zip(&grown.leaves).zip(depths))
        {
            let own: Vec<u32> = rows[range.clone()].iter().map(|row| row.row).collect();
            assert_eq!(own, leaf.iter().map(|row| row.row).collect::<Vec<_>>());
            assert_eq!(sums.weight(), sum(leaf).weight());
            let least = 1e-9 * (1.0 + sums.score(demands.unit).abs());
            let most = if depth == 4 { 0.0 } else { by_force::<S>(columns, leaf, &demands) };
            assert!(most <= least || (is_full && waited(!number, most, by_node.len())), "{most}");
        }
    }

    proptest! {
        #[test]
        fn every_split_is_the_best_there_is(
            rows in prop::collection::vec((prop::array::uniform3(0..8u8), -9..9i32, 1..4i32, 0..4u32), 1..60),
            min_leaf in 1..6i64,
            threads in 1..3usize,
            max_leaves in prop::option::of(2..20u32),
        ) {
            let value = |x: u8| if x == 0 { f32::NAN } else { f32::from(x) };
            let column = |feature: usize| rows.iter().map(|row| value(row.0[feature])).collect();
            let table = FeatureTable::from_columns((0..3).map(column).collect()).unwrap();
            let columns = bin(&table, NonZeroUsize::MIN);
            let numbered = || rows.iter().enumerate();
            let unit = GradientUnit { gradient: 0.5, curvature: 0.25, l2: 1.0 };
            let entries = numbered().map(|(row, (_, gradient, weight, _))| {
                let stat = GradientRow { gradient: *gradient, curvature: weight + 1, weight: *weight };
                Entry { row: row as u32, stat }
            });

            check::<Gradients>(&columns, entries.collect(), Demands { unit, min_leaf, min_gain: 0.0 },
                threads, max_leaves);
            let entries = numbered().map(|(row, (_, _, weight, class))| {
                Entry { row: row as u32, stat: VoteRow { class: *class, weight: *weight } }
            });
            check::<Votes<4>>(&columns, entries.collect(), Demands { unit: 1.0, min_leaf, min_gain: 0.0 },
                threads, max_leaves);
        }
    }
}
