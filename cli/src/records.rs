//! `ballast records`: what an agent has recorded of its VMs' use.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use ballast_agent::records;
use ballast_types::usage::BIN_S;
use ballast_types::{Counters, CpuSeconds, MemoryUse, UsageBin, UsageRecord, VmId, VmStart};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::common::grid::{Fit, grid};
use crate::common::terminal::{say, tell};

/// Five minutes in half an hour.
const OF_HALF_HOUR: u32 = 6;

/// Whose records, and in which form.
#[derive(Args, Debug)]
pub(crate) struct RecordsArgs {
    /// The agent's folder of records
    #[arg(long, value_name = "DIR", default_value = "/var/lib/ballast-agent/usage")]
    dir: PathBuf,
    /// Show this VM alone
    #[arg(long, value_name = "ID", value_parser = |id: &str| VmId::new(id))]
    vm: Option<VmId>,
    /// text: one line for each VM, with its P95; csv: the means over time (vm,time,value), as `ballast
    /// label` reads them; json: both
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// What a mean is taken over
    #[arg(long, value_enum, value_name = "MINUTES", default_value = "30")]
    every_min: Every,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Format {
    Text,
    Csv,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Every {
    #[value(name = "5")]
    Five,
    #[value(name = "30")]
    Thirty,
}

/// One instance of a VM: from one start to its end.
#[derive(Debug, Default)]
struct VmInstance {
    first: Option<UsageBin>,
    last: UsageBin,
    cores: u16,
    records: u64,
    cpu: CpuSeconds,
    throttled: CpuSeconds,
    memory: MemoryUse,
    counters: Counters,
    /// How many records do not know a value.
    missing: BTreeMap<&'static str, u64>,
    /// Sum and number of the five-minute means, by the first slot of each mean.
    means: BTreeMap<u32, (f64, u32)>,
}

impl VmInstance {
    fn take(&mut self, record: &UsageRecord, slots: u32) {
        self.first = Some(self.first.map_or(record.bin, |first| first.min(record.bin)));
        self.last = self.last.max(record.bin);
        self.cores = record.cores;
        self.records += 1;
        self.cpu.merge(&record.cpu);
        self.throttled.merge(&record.throttled);
        self.memory = self.memory.max(record.memory);
        self.counters = self.counters.plus(record.counters);
        record.missing().for_each(|value| *self.missing.entry(value).or_default() += 1);
        if let Some(mean) = record.steady_mean() {
            let (sum, count) = self.means.entry(record.bin.0 / slots * slots).or_default();
            *sum += mean;
            *count += 1;
        }
    }

    /// The means in percent; one that less than half of its time was measured for is missing.
    fn series(&self, slots: u32) -> impl Iterator<Item = Point> {
        let there = self.means.iter().filter(move |(_, (_, count))| count * 2 >= slots);
        there.map(|(slot, (sum, count))| Point {
            time: time(UsageBin(*slot)),
            value: 100.0 * sum / f64::from(*count),
        })
    }

    fn summary(&self, vm: String, start: VmStart) -> Summary {
        // Use above the VM's cores is taken for all of them.
        let percent = |mc: f64| (mc / 10.0 / f64::from(self.cores.max(1))).min(100.0);
        let (first, seconds) = (self.first.unwrap_or_default(), self.cpu.samples());
        let throttled_s = self.throttled.samples();
        let span = u64::from(self.last.0 - first.0 + 1) * BIN_S;
        let mean = self.cpu.sum_mc as f64 / seconds as f64;
        let deviation = |squares: u64| (squares as f64 / seconds as f64 - mean * mean).max(0.0).sqrt();

        Summary {
            vm,
            start: format!("{:016x}", start.0),
            first: time(first),
            last: time(self.last),
            cores: self.cores,
            records: self.records,
            measured_s: seconds,
            throttled_s,
            throttled_at_least_percent: (throttled_s > 0)
                .then(|| percent(self.throttled.sum_mc as f64 / throttled_s as f64)),
            missing_s: span.saturating_sub(seconds + throttled_s),
            mean_percent: (seconds > 0).then(|| percent(mean)),
            deviation_millicores: self.cpu.squares_mc2.filter(|_| seconds > 0).map(deviation),
            p95_percent: self.cpu.quantile_mc(950_000).map(|mc| percent(mc.into())),
            p95_millicores: self.cpu.quantile_mc(950_000),
            peak_percent: (seconds > 0).then(|| percent(self.cpu.peak_mc.into())),
            memory: self.memory.named().into(),
            counters: self.counters.named().collect(),
            missing: self.missing.clone(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Point {
    /// When it begins, in UTC.
    time: String,
    /// In percent of the VM's cores.
    value: f64,
}

/// What there is of one life of a VM.
#[derive(Debug, Serialize)]
struct Summary {
    vm: String,
    start: String,
    first: String,
    last: String,
    cores: u16,
    records: u64,
    measured_s: u64,
    throttled_s: u64,
    /// What it used on the mean while throttled: it would have used at least this.
    throttled_at_least_percent: Option<f64>,
    missing_s: u64,
    mean_percent: Option<f64>,
    deviation_millicores: Option<f64>,
    p95_percent: Option<f64>,
    p95_millicores: Option<u32>,
    peak_percent: Option<f64>,
    /// The most that was seen; nothing where it was never read.
    #[serde(flatten)]
    memory: BTreeMap<&'static str, Option<u64>>,
    #[serde(flatten)]
    counters: BTreeMap<&'static str, Option<u64>>,
    /// How many records do not know a value.
    missing: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct Report {
    vms: Vec<VmRecords>,
    dropped: u64,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct VmRecords {
    #[serde(flatten)]
    summary: Summary,
    series: Vec<Point>,
}

pub(crate) fn run(args: &RecordsArgs) -> anyhow::Result<ExitCode> {
    if !args.dir.is_dir() {
        bail!("--dir {}: not a folder; an agent's is usage in its state_dir", args.dir.display());
    }
    let slots = if args.every_min == Every::Five { 1 } else { OF_HALF_HOUR };
    let mut lives: BTreeMap<(VmId, VmStart), VmInstance> = BTreeMap::new();
    let seen = records::read(&args.dir, 0..=u32::MAX, |record| {
        if args.vm.as_ref().is_none_or(|vm| *vm == record.vm) {
            let life = lives.entry((record.vm.clone(), record.start)).or_default();
            life.take(&record, slots);
        }
    })
    .context("usage records")?;

    if let Some(vm) = args.vm.as_ref().filter(|_| lives.is_empty()) {
        bail!("--vm {vm}: nothing is recorded of it in {}", args.dir.display());
    }
    if seen.dropped > 0 {
        tell(&format!("{} damaged pieces left out", seen.dropped));
    }
    seen.problems.iter().for_each(|problem| tell(&format!("left out: {problem}")));
    let names = names(&lives);
    let name = |life: &(VmId, VmStart)| names.get(life).cloned().unwrap_or_default();
    let text = match args.format {
        Format::Text => table(lives.iter().map(|(key, life)| life.summary(name(key), key.1))),
        Format::Csv => {
            let mut text = "vm,time,value".to_owned();
            for (key, life) in &lives {
                for Point { time, value } in life.series(slots) {
                    write!(text, "\n{},{time},{value}", name(key))?;
                }
            }

            text
        }
        Format::Json => {
            let vms = lives.iter().map(|(key, life)| VmRecords {
                summary: life.summary(name(key), key.1),
                series: life.series(slots).collect(),
            });
            let vms = vms.collect();
            let (dropped, problems) = (seen.dropped, seen.problems);

            serde_json::to_string_pretty(&Report { vms, dropped, problems })?
        }
    };

    say(&text)?;

    Ok(ExitCode::SUCCESS)
}

/// A VM's newest life has its id; earlier ones say which they are.
fn names(lives: &BTreeMap<(VmId, VmStart), VmInstance>) -> BTreeMap<(VmId, VmStart), String> {
    let newest = |vm: &VmId| {
        let of_vm = lives.iter().filter(|((id, _), _)| id == vm);
        of_vm.max_by_key(|(_, life)| life.last).map(|((_, start), _)| *start)
    };
    let name = |(vm, start): &(VmId, VmStart)| {
        if newest(vm) == Some(*start) { vm.to_string() } else { format!("{vm}@{:016x}", start.0) }
    };
    lives.keys().map(|life| (life.clone(), name(life))).collect()
}

fn time(slot: UsageBin) -> String {
    let at = i64::try_from(slot.start_s()).ok().and_then(|s| jiff::Timestamp::from_second(s).ok());
    at.unwrap_or(jiff::Timestamp::MAX).to_string()
}

fn table(summaries: impl Iterator<Item = Summary>) -> String {
    let columns = [
        "VM",
        "from",
        "to",
        "cores",
        "measured",
        "throttled",
        "missing",
        "mean",
        "P95",
        "peak",
        "memory",
        "OOM kills",
    ];
    let rows = summaries.map(|it| {
        let memory = it.memory["memory_peak_bytes"].or(it.memory["memory_used_bytes"]);
        [
            it.vm,
            it.first,
            it.last,
            it.cores.to_string(),
            hours(it.measured_s),
            hours(it.throttled_s),
            hours(it.missing_s),
            percent(it.mean_percent),
            percent(it.p95_percent),
            percent(it.peak_percent),
            or_none(memory.map(|bytes| format!("{:.2} GB", bytes as f64 / 1e9))),
            or_none(it.counters["oom_kills"].map(|kills| kills.to_string())),
        ]
    });
    let rows: Vec<_> = rows.collect();
    match rows.is_empty() {
        true => "nothing is recorded yet".to_owned(),
        false => grid(&columns.map(|head| (head, 0)), &rows, Fit::Wide),
    }
}

fn hours(s: u64) -> String {
    format!("{:.1} h", s as f64 / 3600.0)
}

fn percent(value: Option<f64>) -> String {
    or_none(value.map(|value| format!("{value:.1} %")))
}

fn or_none(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_hours_need_half_of_their_time_and_p95_is_of_all_seconds() {
        let vm = VmId::new("v").unwrap();
        let record = |slot: u32, seconds: u32, mc: u32| {
            let mut record = UsageRecord::empty(vm.clone(), VmStart(1), UsageBin(slot), 4);
            (0..seconds).for_each(|_| record.cpu.add(mc));
            record
        };

        let mut life = VmInstance::default();

        // Three of six make a half hour, two do not; a thin one counts for P95 alone.
        for slot in [6, 7, 8, 12, 13] {
            life.take(&record(slot, 300, 800), OF_HALF_HOUR);
        }
        life.take(&record(14, 100, 3600), OF_HALF_HOUR);
        let series: Vec<_> = life.series(OF_HALF_HOUR).map(|it| (it.time, it.value)).collect();
        assert_eq!(series.len(), 1);
        assert_eq!(series[0].0, "1970-01-01T00:30:00Z");
        assert!((series[0].1 - 20.0).abs() < 1e-9);
        let summary = life.summary("v".into(), VmStart(1));
        assert_eq!((summary.p95_percent, summary.peak_percent), (Some(90.0), Some(90.0)));
        assert_eq!((summary.measured_s, summary.missing_s), (1600, 9 * 300 - 1600));
    }

    #[test]
    fn only_the_newest_life_has_the_bare_name() {
        let vm = VmId::new("v").unwrap();
        let mut lives = BTreeMap::new();
        for (start, slot) in [(1, 50), (2, 10)] {
            let record = UsageRecord::empty(vm.clone(), VmStart(start), UsageBin(slot), 4);
            lives.entry((vm.clone(), VmStart(start))).or_insert_with(VmInstance::default).take(&record, 1);
        }
        let names: Vec<_> = names(&lives).into_values().collect();
        assert_eq!(names, ["v", "v@0000000000000002"]);
    }
}
