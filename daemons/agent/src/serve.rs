//! The last steps: the agent serves until it is told to stop, and then puts everything back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::bail;
use ballast_agent_core::Input;
use ballast_hw::JournalFolders;
use ballast_runtime::config::Loaded;
use ballast_runtime::reload::Reloader;
use ballast_runtime::threads;
use ballast_runtime::{Leaving, lock, wait_until};
use ballast_types::wire::{AgentStatus, Report};
use nix::sys::signal::{Signal, raise};

use crate::api::{Api, routes};
use crate::config::AgentConfig;
use crate::effects::AgentEffects;
use crate::limit;
use crate::message::Message;
use crate::release::RESTORE_WITHIN;
use crate::reload::AgentReload;
use crate::start::{Started, UntilExit};

/// How long a stopping agent goes on answering, so that its chassis hears `leaving`.
const LEAVE_WITHIN: Duration = Duration::from_millis(700);
/// Between two looks whether the journal can be written, and how much room it must have: more than any has
/// taken.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(5);
const JOURNAL_BYTES: usize = 256 << 10;

/// An agent that was told to stop. The fields that come first are dropped first.
pub(crate) struct Served {
    leaving: Leaving<AgentEffects>,
    api: Api,
    /// Whether it ends because the next start may act.
    has_room: Arc<AtomicBool>,
    held: UntilExit,
}

impl Started<'_> {
    /// Serves until SIGTERM or SIGINT. Fails when HTTP or the control thread ends before that. The journal
    /// then stays for the next start.
    pub(crate) fn serve(self, loaded: Loaded<AgentConfig>) -> anyhow::Result<Served> {
        let Self { config, control, api, alarms, listening, waits_for_room, held } = self;
        let has_room = Arc::new(AtomicBool::new(false));
        if waits_for_room {
            start_anew_when_there_is_room(config.journal_folders(), Arc::clone(&has_room))?;
        }

        let follows = AgentReload { vms: Arc::clone(&api.vms), messages: api.messages.clone() };
        let (events, tls) = (api.events.clone(), api.tls.clone());
        let reloader = Reloader { in_force: loaded, follows, events, alarms, tls };
        let serving =
            ballast_runtime::serve(listening, routes(api.clone()), Arc::clone(&api.access), control);
        let leaving = held.runtime.block_on(async {
            reloader.start()?;
            serving.await
        })?;

        Ok(Served { leaving, api, has_room, held })
    }
}

impl Served {
    /// Has the controller lift every restriction, ends it, and puts back what it could not. The error names
    /// all that could not be put back; the journal then stays for the next start.
    pub(crate) fn restore(self) -> anyhow::Result<()> {
        let Self { leaving, api, has_room, held } = self;
        let effects = held.runtime.block_on(async {
            // Sending fails only when the control thread has ended, and then nothing waits.
            let _ = api.messages.send(Message::Input(Input::Leave));
            tokio::time::sleep(LEAVE_WITHIN).await;
            // What could not be lifted is tried once more below, and named if that fails too.
            wait_until(LEAVE_WITHIN, || api.snapshot.get().is_some_and(|status| is_lifted(&status))).await;
            let _ = api.messages.send(Message::Stop);

            leaving.end().await
        })?;

        held.shutdown_deadline.set(RESTORE_WITHIN);
        // Or limits would be set anew beside those who put back.
        lock(&api.vms).stop_limiting();

        // All, whatever comes of the first.
        let cores = effects.restore();
        let rapl = if held.dry { Ok(()) } else { limit::put_back_rapl(&held.root, &held.rapl_left) };
        let cores = cores.and(rapl.map_err(anyhow::Error::from));
        let groups = lock(&api.vms).restore(cores.is_ok());

        if let (Err(cores), Err(groups)) = (&cores, &groups) {
            bail!("{cores:#}; {groups:#}");
        }
        cores.and(groups)?;
        if has_room.load(Ordering::Relaxed) {
            // No success: what a previous instance has restricted is for the next start, and for no release.
            bail!("the journal can be written again, and the next start may act");
        }
        let said =
            if held.dry { "nothing was changed, and nothing is put back" } else { "everything is restored" };
        tracing::info!("{said}");

        Ok(())
    }
}

fn is_lifted(status: &AgentStatus) -> bool {
    let Report { min_khz, min_share_percent, server_limit, .. } = &status.report;
    min_khz.is_none() && min_share_percent.is_none() && !server_limit
}

/// Ends this agent, which only watches, once its journal can be written: systemd starts it anew, and the new
/// one may act.
fn start_anew_when_there_is_room(journal: JournalFolders, has_room: Arc<AtomicBool>) -> std::io::Result<()> {
    threads::every("journal", LOOK_FOR_ROOM, move || {
        if journal.have_room_for(JOURNAL_BYTES).is_err() {
            return true;
        }
        tracing::warn!("the journal can be written again: the agent ends, and its next start may act");
        has_room.store(true, Ordering::Relaxed);
        // Cannot fail for this process and a signal that there is.
        let _ = raise(Signal::SIGTERM);
        false
    })
}
