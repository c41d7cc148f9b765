//! The best split of one node by one feature.

use crate::sums::Sums;

/// A split: bins up to `bin` go left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Split<S> {
    /// By how much the two sides score higher than the node.
    pub(crate) gain: f64,
    pub(crate) bin: u8,
    pub(crate) missing_left: bool,
    /// What goes left adds up to this.
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
pub(crate) fn best<S: Sums>(
    histogram: &[S],
    sums: &S,
    demands: &Demands<S::Unit>,
) -> Option<Split<S>> {
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
