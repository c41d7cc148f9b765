//! `ballast-lab experiment chassis`: twelve servers under one budget, the paper's Figure 6.

use ballast_lab::chassis::{self, Options, Placement, Shares};
use ballast_lab::report::{self, Detail, Report};
use ballast_lab::{Arrivals, Contender};
use clap::Args;

use super::args::{self, Runs, list, or};
use ballast_cli::common::numbers::{positive, share};
use ballast_cli::common::threads::run_all;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Where VMs are, with commas between [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = args::named(Placement::ALL, Placement::name))]
    placements: Vec<Placement>,
    /// Which policies are compared, with commas between [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = args::policy())]
    policies: Vec<Contender>,
    /// How the chassis manager splits the budget, with commas between [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = args::named(Shares::ALL, Shares::name))]
    shares: Vec<Shares>,
    /// The chassis's budget at the supplies' input, in watts [default: 2450]
    #[arg(long, value_name = "W", allow_negative_numbers = true, value_parser = positive)]
    budget_w: Option<f64>,
    /// How user-facing requests come [default: steady]
    #[arg(long, value_name = "NAME", value_parser = args::arrivals())]
    arrivals: Option<Arrivals>,
    /// Share of the batch work that scales with the clock [default: 0.6]
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = share)]
    batch_share: Option<f64>,
}

pub(super) fn report(choice: &Choice, runs: &Runs, detail: Detail) -> anyhow::Result<Report> {
    let usual = Options::default();
    let options = Options {
        shape: runs.shape()?,
        arrivals: choice.arrivals.unwrap_or(usual.arrivals),
        batch_share: choice.batch_share.unwrap_or(usual.batch_share),
        placements: or(&choice.placements, &usual.placements),
        contenders: or(&choice.policies, &usual.contenders),
        shares: or(&choice.shares, &usual.shares),
        budget_w: choice.budget_w.unwrap_or(usual.budget_w),
        minutes: runs.minutes.unwrap_or(usual.minutes),
        seeds: runs.seeds(usual.seeds.len())?,
    };

    let jobs = chassis::jobs(&options)?;
    let done = run_all("chassis", &jobs, runs.threads(), chassis::Job::run)?;
    let rows = chassis::rows(&options, &done);

    let command = command(&options, runs, detail);

    report::chassis::report(&options, &rows, command, detail.figures)
}

fn command(options: &Options, runs: &Runs, detail: Detail) -> String {
    runs.command(
        "chassis",
        &options.seeds,
        options.minutes,
        detail,
        &[
            ("placements", list(&options.placements, |p| p.name().to_owned())),
            ("policies", list(&options.contenders, |c| c.name().to_owned())),
            ("shares", list(&options.shares, |s| s.name().to_owned())),
            ("budget-w", options.budget_w.to_string()),
            ("arrivals", options.arrivals.name().to_owned()),
            ("batch-share", options.batch_share.to_string()),
        ],
    )
}
