//! How much the agents say that their VMs should get, for the fleet: `GET /v1/limits`.
//!
//! Every agent is asked once in five minutes, as often as it learns something.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ballast_runtime::threads::supervise;
use ballast_runtime::tls::Tls;
use ballast_runtime::{clock, lock};
use ballast_types::Instant;
use ballast_types::wire::{FleetLimits, LimitSums, Limits};
use tokio::runtime::Builder;

use crate::agents::{Agents, Link, ask_each};

/// Between two rounds, and until the first: the hosts come first.
const ROUND: Duration = Duration::from_secs(300);
const FIRST: Duration = Duration::from_secs(5);
/// What an agent has told holds for so long.
const VALID: Duration = Duration::from_secs(1800);

#[derive(Default)]
pub(crate) struct FleetBook(Mutex<BTreeMap<String, AgentLimits>>);

#[derive(Default)]
struct AgentLimits {
    told: Option<(Instant, LimitSums)>,
    failing: Option<String>,
}

impl FleetBook {
    /// Begins to ask agents, on a thread of its own for as long as the process runs.
    pub(crate) fn start(self: &Arc<Self>, agents: Arc<Agents>, tls: Option<Arc<Tls>>) -> anyhow::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let this = Arc::clone(self);
        supervise("limits", runtime, move |runtime| {
            runtime.block_on(async {
                tokio::time::sleep(FIRST).await;
                loop {
                    this.round(&agents.urls(), tls.as_ref()).await;
                    tokio::time::sleep(if agents.urls().is_empty() { FIRST } else { ROUND }).await;
                }
            });
        })?;
        Ok(())
    }

    async fn round(&self, urls: &[(String, String)], tls: Option<&Arc<Tls>>) {
        lock(&self.0).retain(|host, _| urls.iter().any(|(known, _)| known == host));
        let ask = |link: Link| async move { link.limits().await };
        ask_each(urls, tls, ask, |host, limits| self.take(host, limits, clock::now())).await;
    }

    fn take(&self, host: String, limits: Result<Limits, String>, now: Instant) {
        let mut book = lock(&self.0);
        let agent = book.entry(host).or_default();
        match limits {
            Ok(limits) => (agent.told, agent.failing) = (Some((now, LimitSums::of(&limits))), None),
            // What it told before still holds.
            Err(why) => agent.failing = Some(why),
        }
    }

    pub(crate) fn answer(&self, now: Instant) -> FleetLimits {
        let mut fleet = FleetLimits::default();
        for (host, agent) in lock(&self.0).iter() {
            match agent.told.filter(|(at, _)| now.since(*at) <= VALID) {
                Some((_, sums)) => {
                    fleet.total += sums;
                    fleet.servers.insert(host.clone(), sums);
                }
                None => {
                    let why = agent.failing.clone().unwrap_or_else(|| "it was not heard lately".to_owned());
                    fleet.failing.insert(host.clone(), why);
                }
            }
        }
        fleet
    }
}

#[cfg(test)]
mod tests {
    use ballast_types::VmId;
    use ballast_types::wire::VmLimits;

    use super::*;

    #[test]
    fn what_agents_told_is_added_up_while_it_is_fresh() {
        let book = FleetBook::default();
        let at = |minutes: u64| Instant::ZERO + Duration::from_secs(60 * minutes);
        let vm = |name: &str, limit: Option<f64>| {
            let limits = VmLimits {
                cores: 4,
                cpu_limit_cores: limit,
                memory_limit_mib: limit.map(|_| 512),
                ..VmLimits::default()
            };
            (VmId::new(name).unwrap(), limits)
        };
        let limits = Limits { vms: [vm("a", Some(1.5)), vm("b", None)].into(), ..Limits::default() };
        book.take("s1".into(), Ok(limits.clone()), at(0));
        book.take("s2".into(), Ok(limits), at(20));
        book.take("s2".into(), Err("late".into()), at(25));
        book.take("s3".into(), Err("HTTP status 404".into()), at(25));

        let fleet = book.answer(at(25));
        let LimitSums { vms, cpu_vms, cpu_cores, cpu_limit_cores, memory_limit_mib, .. } = fleet.total;
        assert_eq!((vms, cpu_vms, cpu_cores, cpu_limit_cores, memory_limit_mib), (4, 2, 8, 3.0, 1024));
        assert_eq!(fleet.failing, BTreeMap::from([("s3".into(), "HTTP status 404".into())]));
        let later = book.answer(at(45));
        assert_eq!((later.total.vms, later.servers.len(), later.failing.len()), (2, 1, 2));
    }
}
