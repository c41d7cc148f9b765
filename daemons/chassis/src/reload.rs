//! What of a running manager follows its configuration: budget, servers, supplies, and the controller's numbers.
//!
//! All that can fail is done first, and changes nothing. Then the parameters go through the polling thread to the
//! control thread: whatever was polled before is of the supplies before.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use anyhow::{anyhow, bail};
use ballast_hw::Root;
use ballast_runtime::lock;
use ballast_runtime::redfish::Bmcs;
use ballast_runtime::reload::Reload;
use ballast_runtime::sensors::Gauge;
use ballast_runtime::tls::Tls;
use tokio::runtime::Handle;

use crate::budget::{BudgetBounds, BudgetOrders};
use crate::config::{ChassisConfig, ServerConfig};
use crate::dry;
use crate::effects::Rewiring;
use crate::message::Message;
use crate::out_of_band::{CapThreads, Orders, OutOfBand};
use crate::polling::{PollEvent, SupplyThread, SupplyThreads, Swap, meter};
use crate::sender::connect;

/// What follows the configuration.
pub(crate) struct ChassisReload {
    pub(crate) root: Root,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) runtime: Handle,
    pub(crate) messages: Sender<Message>,
    pub(crate) polling: Sender<PollEvent>,
    pub(crate) supplies: SupplyThreads,
    pub(crate) outside: Option<Gauge>,
    pub(crate) bmcs: Arc<Mutex<Bmcs>>,
    pub(crate) caps: CapThreads,
    pub(crate) orders: Arc<BudgetOrders>,
    /// To the control thread, before the parameters.
    pub(crate) rewirings: Sender<Rewiring>,
    /// Whether the manager began with slot controllers, and may write to them.
    pub(crate) slots: bool,
}

impl Reload for ChassisReload {
    type Config = ChassisConfig;
    const FOLLOWED: &'static [&'static str] = &[
        "budget_w",
        "supply",
        "server",
        "shared_w",
        "preset",
        "shares",
        "trip_curve",
        "poll",
        "alert",
        "hardware_caps",
    ];

    fn reload(
        &mut self,
        old: &ChassisConfig,
        new: ChassisConfig,
    ) -> anyhow::Result<(ChassisConfig, Vec<String>)> {
        let (new, needs_restart) = new.following(old, self.slots)?;
        let supplies = self.supplies(old, &new)?;
        let elsewhere =
            new.servers.iter().filter(|it| old.server(&it.id).is_none_or(|old| old.url != it.url));
        let outboxes = connect(elsewhere, self.tls.as_ref(), &self.runtime, &self.messages)?;
        let caps = self.caps(old, &new)?;

        self.caps.extend(caps.threads());
        self.supplies.clone_from(&supplies);
        self.orders.follow(BudgetBounds::of(&new));
        let params = dry::params(&new);
        let gauges = self.gauges();
        // Fails only when the control thread has ended, as the next one does.
        let _ = self.rewirings.send(Rewiring { outboxes, caps, gauges });
        let swap = Swap { supplies, params: Box::new(params) };
        self.polling.send(PollEvent::Swap(swap)).map_err(|_| anyhow!("the manager stops"))?;

        Ok((new, needs_restart))
    }
}

impl ChassisReload {
    /// How every supply is, and the outside source.
    pub(crate) fn gauges(&self) -> Vec<Gauge> {
        self.supplies.iter().map(|it| &it.gauge).chain(&self.outside).cloned().collect()
    }

    /// Every supply's thread, in the new order; one that is told the same as before goes on.
    fn supplies(&self, old: &ChassisConfig, new: &ChassisConfig) -> anyhow::Result<SupplyThreads> {
        let pace = |config: &ChassisConfig| (config.params.poll_period, config.params.sensor_refresh);
        let (period, refresh) = pace(new);
        let mut threads = vec![];
        for supply in &new.supplies {
            let known =
                old.supplies.iter().position(|it| it.source == supply.source && pace(old) == pace(new));
            threads.push(match known {
                Some(at) => self.supplies[at].clone(),
                None => {
                    let meter = meter(supply, &self.root, &mut lock(&self.bmcs))?;
                    SupplyThread::start(meter, period, refresh, self.polling.clone())?
                }
            });
        }
        Ok(threads)
    }

    /// The hardware caps of servers that are new, each with its thread.
    fn caps(&self, old: &ChassisConfig, new: &ChassisConfig) -> anyhow::Result<Orders> {
        let added: Vec<ServerConfig> =
            new.servers.iter().filter(|it| old.server(&it.id).is_none()).cloned().collect();
        for ServerConfig { id, cap, .. } in &added {
            // A cap may be on there, and its original is that server's.
            if let Some(other) = old.servers.iter().find(|it| cap.is_some() && it.cap == *cap) {
                bail!("server {id}: its slot or BMC is that of server {}: this needs a restart", other.id);
            }
            if self.caps.get(id).is_some_and(|thread| thread.strong_count() > 0) {
                bail!(
                    "server {id} was here before, and an order to its hardware cap is under way: try again"
                );
            }
        }

        // What an earlier manager has left on is found by the first look.
        OutOfBand::open(&added, &new.redfish, &self.root, &new.daemon.state_dir)?.start(&self.messages)
    }
}
