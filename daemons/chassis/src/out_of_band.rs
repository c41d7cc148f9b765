//! Caps that work without a server's own software: its slot's controller, or its BMC by Redfish.
//!
//! ```text
//!   control ──orders──▶ one thread for each server ──Applied, Powered, RecoveredCap──▶ control
//! ```
//! A BMC may take seconds, or never answer; it holds up neither the control thread nor another server's cap.
//! What was there before is in `caps/<server>.json`, from before the first change until it is put back.
//!
//! Caps are looked at, too. One that was ordered and is gone is set again. One that nobody ordered here, of
//! another manager or by hand, is adopted, so that it is given back as any other. A limit that is there when
//! the manager starts, and that no earlier life has set, is somebody's own: it stays.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use ballast_bmc::redfish::{RedfishCap, RedfishCapState};
use ballast_chassis_core::{Input, Ledger};
use ballast_hw::{CapSpec, HwmonCap, HwmonCapState, Root};
use ballast_types::wire::{Alarm, AlarmId, ChassisState, ChassisStatus};
use ballast_types::{ActionId, Cap, CapError, ServerId, Watts};

use super::message::Message;
use ballast_runtime::caps::{Kept, Limiter};
use ballast_runtime::config::RedfishConfig;
use ballast_runtime::threads::supervise;

use crate::config::{CapPath, ServerConfig};
use ballast_runtime::redfish::wait_for_end;

/// How often a BMC is asked for its cap, and whether its server is on.
const LOOK: Duration = Duration::from_secs(5);

/// A cap that shows what it is.
trait Watched: Limiter {
    /// The cap that is in force and was not there before.
    fn in_force(&mut self) -> Result<Option<Watts>, CapError>;
    /// The limit that was there before, if there was one.
    fn usual(&self) -> Option<Watts>;
    /// Whether a cap may be on that must be put back.
    fn is_kept(&self) -> bool;
    /// Takes the cap that was found for one that must be put back.
    fn adopt(&mut self) -> Result<(), CapError>;
}

/// A cap's state in watts.
trait InForce {
    /// The cap in force, if there is one.
    fn watts(&self) -> Option<Watts>;
}

impl InForce for HwmonCapState {
    fn watts(&self) -> Option<Watts> {
        let milliwatts = i64::try_from(self.cap_uw / 1000).ok();
        milliwatts.filter(|&mw| mw > 0).map(Watts::from_milli)
    }
}

impl InForce for RedfishCapState {
    fn watts(&self) -> Option<Watts> {
        self.in_force().and_then(Watts::from_f64)
    }
}

impl<C: Cap<State: InForce>> Watched for Kept<C> {
    fn in_force(&mut self) -> Result<Option<Watts>, CapError> {
        Ok(self.look()?.and_then(|state| state.watts()))
    }
    fn usual(&self) -> Option<Watts> {
        self.usual().and_then(InForce::watts)
    }
    fn is_kept(&self) -> bool {
        self.is_adopted()
    }
    fn adopt(&mut self) -> Result<(), CapError> {
        self.adopt()
    }
}

/// How one server's hardware cap is reached.
struct ServerCap {
    server: ServerId,
    limiter: Box<dyn Watched>,
    /// Whether its server is on; `None` where that cannot be told.
    powered: Box<dyn FnMut() -> Option<bool> + Send>,
    ordered: Ordered,
    /// Whether the last look found a cap that nobody ordered here.
    unknown: bool,
    /// Whether such a cap is adopted.
    adopts: Arc<AtomicBool>,
    /// Whether a cap of ours is on, as far as the device has said.
    is_on: Arc<AtomicBool>,
}

/// What the newest order has left on.
#[derive(Clone, Copy)]
enum Ordered {
    Nothing,
    Cap(Watts),
    /// A lower limit of somebody else was there before: ours adds nothing.
    Covered,
}

/// What is ordered: a cap, or its end.
struct Order {
    id: ActionId,
    cap: Option<Watts>,
}

/// Every server's cap, and later its thread.
pub(super) struct OutOfBand {
    /// Each with the lowest cap that its server takes.
    caps: Vec<(ServerCap, Watts)>,
}

/// One server's.
struct Inbox {
    orders: Sender<Order>,
    adopts: Arc<AtomicBool>,
    is_on: Arc<AtomicBool>,
}

/// Where orders are left. When it is dropped the threads end, and with them the sessions at the BMCs.
pub(super) struct Orders {
    inboxes: BTreeMap<ServerId, Inbox>,
    threads: Vec<JoinHandle<()>>,
    /// What an operator must decide before a server can be capped.
    pub(super) alarms: Vec<Alarm>,
}

/// Which servers' threads have not ended.
pub(super) type CapThreads = BTreeMap<ServerId, Weak<AtomicBool>>;

impl OutOfBand {
    /// Opens every server's hardware cap; talks to no BMC yet. Fails if credentials, an authority's file, or what
    /// a previous instance wrote down cannot be read.
    pub(super) fn open(
        servers: &[ServerConfig],
        redfish: &RedfishConfig,
        root: &Root,
        state_dir: &Path,
    ) -> anyhow::Result<Self> {
        let folder = state_dir.join("caps");
        let mut caps = vec![];
        for server in servers {
            let Some(path) = &server.cap else { continue };
            let file = folder.join(format!("{}.json", server.id));
            let cap = open_cap(server, path, redfish, root, &file)
                .with_context(|| format!("server {}", server.id))?;
            caps.push((cap, server.cap_floor));
        }

        Ok(Self { caps })
    }

    /// Adds to the ledger the caps of a previous instance that the ledger does not know of (it may have been
    /// lost), with the lowest that can have been set.
    pub(super) fn complete(&self, ledger: &mut Ledger) {
        for (ServerCap { server, limiter, .. }, floor) in &self.caps {
            let known = ledger.out_of_band.iter().any(|(id, _)| id == server);
            if limiter.is_kept() && !known {
                tracing::warn!(
                    %server,
                    "a hardware cap is on that the ledger does not name: this manager takes it over"
                );
                ledger.out_of_band.push((server.clone(), *floor));
            }
        }
    }

    /// Puts back what was there before a server was capped. Fails if that fails each time it is tried, or the
    /// config names no way to that server.
    pub(super) fn put_back(&mut self, server: &ServerId) -> anyhow::Result<()> {
        let cap = self.caps.iter_mut().find(|(cap, _)| cap.server == *server);
        let (cap, _) = cap.context("the config names neither slot nor BMC for it")?;
        Ok(cap.limiter.put_back_for_good()?)
    }

    pub(super) fn start(self, messages: &Sender<Message>) -> anyhow::Result<Orders> {
        let mut orders = Orders { inboxes: BTreeMap::new(), threads: vec![], alarms: vec![] };
        for (cap, _) in self.caps {
            orders.alarms.extend(cap.limiter.problem().map(|why| {
                let message = format!("server {}: {why}", cap.server);
                Alarm::about(AlarmId::HardwareCapForeign, &cap.server, message)
            }));
            let (sender, inbox) = mpsc::channel();
            let (adopts, is_on) = (Arc::clone(&cap.adopts), Arc::clone(&cap.is_on));
            orders.inboxes.insert(cap.server.clone(), Inbox { orders: sender, adopts, is_on });
            let messages = messages.clone();
            let name = format!("cap {}", cap.server);
            orders.threads.push(supervise(name, cap, move |cap| cap.work(&inbox, &messages))?);
        }
        Ok(orders)
    }
}

impl Orders {
    /// Orders a cap for a server, or its end. Answered by [`Input::Applied`].
    pub(super) fn order(&self, id: ActionId, server: &ServerId, cap: Option<Watts>) -> Result<(), String> {
        let inbox = self.inboxes.get(server).ok_or_else(|| format!("{server} has no hardware cap"))?;
        inbox.orders.send(Order { id, cap }).map_err(|_| "its thread has ended".to_owned())
    }

    /// Whether a server has a cap that this manager or a previous one has set. One that was ordered and that
    /// its device has never taken is none.
    pub(super) fn is_on(&self, server: &ServerId) -> bool {
        self.inboxes.get(server).is_some_and(|inbox| inbox.is_on.load(Ordering::Relaxed))
    }

    /// The threads, as one that does not own them sees them.
    pub(super) fn threads(&self) -> CapThreads {
        self.inboxes.iter().map(|(id, it)| (id.clone(), Arc::downgrade(&it.adopts))).collect()
    }

    /// Takes over the threads of servers that are `new`. Those of servers that are gone end, and leave a cap that
    /// is on as it is.
    pub(super) fn follow(&mut self, mut new: Self, is_there: impl Fn(&ServerId) -> bool) {
        self.inboxes.retain(|server, _| is_there(server));
        let subjects: BTreeSet<_> = self.inboxes.keys().map(ToString::to_string).collect();
        self.alarms.retain(|alarm| alarm.subject.as_ref().is_some_and(|it| subjects.contains(it)));
        self.threads.retain(|thread| !thread.is_finished());

        self.inboxes.append(&mut new.inboxes);
        self.alarms.append(&mut new.alarms);
        self.threads.append(&mut new.threads);
    }

    /// Says whose unknown caps are adopted. A manager that another one has fenced leaves all alone; and the
    /// limit that an agent sets on its own server, perhaps by the same BMC, is the agent's.
    pub(super) fn note(&self, status: &ChassisStatus) {
        let rules = !status.dry_run && status.state != ChassisState::Fenced;
        for server in &status.servers {
            if let Some(Inbox { adopts, .. }) = self.inboxes.get(&server.server) {
                let its_own = server.report.as_ref().is_some_and(|report| report.server_limit);
                adopts.store(rules && !its_own, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        self.inboxes.clear();
        wait_for_end(&self.threads);
    }
}

impl ServerCap {
    fn new(
        server: ServerId,
        limiter: impl Watched + 'static,
        powered: impl FnMut() -> Option<bool> + Send + 'static,
    ) -> Self {
        let is_on = Arc::new(AtomicBool::new(limiter.is_kept()));
        let (limiter, powered) = (Box::new(limiter), Box::new(powered));
        let (ordered, adopts) = (Ordered::Nothing, Arc::default());
        Self { server, limiter, powered, ordered, unknown: false, adopts, is_on }
    }

    fn work(&mut self, inbox: &Receiver<Order>, messages: &Sender<Message>) {
        let send = |input| messages.send(Message::Input(input)).is_ok();

        // What is there before anything is ordered is somebody's own.
        self.look_at_first();

        loop {
            let goes_on = match inbox.recv_timeout(LOOK) {
                Ok(order) => {
                    // Only the newest is still wanted; nobody waits for the answer to another.
                    let Order { id, cap } = inbox.try_iter().last().unwrap_or(order);
                    let result = self.obey(cap).map_err(|error| error.reason);

                    send(Input::Applied { id, result })
                }
                Err(RecvTimeoutError::Timeout) => {
                    let found = self.look().unwrap_or_else(|error| {
                        tracing::warn!(
                            server = %self.server,
                            %error,
                            "the server's hardware cap cannot be read"
                        );
                        None
                    });

                    let powered = (self.powered)();
                    let server = &self.server;
                    let powered = powered.map(|on| Input::Powered { server: server.clone(), on });

                    found.into_iter().chain(powered).all(send)
                }
                Err(RecvTimeoutError::Disconnected) => false,
            };

            if !goes_on {
                return;
            }
        }
    }

    fn obey(&mut self, cap: Option<Watts>) -> Result<(), CapError> {
        self.unknown = false;
        let Some(watts) = cap else {
            self.limiter.put_back()?;
            self.ordered = Ordered::Nothing;
            self.is_on.store(false, Ordering::Relaxed);
            return Ok(());
        };
        self.limiter.set(watts)?;
        let covered = matches!(self.limiter.in_force(), Ok(None));
        self.is_on.store(!covered, Ordering::Relaxed);
        self.ordered = if covered { Ordered::Covered } else { Ordered::Cap(watts) };
        Ok(())
    }

    fn look_at_first(&mut self) {
        let server = &self.server;
        let found = self.limiter.in_force();
        if matches!(found, Ok(None)) {
            self.is_on.store(false, Ordering::Relaxed);
        }
        match found {
            Err(error) => tracing::warn!(%server, %error, "the server's hardware cap cannot be read"),
            Ok(Some(watts)) => {
                tracing::info!(
                    %server,
                    watts = watts.as_f64(),
                    "a hardware cap that a previous instance set is still on"
                );
            }
            Ok(None) => {
                if let Some(watts) = self.limiter.usual().map(Watts::as_f64) {
                    tracing::info!(
                        %server,
                        watts,
                        "the server has a limit that this manager did not set: the limit stays"
                    );
                }
            }
        }
    }

    /// Asks for the cap; what the controller must know of it.
    fn look(&mut self) -> Result<Option<Input>, CapError> {
        let found = self.limiter.in_force()?;
        self.is_on.store(found.is_some() && self.limiter.is_kept(), Ordering::Relaxed);
        let server = &self.server;
        let tell = |cap| Ok(Some(Input::RecoveredCap { server: server.clone(), cap }));

        match (self.ordered, found) {
            (Ordered::Covered, _) => return Ok(None),
            (Ordered::Cap(_), Some(watts)) => return tell(Some(watts)),
            // Some BMCs forget their cap when they or their servers start.
            (Ordered::Cap(watts), None) => {
                tracing::warn!(
                    %server,
                    watts = watts.as_f64(),
                    "the server's hardware cap is gone: it is set again"
                );
                self.limiter.set(watts)?;
                self.is_on.store(true, Ordering::Relaxed);
                return Ok(None);
            }
            (Ordered::Nothing, _) => {}
        }

        let seen_before = std::mem::take(&mut self.unknown);
        if !self.adopts.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match (found, self.limiter.is_kept()) {
            (Some(watts), true) => tell(Some(watts)),
            // An agent that has just set its own limit says so before the next look.
            (Some(_), false) if !seen_before => {
                self.unknown = true;
                Ok(None)
            }
            (Some(watts), false) => {
                self.limiter.adopt()?;
                self.is_on.store(true, Ordering::Relaxed);
                tell(Some(watts))
            }

            // Whoever set it has lifted it.
            (None, true) => {
                self.limiter.put_back()?;
                tell(None)
            }
            (None, false) => Ok(None),
        }
    }
}

fn open_cap(
    server: &ServerConfig,
    path: &CapPath,
    config: &RedfishConfig,
    root: &Root,
    file: &Path,
) -> anyhow::Result<ServerCap> {
    let server = server.id.clone();
    Ok(match path {
        CapPath::Slot(label) => {
            let cap = HwmonCap::new(root, CapSpec::Slot(label.clone()));
            let kept = Kept::open(cap, file, &format!("slot {label}"))?;
            ServerCap::new(server, kept, || None)
        }
        CapPath::Redfish(address) => {
            let cap = RedfishCap::new(config.client(address)?);
            let kept = Kept::open(cap, file, &format!("redfish {}", address.url))?;

            // A second client: what the cap's one is about to do is none of its business.
            let mut asked = config.client(address)?;
            let powered = move || {
                asked.powered().unwrap_or_else(|error| {
                    tracing::debug!(%error, "power state not read");
                    None
                })
            };

            ServerCap::new(server, kept, powered)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_runtime::caps::testing::{Device, device};

    impl InForce for i64 {
        fn watts(&self) -> Option<Watts> {
            Some(Watts::from_whole(*self))
        }
    }

    /// A cap on a device whose usual limit is 300 W, and its original's file.
    fn read_back(folder: &Path) -> (ServerCap, Device, std::path::PathBuf) {
        let device = device();
        let file = folder.join("s01.json");
        let kept = Kept::open(device.clone(), &file, "slot s01").unwrap();
        let mut cap = ServerCap::new(ServerId::new("s01").unwrap(), kept, || None);
        cap.look_at_first();
        cap.adopts.store(true, Ordering::Relaxed);
        (cap, device, file)
    }

    /// What a look tells the controller: nothing, no cap, or a cap in watts.
    fn look(cap: &mut ServerCap) -> Option<Option<i64>> {
        match cap.look().unwrap()? {
            Input::RecoveredCap { cap, .. } => Some(cap.map(|watts| watts.milli() / 1000)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_cap_that_nobody_ordered_is_adopted_and_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let (mut cap, device, file) = read_back(folder.path());
        assert_eq!(look(&mut cap), None, "a limit from before the start is somebody's own");
        device.change(180).unwrap();
        assert_eq!(look(&mut cap), None, "it may be an agent's that has not said so yet");
        assert_eq!(look(&mut cap), Some(Some(180)));
        assert!(file.exists(), "the next life must give it back, too");
        cap.obey(None).unwrap();
        assert!(device.limit() == 300 && !file.exists());
        assert_eq!(look(&mut cap), None);

        // Whoever set it takes it away again.
        device.change(170).unwrap();
        look(&mut cap);
        assert_eq!(look(&mut cap), Some(Some(170)));
        device.change(300).unwrap();
        assert_eq!(look(&mut cap), Some(None));
        assert!(look(&mut cap).is_none() && !file.exists());
    }

    #[test]
    fn an_agents_own_limit_and_another_managers_cap_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (mut cap, device, file) = read_back(folder.path());
        device.change(180).unwrap();
        look(&mut cap);
        // The report that says so has come; or the manager was fenced.
        cap.adopts.store(false, Ordering::Relaxed);
        assert_eq!((look(&mut cap), look(&mut cap)), (None, None));
        cap.adopts.store(true, Ordering::Relaxed);
        assert_eq!(look(&mut cap), None, "seen anew");
        device.change(300).unwrap();
        assert_eq!(look(&mut cap), None);
        assert!(!file.exists());
    }

    #[test]
    fn a_cap_that_was_ordered_is_kept_on_and_what_it_is_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let (mut cap, device, _) = read_back(folder.path());
        let watts = Watts::from_whole;
        cap.obey(Some(watts(180))).unwrap();
        assert_eq!(look(&mut cap), Some(Some(180)));
        device.change(150).unwrap();
        assert_eq!(look(&mut cap), Some(Some(150)), "somebody has lowered it");
        device.change(300).unwrap();
        assert_eq!((look(&mut cap), device.limit()), (None, 180), "it was gone");
        cap.obey(None).unwrap();
        assert_eq!((look(&mut cap), device.limit()), (None, 300));

        // Ours adds nothing to a lower limit: there is nothing to keep on, and nothing to adopt.
        device.change(160).unwrap();
        cap.obey(Some(watts(180))).unwrap();
        assert_eq!((look(&mut cap), device.limit()), (None, 160));
        cap.obey(None).unwrap();
        assert_eq!(device.limit(), 160);
    }

    #[test]
    fn a_cap_that_its_device_never_took_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let (mut cap, device, file) = read_back(folder.path());
        let is_on = |cap: &ServerCap| cap.is_on.load(Ordering::Relaxed);
        assert!(!is_on(&cap));
        device.refuse(1);
        cap.obey(Some(Watts::from_whole(180))).unwrap_err();
        assert!(!is_on(&cap), "ordered, and refused");
        cap.obey(Some(Watts::from_whole(180))).unwrap();
        assert!(is_on(&cap));

        // The next manager does not know yet; once it has looked, it does.
        let next = |device: &Device| {
            let kept = Kept::open(device.clone(), &file, "slot s01").unwrap();
            ServerCap::new(ServerId::new("s01").unwrap(), kept, || None)
        };
        let mut there = next(&device);
        there.look_at_first();
        assert!(is_on(&there));
        device.change(300).unwrap();
        let mut gone = next(&device);
        assert!(is_on(&gone));
        gone.look_at_first();
        assert!(!is_on(&gone));
        device.change(180).unwrap();
        cap.obey(None).unwrap();
        assert!(!is_on(&cap));

        // A lower limit was there before: ours adds nothing.
        device.change(160).unwrap();
        cap.obey(Some(Watts::from_whole(180))).unwrap();
        assert!(!is_on(&cap));
    }
}
