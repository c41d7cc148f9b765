//! `ballast man`: manual pages and shell completions of all four programs for the packages, and the commands'
//! page of the book.

mod completions;
mod page;
mod reference;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ballast_agent::AgentDaemon;
use ballast_agent::config::{AgentConfig, ConfigFile as _};
use ballast_chassis::ChassisDaemon;
use ballast_chassis::config::ChassisConfig;
use ballast_place::PlaceDaemon;
use ballast_place::config::PlaceConfig;
use ballast_runtime::program::Program;
use clap::{Args, Command, CommandFactory};
use clap_complete::Generator as _;

pub(crate) use completions::{CompletionsArgs, run as run_completions};
use completions::{ShellArg, completions};

#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The folder, made if it is not there: man1, man5, man8, completions and cli.md below it
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &ManArgs, ballast: Command) -> anyhow::Result<()> {
    let put = |path: &str, text: &[u8]| {
        let path = args.dir.join(path);
        let written =
            fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).and_then(|()| fs::write(&path, text));
        written.with_context(|| path.display().to_string())
    };

    let configs = [
        ("agent", AgentConfig::reference()),
        ("chassis", ChassisConfig::reference()),
        ("place", PlaceConfig::reference()),
    ];
    for (daemon, tables) in &configs {
        put(&format!("man5/ballast-{daemon}.toml.5"), &page::of_config(daemon, tables))?;
    }

    let programs = [
        ballast,
        Program::<AgentDaemon>::command(),
        Program::<ChassisDaemon>::command(),
        Program::<PlaceDaemon>::command(),
    ];
    for program in &programs {
        let name = program.get_name();
        for shell in ShellArg::ALL {
            let file = format!("completions/{}", shell.shell().file_name(name));
            put(&file, completions(shell, program).as_bytes())?;
        }

        let (section, also) = match name {
            "ballast" => ("1", configs.each_ref().map(|(daemon, _)| format!("ballast-{daemon}(8)")).to_vec()),
            daemon => ("8", vec![format!("{daemon}.toml(5)")]),
        };
        // What `help COMMAND` says has no page: it says what the command's page says.
        let mut program = program.clone().disable_help_subcommand(true);
        program.build();
        write_pages(&program, section, &also, &put)?;
    }

    put("cli.md", reference::markdown(programs.to_vec()).as_bytes())
}

/// The pages of a command and of those below it, each in a file of its own.
fn write_pages(
    command: &Command,
    section: &str,
    also: &[String],
    put: &impl Fn(&str, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    put(&format!("man{section}/{name}.{section}"), &page::of_command(command, section, also)?)?;
    let above = [format!("{name}({section})")];
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        write_pages(below, section, &above, put)?;
    }
    Ok(())
}
