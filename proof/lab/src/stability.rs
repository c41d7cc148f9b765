//! Whether a policy circles around the cap with meters that are late, seldom or noisy.

use core::time::Duration;

use serde::Serialize;

use super::{Arrivals, Contender, OptionError, server, variant, within};
use ballast_sim::plant::SensorSpec;

/// What to measure, on a steady load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Options {
    /// The runs; of its caps the first is taken, and its sensor and arrivals are not looked at.
    pub server: server::Options,
    /// Lags of the server's meter, in seconds.
    pub lags_s: Vec<f64>,
    /// Times between two of its readings, in seconds.
    pub refreshes_s: Vec<f64>,
    /// Standard deviations of its error, as shares of the value.
    pub noises: Vec<f64>,
}

impl Default for Options {
    fn default() -> Self {
        let contenders = vec![Contender::Stepwise, Contender::Predictive];
        let server = server::Options {
            caps_w: vec![230.0],
            seeds: vec![1],
            minutes: 5.0,
            contenders,
            ..server::Options::default()
        };
        Self {
            server,
            lags_s: vec![0.0, 0.2, 0.5, 1.0],
            refreshes_s: vec![0.1, 0.2, 0.5, 1.0, 2.0],
            noises: vec![0.0, 0.005, 0.01, 0.02],
        }
    }
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
    /// P-state changes of a batch core in a minute, as a mean over them.
    pub pstate_changes_per_core_min: f64,
    /// The share of the time above the cap, by means over 100 ms.
    pub over_cap_fraction: f64,
    /// The longest stretch above the cap, in seconds.
    pub over_cap_s_max: f64,
    /// Run time of the batch VM against the one without a cap.
    pub batch_runtime_norm: f64,
    pub seeds: usize,
}

/// Lag and refresh in seconds, noise as a share.
type Meter = (f64, f64, f64);

/// `None` for what the others are judged against.
type Variant = Option<Meter>;
/// One run to be made.
pub type Job = variant::Job<Variant>;
/// What one run came to.
pub type Run = variant::Run<Variant>;

fn meters(options: &Options) -> Vec<Meter> {
    let mut all = Vec::new();
    for lag in &options.lags_s {
        for refresh in &options.refreshes_s {
            all.extend(options.noises.iter().map(|noise| (*lag, *refresh, *noise)));
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
            let row = server::row(server::Requested { n: 0, cap_w, contender, seeds }, &runs).figures;
            let (lag_s, refresh_s, noise) = meter;
            rows.push(StabilityResult {
                policy: contender.name(),
                lag_s,
                refresh_s,
                noise,
                pstate_changes_per_core_min: row.pstate_changes_per_core_min,
                over_cap_fraction: row.over_fraction.median,
                over_cap_s_max: row.over_s_max.median,
                batch_runtime_norm: row.batch_runtime_norm.median,
                seeds: row.seeds,
            });
        }
    }

    rows
}
