//! `ballast-place`: says what is expected of a VM before it runs, and where it should go; and keeps what is where.
//!
//! ```text
//!   model's file ──▶ predictor ◀── HTTP: POST /v1/predict
//!                        ▲
//!                        │           HTTP: POST /v1/score, /v1/place, hosts, VMs
//!                        │                  │
//!                     wanted ◀──────────────┤
//!                                           ▼
//!                                     stock: inventory ──▶ journal on disk
//! ```
//!
//! One thread answers; one reads the model's file and swaps what it has read; one writes the journal. An answer never
//! waits for the model, and one that changes something waits for the journal.

mod api;
mod ask;
#[cfg(test)]
mod calls;
pub mod config;
mod counters;
mod fault;
mod fields;
mod hosts;
mod inventory;
mod kubernetes;
mod metrics;
mod placing;
mod predictor;
mod reloaded_file;
mod store;
mod wanted;

use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use ballast_predict::Request;
use ballast_types::Instant;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::PlaceConfig;
use crate::kubernetes::Kube;
use ballast_runtime::events::Events;
use ballast_runtime::http::{self, AccessPolicy};
use ballast_runtime::tls::Tls;
use ballast_runtime::watchdog::Watchdog;
use ballast_runtime::{DaemonArgs, clock, lock, state};
pub(crate) use counters::{Counters, Sure, count};
pub(crate) use fault::REASONS;
use inventory::DurableInventory;
use predictor::Predictor;

/// Between two looks at the model's file.
const LOOK: Duration = Duration::from_secs(1);

/// Says what is expected of a VM before it runs, and on which host it should go
#[derive(Parser, Debug)]
#[command(
    name = "ballast-place",
    version,
    arg_required_else_help = true,
    after_help = "Example: ballast-place --config /etc/ballast/place.toml --check-config\n\n\
        Exit codes: 0 ended when told to; 1 could not start, or broke; 2 wrong usage; 78 the \
        configuration is refused.\n\n\
        SIGHUP: looks at the model's file at once, else once a second; reads the file of hosts.\n\n\
        Files: /etc/ballast/place.toml, /etc/default/ballast-place, /var/lib/ballast-place. More in \
        /usr/share/doc/ballast-place/place.md."
)]
pub struct Program {
    /// What it is told.
    #[command(flatten)]
    pub args: DaemonArgs,
}

/// Runs the daemon until SIGTERM or SIGINT.
#[must_use]
pub fn main(args: &DaemonArgs) -> ExitCode {
    ballast_runtime::run(args, PlaceConfig::load(&args.config), |_| &[], run)
}

/// What the thread that reads the file is told.
enum Word {
    /// Look now, whatever the file looks like.
    Look,
    /// End.
    Stop,
}

fn run(config: &PlaceConfig) -> anyhow::Result<()> {
    let tls = config.tls.as_ref().map(|tls| Tls::open(tls, Some(&config.role()))).transpose();
    let tls = tls.map_err(anyhow::Error::msg)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let events = Events::default();
    ballast_hw::durable::folder(&config.state_dir)
        .with_context(|| format!("state_dir {}", config.state_dir.display()))?;
    // The state is this process's alone until it ends.
    let _lock = state::lock(&config.state_dir)?;
    let listeners = runtime.block_on(http::bind(&config.listen, tls.as_ref()))?;
    let (stock, journal) = DurableInventory::open(&config.state_dir, config.policy)?;

    // The first answer is given with the model, if there is one.
    let predictor = Arc::new(Predictor::new(&config.predict));
    predictor.look(&events, false);
    let (words, inbox) = mpsc::channel();
    let looked = Arc::new(Mutex::new(clock::now()));
    let follower = {
        let (predictor, events, looked) = (Arc::clone(&predictor), events.clone(), Arc::clone(&looked));
        thread::Builder::new().name("model".into()).spawn(move || {
            follow(&inbox, |told| {
                predictor.look(&events, told);
                *lock(&looked) = clock::now();
            });
        })?
    };

    tracing::info!(
        listen = ?config.listen,
        name = %config.name,
        model = %config.predict.model.display(),
        "placement daemon runs"
    );

    if let Some(tls) = &tls {
        tls.watch(events.clone())?;
    }
    let kube = config.kubernetes.as_ref().map(|kubernetes| {
        let predictor = Arc::clone(&predictor);
        let predict = move |request: &Request| predictor.predict(request);
        Kube::start(kubernetes, config.policy, Box::new(predict), events.clone())
    });

    let kube = kube.transpose()?;
    let mut access = AccessPolicy::of_queries(config.listen.iter().any(|listen| listen.tls))
        .with_allowed_hosts(&config.allowed_hosts);
    if let Some(kube) = &kube {
        access = access.with_body_bytes_max(kube.body_bytes_max());
    }
    let access = Arc::new(access);
    let api = api::Api {
        name: config.name.clone(),
        require_model: config.predict.require_model,
        predictor,
        looked,
        stock: Arc::clone(&stock),
        hosts: config.inventory.clone().map(|file| Arc::new(Mutex::new(file))),
        hosts_problem: Arc::default(),
        counters: Arc::default(),
        events,
        kube,
        tls,
        access: Arc::clone(&access),
    };

    let leave = async || {
        // Fails only when the thread has ended.
        let _ = words.send(Word::Stop);
    };

    let served = runtime.block_on(async {
        api.follow_hosts().await.map_err(anyhow::Error::msg).context("hosts")?;
        tokio::spawn(obey_hangups(words.clone(), api.clone())?);
        tokio::spawn(feed(Watchdog::of_systemd()));

        ballast_runtime::serve(listeners, api::routes(api), access, follower, leave).await
    });

    stock.stop();
    journal.join().map_err(|_| anyhow!("the journal's thread has panicked"))?;

    served
}

/// Looks once a [`LOOK`], and when told to, until told to stop.
fn follow(inbox: &Receiver<Word>, mut look: impl FnMut(bool)) {
    loop {
        match inbox.recv_timeout(LOOK) {
            Ok(Word::Look) => look(true),
            Err(RecvTimeoutError::Timeout) => look(false),
            Ok(Word::Stop) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Has the files looked at on every SIGHUP.
fn obey_hangups(
    words: Sender<Word>,
    api: api::Api,
) -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let mut hangups = signal(SignalKind::hangup()).context("SIGHUP")?;
    Ok(async move {
        // Sending fails only when the daemon ends.
        while hangups.recv().await.is_some() && words.send(Word::Look).is_ok() {
            api.reload_hosts().await;
        }
    })
}

/// Feeds systemd's watchdog from the thread that answers: one that hangs is killed and started anew. The
/// other thread may wait for a slow disk; what it has read is still good.
async fn feed(mut watchdog: Watchdog) {
    while let Some(at) = watchdog.wake(clock::now(), None) {
        tokio::time::sleep(at - clock::now().min(at)).await;
        watchdog.turned(clock::now(), true);
    }
}

/// How long ago `then` was.
fn since(then: Instant) -> Duration {
    let now = clock::now();
    now - then.min(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_when_told_and_the_thread_ends_when_told() {
        let (words, inbox) = mpsc::channel();
        for word in [Word::Look, Word::Look, Word::Stop, Word::Look] {
            words.send(word).unwrap();
        }
        let mut looks = vec![];
        follow(&inbox, |told| looks.push(told));
        assert_eq!(looks, [true, true]);
    }
}
