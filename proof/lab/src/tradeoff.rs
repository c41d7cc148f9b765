//! Watts against safety: how much batch run time a policy loses for how little time above the cap, as its
//! margin moves, for short requests and for long ones, whose load flickers more.

use ballast_cli::common::numbers::{positive, within};
use clap::Args;
use serde::Serialize;

use super::medians::Medians;
use super::{Contender, OptionError, server, variant};

/// The margins to compare.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
pub struct Margins {
    /// Margins of stepwise, as shares of the cap
    #[arg(long, value_name = "F,…", value_delimiter = ',',
        default_value = "0,0.005,0.01,0.02,0.03,0.04,0.06,0.08",
        value_parser = |text: &str| within(text, 0.0, 0.5))]
    pub margins_share: Vec<f64>,
    /// Shares of time that predictive may be above the cap: its margin follows from them
    #[arg(long, value_name = "F,…", value_delimiter = ',', default_value = "0.003,0.01,0.03,0.1,0.2,0.3",
        value_parser = |text: &str| within(text, 0.0, 0.5))]
    pub above_shares: Vec<f64>,
    /// Further mean service times of one request, in milliseconds, under --service-cap-w
    #[arg(long, value_name = "MS,…", value_delimiter = ',', default_value = "1,5,20",
        value_parser = |text: &str| within(text, 0.05, 1000.0))]
    pub services_ms: Vec<f64>,
    /// The cap of these, in watts
    #[arg(long, value_name = "W", default_value_t = 230.0, value_parser = positive)]
    pub service_cap_w: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    /// The runs; its contenders and margins are not looked at.
    pub server: server::Options,
    #[serde(flatten)]
    pub margins: Margins,
}

/// What a policy is under: a cap, and requests of some length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Case {
    pub cap_w: f64,
    /// Mean service time of one request, in milliseconds.
    pub service_ms: f64,
}

impl Options {
    /// Every case, in the order of the rows.
    pub fn cases(&self) -> Vec<Case> {
        let service_ms = self.server.service_ms;
        let caps = self.server.caps_w.iter().map(|&cap_w| Case { cap_w, service_ms });
        let further = self.margins.services_ms.iter().filter(|further| **further != service_ms);
        let further = further.map(|&service_ms| Case { cap_w: self.margins.service_cap_w, service_ms });
        caps.chain(further).collect()
    }
}

/// One margin of one policy under one cap; medians over the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TradeoffResult {
    #[serde(flatten)]
    pub case: Case,
    pub policy: &'static str,
    /// The margin: of `stepwise` as a share of the cap, of `predictive` as the share of time that it may be
    /// above the cap.
    pub margin: f64,
    #[serde(flatten)]
    pub(crate) figures: Medians,
}

impl TradeoffResult {
    /// The share of the time above the cap, by means over 100 ms, and the excess.
    pub(crate) fn point(&self) -> (f64, f64) {
        (self.figures.over_fraction.median, self.figures.excess)
    }
}

/// A policy with a margin.
type Setting = (Contender, f64);

/// What a run is under; without a setting the others are judged against it.
type Variant = (Case, Option<Setting>);
/// One run to be made.
pub type Job = variant::Job<Variant>;
/// What one run came to.
pub type Run = variant::Run<Variant>;

fn settings(options: &Options) -> impl Iterator<Item = Setting> + '_ {
    let stepwise = options.margins.margins_share.iter().map(|m| (Contender::Stepwise, *m));
    let predictive = options.margins.above_shares.iter().map(|m| (Contender::Predictive, *m));
    stepwise.chain(predictive)
}

/// All runs that [`rows`] needs.
pub fn jobs(options: &Options) -> Result<Vec<Job>, OptionError> {
    let of = |case: Case, setting: Option<Setting>| {
        let mut server = options.server.clone();
        (server.caps_w, server.service_ms) = (vec![case.cap_w], case.service_ms);
        match setting {
            Some((Contender::Stepwise, margin)) => server.margin_share = Some(margin),
            Some((_, share)) => server.above_share = share,
            None => (),
        }

        server.contenders = setting.iter().map(|(contender, _)| *contender).collect();
        let mut jobs = server::jobs(&server)?;
        jobs.retain(|job| match setting {
            Some((contender, _)) => job.contender() == contender,
            None => true,
        });

        Ok(jobs.into_iter().map(|job| Job { variant: (case, setting), job }).collect::<Vec<_>>())
    };

    let mut jobs = Vec::new();
    for case in options.cases() {
        jobs.extend(of(case, None)?);
        for setting in settings(options) {
            jobs.extend(of(case, Some(setting))?);
        }
    }

    Ok(jobs)
}

/// What the runs came to: by case, then by policy, then by margin, as in the options.
pub fn rows(options: &Options, runs: &[Run]) -> Vec<TradeoffResult> {
    let mut rows = Vec::new();
    for case in options.cases() {
        for setting in settings(options) {
            let mine = |(of, own): Variant| of == case && own.is_none_or(|own| own == setting);
            let (cap_w, seeds) = (case.cap_w, &options.server.seeds);
            let asked = server::Requested { n: 0, cap_w, contender: setting.0, seeds };
            let figures = server::row(asked, &variant::of(runs, mine)).figures;
            rows.push(TradeoffResult { case, policy: setting.0.name(), margin: setting.1, figures });
        }
    }

    rows
}

/// Less time above the cap than this is not comparable: a run of ten minutes has six such means of 100 ms,
/// and which margin has one more of them is chance.
pub const COMPARABLE_FRACTION: f64 = 0.001;

/// The excess that a policy can have in one case while above the cap for no more than `over_cap_fraction` of
/// the time.
///
/// Read off the lower envelope of its curve in `rows`: margins that lose more run time than another one
/// that is above the cap no longer are left out, and straight lines join the rest. `None` outside of the
/// curve and below [`COMPARABLE_FRACTION`].
pub fn excess_at(
    rows: &[TradeoffResult],
    case: Case,
    policy: Contender,
    over_cap_fraction: f64,
) -> Option<f64> {
    let mine = rows.iter().filter(|row| row.case == case && row.policy == policy.name());
    let mut curve: Vec<_> = mine.map(TradeoffResult::point).collect();
    curve.retain(|(above, excess)| above.is_finite() && excess.is_finite());
    curve.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let x = over_cap_fraction;
    let longest = curve.last()?.0;

    if !(COMPARABLE_FRACTION..=longest).contains(&x) {
        return None;
    }
    let mut least = f64::INFINITY;

    // What is left falls strictly, and no two have the same time above the cap.
    curve.retain(|(_, y)| {
        *y < least && {
            least = *y;
            true
        }
    });

    let (before, after) = curve.split_at(curve.partition_point(|(at, _)| *at <= x));
    let (x0, y0) = *before.last()?;

    // Behind the envelope's end more time above the cap gains nothing.
    let Some((x1, y1)) = after.first() else { return Some(y0) };

    Some(y0 + (x - x0) / (x1 - x0) * (y1 - y0))
}
