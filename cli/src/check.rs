//! `ballast check`: what this machine can do, why not more, and what to do about it.

mod findings;
mod fleet;
mod fragment;
mod functions;
mod report;
mod state;
mod text;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use ballast_hw::probe::{self, Machine, Source, Written};
use ballast_hw::{JournalFolders, Root};
use clap::Args;
use nix::sys::signal::{SigSet, Signal};

use crate::common::daemons::UrlArgs;
use crate::common::grid::Fit;
use crate::common::terminal::{answer, has_colours, say, tell};
use report::Report;
use state::{Watched, channel};

/// Wrong usage, as `sysexits.h` has it: 2 means something else here.
pub(crate) const EXIT_USAGE: u8 = 64;

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The machine: a folder that looks like one, such as a recording
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// How long sensors are watched for their refresh; 0 leaves that out. The default is 6, and 0 with --root
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=600))]
    seconds: Option<u64>,
    /// Print one JSON object instead of tables; docs/operate/check.md describes it
    #[arg(long)]
    json: bool,
    /// Write to what could be written, look whether it took, and put it back. Refused while an agent runs
    #[arg(long)]
    write_test: bool,
    /// The agent's state folder, whose lock tells whether it runs
    #[arg(long, value_name = "DIR", default_value = JournalFolders::STATE_DIR)]
    state_dir: PathBuf,
    /// Its run folder, where the journal lies, if the agent has another than usual
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Copy what is read to a new folder, for --root and for reports; serial numbers and names are left out
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "write_test", "seconds"])]
    record: Option<PathBuf>,
    /// Check daemons instead of this machine: whether they answer and agree, their versions, certificates and
    /// clocks. Name a chassis manager and its agents
    #[arg(long, conflicts_with_all = ["root", "seconds", "write_test", "state_dir", "run_dir", "record"])]
    fleet: bool,
    #[command(flatten)]
    daemons: UrlArgs,
}

pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let colours = std::io::stdout().is_terminal() && has_colours();
    if args.fleet {
        return fleet::run(&args.daemons, args.json, colours);
    }
    // What the environment says is for other commands, too, and nobody has to name the default.
    let mut words = std::env::args().skip(1);
    if words.any(|word| word.split(',').any(|url| args.daemons.urls.iter().any(|it| it == url))) {
        tell("error: URL: only with --fleet");
        return Ok(EXIT_USAGE.into());
    }
    if !args.root.is_dir() {
        tell(&format!("error: --root {}: a folder that is there", args.root.display()));
        return Ok(EXIT_USAGE.into());
    }

    let root = Root::at(&args.root);
    if let Some(dir) = &args.record {
        let manifest = probe::record(&root, dir)?;
        let (files, links) = (manifest.files.len(), manifest.links.len());
        let unreadable = manifest.unreadable.len();
        say(&format!("{}: {files} files, {links} links, {unreadable} unreadable", dir.display()))?;
        return Ok(ExitCode::SUCCESS);
    }

    let report = report(&root, args)?;
    let exit_code = report.exit_code;

    answer(args.json, &report, || text::text(&report, colours, Fit::stdout(false)))?;
    Ok(exit_code.into())
}

fn report(root: &Root, args: &CheckArgs) -> anyhow::Result<Report> {
    let machine = Machine::read(root);

    // A folder's values do not move by themselves.
    let seconds = args.seconds.unwrap_or(if args.root.as_os_str() == "/" { 6 } else { 0 });
    let sensors = watch(root, &machine, Duration::from_secs(seconds));
    let journal = match &args.run_dir {
        Some(run_dir) => JournalFolders::new(run_dir, &args.state_dir),
        None => JournalFolders::of(&args.state_dir),
    };
    let written = args.write_test.then(|| write_test(root, &journal)).transpose()?;
    let findings = findings::all(&machine, &sensors);
    let functions = functions::all(&machine, &sensors, written.as_deref());
    let agent_toml = fragment::agent_toml(&machine, &sensors, &functions);
    let exit_code = functions::exit_code(&functions);

    Ok(Report {
        version: 1,
        functions,
        findings,
        write_test: written,
        sensors,
        machine,
        agent_toml,
        exit_code,
    })
}

fn watch(root: &Root, machine: &Machine, time: Duration) -> Vec<Watched> {
    if time.is_zero() {
        return vec![];
    }
    let zones = machine.rapl.iter().filter(|zone| zone.energy_error.is_none());
    let zones = zones.map(|zone| (zone.name.clone(), Source::zone(zone)));
    let meters = machine.meters.iter().filter(|meter| meter.error.is_none());
    let meters = meters.map(|meter| (channel(meter), Source::meter(meter)));
    let (names, sources): (Vec<_>, Vec<_>) = zones.chain(meters).unzip();
    let seen = probe::refresh(root, &sources, time);
    names.into_iter().zip(seen).map(|(sensor, refresh)| Watched { sensor, refresh }).collect()
}

/// The write test with signals held back: Ctrl-C ends it when everything is back, a moment later.
fn write_test(root: &Root, journal: &JournalFolders) -> anyhow::Result<Vec<Written>> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block()?;
    let written = probe::write_trial(root, journal);
    signals.thread_unblock()?;
    written.context("write test")
}

#[cfg(test)]
mod tests;
