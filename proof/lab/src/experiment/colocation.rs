//! `ballast-lab experiment colocation`: packing under a promise, on a substitute population and on recorded VMs.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use ballast_lab::colocation::population::{self, Options};
use ballast_lab::colocation::recorded::{self, Set};
use ballast_lab::report::colocation::{Measured, SETS};
use ballast_lab::report::{self, Report};
use ballast_sim::packing::{Fleet, FleetVm};
use ballast_sim::trace::{Series, Trace};
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::Setting;
use super::data::{self, Bitbrains};
use ballast_cli::common::fleet::fleet;
use ballast_cli::common::threads::run_all;

/// A VM with fewer readings than this share is left out of Bitbrains.
const READINGS_MIN: f64 = 0.9;
/// Jobs of Google's set are sampled this often.
const GOOGLE_PERIOD_S: f64 = 300.0;

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    #[command(flatten)]
    population: Options,
    /// Which recorded sets, with commas between [default: all under $BALLAST_DATA]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(SETS))]
    sets: Vec<String>,
}

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    let options = &choice.population;
    let jobs = population::jobs(options);
    let instances = run_all("colocation, population", &jobs, setting.threads(), population::Job::run)?;
    let (shape, cases) = population::rows(&instances);

    let (sets, skipped) = sets(choice)?;
    let jobs = recorded::jobs(&sets)?;
    let done = run_all("colocation, recorded", &jobs, setting.threads(), recorded::Job::run)?;
    let (abouts, rows) = recorded::rows(&sets, &done);

    let measured =
        Measured { options, shape, cases: &cases, abouts: &abouts, sets: &rows, skipped: &skipped };
    report::colocation::report(&measured, setting.command("colocation"))
}

/// The chosen sets that are there, and the names of those that are not.
fn sets(choice: &Choice) -> anyhow::Result<(Vec<Set>, Vec<String>)> {
    let (mut sets, mut skipped) = (Vec::new(), Vec::new());
    for name in data::chosen(&choice.sets, &SETS) {
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
