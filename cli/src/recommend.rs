//! `ballast recommend`: what limits jobs should have, and what these would have come to.

mod plot;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use ballast_agent::records;
use ballast_sim::packing::{Fleet, FleetVm};
use ballast_types::usage::BIN_S;
use ballast_types::{UsageRecord, VmId};
use ballast_usage::limits::family::{Family, Resource, Settings};
use ballast_usage::limits::jobs::{AUTO, JobOutcome, JobSet, settings};
use ballast_usage::limits::record::memory_share;
use ballast_usage::limits::replay::Score;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::common::columns::ColumnArgs;
use crate::common::fleet::fleet_of;
use crate::common::job_set::job_set;
use crate::common::numbers::share;
use crate::common::table::named;
use crate::common::terminal::{self, tell};
use crate::common::text_table::TextTable;
use crate::common::threads::{self, all_cores};

/// Records of more days are of a clock that was wrong: an agent keeps 366.
const DAYS_MAX: u64 = 400;
/// So many jobs are shown to people.
const SHOWN: usize = 20;

#[derive(Args, Debug)]
pub(crate) struct RecommendArgs {
    /// CPU use of the jobs (CSV, also .zst, or Parquet; wide or long), a reading every five minutes or more often
    #[arg(long, value_name = "FILE", required_unless_present = "records")]
    telemetry: Option<PathBuf>,
    /// An agent's folder of usage records instead; cores are those of the newest record of each VM
    #[arg(long, value_name = "DIR", conflicts_with_all = ["telemetry", "cores"])]
    records: Option<PathBuf>,
    /// Recommend memory in the place of CPU, of a server with so many MiB: no limit is more
    #[arg(long, value_name = "MIB", conflicts_with_all = ["telemetry", "cores"],
        value_parser = clap::value_parser!(u32).range(1..))]
    memory_mib: Option<u32>,
    /// Which recommenders may be chosen
    #[arg(long, value_enum, default_value_t = FamilyArg::Auto)]
    family: FamilyArg,
    /// The share of five-minute windows that may be above the limit
    #[arg(long, value_name = "SHARE", default_value_t = 0.001, value_parser = share)]
    overruns: f64,
    /// How many cores each job could use at most: a table with the columns vm and cores [default: limits are shares]
    #[arg(long, value_name = "FILE")]
    cores: Option<PathBuf>,
    /// Threads; they change no result [default: one for every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Print one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
    /// Draw what the jobs use, and their limits, into this file
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    columns: ColumnArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FamilyArg {
    /// Whatever of these has served best of late, but manual
    Auto,
    /// Percentiles of the load, the older the less (Autopilot's moving window)
    Window,
    /// The peak of the last days
    Peak,
    /// Many simple limits, of which each job follows the best
    Experts,
    /// The same with about two changes a day
    Quiet,
    /// Kubernetes' Vertical Pod Autoscaler
    Vpa,
    /// The peak that was seen at first, times a factor, for ever
    Manual,
}

impl FamilyArg {
    const fn families(self) -> &'static [Family] {
        match self {
            Self::Auto => &AUTO,
            Self::Window => &[Family::Window],
            Self::Peak => &[Family::Peak],
            Self::Experts => &[Family::Experts],
            Self::Quiet => &[Family::Quiet],
            Self::Vpa => &[Family::Vpa],
            Self::Manual => &[Family::Manual],
        }
    }
}

/// What limits came to over the judged days.
#[derive(Clone, Copy, Debug, Serialize)]
struct Measures {
    slack: f64,
    footprint: f64,
    /// The share of windows above the limit.
    overruns: f64,
    changes_per_job_day: f64,
}

impl Measures {
    fn of(score: &Score) -> Self {
        Self {
            slack: score.slack(),
            footprint: score.footprint(),
            overruns: score.overruns(),
            changes_per_job_day: score.changes_per_job_day(),
        }
    }
}

#[derive(Debug, Serialize)]
struct JobAnswer<'a> {
    job: &'a str,
    /// For the next window, of the most that the job could use.
    limit_ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_cores: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_mib: Option<f64>,
    /// Over the judged days.
    mean_limit_ratio: f64,
    #[serde(flatten)]
    measures: Measures,
}

#[derive(Debug, Serialize)]
struct Answer<'a> {
    source: String,
    resource: &'static str,
    family: &'static str,
    /// What serves best for the next day.
    settings: String,
    overruns_allowed: f64,
    judged_days: usize,
    #[serde(flatten)]
    measures: Measures,
    /// The share of job-days without a change of the limit, and with four overruns or more.
    unchanged_days_ratio: f64,
    severe_days_ratio: f64,
    /// What the jobs' mean limits leave of all that they could use. Each could use all of the memory: of that nothing is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_cores: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    saved_ratio: Option<f64>,
    gaps: u64,
    jobs: Vec<JobAnswer<'a>>,
}

pub(crate) fn run(args: &RecommendArgs) -> anyhow::Result<ExitCode> {
    let source = args.source();
    let (fleet, gaps) = args.fleet()?;
    let resource = args.resource();
    let set = job_set(resource, &fleet).with_context(|| source.display().to_string())?;

    let settings = settings(args.family.families(), resource);
    let threads = args.threads.unwrap_or_else(all_cores).get();
    let scores = threads::run("recommend", &settings, threads, |settings| set.scores(*settings));
    let (next, outcomes) = set.outcomes(&settings, &scores, args.overruns);
    let answer = args.answer(&set, next, &outcomes, gaps);
    if let Some(file) = &args.plot {
        plot::draw(file, &answer).with_context(|| format!("--plot {}", file.display()))?;
    }

    terminal::answer(args.json, &answer, || text(&answer))?;
    if answer.gaps > 0 {
        tell(&format!("{} readings are missing: their windows count for nothing", answer.gaps));
    }
    Ok(ExitCode::SUCCESS)
}

impl RecommendArgs {
    const fn resource(&self) -> Resource {
        if self.memory_mib.is_some() { Resource::Memory } else { Resource::Cpu }
    }

    fn source(&self) -> &Path {
        self.records.as_deref().or(self.telemetry.as_deref()).unwrap_or(Path::new(""))
    }

    /// The jobs, and how many readings are missing.
    fn fleet(&self) -> anyhow::Result<(Fleet, u64)> {
        let source = self.source();
        if self.records.is_some() {
            return match self.memory_mib {
                Some(mib) => of_records(source, |_| mib as f32, memory_mib),
                None => of_records(source, f32::from, used_cores),
            };
        }
        let trace = self.columns.read(source)?;
        Ok((named(source, fleet_of(&trace, self.cores.as_deref()))?, trace.report.gaps))
    }

    fn answer<'a>(
        &self,
        set: &JobSet,
        next: Settings,
        outcomes: &'a [JobOutcome<'_>],
        gaps: u64,
    ) -> Answer<'a> {
        let mut sum = Score::default();
        outcomes.iter().for_each(|outcome| sum.merge(&outcome.score));
        let is_memory = self.resource() == Resource::Memory;
        let in_cores = !is_memory && (self.cores.is_some() || self.records.is_some());
        let cores = |most: f64| in_cores.then_some(most);
        let jobs = outcomes.iter().map(|JobOutcome { job, score, limit }| JobAnswer {
            job: &job.name,
            limit_ratio: *limit,
            limit_cores: cores(limit * job.most),
            limit_mib: is_memory.then(|| (limit * job.most).ceil()),
            mean_limit_ratio: score.mean_limit(),
            measures: Measures::of(score),
        });
        let most: f64 = outcomes.iter().map(|outcome| outcome.job.most).sum();
        let limits = outcomes.iter().map(|outcome| outcome.score.mean_limit() * outcome.job.most);
        let saved = most - limits.sum::<f64>();
        Answer {
            source: self.source().display().to_string(),
            resource: if is_memory { "memory" } else { "cpu" },
            family: next.family().name(),
            settings: next.to_string(),
            overruns_allowed: self.overruns,
            judged_days: set.days().judged().len(),
            measures: Measures::of(&sum),
            unchanged_days_ratio: sum.unchanged_days(),
            severe_days_ratio: sum.severe_days(),
            saved_cores: cores(saved),
            saved_ratio: (!is_memory).then(|| saved / most),
            gaps,
            jobs: jobs.collect(),
        }
    }
}

/// The VMs that an agent has recorded, each a job under its name whatever instance of it ran, and how many windows of theirs are
/// not known. `most` says by its cores what a VM could use, and `used` what a record says that it used, in the same unit; `None` is
/// a gap.
fn of_records(
    folder: &Path,
    most: impl Fn(u16) -> f32,
    used: impl Fn(&UsageRecord) -> Option<f64>,
) -> anyhow::Result<(Fleet, u64)> {
    if !folder.is_dir() {
        bail!("--records {}: not a folder; an agent's is usage in its state_dir", folder.display());
    }
    let mut uses: BTreeMap<VmId, (u16, BTreeMap<u32, f64>)> = BTreeMap::new();
    records::read(folder, 0..=u32::MAX, |record| {
        let (cores, of_vm) = uses.entry(record.vm.clone()).or_default();
        *cores = record.cores;
        of_vm.extend(used(&record).map(|used| (record.bin.0, used)));
    })
    .context("usage records")?;

    uses.retain(|_, (cores, of_vm)| *cores > 0 && !of_vm.is_empty());
    let bins = || uses.values().flat_map(|(_, of_vm)| of_vm.keys().copied());
    let (Some(first), Some(last)) = (bins().min(), bins().max()) else {
        bail!("{}: no record tells what a VM used", folder.display());
    };
    let days = u64::from(last - first) * BIN_S / 86_400;
    if days > DAYS_MAX {
        bail!(
            "{}: the records span {days} days, more than {DAYS_MAX}: move those of a wrong clock away",
            folder.display()
        );
    }
    let mut gaps = 0;
    let vms = uses.iter().map(|(vm, (cores, of_vm))| {
        let most = most(*cores);
        let used =
            (first..=last).map(|bin| of_vm.get(&bin).map_or(f32::NAN, |used| (*used as f32).min(most)));
        gaps += u64::from(last - first + 1) - of_vm.len() as u64;
        FleetVm { name: vm.to_string(), cores: most, used: used.collect() }
    });
    let fleet = Fleet::new(vms.collect(), first as f64 * BIN_S as f64, BIN_S as f64)?;
    Ok((fleet, gaps))
}

/// A window of which less than half was measured is a gap. In cores: the VM may have had another size.
fn used_cores(record: &UsageRecord) -> Option<f64> {
    Some(record.steady_mean()? * f64::from(record.cores))
}

fn memory_mib(record: &UsageRecord) -> Option<f64> {
    Some(f64::from(memory_share(record, 1 << 20)?))
}

/// For people: what is best, what it came to, and the jobs that leave the most.
fn text(answer: &Answer<'_>) -> String {
    let percent = |ratio: f64| format!("{:.1}", 100.0 * ratio);
    let mut jobs: Vec<&JobAnswer<'_>> = answer.jobs.iter().collect();
    jobs.sort_by(|a, b| a.mean_limit_ratio.total_cmp(&b.mean_limit_ratio));
    let limit = |job: &&JobAnswer<'_>| match (job.limit_cores, job.limit_mib) {
        (Some(cores), _) => format!("{cores:.3} cores"),
        (_, Some(mib)) => format!("{mib} MiB"),
        _ => format!("{} %", percent(job.limit_ratio)),
    };
    let table = TextTable::of(
        1,
        jobs.into_iter().take(SHOWN),
        &[
            ("job", &|job| job.job.to_owned()),
            ("limit", &limit),
            ("slack %", &|job| percent(job.measures.slack)),
            ("overruns %", &|job| format!("{:.2}", 100.0 * job.measures.overruns)),
            ("changes a day", &|job| format!("{:.1}", job.measures.changes_per_job_day)),
        ],
    );
    let Answer { measures, judged_days, jobs, overruns_allowed, .. } = answer;
    let saved = match (answer.saved_cores, answer.saved_ratio) {
        (Some(cores), Some(ratio)) => format!("{cores:.1} cores ({} %)", percent(ratio)),
        (_, Some(ratio)) => format!("{} %", percent(ratio)),
        _ => String::new(),
    };
    let saved = match &*saved {
        "" => String::new(),
        saved => format!(", limits left {saved} of what the jobs could use free for others"),
    };
    let kept = if measures.overruns <= *overruns_allowed { "kept" } else { "MISSED" };
    format!(
        "{} ({}) serves these {} jobs best now.\n\nChosen anew like this before each of \
         {judged_days} days that were held out{saved}: {:.3} % of the windows were \
         above their limit, {:.3} % allowed: {kept}. \
         Slack {} %, footprint {:.2}, {:.1} changes per job and day.\n\n{}\n\nThe {} jobs with \
         the lowest limits of {}; --json has all.",
        answer.family,
        answer.settings,
        jobs.len(),
        100.0 * measures.overruns,
        100.0 * overruns_allowed,
        percent(measures.slack),
        measures.footprint,
        measures.changes_per_job_day,
        table.text(),
        SHOWN.min(jobs.len()),
        jobs.len(),
    )
}
