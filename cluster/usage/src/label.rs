//! Labels from CPU use alone: is a VM user-facing?
//!
//! A workload that people use repeats every 24 hours. The paper (Kumbhare et al., III-B) extracts the typical
//! day and asks whether it fits the series better than typical 8 hours do. Everything here looks at a
//! [`Week`](crate::week::Week) and is conservative: what cannot be told is user-facing.

mod detrend;
mod features;
mod mask;
mod median;
mod pattern;
mod spectrum;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use detrend::{FirstDay, Series};
pub use features::features;
pub use pattern::{Compare, Pattern, PatternOptions, THRESHOLD};
pub use spectrum::{autocorrelation_score, fourier_score};

/// What a labeller says about one VM.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Label {
    /// Deviation from the typical day over that from the typical 8 hours; near 0 for user-facing VMs. None
    /// where there is no week to look at.
    pub compare8: Option<f64>,
    /// The same with the typical 12 hours.
    pub compare12: Option<f64>,
    /// Whether to treat the VM as user-facing.
    pub user_facing: bool,
    pub reason: Reason,
}

impl Label {
    /// User-facing, for want of a week to look at.
    pub fn unknown(reason: Reason) -> Self {
        Self { compare8: None, compare12: None, user_facing: true, reason }
    }
}

/// Why a label is what it is. The text form is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It repeats every 24 hours: user-facing.
    Daily,
    /// It does not: not user-facing.
    NotDaily,
    /// It does, but 12 hours explain it as well (`guard12`): not user-facing.
    HalfDaily,
    Flat,
    /// Fewer than five working days: user-facing.
    TooShort,
    /// Too much of it is missing: user-facing.
    TooManyGaps,
}

impl Reason {
    pub const ALL: [Self; 6] =
        [Self::Daily, Self::NotDaily, Self::HalfDaily, Self::Flat, Self::TooShort, Self::TooManyGaps];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Daily => "daily",
            Self::NotDaily => "not-daily",
            Self::HalfDaily => "half-daily",
            Self::Flat => "flat",
            Self::TooShort => "too-short",
            Self::TooManyGaps => "too-many-gaps",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
