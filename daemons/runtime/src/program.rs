//! The program of a daemon: arguments, `--check-config`, log, exit codes.

use std::fmt::Debug;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{ConfigError, ConfigFile, EXIT_CONFIG, Loaded};
use crate::confine::{self, Needs};
use crate::{log, reload, threads, tls};

/// Exit code of an order that a running daemon stands against: `EX_TEMPFAIL` of sysexits.h.
pub const EXIT_LIVE: u8 = 75;

/// What makes one of the three daemons.
pub trait Daemon: Debug {
    /// The name of its program.
    const NAME: &'static str;
    /// What it does, in one line of `--help`.
    const ABOUT: &'static str;
    /// What `--help` ends with: an example, exit codes, files.
    const AFTER_HELP: &'static str;
    type Config: ConfigFile;
    /// What it can do instead of running; `Infallible` for nothing.
    type Order: Subcommand + Clone + Debug;

    fn obey(order: &Self::Order) -> ExitCode;

    /// What its work needs of this machine: it is held to that before it runs.
    fn needs(config: &Self::Config) -> Needs;

    /// What the configuration asks for that this machine can never do, whatever comes back later.
    fn misfit(_: &Self::Config) -> Option<String> {
        None
    }

    /// Runs until SIGTERM or SIGINT.
    fn run(loaded: &Loaded<Self::Config>) -> anyhow::Result<()>;
}

/// The command line of one daemon.
#[derive(Parser, Debug)]
#[command(
    name = D::NAME,
    version = crate::VERSION,
    about = D::ABOUT,
    long_about = None,
    arg_required_else_help = true,
    after_help = D::AFTER_HELP
)]
pub struct Program<D: Daemon> {
    #[command(flatten)]
    args: DaemonArgs<D>,
}

/// What a daemon takes on the command line: the file to run by, or one of its orders.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct DaemonArgs<D: Daemon> {
    #[command(flatten)]
    run: Option<RunArgs>,
    #[command(subcommand)]
    order: Option<D::Order>,
}

#[derive(Args, Clone, Debug)]
struct RunArgs {
    /// The TOML file to run by
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the file, say what is wrong with it, and end: exit code 0 or 78
    #[arg(long)]
    check_config: bool,
}

/// The `main` of a daemon's own program.
pub fn main<D: Daemon>() -> ExitCode {
    Program::<D>::parse().args.run()
}

impl<D: Daemon> DaemonArgs<D> {
    /// Runs the daemon until SIGTERM or SIGINT, or obeys one order.
    pub fn run(&self) -> ExitCode {
        match (&self.order, &self.run) {
            (Some(order), _) => D::obey(order),
            (None, Some(args)) => args.run::<D>(),
            // The command line has refused it.
            (None, None) => ExitCode::from(2),
        }
    }
}

impl RunArgs {
    /// Loads, checks and runs; turns what went wrong into a line and an exit code.
    ///
    /// 0: ended by a signal. 1: could not start, or broke. 78: the configuration is refused.
    #[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is the command line's answer")]
    fn run<D: Daemon>(&self) -> ExitCode {
        let held = reload::hold_hangups().map_err(anyhow::Error::new);
        tls::install_provider();
        let loaded = match Loaded::<D::Config>::load(&self.config) {
            Ok(loaded) => loaded,
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(EXIT_CONFIG);
            }
        };

        if let Some(why) = D::misfit(&loaded.config) {
            eprintln!("{}: {why}", self.config.display());
            return ExitCode::from(EXIT_CONFIG);
        }

        if self.check_config {
            for warning in loaded.config.warnings() {
                eprintln!("{}: warning: {warning}", self.config.display());
            }
            println!("{}: ok", self.config.display());
            return ExitCode::SUCCESS;
        }

        // Before there is any other thread: what is refused binds this one, and those that it starts.
        confine::enter(&D::needs(&loaded.config));
        let _flush = log::start(loaded.config.log_level());
        threads::watch_hardware();
        confine::log();

        match held.and_then(|()| D::run(&loaded)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                tracing::error!("{error:#}");
                // What fits no machine was seen before; this does not fit what the daemon remembers.
                if error.is::<ConfigError>() { EXIT_CONFIG.into() } else { ExitCode::FAILURE }
            }
        }
    }
}
