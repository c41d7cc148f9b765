//! `ballast-lab experiment colocation`: packing under a promise, on a substitute population and on recorded VMs.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use anyhow::{Context as _, bail};
use ballast_lab::colocation::population::{self, Options};
use ballast_lab::colocation::recorded::{self, Set};
use ballast_lab::report::colocation::{Measured, SETS};
use ballast_lab::report::{self, Detail, Report};
use ballast_sim::packing::{Fleet, FleetVm};
use ballast_sim::trace::{Series, Trace};
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::args::{or, seeds};
use super::data::{self, Bitbrains};
use ballast_cli::common::fleet::fleet;
use ballast_cli::common::threads::{all_cores, run_all};

/// A VM with fewer readings than this share is left out of Bitbrains.
const READINGS_MIN: f64 = 0.9;
/// Jobs of Google's set are sampled this often.
const GOOGLE_PERIOD_S: f64 = 300.0;

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// Instances of the substitute population
    #[arg(long, value_name = "N", default_value_t = 12,
        value_parser = clap::value_parser!(u16).range(1..=50))]
    instances: u16,
    /// Tasks of an instance
    #[arg(long, value_name = "N", default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(10..=100_000))]
    tasks: u32,
    /// Samples of a task
    #[arg(long, value_name = "N", default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1000..=100_000))]
    samples: u32,
    /// The first instance's seed; the others follow it
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Which recorded sets, with commas between [default: all under $BALLAST_DATA]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(SETS))]
    sets: Vec<String>,
    /// Threads; they change no result [default: one for every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

impl Default for Choice {
    fn default() -> Self {
        Self { instances: 12, tasks: 1000, samples: 10_000, seed: 1, sets: vec![], threads: None }
    }
}

pub(super) fn report(choice: &Choice, detail: Detail) -> anyhow::Result<Report> {
    let threads = choice.threads.unwrap_or_else(all_cores).get();
    let options = Options {
        tasks: choice.tasks as usize,
        samples: choice.samples as usize,
        seeds: seeds(choice.seed, u64::from(choice.instances))?,
    };
    let instances =
        run_all("colocation, population", &population::jobs(&options), threads, population::Job::run)?;
    let (shape, cases) = population::rows(&instances);

    let (sets, skipped) = sets(choice)?;
    let jobs = recorded::jobs(&sets)?;
    let done = run_all("colocation, recorded", &jobs, threads, recorded::Job::run)?;
    let (abouts, rows) = recorded::rows(&sets, &done);

    let measured =
        Measured { options: &options, shape, cases: &cases, abouts: &abouts, sets: &rows, skipped: &skipped };
    report::colocation::report(&measured, command(choice, detail))
}

fn command(choice: &Choice, detail: Detail) -> String {
    let Choice { instances, tasks, samples, seed, sets, .. } = choice;
    let chosen = if sets.is_empty() { String::new() } else { format!(" --sets {}", sets.join(",")) };
    let document = if detail.document { " --output proof/results" } else { "" };
    format!(
        "ballast-lab experiment colocation --instances {instances} --tasks {tasks} --samples {samples} \
         --seed {seed}{chosen}{document}"
    )
}

/// The chosen sets that are there, and the names of those that are not.
fn sets(choice: &Choice) -> anyhow::Result<(Vec<Set>, Vec<String>)> {
    let usual = SETS.map(str::to_owned);
    let (mut sets, mut skipped) = (Vec::new(), Vec::new());
    for name in or(&choice.sets, &usual) {
        match read(&name).with_context(|| format!("set {name}"))? {
            Some((fleet, capacity)) => sets.push(Set { name, fleet, capacity }),
            None => skipped.push(name),
        }
    }
    Ok((sets, skipped))
}

/// A set's fleet, and what a machine holds; `None` where it is not there.
fn read(name: &str) -> anyhow::Result<Option<(Fleet, f64)>> {
    let [share, cores, average, maximum, google, planetlab] = SETS;
    let alike = |file: &str, capacity: f64| {
        let path = data::folder().join(file);
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some((fleet(&data::trace(&path)?, |_| Some(1.0))?, capacity)))
    };
    match name {
        _ if name == share => Ok(bitbrains(false)?.map(|fleet| (fleet, 2.0))),
        _ if name == cores => Ok(bitbrains(true)?.map(|fleet| (fleet, 32.0))),
        _ if name == average => alike("azure2017_util/microsoft_avg_100.csv.zst", 2.0),
        _ if name == maximum => alike("azure2017_util/microsoft_max_100.csv.zst", 2.0),
        _ if name == google => Ok(google_jobs()?.map(|fleet| (fleet, 10.0))),
        _ if name == planetlab => alike("planetlab/planetlab_20110322.csv.zst", 1.0),
        _ => bail!("none of the sets"),
    }
}

/// The VMs that were there for both months, in the second: by share of a VM, or by cores.
fn bitbrains(by_cores: bool) -> anyhow::Result<Option<Fleet>> {
    let Some(Bitbrains { first, mut second, sizes }) = Bitbrains::read()? else { return Ok(None) };
    let complete = |series: &Series| {
        let readings = series.values.iter().filter(|value| !value.is_nan()).count();
        readings as f64 >= READINGS_MIN * series.values.len() as f64
    };
    let names = |trace: &Trace| {
        let complete = trace.series.iter().filter(|series| complete(series));
        complete.map(|series| series.name.clone()).collect::<BTreeSet<_>>()
    };
    let (first, there) = (names(&first), names(&second));
    second.series.retain(|series| first.contains(&series.name) && there.contains(&series.name));
    let size = |vm: &str| if by_cores { sizes.get(vm).map(|(cores, _)| *cores) } else { Some(1.0) };
    fleet(&second, size).map(Some)
}

fn google_jobs() -> anyhow::Result<Option<Fleet>> {
    let Some(jobs) = data::google_jobs()? else { return Ok(None) };
    let vm = |job: data::GoogleJob| FleetVm {
        used: job.used.iter().map(|used| used[0]).collect(),
        name: job.name,
        cores: 1.0,
    };
    Ok(Some(Fleet::new(jobs.into_iter().map(vm).collect(), 0.0, GOOGLE_PERIOD_S)?))
}
