//! The last steps: the agent serves until it is told to stop, and then puts everything back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::bail;
use ballast_agent_core::Input;
use ballast_hw::systemd::ShutdownDeadline;
use ballast_hw::{JournalFolders, Root};
use ballast_runtime::audit::AuditLog;
use ballast_runtime::config::Loaded;
use ballast_runtime::control::Snapshot;
use ballast_runtime::http::AccessPolicy;
use ballast_runtime::redfish::Bmcs;
use ballast_runtime::reload::Reloader;
use ballast_runtime::threads;
use ballast_runtime::{Leaving, lock, wait_until};
use ballast_types::wire::{AgentStatus, Report};
use nix::sys::signal::{Signal, raise};
use tokio::runtime::Runtime;

use crate::config::AgentConfig;
use crate::effects::AgentEffects;
use crate::message::Message;
use crate::release::RESTORE_WITHIN;
use crate::reload::AgentReload;
use crate::start::Started;
use crate::usage::Usage;
use crate::vms::Vms;
use crate::{api, limit};

/// How long a stopping agent goes on answering, so that its chassis hears `leaving`.
const LEAVE_WITHIN: Duration = Duration::from_millis(700);
/// Between two looks whether the journal can be written, and how much room it must have: more than any has
/// taken.
const LOOK_FOR_ROOM: Duration = Duration::from_secs(5);
const JOURNAL_BYTES: usize = 256 << 10;

/// An agent that was told to stop. The fields that come first are dropped first.
pub(crate) struct Served {
    leaving: Leaving<AgentEffects>,
    messages: Sender<Message>,
    snapshot: Arc<Snapshot<AgentStatus>>,
    vms: Arc<Mutex<Vms>>,
    shutdown_deadline: ShutdownDeadline,
    root: Root,
    rapl_left: limit::RaplOriginals,
    dry: bool,
    /// Whether it ends because the next start may act.
    has_room: Arc<AtomicBool>,
    _usage: Usage,
    _bmcs: Bmcs,
    runtime: Runtime,
}

impl Started<'_> {
    /// Serves until SIGTERM or SIGINT. Fails when HTTP or the control thread ends before that. The journal
    /// then stays for the next start.
    pub(crate) fn serve(self, loaded: Loaded<AgentConfig>) -> anyhow::Result<Served> {
        if let Some(tls) = &self.tls {
            tls.watch(self.events.clone())?;
        }
        let place = &self.config.daemon;
        let has_room = Arc::new(AtomicBool::new(false));
        if self.waits_for_room {
            start_anew_when_there_is_room(self.config.journal_folders(), Arc::clone(&has_room))?;
        }

        let access = AccessPolicy::new(Some(self.config.chassis.clone()));
        let audit = AuditLog::new(&place.state_dir, self.events.clone(), self.faults.clone());
        let access = Arc::new(access.with_allowed_hosts(&place.allowed_hosts).with_audit(audit));
        let reload = AgentReload { vms: Arc::clone(&self.vms), messages: self.messages.clone() };
        let reloader = Reloader::new(loaded, reload, self.events.clone(), self.alarms, self.tls.clone());
        let routes = api::routes(api::Api {
            messages: self.messages.clone(),
            snapshot: Arc::clone(&self.snapshot),
            events: self.events,
            counts: self.counts,
            notes: lock(&self.vms).notes(),
            vms: Arc::clone(&self.vms),
            faults: self.faults,
            tls: self.tls,
            access: Arc::clone(&access),
        });

        let serving = ballast_runtime::serve(self.listening, routes, access, self.control);
        let leaving = self.runtime.block_on(async {
            reloader.start()?;
            serving.await
        })?;

        Ok(Served {
            leaving,
            messages: self.messages,
            snapshot: self.snapshot,
            vms: self.vms,
            shutdown_deadline: self.shutdown_deadline,
            root: self.root,
            rapl_left: self.rapl_left,
            dry: self.dry,
            has_room,
            _usage: self.usage,
            _bmcs: self.bmcs,
            runtime: self.runtime,
        })
    }
}

impl Served {
    /// Has the controller lift every restriction, ends it, and puts back what it could not. The error names
    /// all that could not be put back; the journal then stays for the next start.
    pub(crate) fn restore(self) -> anyhow::Result<()> {
        let effects = self.runtime.block_on(async {
            // Sending fails only when the control thread has ended, and then nothing waits.
            let _ = self.messages.send(Message::Input(Input::Leave));
            tokio::time::sleep(LEAVE_WITHIN).await;
            // What could not be lifted is tried once more below, and named if that fails too.
            wait_until(LEAVE_WITHIN, || self.snapshot.get().is_some_and(|status| is_lifted(&status))).await;
            let _ = self.messages.send(Message::Stop);

            self.leaving.end().await
        })?;

        self.shutdown_deadline.set(RESTORE_WITHIN);
        // Or limits would be set anew beside those who put back.
        lock(&self.vms).stop_limiting();

        // All, whatever comes of the first.
        let cores = effects.restore();
        let rapl = || Ok(limit::put_back_rapl(&self.root, &self.rapl_left)?);
        let cores = cores.and(if self.dry { Ok(()) } else { rapl() });
        let groups = lock(&self.vms).restore(cores.is_ok());

        if let (Err(cores), Err(groups)) = (&cores, &groups) {
            bail!("{cores:#}; {groups:#}");
        }
        cores.and(groups)?;
        if self.has_room.load(Ordering::Relaxed) {
            // No success: what a previous instance has restricted is for the next start, and for no release.
            bail!("the journal can be written again, and the next start may act");
        }
        let said =
            if self.dry { "nothing was changed, and nothing is put back" } else { "everything is restored" };
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
