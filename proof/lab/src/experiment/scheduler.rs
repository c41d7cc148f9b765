//! `ballast-lab experiment scheduler`: what the power rule does to placements, and these to power (Figure 7).

use anyhow::bail;
use ballast_lab::report::scheduler::More;
use ballast_lab::report::{self, Detail, Report};
use ballast_lab::scheduler::{self, Options};
use ballast_placement::Ties;
use ballast_sim::cluster::Arm;
use clap::Args;

use super::args::{Runs, list, named, or};
use ballast_cli::common::numbers::{share, within};
use ballast_cli::common::threads;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Which predictors are compared, with commas between [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = named(Arm::ALL, Arm::name))]
    arms: Vec<Arm>,
    /// Weights of the chassis score against the server score [default: 0,0.2,0.4,0.6,0.8,1]
    #[arg(long, value_name = "F,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = share)]
    alphas: Vec<f64>,
    /// The packing rule's weight [default: as the daemon's]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    packing_weight: Option<u32>,
    /// The power rule's weight [default: as the daemon's]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    power_weight: Option<u32>,
    /// Who wins where the rules tie: id, or hash and a seed [default: hash:0]
    #[arg(long, value_name = "id|hash[:SEED]")]
    ties: Option<Ties>,
    /// The share of cores that is asked for on average [default: 0.65]
    #[arg(long, value_name = "F", allow_negative_numbers = true, value_parser = load)]
    load: Option<f64>,
    /// How long [default: 30]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(1..=366))]
    days: Option<u16>,
    /// Chassis in the cluster, of 12 servers with 40 cores each [default: 60]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    chassis: Option<u32>,
}

fn load(text: &str) -> Result<f64, String> {
    within(text, 0.01, 2.0)
}

pub(super) fn report(choice: &Choice, runs: &Runs, detail: Detail) -> anyhow::Result<Report> {
    if let Some(minutes) = runs.minutes {
        bail!("--minutes {minutes}: this experiment is measured in --days");
    }
    let usual = Options::default();
    let options = Options {
        shape: runs.shape()?,
        chassis: choice.chassis.unwrap_or(usual.chassis),
        load: choice.load.unwrap_or(usual.load),
        days: choice.days.unwrap_or(usual.days),
        arms: or(&choice.arms, &usual.arms),
        alphas: or(&choice.alphas, &usual.alphas),
        packing_weight: choice.packing_weight.unwrap_or(usual.packing_weight),
        power_weight: choice.power_weight.unwrap_or(usual.power_weight),
        ties: choice.ties.unwrap_or(usual.ties),
        seeds: runs.seeds(usual.seeds.len())?,
        ..usual
    };

    let budget_w = scheduler::calibrate(&options)?;
    let measure = |cases: &[scheduler::Case]| {
        let jobs = scheduler::jobs(&options, cases, budget_w)?;
        let done = threads::run_all("scheduler", &jobs, runs.threads(), scheduler::Job::run)?;
        Ok::<_, anyhow::Error>(scheduler::rows(&options, cases, &done))
    };

    let rows = measure(&options.figure7()?)?;
    let more = match detail.document {
        true => {
            let with_rows = |cases: Vec<scheduler::Case>| measure(&cases).map(|rows| (cases, rows));
            let knowledge = with_rows(options.knowledge())?;
            let weights = with_rows(options.weights())?;
            let baseline = with_rows(options.baseline())?;
            Some(More { baseline, knowledge, weights, fuller: with_rows(options.fuller())? })
        }
        false => None,
    };
    let command = command(&options, runs, detail);

    report::scheduler::report(&options, budget_w, &rows, more.as_ref(), command, detail.figures)
}

fn command(options: &Options, runs: &Runs, detail: Detail) -> String {
    let mut command = format!(
        "ballast-lab experiment scheduler --seed {} --seeds {} --arms {} --alphas {} --packing-weight {} \
         --power-weight {} --ties {} --load {} --days {} --chassis {}",
        runs.seed,
        options.seeds.len(),
        list(&options.arms, |arm| arm.name().to_owned()),
        list(&options.alphas, f64::to_string),
        options.packing_weight,
        options.power_weight,
        options.ties,
        options.load,
        options.days,
        options.chassis,
    );

    command.push_str(&runs.watts());
    if detail.document {
        command.push_str(" --output proof/results");
    }
    command
}
