//! What the paper's text states of its figures. The figures' other values are not stated anywhere.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Sections IV-B (Table III), IV-C and IV-D.

use ballast_predict::compare::PredictedValue;

/// P95 latency of the user-facing VM of one server, against no cap (Figure 5).
pub(super) fn server_p95(cap_w: f64, policy: &str) -> Option<f64> {
    match policy {
        "full-server" if cap_w == 230.0 => Some(1.18),
        "full-server" if cap_w == 210.0 => Some(1.35),
        // "Very close to the unconstrained case, until the cap is so low (210W)".
        "stepwise" if [250.0, 240.0, 230.0, 220.0].contains(&cap_w) => Some(1.0),
        _ => None,
    }
}

/// Run time of the batch VM of one server, against no cap (Figure 5).
pub(super) fn server_runtime(cap_w: f64, policy: &str) -> Option<f64> {
    (policy == "stepwise" && cap_w == 230.0).then_some(1.28)
}

/// P95 latency of the user-facing VMs of a chassis, against no budget (Figure 6).
pub(super) fn chassis_p95(placement: &str, policy: &str, shares: Option<&str>) -> Option<f64> {
    // "Keeps the average tail latency the same as the no-cap experiment".
    (placement == "balanced" && policy == "stepwise" && shares == Some("even")).then_some(1.0)
}

/// A row of Table III: shares of confident predictions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Stated {
    pub(super) confident: f64,
    /// Recall and precision, user-facing before non-user-facing, or by bucket.
    pub(super) each: Vec<(f64, f64)>,
    pub(super) accuracy: f64,
}

/// Table III, by algorithm. The paper's bucket 1 of criticality is non-user-facing.
pub(super) fn models(asked: PredictedValue) -> Vec<(&'static str, Stated)> {
    let row = |confident, each: &[(f64, f64)], accuracy| Stated { confident, each: each.to_vec(), accuracy };

    match asked {
        PredictedValue::Criticality => vec![
            ("random-forest", row(0.99, &[(0.99, 0.99), (0.69, 0.78)], 0.98)),
            ("gradient-boosting", row(0.99, &[(0.99, 0.99), (0.67, 0.77)], 0.98)),
        ],
        PredictedValue::P95 => vec![
            ("random-forest", row(0.73, &[(0.93, 0.87), (0.61, 0.76), (0.65, 0.81), (0.92, 0.83)], 0.84)),
            ("gradient-boosting", row(0.68, &[(0.95, 0.85), (0.47, 0.77), (0.51, 0.79), (0.94, 0.80)], 0.82)),
        ],
        PredictedValue::P95NextMonth => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_stated_that_the_text_does_not_say() {
        assert_eq!(server_p95(230.0, "full-server"), Some(1.18));
        assert_eq!(models(PredictedValue::P95)[1].1.each[1], (0.47, 0.77));
        assert!(models(PredictedValue::P95NextMonth).is_empty());
        assert_eq!(server_p95(210.0, "stepwise"), None);
        assert_eq!(server_p95(230.0, "manager"), None);
        assert_eq!(server_runtime(230.0, "stepwise"), Some(1.28));
        assert_eq!(server_runtime(230.0, "full-server"), None);
        assert_eq!(chassis_p95("imbalanced", "stepwise", Some("even")), None);
        assert_eq!(chassis_p95("balanced", "stepwise", Some("even")), Some(1.0));
    }
}
