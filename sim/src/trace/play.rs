//! From a trace to a load.

use std::sync::Arc;

use ballast_types::{PowerModel, Watts};
use serde::Serialize;

use super::{Series, Unit};

/// A series as a load, and what was done to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Played {
    /// Shares of the machine, without gaps.
    pub values: Arc<[f32]>,
    /// Gaps that hold the value before them (the first value, at the start).
    pub filled: u64,
    /// Watts that no utilisation of the model draws, clamped.
    pub clamped: u64,
}

impl Series {
    /// As utilisation: percent and shares as they are, watts through `model` at the highest frequency.
    pub fn played(&self, model: &PowerModel) -> Played {
        let (mut filled, mut clamped) = (0, 0);
        let first = self.values.iter().copied().find(|v| !v.is_nan()).unwrap_or(0.0);
        let mut last = first;
        let values = self.values.iter().map(|value| {
            if value.is_nan() {
                filled += 1;
            } else {
                last = *value;
            }

            let share = match self.unit {
                Unit::Percent => f64::from(last) / 100.0,
                Unit::Share => f64::from(last),
                Unit::Watts => {
                    let watts = Watts::from_f64(f64::from(last)).unwrap_or(Watts::MAX);
                    let share = model.utilisation(watts, 1.0);
                    clamped += u64::from(!(0.0..=1.0).contains(&share) && !value.is_nan());

                    share
                }
            };

            share.clamp(0.0, 1.0) as f32
        });

        let values = values.collect();

        Played { values, filled, clamped }
    }
}
