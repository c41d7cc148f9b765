//! `ballast top`: daemons, servers and VMs as they are now, on a terminal.

mod view;

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use ballast_runtime::tls::Tls;
use clap::Args;
use ratatui::crossterm::event::KeyCode;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::common::answers::ask_all;
use crate::common::daemons::UrlArgs;
use crate::common::screen::Screen;
use crate::common::terminal::stop;
use view::View;

/// Between two looks at the keyboard.
const KEYS: Duration = Duration::from_millis(100);

/// Arguments of `ballast top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    daemons: UrlArgs,
    /// Seconds between two questions to the daemons
    #[arg(long, value_name = "S", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval_s: u64,
}

/// Watches until somebody ends it.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        bail!("top draws on a terminal, and this is none: use `ballast status`, with --json for programs");
    }
    let tls = args.daemons.tls.open()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(watch(args, tls))?;
    Ok(ExitCode::SUCCESS)
}

async fn watch(args: &TopArgs, tls: Option<Arc<Tls>>) -> anyhow::Result<()> {
    let stop = stop()?;
    tokio::pin!(stop);
    let mut screen = Screen::open()?;
    let mut view = View::default();
    let mut asking = JoinSet::new();
    let mut keys = interval(KEYS);
    let mut rounds = interval(Duration::from_secs(args.interval_s));
    for ticks in [&mut keys, &mut rounds] {
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }

    loop {
        screen.draw(|frame| view.draw(frame))?;
        tokio::select! {
            _ = keys.tick() => {}
            _ = rounds.tick(), if asking.is_empty() => {
                asking.spawn(ask_all(args.daemons.urls.clone(), tls.clone()));
            }
            Some(answers) = asking.join_next() => view.take(answers??),
            () = &mut stop => return Ok(()),
        }

        while let Some(key) = Screen::key()? {
            if key == KeyCode::Char('q') {
                return Ok(());
            }
            view.press(key);
        }
    }
}
