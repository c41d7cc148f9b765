//! Serving until a signal comes, then stopping in order: `serve() → Leaving → end()`.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use axum::Router;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task;

use crate::http;
use crate::systemd::notify;

/// How long the control thread may take to end once it is told to.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks at whether a stopping controller is done.
const TURN: Duration = Duration::from_millis(20);

/// A daemon that was told to stop. It still answers, and its control thread `H` still runs.
#[must_use = "HTTP and the control thread go on until `end`"]
pub struct Leaving<H> {
    control: task::JoinHandle<std::thread::Result<H>>,
    server: task::JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

/// Serves HTTP, and tells systemd that the daemon is ready. Returns when SIGTERM or SIGINT comes. Fails when
/// HTTP or the control thread ends before the signal.
pub async fn serve<H: Send + 'static>(
    listeners: Vec<http::Listener>,
    routes: Router,
    access: Arc<http::AccessPolicy>,
    control: JoinHandle<H>,
) -> anyhow::Result<Leaving<H>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut control = task::spawn_blocking(move || control.join());
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let mut server = tokio::spawn(http::serve(listeners, routes, access, stopped));
    notify(NotifyState::Ready);

    let signal = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        _ = &mut control => bail!("the control thread has ended"),
        served = &mut server => {
            served.context("HTTP")?;
            bail!("HTTP has ended");
        }
    };

    tracing::info!(signal, "stopping");
    notify(NotifyState::Stopping);

    Ok(Leaving { control, server, stop })
}

impl<H> Leaving<H> {
    /// Waits until the control thread, which was told to stop, has ended; then ends HTTP. Gives what the
    /// control thread leaves. Fails when the control thread does not end, or has panicked.
    pub async fn end(self) -> anyhow::Result<H> {
        let ended = tokio::time::timeout(STOP_WITHIN, self.control).await;
        let effects = ended.context("the control thread does not end")??;
        drop(self.stop);
        self.server.await.context("HTTP")?;

        effects.map_err(|_| anyhow!("the control thread has panicked"))
    }
}

/// Waits until `done`, at most for `within`; whoever waits then looks itself how far it came.
pub async fn wait_until(within: Duration, done: impl Fn() -> bool) {
    let waiting = async {
        tokio::time::sleep(TURN).await;
        while !done() {
            tokio::time::sleep(TURN).await;
        }
    };
    let _ = tokio::time::timeout(within, waiting).await;
}
