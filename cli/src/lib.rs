//! The commands of `ballast`: one program for the demonstration, the tools and the daemons.
//!
//! A library, because the programs in `proof/` share [`common`] and start the daemons as the demonstration does.

#![allow(clippy::doc_markdown, reason = "the comments of arguments are help texts, for a terminal")]

mod admit;
mod budget;
mod bundle;
mod certs;
mod check;
pub mod common;
mod defrag;
mod demo;
mod fit;
mod label;
mod man;
mod pack;
mod plan;
mod predict;
mod profile;
mod recommend;
mod records;
mod replay;
mod rig;
mod simulate;
mod status;
mod top;
mod train;
mod ui;

use std::process::ExitCode;

use ballast_agent::AgentDaemon;
use ballast_chassis::ChassisDaemon;
use ballast_place::PlaceDaemon;
use ballast_runtime::program::DaemonArgs;
use clap::{Args, CommandFactory, Parser, Subcommand};
use common::parent;
use common::terminal::tell;

/// Keeps a chassis of servers under one power budget.
///
/// Results go to stdout, progress and messages to stderr.
#[derive(Parser, Debug)]
#[command(
    version = ballast_runtime::VERSION,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 success; 1 failure, said on stderr; 2 wrong usage; 78 a daemon's \
                  configuration is refused; 130 ended by Ctrl-C."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Watch real daemons keep a simulated chassis under its power budget
    #[command(after_help = "Example: ballast demo --seconds 30 --json\n\
        Example: ballast demo --telemetry cpu_pct_2013-8.csv.zst --policy none")]
    Demo(demo::DemoArgs),
    /// Keep a tree of kernel-format files alive, so that daemons run without hardware
    #[command(after_help = "Example: ballast rig --dir /dev/shm/rig --servers 2 --configs /dev/shm/daemons")]
    Rig(Child<rig::RigArgs>),
    /// Run the controllers in virtual time: on a daemon's recording, or on foreign telemetry
    #[command(after_help = "Example: ballast replay --telemetry draws.csv --budget-w 2450 --json")]
    Replay(replay::ReplayArgs),
    /// Place the VMs of a recorded trace on a cluster, in virtual time
    #[command(
        after_help = "Example: ballast simulate --trace azure2017_dev.csv.zst --servers 500 --host-cores 64 \
                      --host-mem-gb 256 --until-s 86400 --json"
    )]
    Simulate(simulate::SimulateArgs),
    /// Learn from past VMs which ones are user-facing and how busy they get, or how long they live
    #[command(after_help = "Example: ballast train --input vms.csv --output /var/lib/ballast/model \
                      --replace-if-not-worse\n\
        Example: ballast train --generate 300000 --output trial.model\n\n\
        Exit codes: 0 the model is written; 1 failure; 2 wrong usage; 3 the new model is worse than the \
        one that is there, which stays.")]
    Train(train::TrainArgs),
    /// Learn from past deployments how they grow, shrink and end: the law that cluster admission believes in
    #[command(after_help = "Example: ballast fit --input events.csv --output law.toml\n\
        Example: ballast fit --input events.csv --json")]
    Fit(fit::FitArgs),
    /// Find thresholds for cluster admission, or say what a policy would have admitted
    #[command(
        after_help = "Example: ballast admit tune --priors law.toml --capacity-cores 2000 --output law.toml\n\
        Example: ballast admit replay --priors law.toml --capacity-cores 2000 events.csv"
    )]
    Admit(admit::AdmitArgs),
    /// Say of arriving VMs whether they are user-facing and how busy they will be, or how long they will live
    #[command(after_help = "Example: ballast predict --model /var/lib/ballast/model --input vms.csv\n\
        Example: ballast predict --model /var/lib/ballast/model --about")]
    Predict(predict::PredictArgs),
    /// Say how low a chassis budget may be set, from the history of its draw
    #[command(after_help = "Example: ballast plan --telemetry draws-*.csv.zst --policy no-impact --json\n\
        Example: ballast plan --histogram counts.csv --emax-uf 0.001 --emax-nuf 0.009 --fmin-uf 0.75 \
        --fmin-nuf 0.5")]
    Plan(Box<plan::PlanArgs>),
    /// Say how many machines VMs need if their use may be above a machine's capacity for a share of the time
    #[command(
        after_help = "Example: ballast pack --telemetry cpu.csv.zst --capacity 2 --target 0.01 --json\n\
        Example: ballast pack --telemetry cpu.csv --cores vms.csv --capacity 32"
    )]
    Pack(pack::PackArgs),
    /// What CPU limits jobs should have, by what they used, and what these would have come to
    #[command(after_help = "Example: ballast recommend --telemetry cpu.csv.zst --overruns 0.001 --json\n\
        Example: ballast recommend --telemetry cpu.csv --cores vms.csv --family experts")]
    Recommend(recommend::RecommendArgs),
    /// Find out how a server draws by load and frequency: measured, fitted, or guessed
    #[command(
        after_help = "Example: ballast profile --config /etc/ballast/agent.toml --yes --output gen7.toml\n\
        Example: ballast profile --input measured.csv --output gen7.toml\n\
        Example: ballast profile --specpower SPECpower-full-results.csv --cores 40 --output gen7.toml\n\n\
        Exit codes: 0 done; 1 failure, said on stderr; 2 wrong usage; 75 an agent runs there: nothing was \
        done; 78 the configuration is refused; 130 ended by a signal. However it ends, frequencies are put \
        back."
    )]
    Profile(profile::ProfileArgs),
    /// Say what this machine can do: drivers, sensors, caps, competing writers; why not more, and what would
    /// help
    #[command(after_help = "Example: ballast check\nExample: ballast check --json --seconds 10\n\
        Example: ballast check --record machine && ballast check --root machine\n\
        Example: ballast check --fleet http://127.0.0.1:7100 http://127.0.0.1:7101\n\n\
        Exit codes: 0 all that is needed works; 1 it will do, with drawbacks; 2 there is no way to \
        throttle, or no meter; with --fleet, a daemon does not answer or belongs to another chassis, or its \
        certificate has ended; 64 wrong usage; 130 ended by Ctrl-C.")]
    Check(check::CheckArgs),
    /// Say which VMs are user-facing, by their CPU use alone
    #[command(after_help = "Example: ballast label --input use.csv.zst --output labels.csv\n\
        Example: ballast label --input use.csv --timezone Europe/Berlin --plot figure3.svg --output -\n\
        Example: ballast label --input use.csv --method ensemble --fit-on labelled.csv.zst")]
    Label(label::LabelArgs),
    /// Show the state of managers, agents and VMs
    #[command(after_help = "Example: ballast status http://127.0.0.1:7100 http://127.0.0.1:7101\n\n\
        Example: BALLAST_URL=https://10.0.0.1:7100 ballast status --check\n\n\
        Environment: BALLAST_URL (commas between), BALLAST_CERT, BALLAST_KEY, BALLAST_CA.\n\
        Exit codes: 0 all answered; 1 one did not. With --check: 0 all is well; 1 an alarm is on; 2 one did \
        not answer.")]
    Status(status::StatusArgs),
    /// Gather what somebody needs who shall help, in one archive without secrets
    #[command(after_help = "Example: ballast bundle http://127.0.0.1:7100 http://127.0.0.1:7101\n\
        Example: ballast bundle unix:/run/ballast-chassis/ballast.sock --output case-4711.tar.gz\n\n\
        Environment: BALLAST_URL (commas between), BALLAST_CERT, BALLAST_KEY, BALLAST_CA.\n\
        Exit codes: 0 all is in the archive; 1 there is none; 2 wrong usage; 3 something is missing, \
        which is said on stderr and in errors.txt.")]
    Bundle(bundle::BundleArgs),
    /// Watch managers, agents and VMs on a terminal
    #[command(after_help = "Example: ballast top http://127.0.0.1:7100 http://127.0.0.1:7101")]
    Top(top::TopArgs),
    /// Serve the web page for chassis managers and their agents; it only reads
    #[command(after_help = "Example: ballast ui http://127.0.0.1:7100 http://127.0.0.1:7101")]
    Ui(ui::UiArgs),
    /// Show the power budget of a chassis, lower it for a time, or go back to the configured one
    #[command(subcommand)]
    Budget(budget::Budget),
    /// Empty hosts: show which VMs would be moved and when each host is free, begin it, follow it, end it
    #[command(after_help = "Example: ballast defrag --count 3\n\
        Example: ballast defrag --hosts s001,s002 --approve\n\
        Example: ballast defrag --id 4 --cancel\n\n\
        Environment: BALLAST_URL, BALLAST_CERT, BALLAST_KEY, BALLAST_CA.\n\
        Exit codes: 0 done; 1 refused, or failed; 2 wrong usage.")]
    Defrag(defrag::DefragArgs),
    /// Show what an agent has recorded of its VMs' use
    #[command(after_help = "Example: ballast records\n\
        Example: ballast records --dir usage --vm web-1 --format csv")]
    Records(records::RecordsArgs),
    /// Run the agent of one server
    #[command(after_help = "Example: ballast agent --config /etc/ballast/agent.toml --check-config")]
    Agent(Child<DaemonArgs<AgentDaemon>>),
    /// Run the manager of one chassis
    #[command(after_help = "Example: ballast chassis --config /etc/ballast/chassis.toml")]
    Chassis(Child<DaemonArgs<ChassisDaemon>>),
    /// Run the placement daemon
    #[command(after_help = "Example: ballast place --config /etc/ballast/place.toml --check-config")]
    Place(Child<DaemonArgs<PlaceDaemon>>),
    /// Make certificates: a small authority for trials, tests and small sites
    #[command(after_help = "Example: ballast certs --dir certs --chassis rack3-c1 --server s01=10.0.0.11 \
                      --operator ann")]
    Certs(certs::CertsArgs),
    /// Print what a shell needs to complete this program's commands, options and values
    #[command(after_help = "Example: source <(ballast completions bash)\n\
        Example: ballast completions fish >~/.config/fish/completions/ballast.fish")]
    Completions(man::CompletionsArgs),
    /// Write manual pages and shell completions, for packages
    #[command(hide = true, after_help = "Example: ballast man --dir target/docs")]
    Man(man::ManArgs),
}

/// A command that others of ours start as a process.
#[derive(Args, Debug)]
struct Child<A: Args> {
    #[command(flatten)]
    args: A,
    /// End when this process, our parent, ends
    #[arg(long, hide = true, value_name = "PID")]
    exit_with_parent: Option<i32>,
}

impl<A: Args> Child<A> {
    /// The arguments, once the process is tied to its parent.
    fn tied(self) -> anyhow::Result<A> {
        self.exit_with_parent.map_or(Ok(()), parent::tie)?;
        Ok(self.args)
    }
}

/// Runs the command of the process's arguments.
pub fn main() -> ExitCode {
    ballast_runtime::tls::install_provider();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && std::env::args().nth(1).as_deref() == Some("check") => {
            tell(error.to_string().trim_end());
            return check::EXIT_USAGE.into();
        }
        Err(error) => error.exit(),
    };
    match run(cli.command) {
        Ok(code) => code,
        Err(error) => {
            tell(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Rig(child) => rig::run(&child.tied()?),
        Command::Replay(args) => replay::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Recommend(args) => recommend::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Fit(args) => fit::run(&args),
        Command::Admit(args) => admit::run(&args),
        Command::Label(args) => label::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Bundle(args) => bundle::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Ui(args) => ui::run(&args),
        Command::Budget(budget) => budget::run(&budget),
        Command::Defrag(args) => defrag::run(&args),
        Command::Records(args) => records::run(&args),
        Command::Agent(child) => Ok(child.tied()?.run()),
        Command::Chassis(child) => Ok(child.tied()?.run()),
        Command::Place(child) => Ok(child.tied()?.run()),
        Command::Certs(args) => certs::run(&args),
        Command::Completions(args) => man::run_completions(&args, &Cli::command()),
        Command::Man(args) => man::run(&args, Cli::command()).map(|()| ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound_and_every_command_has_an_example() {
        let mut cli = Cli::command();
        cli.build();
        cli.clone().debug_assert();
        let groups = ["budget"];
        let inner = groups.map(|group| cli.find_subcommand(group).unwrap().clone());
        let inner = inner.iter().flat_map(clap::Command::get_subcommands);
        for command in cli.get_subcommands().chain(inner) {
            if groups.contains(&command.get_name()) || command.get_name() == "help" {
                continue;
            }
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example: ballast "), "{}", command.get_name());
        }
    }
}
