//! `ballast-lab experiment tradeoff`: lost run time against time above the cap, as margins move.

use ballast_lab::report::{self, Detail, Report};
use ballast_lab::tradeoff::{self, Options};
use ballast_lab::{Arrivals, server};
use clap::Args;

use super::args::{self, Runs, list, or};
use ballast_cli::common::numbers::{positive, share, within};
use ballast_cli::common::threads::run_all;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Caps on the server's draw, in watts, with commas between [default: 250,240,230,220]
    #[arg(long, value_name = "W,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = positive)]
    caps_w: Vec<f64>,
    /// Margins of stepwise, as shares of the cap [default: 0,0.005,0.01,0.02,0.03,0.04,0.06,0.08]
    #[arg(long, value_name = "F,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = margin_share)]
    margins_share: Vec<f64>,
    /// Shares of time that predictive may be above the cap [default: 0.003,0.01,0.03,0.1,0.2,0.3]
    #[arg(long, value_name = "F,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = margin_share)]
    above_shares: Vec<f64>,
    /// Further mean service times of one request, in milliseconds, under --service-cap-w [default: 1,5,20]
    #[arg(long, value_name = "MS,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = service)]
    services_ms: Vec<f64>,
    /// The cap of these, in watts [default: 230]
    #[arg(long, value_name = "W", allow_negative_numbers = true, value_parser = positive)]
    service_cap_w: Option<f64>,
    /// How user-facing requests come [default: bursty]
    #[arg(long, value_name = "NAME", value_parser = args::arrivals())]
    arrivals: Option<Arrivals>,
    /// Share of the batch work that scales with the clock [default: 0.6]
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = share)]
    batch_share: Option<f64>,
}

fn margin_share(text: &str) -> Result<f64, String> {
    within(text, 0.0, 0.5)
}

fn service(text: &str) -> Result<f64, String> {
    within(text, 0.05, 1000.0)
}

pub(super) fn report(choice: &Choice, runs: &Runs, detail: Detail) -> anyhow::Result<Report> {
    let usual = Options::default();
    let options = Options {
        server: server::Options {
            shape: runs.shape()?,
            arrivals: choice.arrivals.unwrap_or(usual.server.arrivals),
            batch_share: choice.batch_share.unwrap_or(usual.server.batch_share),
            caps_w: or(&choice.caps_w, &usual.server.caps_w),
            seeds: runs.seeds(usual.server.seeds.len())?,
            minutes: runs.minutes.unwrap_or(usual.server.minutes),
            ..usual.server
        },
        margins_share: or(&choice.margins_share, &usual.margins_share),
        above_shares: or(&choice.above_shares, &usual.above_shares),
        services_ms: or(&choice.services_ms, &usual.services_ms),
        service_cap_w: choice.service_cap_w.unwrap_or(usual.service_cap_w),
    };

    let jobs = tradeoff::jobs(&options)?;
    let done = run_all("tradeoff", &jobs, runs.threads(), tradeoff::Job::run)?;
    let rows = tradeoff::rows(&options, &done);
    let command = command(&options, runs, detail);

    report::tradeoff::report(&options, &rows, command, detail.figures)
}

fn command(options: &Options, runs: &Runs, detail: Detail) -> String {
    let server = &options.server;
    runs.command(
        "tradeoff",
        &server.seeds,
        server.minutes,
        detail,
        &[
            ("caps-w", list(&server.caps_w, f64::to_string)),
            ("margins-share", list(&options.margins_share, f64::to_string)),
            ("above-shares", list(&options.above_shares, f64::to_string)),
            ("services-ms", list(&options.services_ms, f64::to_string)),
            ("service-cap-w", options.service_cap_w.to_string()),
            ("arrivals", server.arrivals.name().to_owned()),
            ("batch-share", server.batch_share.to_string()),
        ],
    )
}
