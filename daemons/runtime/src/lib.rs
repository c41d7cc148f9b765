//! What every daemon of Ballast needs: text → [`config`] → machine → shell around it → run → drain.
//!
//! Agent and chassis manager have one [control thread](control) that owns the machine and does what it
//! wants, one sampling thread that reads sensors, and one thread for HTTP and signals. Nothing but the
//! control thread can delay an alert.

pub mod caps;
pub mod clock;
pub mod config;
pub mod control;
pub mod events;
pub mod fingerprint;
pub mod http;
pub mod log;
pub mod metrics;
mod realtime;
pub mod recorder;
pub mod redfish;
pub mod sensors;
pub mod state;
pub mod tls;
pub mod watchdog;

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use axum::Router;
use clap::Args;
use config::{ConfigError, EXIT_CONFIG};
use sd_notify::NotifyState;

pub use clock::now;

/// Exit code of an order that a running daemon stands against: `EX_TEMPFAIL` of sysexits.h.
pub const EXIT_LIVE: u8 = 75;

/// What every daemon takes on the command line.
#[derive(Args, Clone, Debug)]
pub struct DaemonArgs {
    /// The TOML file to run by
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the file, say what is wrong with it, and end: exit code 0 or 78
    #[arg(long)]
    pub check_config: bool,
}

/// Loads, checks and runs; turns what went wrong into a line and an exit code.
///
/// 0: ended when told to. 1: could not start, or broke. 78: the configuration is refused.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is the command line's answer")]
pub fn run<C>(
    args: &DaemonArgs,
    config: Result<C, ConfigError>,
    warnings: impl FnOnce(&C) -> &[String],
    run: impl FnOnce(&C) -> anyhow::Result<()>,
) -> ExitCode {
    tls::install_provider();
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };

    if args.check_config {
        for warning in warnings(&config) {
            eprintln!("{}: warning: {warning}", args.config.display());
        }
        println!("{}: ok", args.config.display());
        return ExitCode::SUCCESS;
    }

    let _flush = log::start();

    match run(&config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Ends with the first SIGTERM or SIGINT.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn stop_signal() -> std::io::Result<impl Future<Output = &'static str> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

/// A mutex's value, whoever panicked while holding it: no value here is ever left half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long the control thread may take to end once it is told to.
const STOP_WITHIN: Duration = Duration::from_secs(5);

/// Serves HTTP until a signal comes, then lets `leave` put things back and stop the control thread.
///
/// # Errors
/// When the listener or the control thread ends before the signal, or the latter not at all.
pub async fn serve<H: Send + 'static>(
    listeners: Vec<http::Listener>,
    routes: Router,
    access: Arc<http::AccessPolicy>,
    control: JoinHandle<H>,
    leave: impl AsyncFnOnce(),
) -> anyhow::Result<H> {
    let signal = stop_signal()?;
    let mut control = tokio::task::spawn_blocking(move || control.join());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let mut server = tokio::spawn(http::serve(listeners, routes, access, stopped));
    notify(NotifyState::Ready);
    tokio::select! {
        name = signal => tracing::info!(signal = name, "stopping"),
        _ = &mut control => bail!("the control thread has ended"),
        served = &mut server => {
            served.context("HTTP")?;
            bail!("HTTP has ended");
        }
    }

    notify(NotifyState::Stopping);
    leave().await;
    let ended = tokio::time::timeout(STOP_WITHIN, control).await;
    let hand = ended.context("the control thread does not end")??;
    drop(stop);
    server.await.context("HTTP")?;

    hand.map_err(|_| anyhow!("the control thread has panicked"))
}

/// Tells systemd, if it is there. A daemon without systemd runs on.
pub fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "systemd was not told");
    }
}
