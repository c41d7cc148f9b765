//! Algorithm 1: expected power balanced over chassis, throttle-able power over servers.

use core::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeSet, BinaryHeap};

use ballast_types::{Instant, VmClass, standard_deviation};

use crate::rule::{Ask, Event, Rule, Walk};
use crate::ties::TieKey;
use crate::{Cluster, HostId, Ties, VmRequest};

/// Shares are kept in 10⁻⁹.
const ONE: i64 = 1_000_000_000;

/// The weight of the chassis score against the server score, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alpha(u16);

impl Alpha {
    /// The paper's: 0.8.
    pub const PAPER: Self = Self(800);
    /// The chassis score alone.
    pub const CHASSIS: Self = Self(1000);

    /// From 0 to 1, to the next thousandth; `None` outside.
    pub fn new(alpha: f64) -> Option<Self> {
        (0.0..=1.0).contains(&alpha).then(|| Self(libm::round(alpha * 1e3) as u16))
    }
    /// As a ratio.
    pub fn get(self) -> f64 {
        f64::from(self.0) / 1e3
    }

    /// What of a server's lean says anything: nothing where the chassis score is alone.
    fn counts(self, lean: i64) -> i64 {
        if self == Self::CHASSIS { 0 } else { lean }
    }
}

/// The power rule. Higher is better:
///
/// * chassis: `κ = 1 − Σ P95·cores of its VMs / its cores`;
/// * server: `η = ½ (1 + (g_NUF − g_UF) / cores)` for a user-facing VM, and with the sign turned for
///   another; `g` sums `P95·cores` over the server's VMs of a class;
/// * score: `α κ + (1 − α) η`. The arriving VM is not counted.
///
/// Of a VM of which nothing is known the rule says nothing: all hosts tie, and packing is not given up for a guess. Where
/// it is it counts as user-facing at 100 %.
///
/// Sums are integers of 10⁻⁷ cores, so that a VM that ends leaves nothing behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Power {
    alpha: Alpha,
    servers: Vec<Server>,
    chassis: Vec<Chassis>,
    order: Option<Order>,
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Chassis {
    cores: i64,
    load: i64,
    score: i64,
}

/// The servers of every chassis, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    ties: Ties,
    /// By lean, as far as it counts, and tie.
    servers: Vec<BTreeSet<(i64, TieKey)>>,
    /// The best server of every chassis: for user-facing VMs, and for others.
    heads: [Vec<Option<Head>>; 2],
}

/// The next server of a chassis: its score, tie and lean, and the chassis.
type Head = (i64, Reverse<TieKey>, i64, u32);

/// `part / whole` in 10⁻⁹, towards zero, so that it is the same on both sides of it.
fn share(part: i64, whole: i64) -> i64 {
    // A server has at most 65,536 cores, 6.6e11 of 1e-7; a chassis of thousands of these needs more than 64 bits.
    (i128::from(part) * i128::from(ONE) / i128::from(whole.max(1))) as i64
}

fn deviation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    standard_deviation(values).unwrap_or(0.0)
}

impl Power {
    /// For this cluster, as if it were empty: the [`crate::Scheduler`] tells of the VMs that are there.
    pub fn new(cluster: &Cluster, alpha: Alpha) -> Self {
        let servers: Vec<Server> = cluster
            .ids()
            .map(|id| {
                let host = cluster.host(id);
                let cores = i64::from(host.capacity.cores.milli()) * 10_000;
                Server { chassis: host.chassis.0, cores, ..Server::default() }
            })
            .collect();
        let count = servers.iter().map(|server| server.chassis as usize + 1).max().unwrap_or(0);
        let mut chassis = vec![Chassis { score: ONE, ..Chassis::default() }; count];
        for server in &servers {
            chassis[server.chassis as usize].cores += server.cores;
        }
        Self { alpha, servers, chassis, order: None }
    }

    /// The same, which keeps servers in order for a ranking with these ties.
    pub fn in_order(cluster: &Cluster, alpha: Alpha, ties: Ties) -> Self {
        let mut power = Self::new(cluster, alpha);
        let mut servers = vec![BTreeSet::new(); power.chassis.len()];
        for (host, server) in cluster.ids().zip(&power.servers) {
            servers[server.chassis as usize].insert((server.lean, ties.key(host)));
        }
        let heads = [VmClass::UserFacing, VmClass::NonUserFacing].map(|class| {
            let of = |(chassis, servers)| power.head(class, chassis, first(class, servers));
            (0..).zip(&servers).map(of).collect()
        });
        power.order = Some(Order { ties, servers, heads });
        power
    }

    /// What comes next of a chassis.
    fn head(&self, class: VmClass, chassis: u32, server: Option<(i64, TieKey)>) -> Option<Head> {
        let (lean, tie) = server?;
        Some((self.sum(class, chassis, lean), Reverse(tie), lean, chassis))
    }

    /// κ of the host's chassis, from its VMs' P95.
    pub fn chassis_score(&self, host: HostId) -> f64 {
        self.chassis[self.servers[host.0 as usize].chassis as usize].score as f64 / ONE as f64
    }

    /// η of the host for a user-facing VM.
    pub fn server_score(&self, host: HostId) -> f64 {
        0.5 + self.servers[host.0 as usize].lean as f64 / (2 * ONE) as f64
    }

    /// κ of every chassis, by its number.
    pub fn chassis_scores(&self) -> impl Iterator<Item = f64> + Clone {
        self.chassis.iter().map(|chassis| chassis.score as f64 / ONE as f64)
    }

    /// Standard deviations: of κ over chassis, and of η, for a user-facing VM, over servers.
    pub fn deviations(&self) -> (f64, f64) {
        let hosts = (0..self.servers.len() as u32).map(HostId);
        (deviation(self.chassis_scores()), deviation(hosts.map(|host| self.server_score(host))))
    }

    fn add(&mut self, vm: &VmRequest, host: HostId, sign: i64) {
        let load = sign * vm.p95_load();
        let server = &mut self.servers[host.0 as usize];
        match vm.class {
            VmClass::UserFacing => server.user_facing += load,
            VmClass::NonUserFacing => server.non_user_facing += load,
        }
        let before = self.alpha.counts(server.lean);
        server.lean = share(server.non_user_facing - server.user_facing, server.cores);
        let (number, after) = (server.chassis, self.alpha.counts(server.lean));
        let chassis = &mut self.chassis[number as usize];
        chassis.load += load;
        chassis.score = ONE - share(chassis.load, chassis.cores);

        if let Some(mut order) = self.order.take() {
            let servers = &mut order.servers[number as usize];
            let tie = order.ties.key(host);
            if before != after {
                servers.remove(&(before, tie));
                servers.insert((after, tie));
            }
            for (class, heads) in
                [VmClass::UserFacing, VmClass::NonUserFacing].into_iter().zip(&mut order.heads)
            {
                heads[number as usize] = self.head(class, number, first(class, servers));
            }
            self.order = Some(order);
        }
    }

    /// `(κ, η)` in 10⁻⁹, both times two, since η has a half in it.
    fn parts(&self, class: VmClass, chassis: u32, lean: i64) -> (i64, i64) {
        let lean = match class {
            VmClass::UserFacing => lean,
            VmClass::NonUserFacing => -lean,
        };
        (2 * self.chassis[chassis as usize].score, ONE + lean)
    }

    /// The score of a server of this chassis that leans so.
    fn sum(&self, class: VmClass, chassis: u32, lean: i64) -> i64 {
        let (chassis, server) = self.parts(class, chassis, lean);
        let alpha = i64::from(self.alpha.0);
        alpha * chassis + (1000 - alpha) * server
    }
}

/// The best of a chassis's servers for VMs of this class.
fn first(class: VmClass, servers: &BTreeSet<(i64, TieKey)>) -> Option<(i64, TieKey)> {
    match class {
        VmClass::UserFacing => {
            let (lean, _) = servers.last()?;
            servers.range((*lean, TieKey::LOWEST)..).next().copied()
        }
        VmClass::NonUserFacing => servers.first().copied(),
    }
}

/// The one after that.
fn after(
    class: VmClass,
    servers: &BTreeSet<(i64, TieKey)>,
    (lean, tie): (i64, TieKey),
) -> Option<(i64, TieKey)> {
    let next = servers.range((lean, tie.next())..).next().copied();
    match class {
        VmClass::UserFacing => next.filter(|(same, _)| *same == lean).or_else(|| {
            let (lower, _) = servers.range(..(lean, TieKey::LOWEST)).next_back()?;
            servers.range((*lower, TieKey::LOWEST)..).next().copied()
        }),
        VmClass::NonUserFacing => next,
    }
}

impl Rule for Power {
    fn name(&self) -> &'static str {
        "power"
    }

    fn is_silent(&self, ask: &Ask<'_>) -> bool {
        !ask.vm.known
    }

    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        if self.is_silent(ask) {
            return 0;
        }
        let Server { chassis, lean, .. } = self.servers[host.0 as usize];
        self.sum(ask.vm.class, chassis, lean)
    }

    fn walk<'a>(&'a self, ask: &Ask<'a>) -> Option<Walk<'a>> {
        let (class, order) = (ask.vm.class, self.order.as_ref()?);
        let heads = &order.heads[usize::from(class == VmClass::NonUserFacing)];
        let mut heads: BinaryHeap<Head> = heads.iter().flatten().copied().collect();
        Some(Box::new(core::iter::from_fn(move || {
            let mut head = heads.peek_mut()?;
            let (score, Reverse(tie), lean, chassis) = *head;
            let servers = &order.servers[chassis as usize];
            match self.head(class, chassis, after(class, servers, (lean, tie))) {
                Some(next) => *head = next,
                None => drop(PeekMut::pop(head)),
            }
            Some((score, tie.host()))
        })))
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        if self.is_silent(ask) {
            return "neither class nor P95 is known: all hosts alike".to_owned();
        }
        let Server { chassis, lean, .. } = self.servers[host.0 as usize];
        let (chassis, server) = self.parts(ask.vm.class, chassis, lean);
        let ratio = |twice: i64| twice as f64 / (2 * ONE) as f64;
        let towards = match ask.vm.class {
            VmClass::UserFacing => "user-facing",
            VmClass::NonUserFacing => "other",
        };
        format!(
            "chassis score {:.3}: 1 less the P95 load of its cores; server score {:.3} for {towards} VMs: \
             0.5 is balanced",
            ratio(chassis),
            ratio(server),
        )
    }

    fn handle_event(&mut self, _now: Instant, _cluster: &Cluster, event: &Event<'_>) {
        match *event {
            Event::Placed { vm, host } | Event::Held { vm, host } => self.add(vm, host, 1),
            Event::Ended { vm, host } | Event::Released { vm, host } => self.add(vm, host, -1),
            Event::Migrated { vm, from, to } => {
                self.add(vm, from, -1);
                self.add(vm, to, 1);
            }
            Event::Resized { before, after, host } | Event::Repredicted { before, after, host } => {
                self.add(before, host, -1);
                self.add(after, host, 1);
            }
            Event::Deadline => {}
        }
    }
}
