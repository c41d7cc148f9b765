//! How much of the cores of servers and chassis their VMs use at their 95th percentile, and how that is spread.

use ballast_types::{VmClass, standard_deviation};

use crate::{Cluster, Host, HostId, VmRequest};

/// Shares are kept in 10⁻⁹.
pub(crate) const ONE: i64 = 1_000_000_000;

const LARGEST: i64 = 1_000_000 * ONE;

/// Sums of `P95·cores` by server, class and chassis, kept once for every rule and report that needs them.
///
/// Sums are integers of 10⁻⁷ cores, so that a VM that ends leaves nothing behind.
///
/// Source: Kumbhare et al., arXiv 2010.15388, Algorithm 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    servers: Vec<Server>,
    chassis: Vec<Chassis>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Server {
    chassis: u32,
    cores: i64,
    user_facing: i64,
    non_user_facing: i64,
    /// `(g_NUF − g_UF) / cores`, in 10⁻⁹.
    lean: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chassis {
    cores: i64,
    load: i64,
    /// In 10⁻⁹: 1 less the load of its cores.
    score: i64,
}

impl Default for Chassis {
    fn default() -> Self {
        Self { cores: 0, load: 0, score: ONE }
    }
}

/// `part / whole` in 10⁻⁹, towards zero, so that it is the same on both sides of it.
fn share(part: i64, whole: i64) -> i64 {
    let whole = whole.max(1);
    // Words of 64 bits do for 900 cores, and are divided five times as fast.
    if let Some(part) = part.checked_mul(ONE) {
        return (part / whole).clamp(-LARGEST, LARGEST);
    }

    // A server has at most 65,536 cores, 6.6e11 of 1e-7; a chassis of thousands of these needs more than 64 bits.
    let share = i128::from(part) * i128::from(ONE) / i128::from(whole);
    // A million times a host's cores is more than any VMs of sense take, and weighted sums still fit.
    share.clamp(i128::from(-LARGEST), i128::from(LARGEST)) as i64
}

impl Chassis {
    fn add(&mut self, cores: i64, load: i64) {
        self.cores += cores;
        self.load += load;
        self.score = ONE - share(self.load, self.cores);
    }
}

impl Balance {
    /// Of the hosts of a cluster, as if nobody were there.
    pub fn new(cluster: &Cluster) -> Self {
        let mut this = Self::default();
        cluster.ids().for_each(|id| this.set_host(id, Some(cluster.host(id))));
        this
    }

    /// Takes note of a host that is new or otherwise than before, with the VMs that it has; `None` where it is gone.
    pub fn set_host(&mut self, id: HostId, host: Option<&Host>) {
        let at = id.0 as usize;
        if self.servers.len() <= at {
            self.servers.resize(at + 1, Server::default());
        }

        let server = self.servers[at];
        let load = server.user_facing + server.non_user_facing;
        self.chassis_mut(server.chassis).add(-server.cores, -load);

        let (chassis, cores) =
            host.map_or((0, 0), |host| (host.chassis.0, i64::from(host.capacity.cores.milli()) * 10_000));
        self.chassis_mut(chassis).add(cores, load);
        self.servers[at] = Server { chassis, cores, ..server };
        self.servers[at].lean = share(server.non_user_facing - server.user_facing, cores);
    }

    fn chassis_mut(&mut self, chassis: u32) -> &mut Chassis {
        let at = chassis as usize;
        if self.chassis.len() <= at {
            self.chassis.resize(at + 1, Chassis::default());
        }
        &mut self.chassis[at]
    }

    /// A VM comes to a host that is known.
    pub fn add(&mut self, vm: &VmRequest, host: HostId) {
        self.change(vm.class, vm.p95_load(), host);
    }

    /// A VM leaves a host that is known.
    pub fn remove(&mut self, vm: &VmRequest, host: HostId) {
        self.change(vm.class, -vm.p95_load(), host);
    }

    fn change(&mut self, class: VmClass, load: i64, host: HostId) {
        let server = &mut self.servers[host.0 as usize];
        match class {
            VmClass::UserFacing => server.user_facing += load,
            VmClass::NonUserFacing => server.non_user_facing += load,
        }
        server.lean = share(server.non_user_facing - server.user_facing, server.cores);
        self.chassis[server.chassis as usize].add(0, load);
    }

    /// `(g_NUF − g_UF) / cores` of a host, in 10⁻⁹.
    pub(crate) fn lean(&self, host: HostId) -> i64 {
        self.servers[host.0 as usize].lean
    }

    /// κ of a chassis, in 10⁻⁹.
    pub(crate) fn kappa(&self, chassis: u32) -> i64 {
        self.chassis[chassis as usize].score
    }

    /// κ of the host's chassis, from its VMs' P95: 1 less the load of its cores.
    pub fn chassis_score(&self, host: HostId) -> f64 {
        self.kappa(self.servers[host.0 as usize].chassis) as f64 / ONE as f64
    }

    /// η of the host for a user-facing VM.
    pub fn server_score(&self, host: HostId) -> f64 {
        0.5 + self.lean(host) as f64 / (2 * ONE) as f64
    }

    /// Standard deviations: of κ over chassis, and of η, for a user-facing VM, over servers.
    pub fn deviations(&self) -> (f64, f64) {
        let chassis = self.chassis.iter().filter(|chassis| chassis.cores > 0);
        let chassis = chassis.map(|chassis| chassis.score as f64 / ONE as f64);
        let servers = (0..).map(HostId).zip(&self.servers).filter(|(_, server)| server.cores > 0);
        let servers = servers.map(|(host, _)| self.server_score(host));
        (standard_deviation(chassis).unwrap_or(0.0), standard_deviation(servers).unwrap_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChassisId, MemoryKb, MilliCores, Resources, VmKey};
    use ballast_types::Utilisation;

    #[test]
    fn a_host_takes_its_load_to_another_chassis_and_leaves_nothing() {
        let host = |chassis, cores| {
            Host::new(ChassisId(chassis), Resources::new(MilliCores::from_cores(cores), MemoryKb::ZERO))
        };
        let mut balance = Balance::new(&Cluster::new(&[host(0, 10), host(0, 10)]));
        let empty = balance.clone();
        let vm = VmRequest {
            p95: Utilisation::from_ratio(0.5).unwrap(),
            ..VmRequest::new(VmKey(1), Resources::new(MilliCores::from_cores(4), MemoryKb::ZERO))
        };

        balance.add(&vm, HostId(1));
        assert_eq!((balance.chassis_score(HostId(0)), balance.server_score(HostId(1))), (0.9, 0.4));
        balance.set_host(HostId(1), Some(&host(3, 5)));
        let scores = [HostId(0), HostId(1)].map(|host| balance.chassis_score(host));
        assert_eq!((scores, balance.server_score(HostId(1))), ([1.0, 0.6], 0.3));
        assert_eq!(balance.deviations().0, 0.2, "chassis without hosts do not count");

        balance.set_host(HostId(1), Some(&host(0, 10)));
        balance.remove(&vm, HostId(1));
        let (with, without) = (&balance.servers, &empty.servers);
        assert_eq!((with, balance.chassis[0]), (without, empty.chassis[0]));
        assert_eq!(balance.chassis[3], Chassis::default());
    }
}
