//! Domains without a policy: on a machine without cpufreq, and of CPUs that are offline since the start.

use ballast_types::{KiloHertz, Ladder};

use super::caps::{Clock, Cpufreq};
use super::driver::Driver;
use super::frequency::{DIR, Floor};
use crate::error::{HwError, Operation};
use crate::root::{numbered, optional, read_text};
use crate::{CpuList, Domain, Root, Topology};

impl Cpufreq {
    /// Whether this machine has any policy: virtual machines have none, nor have servers without a driver.
    pub fn is_there(root: &Root) -> Result<bool, HwError> {
        let found = optional(numbered(&root.path(DIR), "policy"))?;
        Ok(found.is_some_and(|found| !found.is_empty()))
    }

    /// The domains of a machine without any policy: a cap does nothing. Their ladder is a nominal one, from
    /// half of the speed upward, which stands for shares of time.
    pub fn none(root: &Root) -> Result<Self, HwError> {
        let steps: Vec<_> = (10..=20).map(|n| KiloHertz::from_mhz(n * 100)).collect();
        let ladder = Ladder::new(&steps)
            .map_err(|_| HwError::value(&root.path(DIR), Operation::Read, "no policy", "a nominal ladder"))?;
        let domains = Topology::read(root)?.domains().to_vec();
        let clock = |domain: &Domain| {
            let (ladder, cpus) = (ladder.clone(), domain.cpus.clone());
            Clock { ladder, cpus, was_online: true, goal: None, policies: vec![] }
        };
        let clocks = domains.iter().map(clock).collect();
        Ok(Self::from_parts(root, Floor::Half, Driver::Unknown("none".into()), domains, clocks))
    }

    /// The same with a domain for every CPU that is there but offline, so that it can be capped when it
    /// comes: as its neighbour, since its own policy tells nothing yet. One that comes as the sibling of
    /// another stays without CPUs.
    pub fn with_offline(mut self) -> Result<Self, HwError> {
        // Where threads are switched off the CPUs that are offline are those.
        let smt = optional(read_text(&self.root.path("sys/devices/system/cpu/smt/control")))?;
        if smt.is_some_and(|smt| matches!(smt.trim(), "off" | "forceoff")) {
            return Ok(self);
        }
        for id in Topology::read(&self.root)?.absent() {
            let Err(at) = self.domains.binary_search_by_key(&id, |domain| domain.id) else {
                continue;
            };
            let near = self.clocks.get(at.saturating_sub(1)).map(|clock| clock.ladder.clone());
            let Some(ladder) = near else { continue };
            let cpus = [u32::from(id.0)].into_iter().collect();
            let clock = Clock { ladder, cpus, was_online: false, goal: None, policies: vec![] };
            self.clocks.insert(at, clock);
            self.domains.insert(at, Domain { cpus: CpuList::default(), ..Domain::from(id) });
        }
        Ok(self)
    }
}
