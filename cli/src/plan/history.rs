//! Load from labelled VMs of the past: what `ballast train` reads, or as much of it as there is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ballast_planner::{Chassis, Estimate, MIN_VMS, Mean, Owner, Past, PastVm};
use ballast_sim::trace::{TableReader, TraceError};
use ballast_types::VmClass;
use clap::Args;
use indicatif::ProgressBar;

use crate::common::numbers::{share, within};
use crate::common::table;

/// How much of a chassis is allocated, and how busy that is.
#[derive(Args, Debug)]
pub(super) struct LoadArgs {
    /// Labelled VMs of the past (CSV, also .zst, or .parquet), as ballast train reads them: cores, arrival_s,
    /// end_s, class, p95_cpu, and subscription, generation and owner (internal, premium, non-premium) where
    /// they are there. --beta, --util-uf and --util-nuf are estimated from them, with --physical-cores
    /// --alloc too, with owner --internal-share and --premium-share
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Physical cores that the VMs of --history were on, of one hardware generation or of all
    #[arg(long, value_name = "[GENERATION=]N", num_args = 1.., requires = "history")]
    physical_cores: Vec<String>,
    /// Allocated cores, as a share of the physical ones [default: 0.51]; above 1 VMs share the cores of two pools by
    /// class
    #[arg(long, value_name = "SHARE", value_parser = allocation)]
    alloc: Option<f64>,
    /// User-facing cores, as a share of the allocated ones [default: 0.4]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    beta: Option<f64>,
    /// P95 utilisation of user-facing VMs [default: 0.65]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    util_uf: Option<f64>,
    /// P95 utilisation of the others [default: 0.44]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    util_nuf: Option<f64>,
    /// How much of the others' load is the provider's own: what the policies that end in -internal cap first
    /// [default: 0.61]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    internal_share: Option<f64>,
    /// How much of it is third parties' that pay for a premium: those that end in -non-premium spare it
    /// [default: 0.06]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    premium_share: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Loads {
    told: [Option<f64>; 6],
    /// By generation; one without a name where the file names none.
    estimates: Option<BTreeMap<String, Estimate>>,
}

impl LoadArgs {
    /// Reads the history, if there is one.
    pub(super) fn loads(&self) -> anyhow::Result<Loads> {
        let shares = [self.internal_share, self.premium_share];
        let told = [self.alloc, self.beta, self.util_uf, self.util_nuf, shares[0], shares[1]];
        let Some(file) = &self.history else { return Ok(Loads { told, estimates: None }) };
        let cores = physical(&self.physical_cores)?;
        let history = read(file).with_context(|| format!("--history {}", file.display()))?;
        let estimates = history.past.iter().map(|(generation, past)| {
            let cores = cores.get(generation).or_else(|| cores.get("").filter(|_| history.past.len() == 1));
            let estimate = past.estimate(cores.map(|cores| f64::from(*cores) * history.span_s));
            if let Some(alloc) = estimate.alloc.filter(|alloc| *alloc > Chassis::ALLOC_MAX) {
                bail!(
                    "generation {generation:?}: --physical-cores {}: the VMs had {alloc:.2} times as many, \
                     and 16 is the most",
                    cores.copied().unwrap_or_default()
                );
            }
            Ok((generation.clone(), estimate))
        });
        Ok(Loads { told, estimates: Some(estimates.collect::<anyhow::Result<_>>()?) })
    }
}

/// A share of the physical cores, or a multiple of them.
fn allocation(text: &str) -> Result<f64, String> {
    within(text, 0.0, Chassis::ALLOC_MAX)
}

fn physical(given: &[String]) -> anyhow::Result<BTreeMap<String, u32>> {
    let mut all = BTreeMap::new();
    for text in given {
        let (generation, cores) = text.split_once('=').unwrap_or(("", text));
        let cores = cores.parse().ok().filter(|cores| *cores > 0);
        let cores: u32 = cores
            .with_context(|| format!("--physical-cores {text}: a whole number above 0, or GENERATION=N"))?;
        if all.insert(generation.to_owned(), cores).is_some() {
            bail!("--physical-cores {text}: these were told already");
        }
    }
    Ok(all)
}

/// VMs by generation, and from the first arrival to the last that is known, in seconds.
struct History {
    past: BTreeMap<String, Past>,
    span_s: f64,
}

fn read(file: &Path) -> anyhow::Result<History> {
    let mut table = table::open(file, &ProgressBar::hidden())?;
    let [cores, arrival, end] = ["cores", "arrival_s", "end_s"].map(|name| table.column(name));
    let (cores, arrival, end) = (cores?, arrival?, end?);
    let (class, p95) = (table.column("class")?, table.column("p95_cpu")?);
    let subscription = table.column("subscription").ok();
    let owner = table.column("owner").ok();
    let generation = table.column("generation").ok();
    let mut vms = vec![];
    let (mut first, mut last) = (i64::MAX, i64::MIN);

    while table.advance()? {
        const SECONDS: &str = "whole Unix seconds";
        let from = table.integer(arrival, SECONDS)?;
        let to = if table.text(end).is_empty() { None } else { Some(table.integer(end, SECONDS)?) };

        if to.is_some_and(|to| to < from) {
            return Err(table.refuse(end, "not before arrival_s").into());
        }
        (first, last) = (first.min(from), last.max(to.unwrap_or(from)));
        let many = u32::try_from(table.integer(cores, "1 to 65536")?).ok();
        let many = many.filter(|n| (1..=65_536).contains(n));
        // Without its subscription's name a VM stands for itself.
        let group =
            subscription.map(|column| table.text(column).into_owned()).filter(|name| !name.is_empty());
        let vm = PastVm {
            cores: many.ok_or_else(|| table.refuse(cores, "1 to 65536"))?,
            seconds: 0,
            class: class_in(&table, class)?,
            p95: p95_in(&table, p95)?,
            owner: owner.map(|column| owner_in(&table, column)).transpose()?.flatten(),
            group: group.unwrap_or_else(|| format!("#{}", vms.len())),
        };

        let of = generation.map(|column| table.text(column).into_owned()).unwrap_or_default();
        vms.push((of, vm, from, to));
    }

    let span_s = last.saturating_sub(first);

    if vms.is_empty() || span_s <= 0 {
        bail!("no VM that ran for any time");
    }
    let mut past = BTreeMap::<String, Past>::new();

    for (of, mut vm, from, to) in vms {
        // One that still runs ran until the newest thing that is known.
        vm.seconds = to.unwrap_or(last).abs_diff(from);
        past.entry(of).or_default().take(&vm);
    }

    Ok(History { past, span_s: span_s as f64 })
}

fn class_in(table: &TableReader<'_>, column: usize) -> Result<Option<VmClass>, TraceError> {
    match &*table.text(column) {
        "" => Ok(None),
        "user-facing" => Ok(Some(VmClass::UserFacing)),
        "non-user-facing" => Ok(Some(VmClass::NonUserFacing)),
        _ => Err(table.refuse(column, "user-facing, non-user-facing or nothing")),
    }
}

/// A share, of a percentage.
fn p95_in(table: &TableReader<'_>, column: usize) -> Result<Option<f64>, TraceError> {
    const PERCENT: &str = "a percentage from 0 to 100, or nothing";
    let percent = table.number(column, PERCENT)?;
    match percent.is_nan() || (0.0..=100.0).contains(&percent) {
        true => Ok(Some(percent / 100.0).filter(|share| !share.is_nan())),
        false => Err(table.refuse(column, PERCENT)),
    }
}

fn owner_in(table: &TableReader<'_>, column: usize) -> Result<Option<Owner>, TraceError> {
    match &*table.text(column) {
        "" => Ok(None),
        "internal" => Ok(Some(Owner::Internal)),
        "premium" => Ok(Some(Owner::Premium)),
        "non-premium" => Ok(Some(Owner::NonPremium)),
        _ => Err(table.refuse(column, "internal, premium, non-premium or nothing")),
    }
}

/// A mean of an estimate, with its confidence interval.
fn mean(estimate: Option<&Estimate>, of: fn(&Estimate) -> Option<Mean>) -> Option<(f64, Option<Mean>)> {
    estimate.and_then(of).map(|mean| (mean.mean, Some(mean)))
}

impl Loads {
    /// The load of a generation's chassis, and in words where it comes from. What was told wins.
    pub(super) fn of(&self, generation: &str) -> anyhow::Result<(Chassis, String)> {
        let mut chassis = Chassis::default();
        let estimate = match &self.estimates {
            None => None,
            Some(all) => match all.get(generation).or_else(|| all.get("")) {
                Some(estimate) => Some(estimate),
                None => bail!("--history: no VM of generation {generation:?}"),
            },
        };

        let [alloc, beta, util_uf, util_nuf, internal, premium] = self.told;
        let mut words = vec![];
        for (name, told, found, value) in [
            ("alloc", alloc, estimate.and_then(|it| it.alloc).map(|share| (share, None)), &mut chassis.alloc),
            ("beta", beta, mean(estimate, |it| it.beta), &mut chassis.beta),
            ("util-uf", util_uf, mean(estimate, |it| it.util_user_facing), &mut chassis.util_user_facing),
            (
                "util-nuf",
                util_nuf,
                mean(estimate, |it| it.util_non_user_facing),
                &mut chassis.util_non_user_facing,
            ),
            ("internal-share", internal, mean(estimate, |it| it.internal_share), &mut chassis.internal_share),
            ("premium-share", premium, mean(estimate, |it| it.premium_share), &mut chassis.premium_share),
        ] {
            match (told, found) {
                (Some(told), _) => {
                    *value = told;
                    words.push(format!("{name} {told} as told"));
                }
                (None, Some((found, Some(mean)))) => {
                    *value = found;
                    words.push(format!("{name} {found:.3} ± {:.3} of {} VMs", mean.error, mean.vms));
                }
                (None, Some((found, None))) => {
                    *value = found;
                    words.push(format!("{name} {found:.3}"));
                }
                (None, None) if estimate.is_some() && ["beta", "util-uf", "util-nuf"].contains(&name) => {
                    bail!(
                        "--history: generation {generation:?} has fewer than {MIN_VMS} VMs to estimate \
                         {name} from: tell --{name}"
                    )
                }
                (None, None) => words.push(format!("{name} {value} by default")),
            }
        }

        if let Some(estimate) = estimate {
            words.push(counted(estimate));
        }

        Ok((chassis, words.join(", ")))
    }
}

/// What of the history did not say all.
fn counted(estimate: &Estimate) -> String {
    let Estimate { vms, unlabelled, without_p95, without_time, .. } = estimate;
    format!(
        "of {vms} VMs {unlabelled} have no class and count as user-facing, {without_p95} have no P95; \
         {without_time} more had no time and are left out"
    )
}
