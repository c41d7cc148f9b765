//! Caps that work without a server's own software: its slot's controller, or its BMC by Redfish.
//!
//! ```text
//!   control ──orders──▶ one thread for each server ──Applied, Powered──▶ control
//! ```
//! A BMC may take seconds, or never answer; it holds up neither the control thread nor another server's cap.
//! What was there before is in `caps/<server>.json`, from before the first change until it is put back.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context as _;
use ballast_bmc::redfish::RedfishCap;
use ballast_chassis_core::{Input, Ledger};
use ballast_hw::{CapSpec, PowerCap, Root};
use ballast_types::{ActionId, CapError, ServerId, Watts};

use super::Letter;
use crate::caps::{Kept, Limiter};
use crate::config::{CapPath, RedfishConfig, ServerConfig};
use crate::redfish::wait_for_end;

/// How often a BMC is asked whether its server is on, and a cap is looked at that should be.
const LOOK: Duration = Duration::from_secs(5);

/// The way to one server's cap.
struct Way {
    server: ServerId,
    limiter: Box<dyn Limiter>,
    /// Whether its server is on; `None` where that cannot be told.
    powered: Box<dyn FnMut() -> Option<bool> + Send>,
    /// Whether an earlier life may have left a cap on.
    is_on: bool,
}

/// What is ordered: a cap, or its end.
struct Order {
    id: ActionId,
    cap: Option<Watts>,
}

/// Every server's way, and later its thread.
pub(super) struct OutOfBand {
    ways: Vec<Way>,
}

/// Where orders are left. When it is dropped the threads end, and with them the sessions at the BMCs.
pub(super) struct Orders {
    inboxes: BTreeMap<ServerId, Sender<Order>>,
    threads: Vec<JoinHandle<()>>,
    /// What an operator must decide before a server can be capped.
    pub(super) alarms: Vec<String>,
}

impl OutOfBand {
    /// Makes every server's way ready; talks to no BMC yet. Caps of an earlier life that the ledger does not
    /// know of (it may have been lost) are added to it, with the lowest that can have been set.
    ///
    /// # Errors
    /// If credentials, an authority's file, or what an earlier life wrote down cannot be read.
    pub(super) fn open(
        servers: &[ServerConfig],
        redfish: &RedfishConfig,
        root: &Root,
        state_dir: &Path,
        ledger: &mut Ledger,
    ) -> anyhow::Result<Self> {
        let folder = state_dir.join("caps");
        let mut ways = vec![];
        for server in servers {
            let Some(path) = &server.cap else { continue };
            let file = folder.join(format!("{}.json", server.id));
            let way = way(server, path, redfish, root, &file)
                .with_context(|| format!("server {}", server.id))?;
            let known = ledger.out_of_band.iter().any(|(id, _)| *id == server.id);
            if way.is_on && !known {
                tracing::warn!(server = %server.id, "it is capped, and the ledger does not know: adopted");
                ledger.out_of_band.push((server.id.clone(), server.cap_floor));
            }
            ways.push(way);
        }
        Ok(Self { ways })
    }

    /// Puts back what was there before a server was capped.
    ///
    /// # Errors
    /// If that fails each time it is tried, or the config names no way to that server.
    pub(super) fn put_back(&mut self, server: &ServerId) -> anyhow::Result<()> {
        let way = self.ways.iter_mut().find(|way| way.server == *server);
        let way = way.context("the config names neither slot nor BMC for it")?;
        Ok(way.limiter.put_back_for_good()?)
    }

    /// Starts every thread.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(super) fn start(self, letters: &Sender<Letter>) -> anyhow::Result<Orders> {
        let mut orders = Orders { inboxes: BTreeMap::new(), threads: vec![], alarms: vec![] };
        for way in self.ways {
            let problem = way.limiter.problem().map(|why| format!("server {}: {why}", way.server));
            orders.alarms.extend(problem);
            let (sender, inbox) = mpsc::channel();
            orders.inboxes.insert(way.server.clone(), sender);
            let letters = letters.clone();
            let name = format!("cap {}", way.server);
            let work = move || way.work(&inbox, &letters);
            orders.threads.push(thread::Builder::new().name(name).spawn(work)?);
        }
        Ok(orders)
    }
}

impl Orders {
    /// Orders a cap for a server, or its end. Answered by [`Input::Applied`].
    ///
    /// # Errors
    /// If there is no way to that server.
    pub(super) fn order(
        &self,
        id: ActionId,
        server: &ServerId,
        cap: Option<Watts>,
    ) -> Result<(), String> {
        let orders =
            self.inboxes.get(server).ok_or_else(|| format!("{server} has no out-of-band cap"))?;
        orders.send(Order { id, cap }).map_err(|_| "its thread has ended".to_owned())
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        self.inboxes.clear();
        wait_for_end(&self.threads);
    }
}

impl Way {
    fn work(mut self, inbox: &Receiver<Order>, letters: &Sender<Letter>) {
        let send = |input| letters.send(Letter::Input(input)).is_ok();
        let mut wanted = None;
        loop {
            let goes_on = match inbox.recv_timeout(LOOK) {
                Ok(order) => {
                    // Only the newest is still wanted; nobody waits for the answer to another.
                    let Order { id, cap } = inbox.try_iter().last().unwrap_or(order);
                    let done = match cap {
                        Some(watts) => self.limiter.set(watts),
                        None => self.limiter.put_back(),
                    };
                    let result = done.map_err(|error| error.reason);
                    let (ok, told) = (result.is_ok(), send(Input::Applied { id, result }));
                    if ok {
                        // Where somebody else's lower cap was there before, ours is never on.
                        wanted = cap.filter(|_| self.limiter.is_on().unwrap_or(true));
                    }
                    told
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(watts) = wanted
                        && let Err(error) = self.hold(watts)
                    {
                        tracing::warn!(server = %self.server, %error, "out-of-band cap not held");
                    }
                    let powered = (self.powered)();
                    let server = self.server.clone();
                    powered.is_none_or(|on| send(Input::Powered { server, on }))
                }
                Err(RecvTimeoutError::Disconnected) => false,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Sets a cap again that is gone: some BMCs forget theirs when they or their servers start.
    fn hold(&mut self, watts: Watts) -> Result<(), CapError> {
        if self.limiter.is_on()? {
            return Ok(());
        }
        tracing::warn!(server = %self.server, watts = watts.as_f64(), "its cap is gone: set again");
        self.limiter.set(watts)
    }
}

fn way(
    server: &ServerConfig,
    path: &CapPath,
    config: &RedfishConfig,
    root: &Root,
    file: &Path,
) -> anyhow::Result<Way> {
    let server = server.id.clone();
    Ok(match path {
        CapPath::Slot(label) => {
            let cap = PowerCap::new(root, CapSpec::Slot(label.clone()));
            let kept = Kept::open(cap, file, &format!("slot {label}"))?;
            let is_on = kept.is_adopted();
            Way { server, limiter: Box::new(kept), powered: Box::new(|| None), is_on }
        }
        CapPath::Redfish(address) => {
            let cap = RedfishCap::new(config.client(address)?);
            let kept = Kept::open(cap, file, &format!("redfish {}", address.url))?;
            let is_on = kept.is_adopted();
            // A second client: what the cap's one is about to do is none of its business.
            let mut asked = config.client(address)?;
            let powered = move || {
                asked.powered().unwrap_or_else(|error| {
                    tracing::debug!(%error, "power state not read");
                    None
                })
            };
            Way { server, limiter: Box::new(kept), powered: Box::new(powered), is_on }
        }
    })
}
