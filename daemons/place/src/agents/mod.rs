//! Tells the agents what is predicted of the VMs that were placed on their servers.
//!
//! ```text
//!   placed, moved, gone ──▶ rounds ──whose turn──▶ sender (thread) ──PUT /v1/predictions──▶ agents
//!        file of hosts ──▶ (pure)                      ▲
//!                                                  inventory
//! ```
//!
//! Each message has all VMs of one host, so that any one of them may be lost, and a restart of either side loses
//! nothing. What an agent is told ends unless it is told again.

mod link;
mod rounds;

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ballast_placement::Inventory;
use ballast_placement::inventory::VmView;
use ballast_runtime::threads::supervise;
use ballast_runtime::tls::Tls;
use ballast_runtime::{clock, lock};
use ballast_types::wire::{AgentsStatus, Alarm, AlarmId, Predictions, VmPrediction};
use ballast_types::{Instant, VmId};
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::config::HostEntry;
use crate::counters::{Latency, count};
use crate::inventory::DurableInventory;
pub(crate) use link::{Link, ask_each};
use rounds::{Delivery, Rounds};

/// What an agent was told holds for so long unless it is told again, and for so many renewals where there are many.
const VALID: Duration = Duration::from_secs(300);
const VALID_MAX: Duration = Duration::from_secs(3600);
const RENEWALS: u32 = 5;
/// So many connections are kept: beyond that each message has its own.
const LINKS_KEPT: usize = 512;
/// An agent that has taken nothing for so long is an alarm.
const UNINFORMED_AFTER: Duration = Duration::from_secs(30);
/// So many messages are under way at once.
const AT_ONCE: usize = 128;
/// After a look at the inventory, so many times as long as it took until the next: others need it too.
const LOOK_PAUSE: u32 = 9;
/// Which agents there are, and what they have.
#[derive(Default)]
pub(crate) struct Agents {
    rounds: Mutex<Rounds>,
    wake: Notify,
    told: AtomicU64,
    failed: AtomicU64,
    /// By host: VMs that its agent cannot be told of.
    untellable: Mutex<BTreeMap<String, u64>>,
    /// From a change that was answered until the agent has it.
    pub(crate) latency: Latency<1000>,
}

impl Agents {
    pub(crate) fn follow(&self, hosts: &[HostEntry]) {
        let agent = |entry: &HostEntry| Some((entry.host.name.clone(), entry.agent.clone()?));
        let agents: BTreeMap<_, _> = hosts.iter().filter_map(agent).collect();
        lock(&self.untellable).retain(|host, _| agents.contains_key(host));
        lock(&self.rounds).follow(clock::now(), agents);
        self.wake.notify_one();
    }

    /// Every host with an agent, and where that is.
    pub(crate) fn urls(&self) -> Vec<(String, String)> {
        lock(&self.rounds).urls()
    }

    /// The VMs of these hosts are others now, on disk too.
    pub(crate) fn changed<'a>(&self, hosts: impl IntoIterator<Item = &'a str>) {
        let (mut rounds, now) = (lock(&self.rounds), clock::now());
        hosts.into_iter().for_each(|host| rounds.changed(now, host));
        self.wake.notify_one();
    }

    /// Where so many hosts are known in all.
    pub(crate) fn status(&self, hosts: u64) -> AgentsStatus {
        let (current, behind) = lock(&self.rounds).counts();
        AgentsStatus {
            current,
            behind,
            silent_hosts: hosts.saturating_sub(current + behind),
            untellable_vms: lock(&self.untellable).values().sum(),
            told: count(&self.told),
            failed: count(&self.failed),
        }
    }

    pub(crate) fn alarms(&self) -> Vec<Alarm> {
        let rounds = lock(&self.rounds);
        let alarm = |(host, why): (&str, &str)| {
            let message =
                format!("the agent of host {host:?} does not take what is predicted of its VMs: {why}");
            Alarm::about(AlarmId::AgentUninformed, host, message)
        };
        rounds.failing(clock::now(), UNINFORMED_AFTER).map(alarm).collect()
    }

    /// Begins to tell them, on a thread of its own for as long as the process runs.
    pub(crate) fn start(
        self: &Arc<Self>,
        inventory: Arc<DurableInventory>,
        tls: Option<Arc<Tls>>,
    ) -> anyhow::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let agents = Arc::clone(self);
        let work = move |runtime: &mut tokio::runtime::Runtime| {
            lock(&agents.rounds).restart(clock::now());
            let sender = Sender::new(&agents, &inventory, tls.as_ref());
            runtime.block_on(sender.run());
        };
        supervise("agents", runtime, work)?;
        Ok(())
    }

    fn ended(&self, delivery: &Delivery, answer: Result<(), String>) {
        let counter = if answer.is_ok() { &self.told } else { &self.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Err(why) = &answer {
            tracing::debug!(
                host = delivery.host,
                why,
                "the agent does not take what is predicted of its VMs"
            );
        }
        let waited = lock(&self.rounds).end(clock::now(), delivery, answer);
        waited.iter().for_each(|waited| self.latency.0.observe(waited.as_secs_f64()));
    }
}

/// What is predicted of a host's VMs.
type VmSet = BTreeMap<VmId, VmPrediction>;

struct Sender<'a> {
    agents: &'a Agents,
    inventory: &'a DurableInventory,
    tls: Option<&'a Arc<Tls>>,
    /// By host, with the key of its agent.
    links: BTreeMap<String, (u64, Link)>,
    /// As they were last looked up.
    sets: BTreeMap<String, VmSet>,
    /// The newest message's; higher than any of an instance before this.
    seq: u64,
    /// No look at the inventory before.
    look_from: Instant,
}

impl<'a> Sender<'a> {
    fn new(agents: &'a Agents, inventory: &'a DurableInventory, tls: Option<&'a Arc<Tls>>) -> Self {
        let (links, sets) = (BTreeMap::new(), BTreeMap::new());
        Self { agents, inventory, tls, links, sets, seq: 0, look_from: Instant::ZERO }
    }

    async fn run(mut self) {
        let mut under_way = JoinSet::new();
        loop {
            let now = clock::now();
            if now >= self.look_from {
                let due = lock(&self.agents.rounds).begin(now, AT_ONCE - under_way.len());
                self.look_up(&due);
                for delivery in due {
                    let sent = self.send(&delivery);
                    under_way.spawn(async move {
                        let answer = match sent {
                            Ok(sent) => sent.await,
                            Err(why) => Err(why),
                        };
                        (delivery, answer)
                    });
                }
            }

            let is_full = under_way.len() >= AT_ONCE;
            let next = lock(&self.agents.rounds).next().filter(|_| !is_full);
            let wait = next.map(|next| next.max(self.look_from)).map(|next| next - now.min(next));
            tokio::select! {
                () = self.agents.wake.notified() => {}
                () = tokio::time::sleep(wait.unwrap_or(VALID)) => {}
                Some(ended) = under_way.join_next() => match ended {
                    Ok((delivery, answer)) => self.agents.ended(&delivery, answer),
                    // The thread is begun again, and all that was under way is sent again.
                    Err(error) => resume_unwind(error.into_panic()),
                },
            }
        }
    }

    /// Looks up the VMs of hosts where they are not known, or have changed.
    fn look_up(&mut self, due: &[Delivery]) {
        if self.sets.len() > lock(&self.agents.rounds).len() {
            // Hosts have gone.
            let rounds = lock(&self.agents.rounds);
            self.sets.retain(|host, _| rounds.has(host));
            self.links.retain(|host, _| rounds.has(host));
        }
        let hosts = due.iter().filter(|it| it.is_new || !self.sets.contains_key(&it.host));
        let hosts: Vec<&str> = hosts.map(|it| it.host.as_str()).collect();
        if hosts.is_empty() {
            return;
        }
        let from = clock::now();
        let found = sets_of(&self.inventory.look(), &hosts);
        let mut untellable = lock(&self.agents.untellable);
        for (host, (set, left_out)) in found {
            untellable.insert(host.clone(), left_out);
            self.sets.insert(host, set);
        }
        let to = clock::now();
        self.look_from = to + (to - from) * LOOK_PAUSE;
    }

    /// The next message to an agent.
    fn send(
        &mut self,
        Delivery { host, url, key, .. }: &Delivery,
    ) -> Result<impl Future<Output = Result<(), String>> + use<>, String> {
        let (link_key, link) = match self.links.remove(host) {
            Some((known, link)) if known == *key && link.is_current(self.tls) => (known, link),
            _ => (*key, Link::new(host, url, self.tls)?),
        };
        self.seq = clock::unix_ms().max(self.seq + 1);
        let vms = self.sets.get(host).cloned().unwrap_or_default();
        let valid = (lock(&self.agents.rounds).renew() * RENEWALS).clamp(VALID, VALID_MAX);
        let sent = link.put(&Predictions { seq: self.seq, valid_for_ms: valid.as_millis() as u64, vms });
        if self.links.len() < LINKS_KEPT {
            self.links.insert(host.clone(), (link_key, link));
        }
        Ok(sent)
    }
}

/// What is predicted of the VMs of each of these hosts, and how many its agent cannot be told of. Of whom nothing is
/// known nothing is told: it is user-facing unless somebody says otherwise.
fn sets_of(inventory: &Inventory, hosts: &[&str]) -> BTreeMap<String, (VmSet, u64)> {
    let mut sets: BTreeMap<String, (VmSet, u64)> =
        hosts.iter().map(|host| ((*host).to_owned(), Default::default())).collect();
    for vm in inventory.vms_of(hosts.iter().copied()).filter(|vm| vm.spec.known) {
        let Some((set, left_out)) = sets.get_mut(vm.host) else { continue };
        match VmId::new(vm.name) {
            Ok(id) if set.len() < Predictions::VMS_MAX => drop(set.insert(id, prediction(&vm))),
            _ => *left_out += 1,
        }
    }
    sets
}

/// The busiest are throttled first: they give the most watts, so that the fewest are slowed, and soonest.
fn prediction(vm: &VmView<'_>) -> VmPrediction {
    let p95_percent = vm.spec.p95.ten_thousandths().div_ceil(100) as u8;
    let throttle_order = match p95_percent {
        76.. => 0,
        51..76 => 1,
        26..51 => 2,
        _ => 3,
    };
    VmPrediction { class: vm.spec.class, p95_percent, throttle_order }
}

#[cfg(test)]
mod tests {
    use ballast_placement::inventory::{HostSpec, NamedVm, VmSpec};
    use ballast_placement::{MemoryKb, MilliCores, Policy, Resources};
    use ballast_types::{Utilisation, VmClass};

    use super::*;

    fn size(cores: u64, gb: f64) -> Resources {
        let (cores, memory) = (MilliCores::from_milli(cores * 1000), MemoryKb::from_gb(gb));
        Resources::new(cores.unwrap(), memory.unwrap())
    }

    #[test]
    fn an_agent_is_told_of_the_vms_of_its_host_that_anything_is_known_of() {
        let mut inventory = Inventory::new(Policy::POWER);
        let host = HostSpec::new("c", size(4000, 4000.0));
        for name in ["s1", "s2", "s3"] {
            inventory.set_host(Instant::ZERO, name, &host).unwrap();
        }
        let mut put = |name: &str, host: &str, known: bool, class: VmClass, percent: f64| {
            let p95 = Utilisation::from_ratio(percent / 100.0).unwrap();
            let spec = VmSpec { known, class, p95, ..VmSpec::new(size(1, 1.0)) };
            inventory.put(Instant::ZERO, &NamedVm { name: name.into(), spec }, host).unwrap();
        };
        use VmClass::{NonUserFacing, UserFacing};
        for (name, class, percent) in [
            ("a", NonUserFacing, 0.0),
            ("b", NonUserFacing, 25.0),
            ("c", NonUserFacing, 25.01),
            ("d", NonUserFacing, 75.0),
            ("e", NonUserFacing, 100.0),
            ("f", UserFacing, 50.0),
        ] {
            put(name, "s1", true, class, percent);
        }
        put("unknown", "s1", false, UserFacing, 100.0);
        put("of another", "s2", true, NonUserFacing, 10.0);
        for n in 0..401 {
            put(&format!("v{n}"), "s3", true, NonUserFacing, 10.0);
        }

        let sets = sets_of(&inventory, &["s1", "s2", "s3", "s9"]);
        let shown = |(id, it): (&VmId, &VmPrediction)| {
            (id.to_string(), it.class == NonUserFacing, it.p95_percent, it.throttle_order)
        };
        let expected = [
            ("a", true, 0, 3),
            ("b", true, 25, 3),
            ("c", true, 26, 2),
            ("d", true, 75, 1),
            ("e", true, 100, 0),
            ("f", false, 50, 2),
        ];
        let expected = expected.map(|(id, batch, percent, order)| (id.to_owned(), batch, percent, order));
        assert_eq!(sets["s1"].0.iter().map(shown).collect::<Vec<_>>(), expected);
        assert_eq!((sets["s1"].1, sets["s2"].1, sets["s2"].0.len()), (0, 1, 0), "no name for an agent");
        assert_eq!((sets["s3"].0.len(), sets["s3"].1), (400, 1));
        assert_eq!(sets["s9"], (VmSet::new(), 0), "a host that is gone has no VMs");
        let told = Predictions { seq: 1, valid_for_ms: VALID.as_millis() as u64, vms: sets["s3"].0.clone() };
        assert_eq!(told.check(), Ok(()));
    }
}
