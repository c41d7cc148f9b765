//! Which recommenders the VMs of this server are served by: those that are configured, or what would have served best.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::Path;

use ballast_types::{UsageRecord, VmId};
use ballast_usage::limits::UseWindow;
use ballast_usage::limits::bucket::UseBucket;
use ballast_usage::limits::choice::{Trial, candidates, choose, fallback};
use ballast_usage::limits::family::{Family, Resource, Settings};
use ballast_usage::limits::job::Bounds;
use ballast_usage::limits::record::{cpu_samples, memory_share};

use super::{DAYS, MIB};
use crate::config::JobLimitsConfig;
use crate::records;

/// At most so many VMs are tried: a bound for what a day's choice costs.
const VMS_MAX: usize = 32;

/// The settings for both resources.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ChosenSettings {
    pub(super) cpu: Settings,
    pub(super) memory: Settings,
}

/// The families that are configured; where one is to be chosen, what serves until there is enough history.
pub(super) fn usual(config: &JobLimitsConfig) -> ChosenSettings {
    let of = |family: Option<Family>, resource| {
        family.map_or(fallback(resource), |family| Settings::usual(family, resource))
    };
    ChosenSettings {
        cpu: of(config.cpu_family, Resource::Cpu),
        memory: of(config.memory_family, Resource::Memory),
    }
}

/// What would have served best, by the records of the two weeks before `today` (a day in UTC, counted from 1970-01-01): all day
/// long the same, whenever it is asked.
pub(super) fn serving_best(
    config: &JobLimitsConfig,
    folder: &Path,
    memory_bytes: Option<u64>,
    today: u32,
) -> io::Result<ChosenSettings> {
    let mut chosen = usual(config);
    let vms = tried(folder, today)?;
    let best = |resource| best(config, folder, memory_bytes, (today, &vms), resource);
    if config.cpu_family.is_none() {
        chosen.cpu = best(Resource::Cpu)?.unwrap_or(chosen.cpu);
    }
    if config.memory_family.is_none() && memory_bytes.is_some() {
        chosen.memory = best(Resource::Memory)?.unwrap_or(chosen.memory);
    }
    Ok(chosen)
}

/// The VMs of the newest day on record; where they are too many, some from among all.
fn tried(folder: &Path, today: u32) -> io::Result<BTreeSet<VmId>> {
    let mut vms = BTreeSet::new();
    for day in (today.saturating_sub(DAYS)..today).rev() {
        records::read(folder, day..=day, |record| _ = vms.insert(record.vm))?;
        if !vms.is_empty() {
            break;
        }
    }
    let every = vms.len().div_ceil(VMS_MAX).max(1);
    Ok(vms.into_iter().step_by(every).collect())
}

fn best(
    config: &JobLimitsConfig,
    folder: &Path,
    memory_bytes: Option<u64>,
    (today, vms): (u32, &BTreeSet<VmId>),
    resource: Resource,
) -> io::Result<Option<Settings>> {
    let candidates = candidates(resource);
    let mut trials: BTreeMap<VmId, (u16, Trial)> = BTreeMap::new();
    each_record(folder, today.saturating_sub(DAYS)..today, |record| {
        if record.cores == 0 || !vms.contains(&record.vm) {
            return;
        }
        let bounds = match (resource, memory_bytes) {
            (Resource::Cpu, _) => cpu_bounds(config, record.cores),
            (Resource::Memory, Some(most)) => memory_bounds(config, most),
            (Resource::Memory, None) => return,
        };
        // What it used as a VM of another size says nothing of this one.
        trials.retain(|vm, (cores, _)| *vm != record.vm || *cores == record.cores);
        let (_, trial) = trials
            .entry(record.vm.clone())
            .or_insert_with(|| (record.cores, Trial::new(resource, &candidates, bounds)));
        let samples = samples(resource, record, memory_bytes);
        trial.observe(&UseWindow { number: u64::from(record.bin.0), samples: &samples });
    })?;
    let trials: Vec<Trial> = trials.into_values().map(|(_, trial)| trial).collect();
    Ok(choose(&candidates, &trials, config.overruns))
}

/// Every record of these days, the instances of a VM in the order of time.
pub(super) fn each_record(
    folder: &Path,
    days: Range<u32>,
    mut each: impl FnMut(&UsageRecord),
) -> io::Result<()> {
    for day in days {
        let mut of_day = vec![];
        records::read(folder, day..=day, |record| of_day.push(record))?;
        // The instances of a VM are told one after the other.
        of_day.sort_by_key(|record| record.bin);
        of_day.iter().for_each(&mut each);
    }
    Ok(())
}

/// What the user allows a VM of so many cores.
pub(super) fn cpu_bounds(config: &JobLimitsConfig, cores: u16) -> Bounds {
    bounds(config, config.min_cores, config.max_cores, f64::from(cores))
}

/// What the user allows a VM of a server with so much memory.
pub(super) fn memory_bounds(config: &JobLimitsConfig, memory_bytes: u64) -> Bounds {
    let max = config.max_memory_mib.map(|max| max as f64);
    bounds(config, config.min_memory_mib as f64, max, memory_bytes as f64 / MIB)
}

fn bounds(config: &JobLimitsConfig, min: f64, max: Option<f64>, most: f64) -> Bounds {
    let max = max.map_or(1.0, |max| (max / most).min(1.0)) as f32;
    Bounds { margin: config.margin as f32, min: (min / most) as f32, max }
}

/// What a record says that its VM used, in shares of the VM's cores or of the server's memory.
pub(super) fn samples(
    resource: Resource,
    record: &UsageRecord,
    memory_bytes: Option<u64>,
) -> Vec<(UseBucket, f32)> {
    match resource {
        Resource::Cpu => cpu_samples(record, record.cores),
        Resource::Memory => {
            let used = memory_bytes.and_then(|most| memory_share(record, most)).unwrap_or(0.0);
            let bucket = UseBucket::of(used).filter(|_| used > 0.0);
            bucket.map(|bucket| (bucket, 1.0)).into_iter().collect()
        }
    }
}
