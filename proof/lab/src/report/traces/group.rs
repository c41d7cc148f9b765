//! Rows of several seeds together.

use crate::traces::{TracePolicy, TraceResult};

/// The median of what there is; `None` of nothing.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = values.into_iter().collect();
    (!all.is_empty()).then(|| ballast_types::median(&mut all))
}

/// Rows of one policy under one budget, of all seeds.
pub(super) fn group<'a>(
    rows: &[&'a TraceResult],
    budget_percent: f64,
    policy: TracePolicy,
) -> Vec<&'a TraceResult> {
    let mine = |row: &&&TraceResult| row.budget_percent == budget_percent && row.policy == policy;
    rows.iter().filter(mine).copied().collect()
}
