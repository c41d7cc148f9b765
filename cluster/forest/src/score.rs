//! How good answers are, on rows whose truth is known.

/// Shares below this count as this much: the loss of a wrong certain answer stays finite.
pub(crate) const MIN_SHARE: f64 = 1e-7;

/// The mean log-loss, in nats, of class probabilities: rows × classes, row by row. A probability below
/// 10⁻⁷ counts as that. `None` without rows.
///
/// # Panics
///
/// There are not `classes` probabilities for every label, or a label is not below `classes`.
pub fn log_loss(probabilities: &[f32], classes: usize, labels: &[u32]) -> Option<f64> {
    assert_eq!(probabilities.len(), classes * labels.len(), "one probability for every class");
    let rows = probabilities.chunks_exact(classes).zip(labels);
    let loss =
        |(shares, label): (&[f32], &u32)| -libm::log(f64::from(shares[*label as usize]).max(MIN_SHARE));
    let sum: f64 = rows.map(loss).sum();
    (!labels.is_empty()).then(|| sum / labels.len() as f64)
}

/// The area under the receiver operating curve: how likely a row of class 1 scores higher than one of
/// class 0, ties counting half. `None` where there are not rows of both, or a score is `NaN`.
///
/// # Panics
///
/// There is not one score for every label.
pub fn auc(scores: &[f32], labels: &[u32]) -> Option<f64> {
    assert_eq!(scores.len(), labels.len(), "one score for every label");
    let mut rows: Vec<(f32, bool)> =
        scores.iter().zip(labels).map(|(score, label)| (*score, *label == 1)).collect();
    rows.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut below, mut above, mut ordered) = (0u64, 0u64, 0.0);
    for ties in rows.chunk_by(|a, b| a.0 == b.0) {
        let ones = ties.iter().filter(|row| row.1).count() as u64;
        let zeros = ties.len() as u64 - ones;
        ordered += ones as f64 * (below as f64 + zeros as f64 / 2.0);
        below += zeros;
        above += ones;
    }
    let known = below > 0 && above > 0 && !scores.iter().any(|score| score.is_nan());
    known.then(|| ordered / (below as f64 * above as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_area_counts_pairs_in_order() {
        assert_eq!(auc(&[0.1, 0.4, 0.35, 0.8], &[0, 0, 1, 1]), Some(0.75));
        assert_eq!(auc(&[0.5; 4], &[0, 1, 0, 1]), Some(0.5));
        assert_eq!(auc(&[0.1, 0.2], &[1, 1]), None);
        assert_eq!(auc(&[f32::NAN, 0.2], &[1, 0]), None);
    }

    #[test]
    fn log_loss_is_the_mean_of_minus_logarithms() {
        let loss = log_loss(&[0.9, 0.1, 0.2, 0.8], 2, &[0, 1]).unwrap();
        assert!((loss - 0.164_252_033).abs() < 1e-7);
        assert!((log_loss(&[1.0, 0.0], 2, &[1]).unwrap() - 16.118).abs() < 1e-3);
        assert_eq!(log_loss(&[], 2, &[]), None);
    }
}
