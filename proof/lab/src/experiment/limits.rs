//! `ballast-lab experiment limits`: limits of jobs by every family, on recorded use.

use anyhow::{Context as _, bail};
use ballast_lab::limits::{self, Tried};
use ballast_lab::report::limits::{SETS, SetAbout};
use ballast_lab::report::{self, Report};
use ballast_lab::scaling::{self, ScalerSettings, Service};
use ballast_sim::trace::{Series, Trace};
use ballast_usage::limits::DAY;
use ballast_usage::limits::family::{Family, Resource};
use ballast_usage::limits::jobs::{JobSet, LimitedJob, settings};
use ballast_usage::limits::replay::Days;
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::Setting;
use super::data;
use ballast_cli::common::fleet::fleet;
use ballast_cli::common::threads::run;

/// A VM with fewer readings than this share is left out of Bitbrains.
const READINGS_MIN: f64 = 0.9;
/// And one that uses less than this in the mean, in percent: readings have steps of 0.1 %.
const MEAN_MIN: f64 = 1.0;
/// Synthetic services, and for how long.
const SERVICES: u64 = 40;
const SERVICE_DAYS: usize = 28;
const SEED: u64 = 1;
/// A recorded VM counts as a service of so many tasks at its peak.
const RECORDED_TASKS: f32 = 100.0;

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// Which sets, with commas between [default: all, where recorded ones are under $BALLAST_DATA]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = PossibleValuesParser::new(SETS))]
    sets: Vec<String>,
}

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    let threads = setting.threads();
    let (mut abouts, mut rows, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for name in data::chosen(&choice.sets, &SETS) {
        let Some(set) = read(&name).with_context(|| format!("set {name}"))? else {
            skipped.push(name);
            continue;
        };
        let what = format!("limits, {name}");
        let (jobs, days, tried) = match set {
            Set::Jobs(set) => {
                let settings = settings(&Family::ALL, set.resource());
                let tried = run(&what, &settings, threads, |it| Tried::new(&set, *it));
                (set.jobs().len(), set.days().clone(), tried)
            }
            Set::Services(services, days) => {
                let settings = ScalerSettings::all();
                let tried = run(&what, &settings, threads, |it| scaling::tried(&services, &days, *it));
                (services.len(), days, tried)
            }
        };
        rows.extend(limits::rows(&name, &days, &tried));
        abouts.push(SetAbout { set: name, jobs, judged_days: days.judged().len() });
    }
    Ok(report::limits::report(&abouts, &rows, &skipped, setting.command("limits")))
}

enum Set {
    Jobs(JobSet),
    Services(Vec<Service>, Days),
}

/// A set; `None` where it is not there.
fn read(name: &str) -> anyhow::Result<Option<Set>> {
    let [bitbrains, average, maximum, google_cpu, google_memory, services, azure_services] = SETS;
    let average_file = "azure2017_util/microsoft_avg_100.csv.zst";
    let alike = |file: &str, keep: fn(&Series) -> bool| {
        let path = data::folder().join(file);
        if !path.exists() {
            return Ok(None);
        }
        let mut trace: Trace = data::trace(&path)?;
        trace.series.retain(keep);
        let set = ballast_cli::common::job_set::job_set(Resource::Cpu, &fleet(&trace, |_| Some(1.0))?);
        set.map(Some).with_context(|| path.display().to_string())
    };
    let jobs = match name {
        _ if name == bitbrains => alike("bitbrains_rnd/cpu_pct_2013-8.csv.zst", is_busy),
        _ if name == average || name == azure_services => alike(average_file, |_| true),
        _ if name == maximum => alike("azure2017_util/microsoft_max_100.csv.zst", |_| true),
        _ if name == google_cpu => google(Resource::Cpu, |[cpu, _]| *cpu),
        _ if name == google_memory => google(Resource::Memory, |[_, memory]| *memory),
        _ if name == services => return Ok(Some(synthetic())),
        _ => bail!("none of the sets"),
    };
    Ok(jobs?.map(|jobs| match name {
        _ if name == azure_services => {
            Set::Services(Service::recorded(&jobs, RECORDED_TASKS), jobs.days().clone())
        }
        _ => Set::Jobs(jobs),
    }))
}

fn synthetic() -> Set {
    let services = (0..SERVICES).map(|number| Service::synthetic(SEED, number, SERVICE_DAYS));
    let days = Days::of(SERVICE_DAYS * DAY).expect("four weeks are days");
    Set::Services(services.collect(), days)
}

fn is_busy(series: &Series) -> bool {
    let readings: Vec<f64> =
        series.values.iter().filter(|it| !it.is_nan()).map(|it| f64::from(*it)).collect();
    readings.len() as f64 >= READINGS_MIN * series.values.len() as f64
        && readings.iter().sum::<f64>() >= MEAN_MIN * readings.len() as f64
}

fn google(resource: Resource, of: fn(&[f32; 2]) -> f32) -> anyhow::Result<Option<JobSet>> {
    let Some(jobs) = data::google_jobs()? else { return Ok(None) };
    let jobs = jobs.into_iter().map(|job| LimitedJob {
        name: job.name,
        most: 1.0,
        used: job.used.iter().map(of).collect(),
    });
    Ok(Some(JobSet::new(resource, jobs.collect(), 0)?))
}
