//! `ballast-lab experiment chain`: from VMs' use to a budget that holds, with an oracle for every stage.

use std::num::NonZeroUsize;

use ballast_lab::chain::{Job, Options, rows};
use ballast_lab::report::{self, Detail, Report};
use clap::Args;

use super::args::seeds;
use ballast_cli::common::numbers::within;
use ballast_cli::common::threads::{self, all_cores};

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// How many VMs arrive in all [default: 15000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(5_000..=1_000_000))]
    vms: Option<u32>,
    /// Days of history before the first VM is placed [default: 28]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(14..=366))]
    learn_days: Option<u32>,
    /// Days after these until draws are planned from [default: 28]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=366))]
    settle_days: Option<u32>,
    /// Days whose draws are planned from [default: 21]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=366))]
    plan_days: Option<u32>,
    /// Days after these that the budget is held against [default: 7]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=366))]
    held_out_days: Option<u32>,
    /// Days from one training to the next [default: 14]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=366))]
    retrain_days: Option<u32>,
    /// The share of cores that is allocated on average [default: 0.65]
    #[arg(long, value_name = "F", value_parser = load)]
    load: Option<f64>,
    /// The first fleet's seed; the others follow it [default: 1]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// How many fleets [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: Option<u16>,
    /// Fleets at a time; they change no result [default: one for every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

fn load(text: &str) -> Result<f64, String> {
    within(text, 0.1, 0.9)
}

pub(super) fn report(choice: &Choice, detail: Detail) -> anyhow::Result<Report> {
    let usual = Options::default();
    let count = choice.seeds.map_or(usual.seeds.len() as u64, u64::from);
    let options = Options {
        vms: choice.vms.unwrap_or(usual.vms),
        learn_days: choice.learn_days.unwrap_or(usual.learn_days),
        settle_days: choice.settle_days.unwrap_or(usual.settle_days),
        plan_days: choice.plan_days.unwrap_or(usual.plan_days),
        held_out_days: choice.held_out_days.unwrap_or(usual.held_out_days),
        retrain_days: choice.retrain_days.unwrap_or(usual.retrain_days),
        load: choice.load.unwrap_or(usual.load),
        seeds: seeds(choice.seed.unwrap_or(1), count)?,
    };
    options.check()?;

    let jobs: Vec<Job> = options.seeds.iter().map(|seed| Job { seed: *seed }).collect();
    let threads = choice.threads.unwrap_or_else(all_cores).get();
    let done = threads::run_all("chain", &jobs, threads, |job| job.run(&options))?;

    report::chain::report(&options, &rows(&done), command(&options, detail))
}

fn command(options: &Options, detail: Detail) -> String {
    let Options { vms, learn_days, settle_days, plan_days, held_out_days, retrain_days, load, seeds } =
        options;
    let document = if detail.document { " --output proof/results" } else { "" };
    format!(
        "ballast-lab experiment chain --vms {vms} --learn-days {learn_days} --settle-days {settle_days} \
         --plan-days {plan_days} --held-out-days {held_out_days} --retrain-days {retrain_days} --load \
         {load} --seed {} --seeds {}{document}",
        seeds.first().copied().unwrap_or_default(),
        seeds.len(),
    )
}
