//! Trimmed means, and percentiles of short lists.

/// The mean without the largest `share` of the values, rounded down to whole ones; NaN of nothing. Reorders
/// the list.
pub(super) fn trimmed_mean(values: &mut [f64], share: f64) -> f64 {
    let kept = values.len() - (values.len() as f64 * share) as usize;
    if kept < values.len() {
        values.select_nth_unstable_by(kept, f64::total_cmp);
    }
    values[..kept].iter().sum::<f64>() / kept as f64
}

/// The value that a share of the list is at most as large as, by the nearest rank; NaN of nothing. Sorts the list.
pub(super) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let place = libm::round(share * values.len().saturating_sub(1) as f64) as usize;
    values.get(place).copied().unwrap_or(f64::NAN)
}
