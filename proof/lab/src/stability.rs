//! Whether a policy circles around the cap with meters that are late, seldom or noisy.

use core::time::Duration;

use ballast_cli::common::numbers;
use clap::Args;
use serde::Serialize;

use super::medians::Medians;
use super::{Arrivals, Contender, OptionError, server, variant, within};
use ballast_sim::plant::SensorSpec;

/// The server's meters.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
pub struct Meters {
    /// Lags of the server's meter, in seconds
    #[arg(long, value_name = "S,…", value_delimiter = ',', default_value = "0,0.2,0.5,1",
        value_parser = |text: &str| numbers::within(text, 0.0, 10.0))]
    pub lags_s: Vec<f64>,
    /// Times between two of its readings, in seconds
    #[arg(long, value_name = "S,…", value_delimiter = ',', default_value = "0.1,0.2,0.5,1,2",
        value_parser = |text: &str| numbers::within(text, 0.01, 10.0))]
    pub refreshes_s: Vec<f64>,
    /// Standard deviations of its error, as shares of the value
    #[arg(long, value_name = "F,…", value_delimiter = ',', default_value = "0,0.005,0.01,0.02",
        value_parser = |text: &str| numbers::within(text, 0.0, 0.2))]
    pub noises: Vec<f64>,
}

/// What to measure, on a steady load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    /// The runs; of its caps the first is taken, and its sensor and arrivals are not looked at.
    pub server: server::Options,
    #[serde(flatten)]
    pub meters: Meters,
}

/// One policy behind one meter; medians over the seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StabilityResult {
    pub policy: &'static str,
    pub lag_s: f64,
    /// Between two of its readings, in seconds.
    pub refresh_s: f64,
    /// Standard deviation of its error, as a share of the value.
    pub noise: f64,
    #[serde(flatten)]
    pub(crate) figures: Medians,
}

/// Lag and refresh in seconds, noise as a share.
type Meter = (f64, f64, f64);

/// `None` for what the others are judged against.
type Variant = Option<Meter>;
/// One run to be made.
pub type Job = variant::Job<Variant>;
/// What one run came to.
pub type Run = variant::Run<Variant>;

fn meters(Options { meters: Meters { lags_s, refreshes_s, noises }, .. }: &Options) -> Vec<Meter> {
    let mut all = Vec::new();
    for lag in lags_s {
        for refresh in refreshes_s {
            all.extend(noises.iter().map(|noise| (*lag, *refresh, *noise)));
        }
    }
    all
}

fn sensor((lag, refresh, noise): Meter) -> Result<SensorSpec, OptionError> {
    Ok(SensorSpec {
        lag: Duration::from_secs_f64(within("lags_s", lag, 0.0, 60.0)?),
        refresh: Duration::from_secs_f64(within("refreshes_s", refresh, 0.01, 60.0)?),
        noise_ppm: libm::round(1e6 * within("noises", noise, 0.0, 0.2)?) as u32,
        ..SensorSpec::default()
    })
}

/// All runs that [`rows`] needs.
pub fn jobs(options: &Options) -> Result<Vec<Job>, OptionError> {
    let caps_w: Vec<_> = options.server.caps_w.iter().copied().take(1).collect();
    let arrivals = Arrivals::Steady;
    let server = server::Options { caps_w, arrivals, ..options.server.clone() };
    // Neither nobody nor the oracle looks at a meter.
    let judges = server::Options { contenders: Vec::new(), ..server.clone() };
    let judge = |job| Job { variant: None, job };
    let mut jobs: Vec<_> = server::jobs(&judges)?.into_iter().map(judge).collect();
    for meter in meters(options) {
        let server = server::Options { sensor: sensor(meter)?, ..server.clone() };
        let mine = server::jobs(&server)?.into_iter();
        let mine = mine.filter(|job| !matches!(job.contender(), Contender::None | Contender::Oracle));
        jobs.extend(mine.map(|job| Job { variant: Some(meter), job }));
    }
    Ok(jobs)
}

/// What the runs came to: by policy, lag, refresh and noise, as in the options.
pub fn rows(options: &Options, runs: &[Run]) -> Vec<StabilityResult> {
    let Some(cap_w) = options.server.caps_w.first().copied() else { return Vec::new() };
    let mut rows = Vec::new();
    for contender in options.server.contenders.iter().copied() {
        for meter in meters(options) {
            let runs = variant::of(runs, |own| own.is_none_or(|own| own == meter));
            let seeds = &options.server.seeds;
            let asked = server::Requested { n: 0, cap_w, contender, seeds };
            let figures = server::row(asked, &runs).figures;
            let (lag_s, refresh_s, noise) = meter;
            rows.push(StabilityResult { policy: contender.name(), lag_s, refresh_s, noise, figures });
        }
    }

    rows
}
