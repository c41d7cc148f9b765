//! `ballast-lab bench plan`: how long `ballast plan` takes over a fleet's telemetry, and how much memory.
//!
//! The telemetry is made, one Parquet file a day, by time, as a collector writes it: seeded, with nulls,
//! zeros, sentinels, gaps and doubles. The baseline reads the same files row by row; both answers must be the
//! same.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use arrow_array::builder::StringDictionaryBuilder;
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use ballast_types::SplitMix64;
use clap::Args;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use serde::Serialize;
use serde_json::Value;

use ballast_cli::common::terminal::{say, tell};
use ballast_cli::common::threads;
use ballast_cli::common::threads::all_cores;
use ballast_testbed::processes::Usage;

/// Between two looks at how much memory the program uses.
const LOOK: Duration = Duration::from_millis(20);
/// The first reading: Monday, 5 January 2026.
const BEGIN_S: i64 = 1_767_571_200;
/// Minutes that are written at a time.
const MINUTES: u32 = 60;

#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Chassis, of three hardware generations
    #[arg(long, value_name = "N", default_value_t = 1440,
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    chassis: u32,
    /// Days of one reading a minute
    #[arg(long, value_name = "N", default_value_t = 90,
        value_parser = clap::value_parser!(u32).range(1..=3660))]
    days: u32,
    /// Days that the baseline reads, row by row
    #[arg(long, value_name = "N", default_value_t = 10)]
    baseline_days: u32,
    /// Which draws are made
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep the telemetry in this folder, and take what is there [default: a temporary folder]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Measured {
    chassis: u32,
    days: u32,
    rows: u64,
    file_mib: f64,
    plan: Run,
    /// Over the same first days: by columns, and row by row.
    baseline_days: u32,
    by_columns: Run,
    row_by_row: Run,
    speedup_wall: f64,
    speedup_cpu: f64,
}

#[derive(Debug, Serialize)]
struct Run {
    wall_s: f64,
    cpu_s: f64,
    peak_rss_mib: f64,
    rows_per_s: f64,
    #[serde(skip)]
    answer: Value,
}

impl Measured {
    fn text(&self) -> String {
        let Self { rows, chassis, days, file_mib, baseline_days, speedup_wall, speedup_cpu, .. } = self;
        let run = |Run { wall_s, cpu_s, peak_rss_mib, rows_per_s, .. }: &Run| {
            let millions = rows_per_s / 1e6;
            format!(
                "{wall_s:.1} s, {cpu_s:.1} s of processor time, at most {peak_rss_mib:.0} MiB, \
                 {millions:.1} million rows/s"
            )
        };

        let [plan, by_columns, row_by_row] = [&self.plan, &self.by_columns, &self.row_by_row].map(run);
        format!(
            "{rows} rows ({chassis} chassis, {days} days, {file_mib:.0} MiB of Parquet): {plan}\n\
             the first {baseline_days} days, by columns: {by_columns}\n\
             the same, row by row: {row_by_row}\n\
             {speedup_wall:.1} times as fast, with {speedup_cpu:.1} times less processor time"
        )
    }
}

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let temporary = tempfile::tempdir().context("a temporary folder")?;
    let folder = args.dir.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let files: Vec<PathBuf> =
        (0..args.days).map(|day| folder.join(format!("day-{day:04}.parquet"))).collect();
    make(args, &files)?;
    let sizes = files.iter().map(|file| Ok(file.metadata()?.len()));
    let bytes = sizes.sum::<anyhow::Result<u64>>()?;
    let some = &files[..files.len().min(args.baseline_days.max(1) as usize)];
    tell(&format!("planning from {} files", files.len()));
    let plan = measure(&files, &[])?;
    tell(&format!("the baseline, with {} files", some.len()));
    let by_columns = measure(some, &[])?;
    let row_by_row = measure(some, &["--row-by-row"])?;
    ensure!(by_columns.answer == row_by_row.answer, "the two ways to read give other answers");
    let measured = Measured {
        chassis: args.chassis,
        days: args.days,
        rows: rows(&plan.answer),
        file_mib: bytes as f64 / f64::from(1 << 20),
        baseline_days: args.baseline_days.clamp(1, args.days),
        speedup_wall: row_by_row.wall_s / by_columns.wall_s,
        speedup_cpu: row_by_row.cpu_s / by_columns.cpu_s,
        plan,
        by_columns,
        row_by_row,
    };

    say(&if args.json { serde_json::to_string_pretty(&measured)? } else { measured.text() })?;

    Ok(ExitCode::SUCCESS)
}

/// How many readings an answer rests on, with those that did not count.
fn rows(answer: &Value) -> u64 {
    let generations = answer["generations"].as_array();
    let one = generations.and_then(|all| all.first()).unwrap_or(answer);
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    count(&answer["readings"]) + count(&one["rejected_readings"])
}

/// Plans from these files, as a process of its own.
fn measure(files: &[PathBuf], how: &[&str]) -> anyhow::Result<Run> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let answer = tempfile::NamedTempFile::new().context("a temporary file")?;
    let begin = Instant::now();
    let mut child = Command::new(program)
        .args(["plan", "--policy", "minimal-impact", "--buffer", "0", "--json"])
        .args(how)
        .arg("--telemetry")
        .args(files)
        .stdin(Stdio::null())
        .stdout(answer.reopen()?)
        .spawn()
        .context("cannot start `ballast plan`")?;
    let mut usage = None;
    let status = loop {
        usage = Usage::of(child.id()).or(usage);
        if let Some(status) = child.try_wait()? {
            break status;
        }
        thread::sleep(LOOK);
    };

    let wall_s = begin.elapsed().as_secs_f64();

    if !status.success() {
        bail!("`ballast plan` ended: {status}");
    }
    let usage = usage.context("too short to be measured: make more days")?;
    let answer: Value = serde_json::from_reader(answer.reopen()?)?;

    Ok(Run {
        wall_s,
        cpu_s: usage.cpu.as_secs_f64(),
        peak_rss_mib: usage.peak_rss_kib as f64 / 1024.0,
        rows_per_s: rows(&answer) as f64 / wall_s,
        answer,
    })
}

/// Makes the files that are not there yet.
fn make(args: &PlanArgs, files: &[PathBuf]) -> anyhow::Result<()> {
    let days: Vec<_> = (0..).zip(files).filter(|(_, file)| !file.exists()).collect();
    let made = threads::run("making telemetry", &days, all_cores().get(), |&(day, file)| {
        one_day(args, day, file).with_context(|| file.display().to_string())
    });
    made.into_iter().collect()
}

/// Writes a file; it is complete or not there.
fn one_day(args: &PlanArgs, day: u32, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().context("a folder")?;
    let file = tempfile::NamedTempFile::new_in(folder)?;
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();

    // Without Arrow's own schema, as other programs write: then the reader does not know of dictionaries.
    let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
    let mut writer: Option<ArrowWriter<File>> = None;

    for hour in 0..24 * 60 / MINUTES {
        let first = day * 24 * 60 + hour * MINUTES;
        let batch = batch(args, first..first + MINUTES)?;
        let writer = match &mut writer {
            Some(writer) => writer,
            None => writer.insert(ArrowWriter::try_new_with_options(
                file.reopen()?,
                batch.schema(),
                options.clone(),
            )?),
        };

        writer.write(&batch)?;
    }

    if let Some(writer) = writer {
        writer.close()?;
    }
    file.persist(path)?;

    Ok(())
}

/// The rows of some minutes: all chassis in each.
fn batch(args: &PlanArgs, minutes: Range<u32>) -> anyhow::Result<RecordBatch> {
    let (mut time, mut watts) = (vec![], vec![]);
    let mut chassis = StringDictionaryBuilder::<Int32Type>::new();
    let mut generation = StringDictionaryBuilder::<Int32Type>::new();
    let names: Vec<_> = (0..args.chassis).map(|chassis| format!("c{chassis:05}")).collect();

    for minute in minutes {
        for (number, name) in (0..args.chassis).zip(&names) {
            for (late_s, draw) in readings(args.seed, number, minute) {
                time.push(BEGIN_S + i64::from(minute) * 60 + late_s);
                chassis.append(name)?;
                generation.append(["gen7", "gen8", "gen9"][number as usize % 3])?;
                watts.push(draw);
            }
        }
    }

    let columns: [(&str, ArrayRef); 4] = [
        ("t_s", Arc::new(Int64Array::from(time))),
        ("chassis", Arc::new(chassis.finish())),
        ("generation", Arc::new(generation.finish())),
        ("watts", Arc::new(Float64Array::from(watts))),
    ];

    Ok(RecordBatch::try_from_iter_with_nullable(columns.map(|(name, all)| (name, all, true)))?)
}

/// What a chassis's meter says in a minute: seconds into it, and watts. Mostly one reading; of a thousand
/// minutes one has none, one two, and one each a null, a zero and a sentinel.
fn readings(seed: u64, chassis: u32, minute: u32) -> impl Iterator<Item = (i64, Option<f64>)> {
    let draw = SplitMix64::first(seed ^ u64::from(chassis) << 32 ^ u64::from(minute));
    let own = SplitMix64::first(seed ^ u64::from(chassis));
    let hour = SplitMix64::first(own ^ u64::from(minute / 60));
    let of_day = f64::from((minute + own as u32 % 240) % 1440) / 1440.0;
    let noise = (0..4).map(|byte| f64::from((draw >> (8 * byte)) as u8)).sum::<f64>() - 510.0;
    let burst = if draw >> 32 & 0x7ff == 0 { 600.0 } else { 0.0 };
    let watts = 1600.0
        + (own >> 32 & 0x1ff) as f64
        + (hour & 0xff) as f64
        + 1600.0 * of_day * (1.0 - of_day)
        + noise / 4.0
        + burst;
    let watts = watts.round();
    let (first, second) = match draw >> 44 & 0x3ff {
        0 => (None, None),
        1 => (Some(Some(watts)), Some(Some(watts + 3.0))),
        2 => (Some(None), None),
        3 => (Some(Some(0.0)), None),
        4 => (Some(Some(65_535.0)), None),
        _ => (Some(Some(watts)), None),
    };

    let late_s = (own & 0xf) as i64;

    first.map(|watts| (late_s, watts)).into_iter().chain(second.map(|watts| (late_s + 30, watts)))
}
