//! What is planned: chassis of real VMs, and real distribution units.

use ballast_planner::{Approach, Chassis, Histogram};
use ballast_sim::verify::{Draws, Verdict};
use serde::Serialize;

use crate::oversubscription::weeks::interval;
use crate::oversubscription::{Case, Judged, judge};

/// Where draws come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Chassis of VMs whose CPU use was measured.
    UtilisationTraces,
    /// Measured power of real distribution units.
    DistributionUnits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    AsTheyAre,
    #[serde(rename = "mean-0.55")]
    Mean,
}

impl Scaling {
    /// As in the JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AsTheyAre => "as-they-are",
            Self::Mean => "mean-0.55",
        }
    }

    pub const fn words(self) -> &'static str {
        match self {
            Self::AsTheyAre => "as they are",
            Self::Mean => "mean draw 0.55",
        }
    }
}

/// What is known of a fleet besides its draws.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    pub source: Source,
    pub data: &'static str,
    pub scaling: Scaling,
    /// Whether its draws were made, not measured.
    pub synthetic: bool,
    pub measured: &'static str,
    /// What was made or assumed.
    pub made: &'static str,
    pub chassis: usize,
    pub weeks: usize,
    /// The chassis as the planner is told.
    pub model: Chassis,
    pub vms: Option<TakenVms>,
    /// Every VM is busier by this.
    pub factor: f64,
    /// Mean draw of the history, as a share of the provisioned power.
    pub mean_share: f64,
    /// The same of later weeks.
    pub held_out_mean_share: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct TakenVms {
    pub taken: usize,
    /// No cores are known, or a fifth or more of a month is missing.
    pub left_out: usize,
    pub user_facing: usize,
}

pub struct Fleet {
    pub about: About,
    pub case: Case,
    /// Chassis' draws in later weeks, to be replayed; none where chassis are not made of VMs.
    pub later: Vec<Draws>,
    pub judged: Vec<Judged>,
    /// By approach: the range that 95 % of the resampled weeks' deltas lie in.
    pub intervals: Vec<Option<(f64, f64)>>,
    /// What came of budgets that were replayed.
    pub replayed: Vec<Replayed>,
}

impl Fleet {
    pub(crate) fn name(&self) -> String {
        match self.about.source {
            Source::UtilisationTraces => {
                format!("{}, {}", self.about.data, self.about.scaling.words())
            }
            Source::DistributionUnits => "distribution units".to_owned(),
        }
    }

    /// Plans and verifies it; `replicates` are its approaches' deltas with other weeks.
    pub fn new(mut about: About, case: Case, later: Vec<Draws>, replicates: &[Vec<f64>]) -> Self {
        let judged = judge(&case);
        let of = |n: usize| replicates.iter().filter_map(move |deltas| deltas.get(n).copied());
        let ranges = (0..judged.len()).map(|n| interval(&of(n).collect::<Vec<_>>()));
        let intervals = ranges.collect();
        let provisioned_w = case.terms.provisioned.as_f64();
        let share = |draws: &Histogram| draws.mean().map(|mean| mean.as_f64() / provisioned_w);
        about.mean_share = share(&case.history).unwrap_or(0.0);
        about.held_out_mean_share = case.held_out.as_ref().and_then(share);
        Self { about, case, later, judged, intervals, replayed: vec![] }
    }

    /// What the replay of this budget came to.
    pub fn replay(&self, approach: &str, buffer_percent: f64) -> Option<&Verdict> {
        let mut all = self.replayed.iter();
        let found = all.find(|r| r.approach == approach && r.buffer_percent == buffer_percent);
        found.map(|replayed| &replayed.verdict)
    }

    pub fn row(&self, approach: &str) -> Option<&Judged> {
        self.judged.iter().find(|row| row.approach == approach)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Replayed {
    #[serde(skip)]
    pub approach: &'static str,
    /// The buffer, in percent of the lowest budget.
    pub buffer_percent: f64,
    /// Promises beside what was measured.
    #[serde(flatten)]
    pub verdict: Verdict,
}

pub fn promised() -> impl Iterator<Item = &'static Approach> {
    Approach::ALL.iter().filter(|a| ["no-impact", "minimal-impact"].contains(&a.name))
}
