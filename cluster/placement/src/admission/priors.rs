//! The file of priors: what `ballast fit` has learnt of deployments, and what `ballast admit tune` has found for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::demand::Threshold;
use super::fit::History;
use super::{Belief, BeliefError, Gamma, Observed};

/// Which moments of the demand decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The cores that are active.
    Zeroth,
    /// The cores that are expected.
    First,
    /// The cores that are expected, and their variance.
    Second,
}

/// What is known of deployments before anything is seen of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Priors {
    kappa: f64,
    delta: f64,
    /// How many deployments came in an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals_per_h: Option<f64>,
    mu: Gamma,
    lambda: Gamma,
    sigma: Gamma,
    /// The thresholds; absent before they were tuned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuned: Option<Tuned>,
    /// By a tenant or template, what its deployments did.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, PseudoObservations>,
}

/// What deployments of one label did, as so many observations ([`Belief::observing`]).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PseudoObservations {
    /// How many observations they are worth.
    pub n: f64,
    /// The time that `n` cores run, added up, in hours.
    pub lives_h: f64,
    /// The cores of `n` scale-outs beyond one each.
    pub further_cores: f64,
    /// The scale-outs in `n` units of normalised time.
    pub scale_outs: f64,
}

/// The highest thresholds that keep an SLA in simulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    /// The mean share of scale-outs that fail.
    pub sla: f64,
    /// Of the simulated cluster, in cores.
    pub capacity_cores: f64,
    /// Whether deployments that are marginal may come where the condition does not hold.
    pub marginal: bool,
    /// The cores that may be active, as a share of the capacity.
    pub zeroth: f64,
    /// The cores that may be expected, as a share of the capacity.
    pub first_moment: f64,
    /// The chance that the capacity does not suffice, by Cantelli's inequality.
    pub second_moment: f64,
}

/// What is wrong with a file of priors.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PriorsError {
    /// What is believed of a deployment of a label, or of any.
    #[error("{label}{error}")]
    Belief {
        /// `labels.NAME: `, or empty.
        label: String,
        /// The first parameter that is out of its range.
        error: BeliefError,
    },
    /// Another number.
    #[error("{key} = {value}: {allowed}")]
    Number {
        /// As in the file.
        key: String,
        /// As it was given.
        value: f64,
        /// A range, in words.
        allowed: String,
    },
}

impl Priors {
    /// Of all deployments alike.
    pub fn new(law: Belief) -> Self {
        let Belief { kappa, delta, mu, lambda, sigma } = law;
        let (arrivals_per_h, tuned, labels) = (None, None, BTreeMap::new());
        Self { kappa, delta, arrivals_per_h, mu, lambda, sigma, tuned, labels }
    }

    /// What is believed of a deployment of which nothing is known.
    pub const fn law(&self) -> Belief {
        let Self { kappa, delta, mu, lambda, sigma, .. } = *self;
        Belief { kappa, delta, mu, lambda, sigma }
    }

    /// What is believed of a deployment of this label; one that is not in the file is one of all.
    pub fn of(&self, label: Option<&str>) -> Belief {
        let law = self.law();
        label.and_then(|label| self.labels.get(label)).map_or(law, |it| it.after(&law))
    }

    /// Whether every number is one that a belief can have.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check(&self) -> Result<(), PriorsError> {
        let belief = |label: String| move |error| PriorsError::Belief { label, error };
        self.law().check().map_err(belief(String::new()))?;
        self.arrivals_per_h.iter().try_for_each(|it| within("arrivals_per_h", *it, 1e-9, 1e9))?;
        for (name, it) in &self.labels {
            let PseudoObservations { n, lives_h, further_cores, scale_outs } = *it;
            let numbers = [
                ("n", n),
                ("lives_h", lives_h),
                ("further_cores", further_cores),
                ("scale_outs", scale_outs),
            ];
            for (key, value) in numbers {
                within(&format!("labels.{name:?}.{key}"), value, 0.0, 1e12)?;
            }
            it.after(&self.law()).check().map_err(belief(format!("labels.{name:?}: ")))?;
        }
        let Some(tuned) = &self.tuned else { return Ok(()) };
        within("tuned.sla", tuned.sla, 1e-9, 1.0)?;
        within("tuned.capacity_cores", tuned.capacity_cores, 1e-3, 1e12)?;
        within("tuned.zeroth", tuned.zeroth, 0.0, 1.01)?;
        within("tuned.first_moment", tuned.first_moment, 0.0, 100.0)?;
        within("tuned.second_moment", tuned.second_moment, 1e-9, 1.0)
    }

    /// What must hold of a cluster of so many cores; `None` before the thresholds were tuned.
    pub fn threshold(&self, order: Order, capacity: f64) -> Option<Threshold> {
        let tuned = self.tuned?;
        Some(match order {
            Order::Zeroth => Threshold::Zeroth { cores: tuned.zeroth * capacity },
            Order::First => Threshold::First { cores: tuned.first_moment * capacity },
            Order::Second => Threshold::Second { capacity, risk: tuned.second_moment },
        })
    }
}

impl PseudoObservations {
    /// What these deployments of one label did, worth one observation each but at most so many: within a label deployments
    /// differ. Where little was seen, the law of all stands in.
    pub fn new(law: &Belief, histories: &[History], most: f64) -> Self {
        let mut sum = Observed::default();
        let (mut ending_h, mut paces) = (0.0, 0.0);
        for history in histories {
            let it = history.observed();
            sum.core_ends += it.core_ends;
            sum.requests += it.requests;
            sum.scale_outs += it.scale_outs;
            sum.further_cores += it.further_cores;
            ending_h += it.core_hours + law.delta * it.age_h;
            paces += law.posterior(&it).pace() * it.age_h;
        }

        let n = most.min(histories.len() as f64);
        let mean = |law: Gamma, count: f64, of: f64| Gamma::new(law.shape + count, law.rate + of).mean();
        Self {
            n,
            lives_h: n / mean(law.mu, sum.core_ends, ending_h),
            further_cores: n * mean(law.sigma, sum.further_cores, sum.requests),
            scale_outs: n * mean(law.lambda, sum.scale_outs, paces),
        }
    }

    fn after(&self, law: &Belief) -> Belief {
        law.observing(self.n, self.lives_h, self.further_cores, self.scale_outs)
    }
}

fn within(key: &str, value: f64, low: f64, high: f64) -> Result<(), PriorsError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(PriorsError::Number { key: key.to_owned(), value, allowed: format!("{low:?} to {high:?}") })
}
