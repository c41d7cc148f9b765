//! `ballast-lab experiment stability`: p-state changes with meters that are late, seldom or noisy.

use ballast_lab::report::{self, Detail, Report};
use ballast_lab::stability::{self, Options};
use ballast_lab::{Contender, server};
use clap::Args;

use super::args::{self, Runs, list, or};
use ballast_cli::common::numbers::{positive, share, within};
use ballast_cli::common::threads::run_all;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// The cap on the server's draw, in watts [default: 230]
    #[arg(long, value_name = "W", allow_negative_numbers = true, value_parser = positive)]
    cap_w: Option<f64>,
    /// Which policies are compared, with commas between [default: stepwise,predictive]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = args::policy())]
    policies: Vec<Contender>,
    /// Lags of the server's meter, in seconds [default: 0,0.2,0.5,1]
    #[arg(long, value_name = "S,…", value_delimiter = ',', allow_negative_numbers = true, value_parser = lag)]
    lags_s: Vec<f64>,
    /// Times between two of its readings, in seconds [default: 0.1,0.2,0.5,1,2]
    #[arg(long, value_name = "S,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = refresh)]
    refreshes_s: Vec<f64>,
    /// Standard deviations of its error, as shares of the value [default: 0,0.005,0.01,0.02]
    #[arg(long, value_name = "F,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = noise)]
    noises: Vec<f64>,
    /// Share of the batch work that scales with the clock [default: 0.6]
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = share)]
    batch_share: Option<f64>,
}

fn lag(text: &str) -> Result<f64, String> {
    within(text, 0.0, 10.0)
}

fn refresh(text: &str) -> Result<f64, String> {
    within(text, 0.01, 10.0)
}

fn noise(text: &str) -> Result<f64, String> {
    within(text, 0.0, 0.2)
}

pub(super) fn report(choice: &Choice, runs: &Runs, detail: Detail) -> anyhow::Result<Report> {
    let usual = Options::default();
    let options = Options {
        server: server::Options {
            shape: runs.shape()?,
            batch_share: choice.batch_share.unwrap_or(usual.server.batch_share),
            caps_w: choice.cap_w.map_or(usual.server.caps_w, |cap_w| vec![cap_w]),
            contenders: or(&choice.policies, &usual.server.contenders),
            seeds: runs.seeds(usual.server.seeds.len())?,
            minutes: runs.minutes.unwrap_or(usual.server.minutes),
            ..usual.server
        },
        lags_s: or(&choice.lags_s, &usual.lags_s),
        refreshes_s: or(&choice.refreshes_s, &usual.refreshes_s),
        noises: or(&choice.noises, &usual.noises),
    };

    let jobs = stability::jobs(&options)?;
    let done = run_all("stability", &jobs, runs.threads(), stability::Job::run)?;
    let rows = stability::rows(&options, &done);
    let command = command(&options, runs, detail);

    report::stability::report(&options, &rows, command, detail.figures)
}

fn command(options: &Options, runs: &Runs, detail: Detail) -> String {
    let server = &options.server;
    runs.command(
        "stability",
        &server.seeds,
        server.minutes,
        detail,
        &[
            ("cap-w", list(&server.caps_w, f64::to_string)),
            ("policies", list(&server.contenders, |c| c.name().to_owned())),
            ("lags-s", list(&options.lags_s, f64::to_string)),
            ("refreshes-s", list(&options.refreshes_s, f64::to_string)),
            ("noises", list(&options.noises, f64::to_string)),
            ("batch-share", server.batch_share.to_string()),
        ],
    )
}
