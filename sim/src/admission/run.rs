//! One run: a cluster from empty, under one policy with one threshold.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ballast_placement::admission::Belief;
use ballast_placement::admission::demand::{Demand, DemandId, Prior, Threshold};
use serde::{Deserialize, Serialize};

use super::chance::{Chance, Purpose};
use super::deployment::{Hidden, Newcomer};

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Site {
    /// The law that deployments are drawn from. Policies know it.
    pub law: Belief,
    /// In cores. Above this scale-outs fail.
    pub capacity: f64,
    pub arrivals_per_h: f64,
    pub hours: f64,
}

/// Which moments of the demand a policy looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moment {
    Zeroth,
    First,
    Second,
}

impl Moment {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zeroth => "zeroth",
            Self::First => "first",
            Self::Second => "second",
        }
    }
}

/// Which observations a prior is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Labels {
    /// Those of the deployment's own type.
    Own,
    /// Those of its user's two types, and it is not said which it is of: the paper's elicitation without labels.
    Mixed,
}

/// A policy, but for its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Arm {
    pub moment: Moment,
    /// How many observations a prior is made of, beside the law.
    pub observations: u32,
    /// Whether deployments that are marginal may come where the condition does not hold.
    pub marginal: bool,
    pub labels: Labels,
}

impl Arm {
    pub const fn new(moment: Moment, observations: u32, marginal: bool) -> Self {
        Self { moment, observations, marginal, labels: Labels::Own }
    }

    fn threshold(&self, site: &Site, threshold: f64) -> Threshold {
        match self.moment {
            Moment::Zeroth => Threshold::Zeroth { cores: threshold },
            Moment::First => Threshold::First { cores: threshold },
            Moment::Second => Threshold::Second { capacity: site.capacity, risk: threshold },
        }
    }

    fn prior(&self, site: &Site, newcomer: &Newcomer, seed: u64, run: u64, index: u64) -> Prior {
        if self.observations == 0 {
            return site.law.into();
        }
        let observed =
            |hidden: &Hidden, mut chance| hidden.observed(&site.law, self.observations, &mut chance);
        let own = observed(&newcomer.hidden, Chance::new(seed, Purpose::Observations, run, index));
        match self.labels {
            Labels::Own => own.into(),
            Labels::Mixed => {
                let mut chance = Chance::new(seed, Purpose::OtherType, run, index);
                let hidden = Hidden::draw(&site.law, &mut chance);
                Prior::either(own, observed(&hidden, chance))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    pub scale_outs: u64,
    pub failed: u64,
    /// The mean share of cores that are active.
    pub utilisation: f64,
    pub deployments: u64,
    pub admitted: u64,
    /// Scale-outs, cores that ended and shutdowns.
    pub events: u64,
}

impl Tally {
    pub fn failed_share(&self) -> f64 {
        if self.scale_outs == 0 { 0.0 } else { self.failed as f64 / self.scale_outs as f64 }
    }
}

/// Something that happens to a deployment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub deployment: u64,
    pub at_h: f64,
    /// More cores, or fewer.
    pub cores: i64,
}

struct Resident {
    index: u64,
    hidden: Hidden,
    cores: u32,
    end_h: f64,
    chance: Chance,
    id: Option<DemandId>,
}

impl Resident {
    #[inline]
    fn next_h(&mut self, now_h: f64) -> f64 {
        let rate = self.hidden.mu * f64::from(self.cores) + self.hidden.rate;
        (now_h + self.chance.exponential() / rate).min(self.end_h)
    }
}

pub fn run(site: &Site, arm: &Arm, threshold: f64, seed: u64, run: u64) -> Tally {
    play(site, arm, threshold, seed, run, |_| {})
}

/// Runs it, and says all that happens.
pub fn play(
    site: &Site,
    arm: &Arm,
    threshold: f64,
    seed: u64,
    run: u64,
    mut observe: impl FnMut(Change),
) -> Tally {
    let mut cluster = Cluster::new(site, arm.moment != Moment::Zeroth);
    let condition = arm.threshold(site, threshold);
    let mut arrivals = Chance::new(seed, Purpose::Arrivals, run, 0);
    let mut arrival_h = arrivals.exponential() / site.arrivals_per_h;

    while arrival_h < site.hours {
        cluster.run_until(arrival_h, &mut observe);

        let index = cluster.tally.deployments;
        let newcomer = Newcomer::draw(&site.law, seed, run, index);
        let prior = arm.prior(site, &newcomer, seed, run, index);
        cluster.tally.deployments += 1;
        let cores = f64::from(newcomer.cores);
        if cluster.active + cores <= site.capacity && cluster.admits(condition, arm, &prior, cores, arrival_h)
        {
            observe(Change { deployment: index, at_h: arrival_h, cores: i64::from(newcomer.cores) });
            cluster.take(index, newcomer, &prior, arrival_h);
        }
        arrival_h += arrivals.exponential() / site.arrivals_per_h;
    }
    cluster.run_until(site.hours, &mut observe);
    cluster.count_until(site.hours);

    cluster.tally.utilisation = cluster.core_hours / (site.capacity * site.hours);
    cluster.tally
}

struct Cluster {
    capacity: f64,
    active: f64,
    core_hours: f64,
    until_h: f64,
    live: Vec<Resident>,
    free: Vec<u32>,
    /// The time of a deployment's next event (its bits are in order), then its slot.
    queue: BinaryHeap<Reverse<u128>>,
    demand: Option<Demand>,
    tally: Tally,
}

fn entry(at_h: f64, slot: u32) -> Reverse<u128> {
    Reverse(u128::from(at_h.to_bits()) << 64 | u128::from(slot))
}

impl Cluster {
    fn new(site: &Site, moments: bool) -> Self {
        Self {
            capacity: site.capacity,
            active: 0.0,
            core_hours: 0.0,
            until_h: 0.0,
            live: Vec::new(),
            free: Vec::new(),
            queue: BinaryHeap::new(),
            demand: moments.then(Demand::default),
            tally: Tally::default(),
        }
    }

    fn admits(&mut self, condition: Threshold, arm: &Arm, prior: &Prior, cores: f64, now_h: f64) -> bool {
        match (&mut self.demand, condition) {
            (None, condition) => self.active + cores < condition.cores(),
            (Some(demand), condition) => {
                let fresh = demand.refresh(now_h);
                fresh.is_ok() && demand.decide(condition, prior, cores, arm.marginal).admit
            }
        }
    }

    fn take(&mut self, index: u64, newcomer: Newcomer, prior: &Prior, now_h: f64) {
        let Newcomer { hidden, cores, life_h, chance } = newcomer;
        let id = self.demand.as_mut().and_then(|it| it.insert(now_h, prior, f64::from(cores)).ok());
        let mut live = Resident { index, hidden, cores, end_h: now_h + life_h, chance, id };
        let next_h = live.next_h(now_h);
        let slot = match self.free.pop() {
            Some(slot) => {
                self.live[slot as usize] = live;
                slot
            }
            None => {
                self.live.push(live);
                self.live.len() as u32 - 1
            }
        };
        self.queue.push(entry(next_h, slot));
        self.count_until(now_h);
        self.active += f64::from(cores);
        self.tally.admitted += 1;
    }

    #[inline]
    fn count_until(&mut self, now_h: f64) {
        self.core_hours += self.active * (now_h - self.until_h);
        self.until_h = now_h;
    }

    fn run_until(&mut self, end_h: f64, observe: &mut impl FnMut(Change)) {
        while let Some(mut top) = self.queue.peek_mut() {
            let Reverse(key) = *top;
            let now_h = f64::from_bits((key >> 64) as u64);
            if now_h >= end_h {
                return;
            }

            let slot = key as u32;
            let live = &mut self.live[slot as usize];
            self.core_hours += self.active * (now_h - self.until_h);
            self.until_h = now_h;
            self.tally.events += 1;
            let more = happens(live, now_h, self.capacity - self.active, &mut self.tally, &mut self.demand);
            self.active += more as f64;
            if more != 0 {
                observe(Change { deployment: live.index, at_h: now_h, cores: more });
            }

            if live.cores == 0 {
                std::collections::binary_heap::PeekMut::pop(top);
                self.free.push(slot);
            } else {
                *top = entry(live.next_h(now_h), slot);
            }
        }
    }
}

/// A deployment's event: how many cores it has more.
#[inline]
fn happens(
    live: &mut Resident,
    now_h: f64,
    free: f64,
    tally: &mut Tally,
    demand: &mut Option<Demand>,
) -> i64 {
    // The demand is told of nothing that cannot be: its answers need no look.
    let tell = |tell: &mut dyn FnMut(&mut Demand, DemandId)| {
        if let (Some(demand), Some(id)) = (demand, live.id) {
            tell(demand, id);
        }
    };

    if now_h >= live.end_h {
        tell(&mut |demand, id| _ = demand.remove(now_h, id));
        return -i64::from(core::mem::take(&mut live.cores));
    }

    let ends = live.hidden.mu * f64::from(live.cores);
    if live.chance.uniform() * (ends + live.hidden.rate) <= ends {
        tell(&mut |demand, id| _ = demand.end_cores(now_h, id, 1.0));
        live.cores -= 1;
        return -1;
    }

    let cores = live.hidden.size(&mut live.chance);
    let granted = f64::from(cores) <= free;
    tally.scale_outs += 1;
    tally.failed += u64::from(!granted);
    tell(&mut |demand, id| _ = demand.scale_out(now_h, id, f64::from(cores), granted));
    if !granted {
        return 0;
    }
    live.cores += cores;
    i64::from(cores)
}

/// What so many deployments of a law do in so many hours, if there is room for all: they arrive evenly, and every change is
/// said in the order of time, with the deployment's name.
///
/// # Errors
/// The first error of `write`.
pub fn export<E>(
    law: &Belief,
    deployments: u64,
    hours: f64,
    seed: u64,
    mut write: impl FnMut(&str, f64, f64) -> Result<(), E>,
) -> Result<(), E> {
    let site = Site { law: *law, capacity: 1e15, arrivals_per_h: deployments as f64 / hours, hours };
    let (arm, mut told) = (Arm::new(Moment::Zeroth, 0, false), Ok(()));
    play(&site, &arm, 1e15, seed, 0, |Change { deployment, at_h, cores }| {
        if told.is_ok() {
            told = write(&format!("d-{deployment}"), at_h, cores as f64);
        }
    });
    told
}

/// One deployment alone, from its arrival on, with room for all that it asks for.
#[cfg(test)]
pub(super) fn play_one(
    site: &Site,
    seed: u64,
    run: u64,
    index: u64,
    hours: f64,
    mut observe: impl FnMut(Change),
) {
    let mut cluster = Cluster::new(site, false);
    let newcomer = Newcomer::draw(&site.law, seed, run, index);
    observe(Change { deployment: index, at_h: 0.0, cores: i64::from(newcomer.cores) });
    cluster.take(index, newcomer, &site.law.into(), 0.0);
    cluster.run_until(hours, &mut observe);
}
