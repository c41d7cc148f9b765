//! Algorithm 1: expected power balanced over chassis, throttle-able power over servers.

use core::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeSet, BinaryHeap};

use ballast_types::{Instant, VmClass};

use crate::balance::{Balance, ONE};
use crate::rule::{Ask, Event, Rule, Walk};
use crate::ties::TieKey;
use crate::{Cluster, HostId, Ties};

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
/// The sums are the cluster's: [`Balance`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Power {
    alpha: Alpha,
    order: Option<Order>,
}

/// The servers of every chassis, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    ties: Ties,
    /// By chassis, then by lean, as far as it counts, and tie.
    servers: Vec<BTreeSet<(i64, TieKey)>>,
    /// Where every host stands in `servers`; `None` of one that is gone.
    positions: Vec<Option<ServerPosition>>,
    /// The best server of every chassis: for user-facing VMs, and for others.
    heads: [Vec<Option<Head>>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ServerPosition {
    chassis: u32,
    lean: i64,
    tie: TieKey,
}

/// The next server of a chassis: its score, tie and lean, and the chassis.
type Head = (i64, Reverse<TieKey>, i64, u32);

const CLASSES: [VmClass; 2] = [VmClass::UserFacing, VmClass::NonUserFacing];

impl Power {
    /// With this weight of the chassis score.
    pub fn new(alpha: Alpha) -> Self {
        Self { alpha, order: None }
    }

    /// The same, which keeps servers in order for a ranking with these ties.
    pub fn in_order(cluster: &Cluster, alpha: Alpha, ties: Ties) -> Self {
        let (servers, positions, heads) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
        let mut power = Self { alpha, order: Some(Order { ties, servers, positions, heads }) };
        cluster.ids().for_each(|host| power.update(cluster, host));
        power
    }

    /// What comes next of a chassis.
    fn head(
        &self,
        balance: &Balance,
        class: VmClass,
        chassis: u32,
        server: Option<(i64, TieKey)>,
    ) -> Option<Head> {
        let (lean, tie) = server?;
        Some((self.sum(balance, class, chassis, lean), Reverse(tie), lean, chassis))
    }

    /// The P95 load of a host, or the host itself, may have changed.
    fn update(&mut self, cluster: &Cluster, host: HostId) {
        let Some(mut order) = self.order.take() else { return };
        let balance = cluster.balance();
        let at = host.0 as usize;
        if order.positions.len() <= at {
            order.positions.resize(at + 1, None);
        }

        let before = order.positions[at];
        let after = cluster.contains(host).then(|| ServerPosition {
            chassis: cluster.host(host).chassis.0,
            lean: self.alpha.counts(balance.lean(host)),
            tie: before.map_or_else(|| order.ties.key(cluster, host), |before| before.tie),
        });
        if before != after {
            order.positions[at] = after;
            before.into_iter().for_each(|it| {
                order.servers[it.chassis as usize].remove(&(it.lean, it.tie));
            });
            after.into_iter().for_each(|it| order.insert(it));
        }

        for ServerPosition { chassis, .. } in before.into_iter().chain(after) {
            let servers = &order.servers[chassis as usize];
            for (class, heads) in CLASSES.into_iter().zip(&mut order.heads) {
                heads[chassis as usize] = self.head(balance, class, chassis, first(class, servers));
            }
        }
        self.order = Some(order);
    }

    /// `(κ, η)` in 10⁻⁹, both times two, since η has a half in it.
    fn parts(balance: &Balance, class: VmClass, chassis: u32, lean: i64) -> (i64, i64) {
        let lean = match class {
            VmClass::UserFacing => lean,
            VmClass::NonUserFacing => -lean,
        };
        (2 * balance.kappa(chassis), ONE + lean)
    }

    /// The score of a server of this chassis that leans so.
    fn sum(&self, balance: &Balance, class: VmClass, chassis: u32, lean: i64) -> i64 {
        let (chassis, server) = Self::parts(balance, class, chassis, lean);
        let alpha = i64::from(self.alpha.0);
        alpha * chassis + (1000 - alpha) * server
    }
}

impl Order {
    fn insert(&mut self, ServerPosition { chassis, lean, tie }: ServerPosition) {
        let at = chassis as usize;
        if self.servers.len() <= at {
            self.servers.resize(at + 1, BTreeSet::new());
            self.heads.iter_mut().for_each(|heads| heads.resize(at + 1, None));
        }
        self.servers[at].insert((lean, tie));
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
        let balance = ask.cluster.balance();
        self.sum(balance, ask.vm.class, ask.cluster.host(host).chassis.0, balance.lean(host))
    }

    fn walk<'a>(&'a self, ask: &Ask<'a>) -> Option<Walk<'a>> {
        let (class, order) = (ask.vm.class, self.order.as_ref()?);
        let balance = ask.cluster.balance();
        let heads = &order.heads[usize::from(class == VmClass::NonUserFacing)];
        let mut heads: BinaryHeap<Head> = heads.iter().flatten().copied().collect();
        Some(Box::new(core::iter::from_fn(move || {
            let mut head = heads.peek_mut()?;
            let (score, Reverse(tie), lean, chassis) = *head;
            let servers = &order.servers[chassis as usize];
            match self.head(balance, class, chassis, after(class, servers, (lean, tie))) {
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
        let (balance, chassis) = (ask.cluster.balance(), ask.cluster.host(host).chassis);
        let (chassis, server) = Self::parts(balance, ask.vm.class, chassis.0, balance.lean(host));
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

    fn handle_event(&mut self, _now: Instant, cluster: &Cluster, event: &Event<'_>) {
        event.hosts().for_each(|host| self.update(cluster, host));
    }
}
