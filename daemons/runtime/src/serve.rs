//! Serving until a signal comes, then stopping in order: `serve() → Leaving → end()`.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use axum::Router;
use sd_notify::NotifyState;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task;

use crate::config::Listen;
use crate::http;
use crate::systemd::notify;
use crate::tls::Tls;

/// How long the control thread may take to end once it is told to.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks at whether a stopping controller is done.
const TURN: Duration = Duration::from_millis(20);

/// Where a daemon hears: its addresses, SIGTERM and SIGINT.
pub struct Listening {
    listeners: Vec<http::Listener>,
    terminate: Signal,
    interrupt: Signal,
}

impl Listening {
    /// Binds every address. A signal from now on is kept for [`serve`]: a daemon that is told to stop while it starts still
    /// stops in order. Unlike SIGHUP, which [`crate::reload::hold_hangups`] blocks, they are not blocked: programs that a start
    /// runs would inherit that, and would not stop.
    ///
    /// # Errors
    /// For an address that is taken, or signals that cannot be had.
    pub fn open(runtime: &Runtime, all: &[Listen], tls: Option<&Arc<Tls>>) -> io::Result<Self> {
        runtime.block_on(async {
            Ok(Self {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
                listeners: http::bind(all, tls).await?,
            })
        })
    }
}

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
    listening: Listening,
    routes: Router,
    access: Arc<http::AccessPolicy>,
    control: JoinHandle<H>,
) -> anyhow::Result<Leaving<H>> {
    let Listening { listeners, mut terminate, mut interrupt } = listening;
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use nix::sys::signal::{Signal, raise};
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn who_is_told_to_stop_while_it_starts_stops_in_order() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let listen = Listen::Plain("127.0.0.1:0".parse().unwrap());
        let listening = Listening::open(&runtime, &[listen], None).unwrap();
        raise(Signal::SIGTERM).unwrap();

        let (end, ends) = mpsc::channel::<u32>();
        let control = thread::spawn(move || ends.recv());
        let access = Arc::new(http::AccessPolicy::of_queries());
        runtime.block_on(async {
            let leaving = serve(listening, Router::new(), access, control).await.unwrap();
            end.send(7).unwrap();
            assert_eq!(leaving.end().await.unwrap(), Ok(7));
        });
    }
}
