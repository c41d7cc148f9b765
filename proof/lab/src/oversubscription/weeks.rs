//! Whole weeks, resampled: how far an answer would move had the weeks been others.

pub const WEEK_S: u32 = 7 * 24 * 3600;

/// So many draws of `weeks` weeks out of themselves, with replacement (Efron's bootstrap, by blocks of a
/// week).
pub fn resampled(seed: u64, weeks: usize, replicates: u32) -> Vec<Vec<usize>> {
    let one = |replicate: u32| {
        let mut chance = super::stream(seed, super::Chance::Weeks, replicate);
        (0..weeks).map(|_| chance.below(weeks)).collect()
    };
    (0..replicates).map(one).collect()
}

/// The range that 95 % of the values lie in, by nearest rank; none without values.
pub fn interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = |share: f64| sorted[libm::round(share * last as f64) as usize];
    Some((at(0.025), at(0.975)))
}
