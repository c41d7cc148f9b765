//! `ballast completions`: what a shell offers behind the names of our programs.

use std::process::ExitCode;

use clap::builder::ValueHint;
use clap::{Arg, ArgGroup, Args, Command, Id, ValueEnum};
use clap_complete::Shell;

use crate::common::terminal::say;

/// The shells whose completions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ShellArg {
    Bash,
    Zsh,
    Fish,
}

impl ShellArg {
    pub(super) const ALL: [Self; 3] = [Self::Bash, Self::Zsh, Self::Fish];

    pub(super) const fn shell(self) -> Shell {
        match self {
            Self::Bash => Shell::Bash,
            Self::Zsh => Shell::Zsh,
            Self::Fish => Shell::Fish,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell that reads them
    #[arg(value_enum, value_name = "SHELL")]
    shell: ShellArg,
}

pub(crate) fn run(args: &CompletionsArgs, ballast: &Command) -> anyhow::Result<ExitCode> {
    say(completions(args.shell, ballast).trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// A program's completions, as its package installs them.
pub(super) fn completions(shell: ShellArg, program: &Command) -> String {
    let mut text = vec![];
    clap_complete::generate(shell.shell(), &mut offered(program), program.get_name(), &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The command as a shell offers it: nothing that is hidden, and files only where one is taken.
fn offered(command: &Command) -> Command {
    // Clap wants names that live as long as the program, which ends with this.
    let name: &'static str = command.get_name().to_owned().leak();
    let args: Vec<_> =
        command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned().map(with_hint).collect();
    let is_kept = |id: &&Id| args.iter().any(|arg| arg.get_id() == *id);
    let groups = command.get_groups().map(|group| {
        let (mut group, args) = (group.clone(), group.get_args().filter(is_kept).cloned());
        ArgGroup::new(group.get_id().clone()).args(args).multiple(group.is_multiple())
    });
    let groups: Vec<_> = groups.collect();
    let below = command.get_subcommands().filter(|it| !it.is_hide_set()).map(offered);

    let mut offered = Command::new(name).groups(groups).args(args).subcommands(below);
    if let Some(about) = command.get_about() {
        offered = offered.about(about.clone());
    }
    if command.get_version().is_some() {
        offered = offered.version(ballast_runtime::VERSION);
    }
    offered
}

/// What is offered for the argument's value: by its name where that says so, else by its type.
fn with_hint(arg: Arg) -> Arg {
    let names = arg.get_value_names().unwrap_or_default();
    let hint = match names.first().map(|name| name.as_str()) {
        Some("DIR" | "FOLDER") => ValueHint::DirPath,
        Some("FILE|DIR") => ValueHint::AnyPath,
        Some(name) if name.starts_with("FILE") || name.ends_with("]FILE") => ValueHint::FilePath,
        _ if arg.get_value_hint() == ValueHint::Unknown => ValueHint::Other,
        _ => return arg,
    };
    if arg.get_action().takes_values() { arg.value_hint(hint) } else { arg }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::path::PathBuf;

    #[derive(Parser)]
    #[command(name = "prog", version)]
    struct Program {
        /// Watts
        #[arg(long, value_name = "W")]
        budget_w: Option<f64>,
        #[arg(long, value_name = "FILE")]
        input: Option<PathBuf>,
        #[arg(long, value_name = "DIR")]
        folder: Option<PathBuf>,
        #[arg(long, value_name = "[GENERATION=]FILE")]
        curves: Option<String>,
        #[arg(long, hide = true, value_name = "PID", conflicts_with = "input")]
        parent: Option<i32>,
        #[arg(value_name = "URL")]
        url: Option<String>,
    }

    #[test]
    fn files_are_offered_where_one_is_taken_and_nowhere_else() {
        let offered = offered(&<Program as clap::CommandFactory>::command());
        let hints: Vec<_> = offered
            .get_arguments()
            .map(|arg| (arg.get_id().as_str().to_owned(), arg.get_value_hint()))
            .collect();
        let expected = [
            ("budget_w", ValueHint::Other),
            ("input", ValueHint::FilePath),
            ("folder", ValueHint::DirPath),
            ("curves", ValueHint::FilePath),
            ("url", ValueHint::Other),
        ];
        assert_eq!(hints, expected.map(|(name, hint)| (name.to_owned(), hint)));
        // It is a sound command all the same.
        offered.debug_assert();
    }
}
