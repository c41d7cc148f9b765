//! `ballast man`: manual pages and shell completions of all four programs for the packages, and the commands'
//! page of the book.

mod reference;

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use ballast_agent::AgentDaemon;
use ballast_chassis::ChassisDaemon;
use ballast_place::PlaceDaemon;
use ballast_runtime::program::Program;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The folder, made if it is not there: man1, man8, completions and cli.md below it
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) fn run(args: &ManArgs, mut ballast: clap::Command) -> anyhow::Result<()> {
    let folder = |name: &str| {
        let folder = args.dir.join(name);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string()).map(|()| folder)
    };

    let (man1, man8, completions) = (folder("man1")?, folder("man8")?, folder("completions")?);
    clap_mangen::generate_to(ballast.clone(), &man1)?;
    let mut daemons = [
        Program::<AgentDaemon>::command(),
        Program::<ChassisDaemon>::command(),
        Program::<PlaceDaemon>::command(),
    ];
    for command in &daemons {
        let page = man8.join(format!("{}.8", command.get_name()));
        let mut text = vec![];
        clap_mangen::Man::new(command.clone()).section("8").render(&mut text)?;
        fs::write(&page, text).with_context(|| page.display().to_string())?;
    }

    let page = args.dir.join("cli.md");
    let programs: Vec<_> = std::iter::once(&ballast).chain(&daemons).cloned().collect();
    fs::write(&page, reference::markdown(programs)).with_context(|| page.display().to_string())?;

    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        for command in std::iter::once(&mut ballast).chain(&mut daemons) {
            let name = command.get_name().to_owned();
            clap_complete::generate_to(shell, command, name, &completions)?;
        }
    }

    Ok(())
}
