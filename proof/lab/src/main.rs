//! `ballast-lab`: what measures and proves Ballast. It is built from the checkout and is in no package.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the library is pure; this program reads files and runs threads"
)]
#![allow(clippy::doc_markdown, reason = "the comments of arguments are help texts, for a terminal")]

mod experiment;

use std::env::args_os;
use std::process::ExitCode;

use ballast_bench::Bench;
use ballast_cli::common::terminal::tell;
use ballast_guest::GuestArgs;
use clap::{Parser, Subcommand};
use experiment::Experiment;

/// Measures and proves Ballast: experiments, benchmarks, a real kernel, a model checker.
///
/// Results go to stdout, progress and messages to stderr.
#[derive(Parser, Debug)]
#[command(version, arg_required_else_help = true)]
struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measure the controllers in virtual time: the paper's figures, and ours beside them
    #[command(subcommand)]
    Experiment(Box<Experiment>),
    /// Measure how fast alerts, predictions, scores and plans are
    #[command(subcommand)]
    Bench(Bench),
    /// Run the packages on a real kernel, under emulation
    Guest(GuestArgs),
    /// Drive two managers and two agents through every history of a few faults, and random ones of many
    Model {
        /// How long to search, in minutes
        #[arg(default_value_t = 10.0)]
        minutes: f64,
    },
}

/// The product's commands that benchmarks start as processes of this same program.
const STARTED: [&str; 5] = ["agent", "chassis", "place", "plan", "rig"];

fn main() -> ExitCode {
    if args_os().nth(1).is_some_and(|command| STARTED.iter().any(|name| command == *name)) {
        return ballast_cli::main();
    }
    ballast_runtime::tls::install_provider();
    let result = match Lab::parse().command {
        Command::Experiment(experiment) => experiment::run(&experiment),
        Command::Bench(bench) => ballast_bench::run(&bench),
        Command::Guest(args) => ballast_guest::run(&args),
        Command::Model { minutes } => Ok(ballast_model::run(minutes)),
    };
    result.unwrap_or_else(|error| {
        tell(&format!("error: {error:#}"));
        ExitCode::FAILURE
    })
}
