//! The estimator that the last steps speak for.

use serde::Serialize;

use super::Outcome;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AutoOptions {
    /// The overflow to keep, as a share of machine-instants.
    pub target: f64,
    /// So many held-out steps are looked back at.
    pub window: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Auto {
    /// For each step that had a window behind it: which estimator was taken, and its outcome there.
    pub taken: Vec<(usize, Outcome)>,
    pub first: usize,
    /// Which estimator the last steps speak for now.
    pub next: usize,
}

/// Chooses anew before each step: of the estimators whose overflow over the last `window` steps, taken together, was at most
/// the target, the one with the fewest machines (then the one with the least overflow, then the first); where none kept it,
/// the one with the least overflow. Nothing of the step itself is known.
///
/// `outcomes[step][estimator]`. `None` where there are fewer steps than the window.
pub fn auto(outcomes: &[Vec<Outcome>], options: AutoOptions) -> Option<Auto> {
    let first = options.window.max(1);
    if outcomes.len() < first || outcomes[0].is_empty() {
        return None;
    }
    let choose = |step: usize| best(&outcomes[step - first..step], options.target);
    let taken = (first..outcomes.len()).map(|step| {
        let chosen = choose(step);
        (chosen, outcomes[step][chosen])
    });
    Some(Auto { taken: taken.collect(), first, next: choose(outcomes.len()) })
}

fn best(window: &[Vec<Outcome>], target: f64) -> usize {
    let judged = |estimator: usize| {
        let own = || window.iter().map(|step| &step[estimator]);
        let realised = Outcome::realised(own());
        if realised <= target { (0, Outcome::mean_machines(own()), realised) } else { (1, realised, 0.0) }
    };
    let judged: Vec<_> = (0..window[0].len()).map(judged).collect();
    let order = |a: &usize, b: &usize| {
        let (a, b) = (judged[*a], judged[*b]);
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.total_cmp(&b.2))
    };
    (0..judged.len()).min_by(order).unwrap_or_default()
}
