//! `ballast-lab guest`: Ballast's agent on a real kernel, in a Debian guest under QEMU's software emulation.
//!
//! The kernel drives p-states through acpi-cpufreq; their registers are a device of QEMU, so what hardware
//! is really told is read from outside. A plant on the host works out the power and shows it in the guest's
//! ACPI power meter. See proof/guest/README.md.

mod agent;
mod bmc;
mod guest;
mod history;
mod image;
mod machine;
mod manager;
mod plant;
mod rapl;
mod report;
mod scenario;
mod shell;

use std::io::{self, BufRead as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;

use guest::Guest;
use image::Ready;
use report::{Notes, Outcome, Summary};
use scenario::{ALL, Scenario, UCLAMP};

/// Nothing was tested: QEMU, or what the image is made with, is not to be had.
const NOT_RUN: u8 = 77;

/// Runs the agent on a real kernel, under emulation.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes: 0 all passed; 1 a scenario failed; 2 wrong usage; 77 not run, because QEMU, \
                        the tools that make the image, or a Debian mirror are not to be had here."
)]
pub struct GuestArgs {
    /// Scenarios to run, in their usual order; all of them if none is named
    scenarios: Vec<String>,
    /// Name every scenario and stop
    #[arg(long)]
    list: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Install the agent, then run commands from stdin in the guest
    #[arg(long)]
    shell: bool,
    /// Measure times without judging them: for a busy host
    #[arg(long)]
    busy: bool,
    /// Repeat less where a scenario repeats
    #[arg(long)]
    quick: bool,
    /// Run the scenarios of cpu.uclamp.max instead, on a kernel that is built for them
    #[arg(long)]
    uclamp: bool,
    /// Try each memory limit so often [default: 20, and 3 with --quick]
    #[arg(long, value_name = "N")]
    tries: Option<u32>,
    /// Keep the built image here
    #[arg(long, default_value = "target/guest")]
    cache: PathBuf,
    /// The folder with the packages, as `just deb` makes them
    #[arg(long, default_value = "target/debian")]
    packages: PathBuf,
}

/// Writes a line; a closed pipe is nobody's concern.
fn say(mut to: impl io::Write, line: &str) {
    let _ = writeln!(to, "{line}");
}

/// Boots the guest and runs its scenarios.
///
/// # Errors
/// The guest cannot be prepared.
pub fn run(args: &GuestArgs) -> anyhow::Result<ExitCode> {
    let all = if args.uclamp { &UCLAMP[..] } else { &ALL[..] };
    if args.list {
        for scenario in all {
            say(io::stdout(), &format!("{:<16} {}", scenario.name, scenario.about));
        }
        return Ok(ExitCode::SUCCESS);
    }

    let chosen = choose(all, &args.scenarios)?;
    let began = Instant::now();
    let not_run = |why| {
        say(io::stderr(), &format!("guest: NOT RUN, nothing was tested: {why}"));
        Ok(ExitCode::from(NOT_RUN))
    };
    let image = match image::ready(&args.cache)? {
        Ready::Image(image) => image,
        Ready::NotHere(why) => return not_run(why),
    };
    let kernel = match args.uclamp.then(|| image::kernel(&args.cache)).transpose()? {
        Some(Ready::NotHere(why)) => return not_run(why),
        Some(Ready::Image(kernel)) => Some(kernel),
        None => None,
    };

    let dir = tempfile::Builder::new().prefix("ballast-guest-").tempdir()?;
    let mut outcomes = Vec::new();
    let mut guest = None;
    let boot = outcome("boot", |notes| {
        let mut booted = Guest::boot(&image, kernel.as_deref(), &args.packages, dir.path(), notes)?;
        let installing = Instant::now();
        booted.judge = !args.busy;
        booted.quick = args.quick;
        booted.tries = args.tries;
        booted.install(notes)?;
        notes.put("install_s", installing.elapsed().as_secs_f64());
        guest = Some(booted);

        Ok(())
    });

    report(args, &boot);
    outcomes.push(boot);
    let Some(mut guest) = guest else { return finish(args, began, outcomes) };

    if args.shell {
        talk(&mut guest)?;
        return Ok(ExitCode::SUCCESS);
    }

    for scenario in chosen {
        let done = outcome(scenario.name, |notes| (scenario.run)(&mut guest, notes));
        report(args, &done);
        outcomes.push(done);
    }

    finish(args, began, outcomes)
}

fn choose(all: &'static [Scenario], names: &[String]) -> anyhow::Result<Vec<&'static Scenario>> {
    for name in names {
        if !all.iter().any(|scenario| scenario.name == name) {
            bail!("there is no scenario {name:?}; --list names them");
        }
    }
    let named = |scenario: &&Scenario| names.is_empty() || names.iter().any(|n| n == scenario.name);
    Ok(all.iter().filter(named).collect())
}

fn outcome(scenario: &'static str, run: impl FnOnce(&mut Notes) -> anyhow::Result<()>) -> Outcome {
    let began = Instant::now();
    let mut measured = Notes::default();
    let why = run(&mut measured).err().map(|e| format!("{e:#}"));
    let took_s = (began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
    Outcome { scenario, passed: why.is_none(), why, took_s, measured }
}

/// Text comes as it happens; JSON in the end.
fn report(args: &GuestArgs, outcome: &Outcome) {
    if args.json {
        say(io::stderr(), &outcome.text());
    } else {
        say(io::stdout(), &outcome.text());
    }
}

fn finish(args: &GuestArgs, began: Instant, scenarios: Vec<Outcome>) -> anyhow::Result<ExitCode> {
    let passed = scenarios.iter().all(|outcome| outcome.passed);
    let took_s = began.elapsed().as_secs_f64().round();
    let count = scenarios.iter().filter(|outcome| outcome.passed).count();
    let line = format!("guest: {count} of {} passed in {took_s} s", scenarios.len());
    if args.json {
        let summary = Summary { passed, took_s, scenarios };
        say(io::stdout(), &serde_json::to_string_pretty(&summary)?);
    } else {
        say(io::stdout(), &line);
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A root shell, line by line, until stdin ends.
fn talk(guest: &mut Guest) -> anyhow::Result<()> {
    say(io::stderr(), "a root shell in the guest; each line runs by itself, Ctrl-D ends it");
    for line in io::stdin().lock().lines() {
        let said = guest.shell.try_run(&line.context("stdin")?, Duration::from_secs(600))?;
        write!(io::stdout(), "{}", said.text)?;
        if said.code != 0 {
            say(io::stderr(), &format!("exit code {}", said.code));
        }
    }
    Ok(())
}
