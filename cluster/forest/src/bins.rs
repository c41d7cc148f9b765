//! Features in at most 255 bins, and a bin for "missing".

use std::num::NonZeroUsize;

use crate::FeatureTable;
use crate::parallel::for_each;

/// The bin of a missing value.
pub(crate) const MISSING: u8 = 255;

/// The most bins of a feature, without that of missing values.
const MAX_BINS: usize = MISSING as usize;

/// One feature, binned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Column {
    /// Ascending. Bin `b` holds `edges[b - 1] < value <= edges[b]`, so a split behind bin `b` is the test
    /// `value <= edges[b]`: the same comparison of the same `f32` here and in prediction.
    pub(crate) edges: Vec<f32>,
    pub(crate) bins: Vec<u8>,
}

impl Column {
    fn new(values: &[f32]) -> Self {
        let edges = edges(values);
        let bin = |value: &f32| match value.is_nan() {
            true => MISSING,
            // At most 254 edges.
            false => edges.partition_point(|edge| edge < value) as u8,
        };
        let bins = values.iter().map(bin).collect();
        Self { edges, bins }
    }

    /// Number of bins, without that of missing values.
    pub(crate) fn count(&self) -> usize {
        self.edges.len() + 1
    }
}

pub(crate) fn bin(table: &FeatureTable, threads: NonZeroUsize) -> Vec<Column> {
    let mut columns = vec![Column::default(); table.columns()];
    for_each(columns.iter_mut().zip(table.all()), threads, |(column, values)| {
        *column = Column::new(values);
    });
    columns
}

/// Where bins end: between any two neighbours when there are few different values, else after about equal
/// numbers of rows. A value that many rows share gets a bin of its own.
fn edges(values: &[f32]) -> Vec<f32> {
    let mut sorted: Vec<f32> = values.iter().copied().filter(|value| !value.is_nan()).collect();
    sorted.sort_unstable_by(f32::total_cmp);
    let groups = || sorted.chunk_by(|a, b| a == b);
    let every = groups().count() <= MAX_BINS;
    let mut edges = Vec::new();
    let mut rows_left = sorted.len();

    // The value before, and how many rows its bin has so far.
    let mut open: Option<(f32, usize)> = None;

    for group in groups() {
        let bins_left = MAX_BINS - edges.len();
        let full = rows_left.div_ceil(bins_left);
        let (value, mut rows) = (group[0], group.len());

        if let Some((before, rows_before)) = open {
            if every || (bins_left > 1 && (rows_before >= full || rows >= full)) {
                edges.push(between(before, value));
                rows_left -= rows_before;
            } else {
                rows += rows_before;
            }
        }

        open = Some((group[group.len() - 1], rows));
    }

    edges
}

/// An edge with `low <= edge < high`, in the middle where `f32` has one.
fn between(low: f32, high: f32) -> f32 {
    let middle = low / 2.0 + high / 2.0;
    if low <= middle && middle < high { middle } else { low }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn few_values_get_a_bin_each() {
        let column = Column::new(&[3.0, f32::NAN, 1.0, 1.0, 2.0, -0.0, 0.0]);
        assert_eq!(column.edges, [0.5, 1.5, 2.5]);
        assert_eq!(column.bins, [3, MISSING, 1, 1, 2, 0, 0]);
        assert!(edges(&[f32::NAN, f32::NAN]).is_empty());
        assert!(edges(&[7.0]).is_empty());
    }

    #[test]
    fn many_values_share_bins_evenly_and_a_frequent_one_has_its_own() {
        let mut values: Vec<f32> = (0..10_000).map(|n| n as f32).collect();
        let even = Column::new(&values);
        assert_eq!(even.count(), MAX_BINS);
        let mut rows = vec![0; MAX_BINS];
        even.bins.iter().for_each(|bin| rows[usize::from(*bin)] += 1);
        assert!(rows.iter().all(|n| (35..=45).contains(n)), "{rows:?}");
        values.extend([5000.0; 5000]);
        let heavy = Column::new(&values);
        let bin = heavy.bins[5000];
        assert_eq!(heavy.bins.iter().filter(|other| **other == bin).count(), 5001);
    }

    #[test]
    fn an_edge_separates_even_neighbouring_floats() {
        for low in [0.0, 1.0, -1.0, 1e-45, f32::MIN_POSITIVE, 16_777_216.0, -f32::MAX] {
            let high = low.next_up();
            let edge = between(low, high);
            assert!(low <= edge && edge < high, "{low} {edge} {high}");
        }
        assert_eq!(between(-f32::MAX, f32::MAX), 0.0);
    }

    proptest! {
        #[test]
        fn bins_and_thresholds_agree(bits in prop::collection::vec(any::<u32>(), 1..2000)) {
            let values: Vec<f32> =
                bits.into_iter().map(f32::from_bits).filter(|v| !v.is_infinite()).collect();
            let column = Column::new(&values);
            prop_assert!(column.count() <= MAX_BINS);
            prop_assert!(column.edges.iter().all(|edge| edge.is_finite()));
            prop_assert!(column.edges.is_sorted_by(|a, b| a < b));
            for (value, bin) in values.iter().zip(&column.bins) {
                prop_assert_eq!(value.is_nan(), *bin == MISSING);
                for (at, edge) in column.edges.iter().enumerate() {
                    prop_assert_eq!(value <= edge, *bin != MISSING && usize::from(*bin) <= at);
                }
            }
        }
    }
}
