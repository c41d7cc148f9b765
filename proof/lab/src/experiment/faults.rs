//! `ballast-lab experiment faults`: whole runs drawn from seeds, with faults, judged by the oracles.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use ballast_hw::durable;
use ballast_lab::report::faults::{Campaign, timeline};
use ballast_sim::campaign::{Case, Kind, Verdict};

use clap::Args;
use nix::time::ClockId;

use ballast_cli::common::terminal::{say, tell};
use ballast_cli::common::threads;
use ballast_cli::common::threads::all_cores;
use ballast_lab::options::named;

/// Seeds for each thread between two writes of the file that a campaign goes on from.
const CHUNK: u64 = 10;
#[derive(Args, Clone, Debug)]
pub(crate) struct FaultsArgs {
    /// The first seed; every seed is a run of its own
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How many seeds to try
    #[arg(long, value_name = "N", default_value_t = 200,
        value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    seeds: u64,
    /// Only this kind of fault, once in every run, from some moment on to the end
    #[arg(long, value_name = "KIND", value_parser = named(Kind::ALL, Kind::name))]
    kind: Option<Kind>,
    /// Name the kinds of faults, and run nothing
    #[arg(long, conflicts_with_all = ["seed", "seeds", "kind", "resume"])]
    list: bool,
    /// Write what is done into this file now and then, and go on from it when it is there
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Print one JSON object {rows, goals, runs, broken, excused, …} with a row for each broken run, alone on
    /// stdout
    #[arg(long)]
    json: bool,
    /// Runs at a time; it changes no result [default: one for every core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

pub(super) fn run(args: &FaultsArgs) -> anyhow::Result<bool> {
    if args.list {
        let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        let rows = serde_json::json!({ "experiment": "faults", "rows": names, "goals": [] });
        let text = if args.json { serde_json::to_string_pretty(&rows)? } else { names.join("\n") };
        say(&text)?;
        return Ok(true);
    }

    let last = args
        .seed
        .checked_add(args.seeds - 1)
        .with_context(|| format!("--seed {}: allowed is at most {}", args.seed, u64::MAX - args.seeds + 1))?;

    let threads = args.threads.map_or_else(|| all_cores().get(), usize::from);
    let mut campaign = begin(args)?;
    while campaign.runs < args.seeds {
        let from = args.seed + campaign.runs;
        let to = last.min(from.saturating_add(CHUNK * threads as u64 - 1));
        let seeds: Vec<u64> = (from..=to).collect();
        let what = format!("seeds {from} to {last}");

        for (verdict, core_s) in threads::run(&what, &seeds, threads, |seed| judge(*seed, args.kind)) {
            campaign.add(verdict, core_s);
        }
        if let Some(file) = &args.resume {
            write(file, &campaign)?;
        }
    }

    let text = match args.json {
        true => serde_json::to_string_pretty(&campaign.json()?)?,
        false => campaign.text(),
    };

    say(&text)?;
    if !args.json && args.seeds == 1 {
        say(&timeline(&Case::draw(args.seed, args.kind)))?;
    }
    Ok(campaign.goals().iter().all(|goal| goal.met != Some(false)))
}

/// One run, and the CPU seconds that it took.
fn judge(seed: u64, kind: Option<Kind>) -> (Verdict, f64) {
    let began = thread_cpu();
    let verdict = Case::draw(seed, kind).run();
    (verdict, thread_cpu().saturating_sub(began).as_secs_f64())
}

/// CPU time of this thread; nothing where the kernel does not say.
fn thread_cpu() -> Duration {
    ClockId::CLOCK_THREAD_CPUTIME_ID.now().map(Duration::from).unwrap_or_default()
}

/// A new campaign, or what the file says.
fn begin(args: &FaultsArgs) -> anyhow::Result<Campaign> {
    let kind = args.kind.map(|kind| kind.name().to_owned());
    let new = Campaign::new(args.seed, kind.clone());
    let Some(file) = args.resume.as_deref().filter(|file| file.exists()) else {
        return Ok(new);
    };

    let named = || format!("--resume {}", file.display());
    if !file.is_file() {
        bail!("{}: not a file", named());
    }
    let text = fs::read_to_string(file).with_context(named)?;
    let old: Campaign =
        serde_json::from_str(&text).with_context(|| format!("{}: not the file of a campaign", named()))?;
    if (old.first, &old.kind) != (args.seed, &kind) {
        bail!(
            "{}: that campaign began with seed {} and {}; allowed is the same --seed and --kind",
            named(),
            old.first,
            old.kind.as_deref().unwrap_or("all kinds"),
        );
    }

    if old.runs > args.seeds {
        bail!("{}: {} seeds are done; allowed is --seeds {} or more", named(), old.runs, old.runs);
    }

    tell(&format!("going on after {} seeds", old.runs));

    Ok(old)
}

/// Writes the campaign so that a crash leaves the old file or the new one.
fn write(file: &Path, campaign: &Campaign) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(campaign)?;
    durable::replace(file, text.as_bytes()).with_context(|| format!("--resume {}", file.display()))
}
