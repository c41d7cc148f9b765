//! The last steps: the daemon serves until it is told to stop, and then lets its writer end.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow};
use ballast_hw::durable::Lock;
use ballast_runtime::config::Loaded;
use ballast_runtime::reload::Reloader;
use ballast_runtime::watchdog::Watchdog;
use ballast_runtime::{Leaving, clock};
use tokio::runtime::Runtime;

use crate::config::PlaceConfig;
use crate::drains::calls as drains;
use crate::inventory::DurableInventory;
use crate::reloader::{ModelAndHosts, ReloadOrder};
use crate::routes::routes;
use crate::start::Started;

/// A daemon that was told to stop, or could not serve.
pub(crate) struct Served {
    leaving: anyhow::Result<Leaving<()>>,
    orders: Sender<ReloadOrder>,
    inventory: Arc<DurableInventory>,
    writer: JoinHandle<()>,
    runtime: Runtime,
    _lock: Lock,
}

impl Started {
    /// Serves until SIGTERM or SIGINT. What goes wrong is told by [`Served::restore`], after the writer has
    /// ended.
    pub(crate) fn serve(self, loaded: Loaded<PlaceConfig>) -> Served {
        let Self { api, reloader, orders, writer, listening, runtime, lock } = self;
        let inventory = Arc::clone(&api.inventory);
        let access = Arc::clone(&api.access);
        let follows = ModelAndHosts { api: api.clone(), orders: orders.clone() };
        let (events, alarms, tls) = (api.events.clone(), api.alarms.clone(), api.tls.clone());
        let hangups = Reloader { in_force: loaded, follows, events, alarms, tls };
        let leaving = runtime.block_on(async {
            api.follow_hosts().await.context("hosts")?;
            hangups.start()?;
            tokio::spawn(drains::follow(api.clone()));
            tokio::spawn(feed(Watchdog::of_systemd()));

            ballast_runtime::serve(listening, routes(api), access, reloader).await
        });

        Served { leaving, orders, inventory, writer, runtime, _lock: lock }
    }
}

impl Served {
    /// Ends HTTP and the threads. All that was answered is on disk then.
    ///
    /// # Errors
    /// What kept it from serving, or a thread that has panicked.
    pub(crate) fn restore(self) -> anyhow::Result<()> {
        let served = self.leaving.and_then(|leaving| {
            // Fails only when the thread has ended.
            let _ = self.orders.send(ReloadOrder::Stop);
            self.runtime.block_on(leaving.end())
        });

        self.inventory.stop();
        self.writer.join().map_err(|_| anyhow!("the inventory's thread has panicked"))?;

        served
    }
}

/// Feeds systemd's watchdog from the thread that answers: one that hangs is killed and started anew. The
/// other thread may wait for a slow disk; what it has read is still good.
async fn feed(mut watchdog: Watchdog) {
    while let Some(at) = watchdog.wake(clock::now(), None) {
        tokio::time::sleep(at - clock::now().min(at)).await;
        watchdog.turned(clock::now(), true);
    }
}
