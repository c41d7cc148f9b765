//! `ballast-lab experiment lifetimes`: policies by lifetimes against best fit, pool by pool.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use ballast_lab::lifetimes::recorded::Recording;
use ballast_lab::lifetimes::{Input, Job, Options, jobs, learn};
use ballast_lab::report::lifetimes::Measured;
use ballast_lab::report::{self, Report};
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::{Setting, data};
use ballast_cli::common::lifetimes;
use ballast_cli::common::threads::run_all;

/// Recorded arrivals, below the folder of all data.
const AZURE: &str = "azure2017_arrivals/azure2017_dev.csv.zst";
const SETS: [&str; 7] = ["syn", "synp", "cold", "noise", "shuffled", "recorded", "drains"];

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// Three pools of 60 hosts for 9 days, at one load
    #[arg(long)]
    quick: bool,
    /// Pools of each population; with --quick 3
    #[arg(long, value_name = "N", default_value = "12", default_value_if("quick", "true", "3"),
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pools: u16,
    /// Days of a synthetic pool; two of them are best fit's; with --quick 9
    #[arg(long, value_name = "N", default_value = "28", default_value_if("quick", "true", "9"),
        value_parser = clap::value_parser!(u16).range(3..=365))]
    days: u16,
    /// The seed of all pools
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// What is run, with commas between; `cold`, `noise`, `shuffled` and `drains` belong to `syn` at 70 %, and
    /// `drains` to what else is run [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = PossibleValuesParser::new(SETS))]
    sets: Vec<String>,
    /// Recorded arrivals (CSV, also .zst, or Parquet) beside those of $BALLAST_DATA:
    /// `vm_id,batch_id,arrival_s,cores,mem_gb,dur_lo_s,dur_hi_s,censored`
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,
    /// Arrivals that the model for every --input learns from [default: those of $BALLAST_DATA; without them each --input
    /// is in-sample]
    #[arg(long, value_name = "FILE", requires = "input")]
    train: Option<PathBuf>,
}

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    let options = choice.options();
    let (inputs, skipped) =
        if options.sets.recorded.is_empty() { Default::default() } else { inputs(choice)? };
    let done = run_all("lifetimes", &jobs(&options, &inputs)?, setting.threads(), Job::run)?;

    let recorded = inputs.iter().flat_map(Input::models);
    let models: Vec<_> = done.iter().flat_map(|done| &done.models).chain(recorded).cloned().collect();
    let drains: Vec<_> = done.iter().flat_map(|done| &done.drains).cloned().collect();
    let runs: Vec<_> = done.into_iter().flat_map(|done| done.runs).collect();
    let measured =
        Measured { options: &options, runs: &runs, models: &models, drains: &drains, skipped: &skipped };
    report::lifetimes::report(&measured, setting.command("lifetimes"))
}

impl Choice {
    fn options(&self) -> Options {
        let usual = if self.quick { Options::quick() } else { Options::default() };
        let mut options =
            Options { pools: self.pools.into(), days: self.days.into(), seed: self.seed, ..usual };
        if !self.sets.is_empty() {
            let has = |name: &str| self.sets.iter().any(|set| set == name);
            let [syn, synp, cold, noise, shuffled, recorded, drains] = SETS;
            let sets = &mut options.sets;
            // What belongs to `syn` at 70 % runs that alone.
            sets.cold &= has(cold);
            sets.noise &= has(noise);
            sets.shuffled &= has(shuffled);
            sets.drains &= has(drains);
            let is_part = sets.cold || sets.noise || sets.shuffled || sets.drains;
            sets.syn.retain(|(load, memory_gb)| has(syn) || is_part && (*load, *memory_gb) == (0.7, 256));
            sets.synp.retain(|_| has(synp));
            sets.recorded.retain(|_| has(recorded));
        }
        options
    }
}

/// Recorded arrivals that are there, with their models, and the names of those that are not.
fn inputs(choice: &Choice) -> anyhow::Result<(Vec<Input>, Vec<String>)> {
    let azure = data::folder().join(AZURE);
    let (mut inputs, mut skipped) = (Vec::new(), Vec::new());
    if azure.exists() {
        inputs.push(input(&azure, "azure-dev", None)?);
    } else {
        skipped.push("azure-dev".to_owned());
    }

    if choice.input.is_empty() {
        return Ok((inputs, skipped));
    }
    let train = choice.train.clone().or_else(|| azure.exists().then_some(azure));
    let model = train.map(|file| {
        let (model, _) = learn("train", 0, "learnt", lifetimes::read(&file)?)
            .with_context(|| format!("--train {}", file.display()))?;
        anyhow::Ok(Arc::new(model))
    });
    let model = model.transpose()?;
    for file in &choice.input {
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let name = name.split('.').next().unwrap_or_default().to_owned();
        inputs.push(input(file, &name, model.clone())?);
    }
    Ok((inputs, skipped))
}

fn input(
    file: &Path,
    name: &str,
    model: Option<Arc<ballast_predict::lifetime::LifetimeModel>>,
) -> anyhow::Result<Input> {
    let read = || {
        let table = lifetimes::read(file)?;
        let recording = Recording::new(name, &table)?;
        anyhow::Ok(Input::new(recording, table, model)?)
    };
    read().with_context(|| format!("{}", file.display()))
}

#[cfg(test)]
mod tests {
    use ballast_lab::options::usual;

    use super::*;

    #[test]
    fn sets_choose_what_is_run() {
        let sets = |names: &[&str]| {
            let sets = names.iter().map(|name| (*name).to_owned()).collect();
            Choice { sets, ..usual::<Choice>() }.options().sets
        };
        let all = sets(&[]);
        assert!(all.syn.len() == 4 && all.cold && all.noise && all.shuffled && all.recorded.len() == 2);
        let noise = sets(&["noise"]);
        assert!(noise.syn == [(0.7, 256)] && noise.noise && !noise.cold && noise.synp.is_empty());
        let recorded = sets(&["recorded", "synp"]);
        assert!(recorded.syn.is_empty() && recorded.synp.len() == 1 && recorded.recorded.len() == 2);
    }

    #[test]
    fn the_command_spells_out_what_shapes_the_report() {
        let words = ["--quick", "--seed", "3", "--pools", "2", "--threads", "7", "--output", "docs"];
        let one = crate::experiment::parse::<Choice>(&words).unwrap();
        assert_eq!(
            one.setting().command("lifetimes"),
            "ballast-lab experiment lifetimes --quick --pools 2 --days 9 --seed 3 --output proof/results"
        );
    }
}
