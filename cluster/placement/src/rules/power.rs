//! Algorithm 1: expected power balanced over chassis, throttle-able power over servers.

use core::cmp::Reverse;
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

/// The servers of every chassis, and the best of every chassis, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    ties: Ties,
    /// Where every host stands; `None` of one that is gone.
    positions: Vec<Option<ServerPosition>>,
    /// For user-facing VMs, and for others.
    classes: [ClassOrder; 2],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ClassOrder {
    /// By chassis, the best server first: by how little it leans as it should, as far as that counts, and tie.
    servers: Vec<BTreeSet<(i64, TieKey)>>,
    /// The head of every chassis that has a server.
    chassis: Vec<Option<Head>>,
    /// The same, the best first.
    heads: BTreeSet<Head>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ServerPosition {
    chassis: u32,
    lean: i64,
    tie: TieKey,
}

/// The best server of a chassis: minus its score, its tie, and the chassis.
type Head = (i64, TieKey, u32);

/// How much a server that leans so is disliked for VMs of a class.
fn against(class: VmClass, lean: i64) -> i64 {
    match class {
        VmClass::UserFacing => -lean,
        VmClass::NonUserFacing => lean,
    }
}

impl Power {
    /// With this weight of the chassis score.
    pub fn new(alpha: Alpha) -> Self {
        Self { alpha, order: None }
    }

    /// The same, which keeps servers in order for a ranking with these ties.
    pub fn in_order(cluster: &Cluster, alpha: Alpha, ties: Ties) -> Self {
        let (positions, classes) = (Vec::new(), Default::default());
        let mut power = Self { alpha, order: Some(Order { ties, positions, classes }) };
        cluster.ids().for_each(|host| power.update(cluster, host));
        power
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
        order.positions[at] = after;

        for (class, order) in VmClass::ALL.into_iter().zip(&mut order.classes) {
            if before != after {
                before.into_iter().for_each(|it| order.remove(class, it));
                after.into_iter().for_each(|it| order.insert(class, it));
            }
            let moved = before.zip(after).is_some_and(|(before, after)| before.chassis != after.chassis);
            let left = before.filter(|_| moved || after.is_none());
            for ServerPosition { chassis, .. } in left.into_iter().chain(after) {
                order.renew(chassis, |against| self.sum(balance, chassis, against));
            }
        }
        self.order = Some(order);
    }

    /// `(κ, η)` in 10⁻⁹, both times two, since η has a half in it.
    fn parts(balance: &Balance, chassis: u32, against: i64) -> (i64, i64) {
        (2 * balance.kappa(chassis), ONE - against)
    }

    /// The score of a server of this chassis that is so disliked.
    fn sum(&self, balance: &Balance, chassis: u32, against: i64) -> i64 {
        let (chassis, server) = Self::parts(balance, chassis, against);
        let alpha = i64::from(self.alpha.0);
        alpha * chassis + (1000 - alpha) * server
    }
}

impl ClassOrder {
    fn insert(&mut self, class: VmClass, ServerPosition { chassis, lean, tie }: ServerPosition) {
        let at = chassis as usize;
        if self.servers.len() <= at {
            self.servers.resize(at + 1, BTreeSet::new());
            self.chassis.resize(at + 1, None);
        }
        self.servers[at].insert((against(class, lean), tie));
    }

    fn remove(&mut self, class: VmClass, ServerPosition { chassis, lean, tie }: ServerPosition) {
        self.servers[chassis as usize].remove(&(against(class, lean), tie));
    }

    /// The servers of a chassis, or its score, may have changed.
    fn renew(&mut self, chassis: u32, score: impl Fn(i64) -> i64) {
        let first = self.servers[chassis as usize].first();
        let after = first.map(|(against, tie)| (-score(*against), *tie, chassis));
        let before = &mut self.chassis[chassis as usize];
        if *before != after {
            before.iter().for_each(|head| {
                self.heads.remove(head);
            });
            self.heads.extend(after);
            *before = after;
        }
    }

    /// All servers, the best first, each with its score. A chassis is opened when its head is come to.
    fn walk(&self, score: impl Fn(u32, i64) -> i64) -> impl Iterator<Item = (i64, HostId)> {
        let mut heads = self.heads.iter().copied().peekable();
        let mut opened = Vec::new();
        let mut next: BinaryHeap<Reverse<(i64, TieKey, usize)>> = BinaryHeap::new();

        core::iter::from_fn(move || {
            let head = heads.next_if(|(cost, tie, _)| {
                next.peek().is_none_or(|Reverse((other, by, _))| (cost, tie) < (other, by))
            });
            let (cost, tie, number) = match head {
                Some((cost, tie, chassis)) => {
                    opened.push((chassis, self.servers[chassis as usize].iter()));
                    opened.last_mut()?.1.next();
                    (cost, tie, opened.len() - 1)
                }
                None => next.pop()?.0,
            };

            let (chassis, servers) = &mut opened[number];
            next.extend(
                servers.next().map(|(against, tie)| Reverse((-score(*chassis, *against), *tie, number))),
            );
            Some((-cost, tie.host()))
        })
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
        let chassis = ask.cluster.host(host).chassis.0;
        self.sum(balance, chassis, against(ask.vm.class, balance.lean(host)))
    }

    fn walk<'a>(&'a self, ask: &Ask<'a>) -> Option<Walk<'a>> {
        let balance = ask.cluster.balance();
        let order = &self.order.as_ref()?.classes[usize::from(ask.vm.class == VmClass::NonUserFacing)];
        Some(Box::new(order.walk(|chassis, against| self.sum(balance, chassis, against))))
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        if self.is_silent(ask) {
            return "neither class nor P95 is known: all hosts alike".to_owned();
        }
        let (balance, chassis) = (ask.cluster.balance(), ask.cluster.host(host).chassis);
        let (chassis, server) = Self::parts(balance, chassis.0, against(ask.vm.class, balance.lean(host)));
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
