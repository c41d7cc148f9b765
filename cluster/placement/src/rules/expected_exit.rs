//! Where a VM keeps hosts busy the least: expected extra host time.

use ballast_types::Instant;
use ballast_types::survival::HORIZON_S;

use super::best_fit::{self, Left};
use super::guests::{Guest, Guests, Looks, NEVER, in_words, left_s};
use super::index::{Best, Entry, Index, IndexRow, Size};
use super::outlook::{Outlook, Outlooks};
use crate::rule::{Ask, Event, Rule, Search};
use crate::{Cluster, ExpectedEnd, HostId, Ties};

/// The weight of what a VM leaves of a host: unused cores and memory for as long as the VM lives.
const FRAGMENTATION: f64 = 0.5;
/// The weight of a host's life beyond the VM's: a host that is busy for long is kept for VMs that live long.
const UMBRELLA: f64 = 0.06;
/// Lives differ by this at least before their ratio means anything.
const SOFT_S: f64 = 72.0;
/// Sums of shares are in single precision: a bound is taken for lower by this share of the VM's life.
const ROUNDING: f64 = 1e-5;

/// Expected extra host time of a VM, in seconds; the least is the best:
///
/// * for how long the host is expected to be busy for this VM alone; an empty host is so all its life;
/// * and of its expected life the share that it leaves of the host, times 0.5;
/// * and of its life 0.06 for every ten times that the host lives longer, at most 1,000 times. An empty host has none.
///
/// With known ends the first is by how much the VM outlives the host, max(exit of the VM − exit of the host, 0). With curves it is
/// ∫ F(t) S(t) dt over 14 days, where S is the chance that the VM still lives and F that the host would be free: the
/// product over its VMs of the chance that each has ended. A known end is a step of these curves.
///
/// The constants were measured on synthetic pools, which nothing else uses. Of a VM of which nobody knows when it will end
/// all hosts but the share that it leaves are alike: best fit.
#[derive(Clone, Debug)]
pub struct ExpectedExit {
    guests: Guests,
    /// By how long hosts stay busy, where the cluster has curves, in microseconds; else by their exits, in nanoseconds.
    index: Index,
    /// What curves come to; `None` where the cluster has none.
    outlooks: Option<Outlooks>,
    looks: Looks,
}

/// What is asked of a VM, once for all hosts.
struct Expectation {
    /// For how long it is expected to live; `None` where nobody knows.
    expected_s: Option<f64>,
    outlook: Option<Outlook>,
}

#[derive(Clone, Copy, Default)]
struct Cost {
    extra_s: f64,
    fragmentation_s: f64,
    umbrella_s: f64,
}

impl Cost {
    fn total_s(self) -> f64 {
        self.extra_s + self.fragmentation_s + self.umbrella_s
    }

    /// Minus the cost, in millionths of a second.
    fn score(self) -> i64 {
        score(self.total_s())
    }
}

/// Of 1 to 2 by sixteenths.
const LOG10: [f64; 17] = [
    0.0000000000,
    0.0263289387,
    0.0511525224,
    0.0746336183,
    0.0969100130,
    0.1180993121,
    0.1383026982,
    0.1576078534,
    0.1760912591,
    0.1938200260,
    0.2108533653,
    0.2272437815,
    0.2430380487,
    0.2582780152,
    0.2730012721,
    0.2872417112,
    core::f64::consts::LOG10_2,
];

/// The logarithm of 1 or more, linear between sixteenths of a doubling: 0.0003 off at most, never falling, and five times as
/// fast as an exact one, which took a fifth of all the time of a run.
fn log10(ratio: f64) -> f64 {
    let bits = ratio.to_bits();
    let doublings = (bits >> 52) as i32 - 1023;
    let sixteenths = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52) * 16.0 - 16.0;
    let place = (sixteenths as usize).min(15);
    let within = sixteenths - place as f64;
    f64::from(doublings) * LOG10[16] + LOG10[place] + (LOG10[place + 1] - LOG10[place]) * within
}

fn score(cost_s: f64) -> i64 {
    -((cost_s * 1e6) as i64)
}

impl ExpectedExit {
    /// For a cluster whose VMs it is told of afterwards, under a ranking with these ties.
    pub fn new(cluster: &Cluster, ties: Ties) -> Self {
        Self {
            guests: Guests::new(cluster),
            index: Index::new(cluster, ties),
            outlooks: (!cluster.curves().is_empty()).then(Outlooks::default),
            looks: Looks::default(),
        }
    }

    fn asked(&self, ask: &Ask<'_>) -> Expectation {
        let Some(end) = self.guests.end(ask.vm) else {
            return Expectation { expected_s: None, outlook: None };
        };
        match (&self.outlooks, end) {
            (Some(_), _) => {
                let outlook = Outlook::of(&Guest::asked(ask), ask.cluster.curves(), ask.now);
                Expectation { expected_s: Some(outlook.expected_s()), outlook: Some(outlook) }
            }
            (None, ExpectedEnd::At(exit)) => {
                Expectation { expected_s: Some(left_s(ask.now, exit)), outlook: None }
            }
            // A curve of a cluster that has none.
            (None, ExpectedEnd::Curve(_)) => Expectation { expected_s: None, outlook: None },
        }
    }

    /// For how long a host with this key is expected to be busy.
    fn busy_s(&self, now: Instant, key: u64) -> f64 {
        match self.outlooks {
            Some(_) => key as f64 / 1e6,
            None => left_s(now, Instant::from_nanos(key)),
        }
    }

    /// The least that a host with this key can cost, whoever its guests are.
    fn least(&self, now: Instant, vm: &Expectation, key: u64) -> Cost {
        let Some(life_s) = vm.expected_s else { return Cost::default() };
        let busy_s = self.busy_s(now, key);
        let longer = if busy_s > life_s { log10((busy_s + SOFT_S) / (life_s + SOFT_S)) } else { 0.0 };
        Cost {
            extra_s: (life_s - busy_s).max(0.0),
            fragmentation_s: 0.0,
            umbrella_s: UMBRELLA * life_s * longer.min(3.0),
        }
    }

    /// What a host costs of which so much is left, with its [`ExpectedExit::least`]; `None` is one that has no guests.
    fn cost(&self, vm: &Expectation, used: Option<(HostId, Cost)>, left: f64) -> Cost {
        let fragmentation_s = fragmentation_s(vm, left);
        let extra_s = vm.expected_s.unwrap_or(0.0);
        let Some((host, least)) = used else { return Cost { extra_s, fragmentation_s, umbrella_s: 0.0 } };
        let mut cost = Cost { fragmentation_s, ..least };
        if let (Some(outlooks), Some(outlook)) = (&self.outlooks, &vm.outlook) {
            cost.extra_s = outlooks.extra_s(host, outlook);
        }
        cost
    }

    fn cost_of(&self, ask: &Ask<'_>, host: HostId) -> Cost {
        let (cores, memory) = best_fit::left(ask, host);
        let vm = self.asked(ask);
        let used = self.index.key(host).map(|key| (host, self.least(ask.now, &vm, key)));
        self.cost(&vm, used, cores.max(memory))
    }

    /// What a host's guests come to now.
    fn look(&mut self, now: Instant, cluster: &Cluster, event: &Event<'_>, host: HostId) {
        let guests = self.guests.of(host);
        let comes = matches!(event, Event::Placed { .. } | Event::Held { .. });
        let key = match &mut self.outlooks {
            None => {
                let exit = |guest: &Guest| guest.exit(cluster.curves(), now).as_nanos();
                match (self.index.key(host), guests.last()) {
                    (Some(latest), Some(newest)) if comes => Some(latest.max(exit(newest))),
                    _ => guests.iter().map(exit).max(),
                }
            }
            Some(outlooks) => {
                // Of one that was looked at lately only the new guest is looked up.
                let newest = guests.last().filter(|_| comes && guests.len() > 1);
                match newest.filter(|_| self.looks.is_fresh(host, now)) {
                    Some(guest) => outlooks.join(host, guest, cluster.curves(), now),
                    None => outlooks.set(host, guests, cluster.curves(), now),
                }
                self.looks.set(host, self.guests.look_again(host, now));
                (!guests.is_empty()).then(|| (outlooks.busy_s(host) * 1e6) as u64)
            }
        };
        self.index.update(cluster, host, key);
    }
}

impl ExpectedExit {
    /// Goes through a row from the host that lives as long as the VM, both ways: the least that a host can cost rises on
    /// either side.
    fn search_row(&self, ask: &Ask<'_>, vm: &Expectation, size: &Size, row: &IndexRow, best: &mut Best<'_>) {
        let (now, asked) = (ask.now, ask.vm.resources);
        let cores = row.free_milli - asked.cores.milli();
        let life_s = vm.expected_s.unwrap_or(0.0);
        let left = Left::of(size.room, cores);
        // Nobody in the row leaves less.
        let Some((least_kb, ..)) = row.by_memory(asked.memory.kb()).first() else { return };
        let leaves_s = fragmentation_s(vm, left.share(least_kb - asked.memory.kb()));
        if !best.may_win(score(leaves_s)) {
            return;
        }
        let rounding_s = if self.outlooks.is_some() { ROUNDING * life_s } else { 0.0 };

        let mut visit = |host: &Entry| {
            let least = self.least(now, vm, host.key);
            let may_win = best.may_win(score(least.total_s() - rounding_s + leaves_s));
            if may_win && let Some(kb) = host.free_kb.checked_sub(asked.memory.kb()) {
                let cost = self.cost(vm, Some((host.tie.host(), least)), left.share(kb));
                best.offer(cost.score(), host.tie);
            }
            may_win
        };
        let middle = row.hosts.partition_point(|host| self.busy_s(now, host.key) < life_s);
        let (shorter, longer) = row.hosts.split_at(middle);
        let _ = longer.iter().all(&mut visit);
        let _ = shorter.iter().rev().all(&mut visit);
    }
}

/// What it costs that a VM leaves so much of a host.
fn fragmentation_s(vm: &Expectation, left: f64) -> f64 {
    vm.expected_s.map_or(1.0, |life_s| FRAGMENTATION * life_s) * left
}

impl Rule for ExpectedExit {
    fn name(&self) -> &'static str {
        "expected-exit"
    }

    /// Minus the cost, in millionths of a second; best fit's score where nobody knows when the VM will end.
    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        match self.guests.end(ask.vm) {
            Some(_) => self.cost_of(ask, host).score(),
            None => best_fit::score_of(ask, host),
        }
    }

    fn search(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Search {
        let (asked, vm) = (ask.vm.resources, self.asked(ask));
        if vm.expected_s.is_none() {
            return Search::Best(self.index.best_fit(asked, admits));
        }
        let cores = asked.cores.milli();
        let mut best = Best::new(admits);
        for size in self.index.sizes().iter().filter(|size| size.room.hold(asked)) {
            for row in size.rows(cores) {
                let left = Left::of(size.room, row.free_milli - cores).share(0);
                if !best.may_win(score(fragmentation_s(&vm, left))) {
                    break;
                }
                self.search_row(ask, &vm, size, row, &mut best);
            }

            let free = size.room.checked_sub(asked).unwrap_or_default();
            let left = Left::of(size.room, free.cores.milli()).share(free.memory.kb());
            let cost = self.cost(&vm, None, left);
            best.offer_first(cost.score(), &size.empty);
        }
        Search::Best(best.host.map(|(_, tie)| tie.host()))
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        let (cores, memory) = best_fit::left(ask, host);
        let left = cores.max(memory) * 100.0;
        let Some(life_s) = self.asked(ask).expected_s else {
            return format!("{}; the host keeps {left:.1} %", self.guests.why_unknown());
        };
        let cost = in_words(self.cost_of(ask, host).total_s());
        let vm = in_words(life_s);
        let host = match self.index.key(host).map(|key| (key, self.busy_s(ask.now, key))) {
            None => "is empty".to_owned(),
            // Beyond the horizon curves say nothing.
            Some((_, busy_s)) if self.outlooks.is_some() && busy_s > f64::from(HORIZON_S) * 0.99 => {
                format!("is expected to be busy for {} or more", in_words(busy_s))
            }
            Some((key, busy_s)) if self.outlooks.is_some() || key < NEVER.as_nanos() => {
                format!("is expected to be free in {}", in_words(busy_s))
            }
            Some(_) => "is busy nobody knows how long".to_owned(),
        };
        format!("the host {host}; this VM lives {vm} and leaves {left:.1} %: {cost} of extra host time")
    }

    fn handle_event(&mut self, now: Instant, cluster: &Cluster, event: &Event<'_>) {
        self.guests.handle_event(now, cluster, event);
        event.hosts().for_each(|host| self.look(now, cluster, event, host));
        if matches!(event, Event::Deadline) {
            while let Some(host) = self.looks.pop(now) {
                self.look(now, cluster, event, host);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.looks.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_near_and_never_falls() {
        let mut before = 0.0;
        for n in 0..200_000 {
            let ratio = libm::exp10(f64::from(n) / 40_000.0);
            let near = log10(ratio);
            assert!((near - libm::log10(ratio)).abs() < 3e-4 && near >= before, "{ratio}: {near}");
            before = near;
        }
        assert_eq!((log10(1.0), log10(2.0)), (0.0, LOG10[16]));
    }
}
