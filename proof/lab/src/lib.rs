//! The paper's measurements as experiments in virtual time, with the real controllers.
//!
//! [`server`] is its Figures 4 and 5: one server under a fixed cap. [`chassis`] is its Figure 6: twelve
//! servers, a budget, two placements. [`oversubscription`] is its Table IV. [`control_loop`]
//! and [`traces`] measure what the paper does not show.
//!
//! Everything is a list of jobs that do not know of each other, and a fold over what they came to: the
//! caller may run them on as many threads as it likes. The same seed gives the same result.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Sections IV-C and IV-D.

pub mod admission;
pub mod chain;
pub mod chassis;
pub mod colocation;
pub mod control_loop;
pub mod lifetimes;
pub mod limits;
mod load;
mod medians;
pub mod options;
pub mod oversubscription;
pub mod plot;
pub mod report;
pub mod scaling;
pub mod scheduler;
pub mod server;
pub mod traces;
mod trial;
mod watch;

#[cfg(test)]
mod tests;

use core::fmt;

use ballast_cli::common::numbers::positive;
use ballast_types::{PowerModel, Watts};
use clap::Args;
use serde::{Deserialize, Serialize};

/// What a server of 2 × 20 cores draws.
#[derive(Args, Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// What a server draws while idle, in watts
    #[arg(long, value_name = "W", default_value_t = Self::PAPER.idle_w, value_parser = positive)]
    pub idle_w: f64,
    /// What a server draws at full load, in watts
    #[arg(long, value_name = "W", default_value_t = Self::PAPER.full_w, value_parser = positive)]
    pub full_w: f64,
    /// The same at half frequency
    #[arg(long, value_name = "W", default_value_t = Self::PAPER.half_frequency_full_w,
        value_parser = positive)]
    pub half_frequency_full_w: f64,
}

impl Shape {
    pub const PAPER: Self = Self { idle_w: 112.0, full_w: 310.0, half_frequency_full_w: 169.0 };

    /// The model of such a server. Idle at half frequency it draws as much less as the paper's does.
    pub fn model(&self) -> Result<PowerModel, OptionError> {
        let paper = PowerModel::PAPER;
        let model = PowerModel {
            idle_w: self.idle_w,
            full_w: self.full_w,
            half_idle_w: self.idle_w * paper.half_idle_w / paper.idle_w,
            half_full_w: self.half_frequency_full_w,
        };
        let Self { idle_w, full_w, half_frequency_full_w } = self;
        model.check().map(|()| model).map_err(|what| {
            let watts = format_args!("{idle_w}, {full_w}, {half_frequency_full_w}").to_string();
            let allowed = format!("{what}; allowed is idle < half frequency full < full");
            OptionError::new("idle_w, full_w, half_frequency_full_w", watts, allowed)
        })
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{key} = {value}: {allowed}")]
pub struct OptionError {
    pub key: &'static str,
    pub value: String,
    pub allowed: String,
}

impl OptionError {
    pub(crate) fn new(key: &'static str, value: impl fmt::Display, allowed: impl Into<String>) -> Self {
        Self { key, value: value.to_string(), allowed: allowed.into() }
    }
}

/// A number that must lie between two others.
fn within(key: &'static str, value: f64, low: f64, high: f64) -> Result<f64, OptionError> {
    if (low..=high).contains(&value) {
        Ok(value)
    } else {
        Err(OptionError::new(key, value, format!("{low} to {high}{}", unit(key))))
    }
}

/// The unit that the key ends in, as it stands behind a number; nothing for plain numbers.
fn unit(key: &str) -> &'static str {
    match key.rsplit('_').next() {
        Some("w") => " W",
        Some("s") => " s",
        Some("ms") => " ms",
        Some("minutes") => " minutes",
        _ => "",
    }
}

/// Watts that a server of this shape can be asked to keep.
fn watts(key: &'static str, value: f64, low: f64, high: f64) -> Result<Watts, OptionError> {
    let value = within(key, value, low, high)?;
    Watts::from_f64(value).ok_or_else(|| OptionError::new(key, value, "watts"))
}

/// Who keeps the draw down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contender {
    None,
    /// Hardware, every core alike: the paper's baseline.
    FullServer,
    /// The agents in steps, under a cap each.
    Stepwise,
    /// The chassis manager with its agents, as they ship; a single server is a chassis of one.
    Manager,
    /// Two thresholds and a cut of the batch VMs' CPU time, as Thunderbolt does it.
    Thunderbolt,
    /// The highest p-states that fit at every instant, knowing the load: the physical limit.
    Oracle,
}

impl Contender {
    pub const ALL: [Self; 6] =
        [Self::None, Self::FullServer, Self::Stepwise, Self::Manager, Self::Thunderbolt, Self::Oracle];

    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::FullServer => "full-server",
            Self::Stepwise => "stepwise",
            Self::Manager => "manager",
            Self::Thunderbolt => "thunderbolt",
            Self::Oracle => "oracle",
        }
    }
}

/// How the user-facing VMs' requests come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    #[default]
    Steady,
    /// With one day's swing, compressed into the run.
    Diurnal,
    /// In seeded bursts of a few seconds.
    Bursty,
}

impl Arrivals {
    pub const ALL: [Self; 3] = [Self::Steady, Self::Diurnal, Self::Bursty];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Diurnal => "diurnal",
            Self::Bursty => "bursty",
        }
    }
}

/// One figure over the seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of no values: NaN.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut all: Vec<f64> = values.into_iter().collect();
        let median = ballast_types::median(&mut all);
        let at = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        Self { median, min: at(all.first()), max: at(all.last()) }
    }
}
