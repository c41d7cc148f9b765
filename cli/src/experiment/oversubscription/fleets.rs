//! The fleets that are planned: made ones, chassis of real VMs, real distribution units.

use ballast_lab::oversubscription::synthesis::{self, Quantiles, Size};
use ballast_lab::oversubscription::weeks::interval;
use ballast_lab::oversubscription::{Case, Judged, histogram, judge};
use ballast_planner::{Approach, Chassis, Histogram, Terms};
use ballast_sim::verify::{Draws, Verdict};
use ballast_types::Watts;
use core::time::Duration;
use serde::Serialize;

use super::replay::Replayed;
use super::{Choice, traces, units};

/// Finer than any meter, so that rounding moves no budget by 0.01 %.
pub(super) const RESOLUTION: Watts = Watts::from_milli(100);
/// How busy fleets are made that are too idle to be planned for.
pub(super) const MEAN_SHARE: f64 = 0.55;

/// Where draws come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Source {
    PaperQuantiles,
    UtilisationTraces,
    DistributionUnits,
}

/// How busy the VMs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Scaling {
    AsTheyAre,
    #[serde(rename = "mean-0.55")]
    Mean,
}

impl Scaling {
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::AsTheyAre => "as they are",
            Self::Mean => "mean draw 0.55",
        }
    }
}

/// What is known of a fleet besides its draws.
#[derive(Clone, Debug, Serialize)]
pub(super) struct About {
    pub(super) source: Source,
    /// Which data; "made" where none was measured.
    pub(super) data: &'static str,
    pub(super) scaling: Scaling,
    /// Whether its draws were made, not measured.
    pub(super) synthetic: bool,
    pub(super) measured: &'static str,
    /// What was made or assumed.
    pub(super) made: &'static str,
    /// How many chassis, or units.
    pub(super) chassis: usize,
    /// Weeks that are planned from.
    pub(super) weeks: usize,
    /// The chassis as the planner is told.
    pub(super) model: Chassis,
    /// The VMs that chassis are made of.
    pub(super) vms: Option<Vms>,
    /// Every VM is busier by this.
    pub(super) factor: f64,
    /// Mean draw of the history, as a share of the provisioned power.
    pub(super) mean_share: f64,
    /// The same of later weeks.
    pub(super) held_out_mean_share: Option<f64>,
}

/// The VMs of a population.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Vms {
    pub(super) taken: usize,
    /// No cores are known, or a fifth or more of a month is missing.
    pub(super) left_out: usize,
    pub(super) user_facing: usize,
}

/// One fleet, planned and verified.
pub(super) struct Fleet {
    pub(super) about: About,
    pub(super) case: Case,
    /// Chassis' draws in later weeks, to be replayed; none where chassis are not made of VMs.
    pub(super) later: Vec<Draws>,
    pub(super) judged: Vec<Judged>,
    /// By approach: the range that 95 % of the resampled weeks' deltas lie in.
    pub(super) intervals: Vec<Option<(f64, f64)>>,
    /// What came of budgets that were replayed.
    pub(super) replayed: Vec<Replayed>,
}

impl Fleet {
    /// Plans and verifies it; `replicates` are its approaches' deltas with other weeks.
    pub(super) fn new(mut about: About, case: Case, later: Vec<Draws>, replicates: &[Vec<f64>]) -> Self {
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
    pub(super) fn replay(&self, approach: &str, buffer_percent: f64) -> Option<&Verdict> {
        let mut all = self.replayed.iter();
        let found = all.find(|r| r.approach == approach && r.buffer_percent == buffer_percent);
        found.map(|replayed| &replayed.verdict)
    }

    /// The row of an approach.
    pub(super) fn row(&self, approach: &str) -> Option<&Judged> {
        self.judged.iter().find(|row| row.approach == approach)
    }
}

/// All fleets, and what is not there.
pub(super) fn all(choice: &Choice) -> anyhow::Result<(Vec<Fleet>, Vec<&'static str>)> {
    let (mut fleets, mut missing) = (vec![paper(choice)?], Vec::new());
    match traces::bitbrains()? {
        Some(traces) => fleets.extend(traces.fleets(choice)?),
        None => missing.push("bitbrains_rnd"),
    }
    match traces::azure(choice)? {
        Some(traces) => fleets.extend(traces.fleets(choice)?),
        None => missing.push("azure2017_util"),
    }
    match units::units(choice)? {
        Some(units) => fleets.push(units),
        None => missing.push("google_power2019"),
    }
    Ok((fleets, missing))
}

pub(super) fn terms(chassis: &Chassis, period_s: u32) -> Terms {
    Terms { period: Duration::from_secs(period_s.into()), ..Terms::paper(chassis) }
}

/// Draws with the paper's quantiles.
fn paper(choice: &Choice) -> anyhow::Result<Fleet> {
    let chassis = Chassis { server: choice.server.model(), ..Chassis::default() };
    let size = Size { chassis: choice.made_chassis, weeks: choice.made_weeks, period_s: 300 };
    let idle_w = f64::from(chassis.servers) * chassis.server.idle_w;
    let provisioned_w = chassis.nameplate().as_f64();
    let draws = synthesis::draws(choice.seed, size, &Quantiles::PAPER, provisioned_w, idle_w);
    let about = About {
        source: Source::PaperQuantiles,
        data: "made",
        scaling: Scaling::AsTheyAre,
        synthetic: true,
        measured: "nothing",
        made: "draws: seeded loads, mapped onto the upper quantiles that the paper's Table IV implies",
        chassis: draws.len(),
        weeks: choice.made_weeks as usize,
        model: chassis,
        vms: None,
        factor: 1.0,
        mean_share: 0.0,
        held_out_mean_share: None,
    };

    let history = histogram(&draws, RESOLUTION)?;
    let terms = terms(&chassis, size.period_s);

    Ok(Fleet::new(about, Case { chassis, terms, history, held_out: None }, vec![], &[]))
}

/// The approaches whose promises are looked at.
pub(super) fn promised() -> impl Iterator<Item = &'static Approach> {
    Approach::ALL.iter().filter(|a| ["no-impact", "minimal-impact"].contains(&a.name))
}
