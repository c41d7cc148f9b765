//! Who is on which host, with what is known of their ends; and when to look at a host again.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

use ballast_types::Instant;
use ballast_types::survival::Curves;

use super::trust::Trust;
use crate::rule::{Ask, Event};
use crate::{Cluster, ExpectedEnd, HostId, VmKey, VmRequest};

/// The end of a VM of which nobody knows when it will end.
pub(super) const NEVER: Instant = Instant::from_nanos(u64::MAX);
/// What curves say of a host is looked up again no sooner than this, but for changes of its VMs. LAVA's appendix G.3 found
/// neither one nor fifteen minutes to be worse than no pause.
const SHORTEST: Duration = Duration::from_secs(300);
/// And no later than this.
const LONGEST: Duration = Duration::from_secs(3600);
/// In between when the youngest VM is older by this share of its age: what a curve says changes with the logarithm of
/// the age.
const OLDER: u32 = 2;

/// A VM on a host, or a hold for one.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Unique among the guests of a host.
    pub vm: VmKey,
    pub(super) end: Option<ExpectedEnd>,
    since: Instant,
}

impl Guest {
    /// A VM of which this is asked; one that is there already has lived since it came.
    pub fn asked(ask: &Ask<'_>) -> Self {
        Self::of(ask.now, ask.cluster, ask.vm)
    }

    fn of(now: Instant, cluster: &Cluster, vm: &VmRequest) -> Self {
        // Only curves count from there.
        let is_curve = matches!(vm.end, Some(ExpectedEnd::Curve(_)));
        let there = if is_curve { cluster.resident(vm.id) } else { None };
        Self { vm: vm.id, end: vm.end, since: there.map_or(now, |there| there.since) }
    }

    pub(super) fn uptime_s(&self, now: Instant) -> f32 {
        now.since(self.since).as_secs_f32()
    }

    /// When it is expected to end.
    pub fn exit(&self, curves: &Curves, now: Instant) -> Instant {
        match self.end {
            Some(ExpectedEnd::At(exit)) => exit,
            Some(ExpectedEnd::Curve(id)) => after(now, curves.remaining_s(id, self.uptime_s(now))),
            None => NEVER,
        }
    }
}

/// So many seconds later; the time never wraps.
fn after(now: Instant, seconds: f32) -> Instant {
    Instant::from_nanos(now.as_nanos().saturating_add((f64::from(seconds) * 1e9) as u64))
}

#[derive(Clone, Debug)]
pub(super) struct Guests {
    hosts: Vec<Vec<Guest>>,
    trust: Trust,
}

impl Guests {
    pub(super) fn new(cluster: &Cluster) -> Self {
        let hosts = cluster.ids().last().map_or(0, |host| host.0 as usize + 1);
        Self { hosts: vec![Vec::new(); hosts], trust: Trust::default() }
    }

    pub(super) fn of(&self, host: HostId) -> &[Guest] {
        self.hosts.get(host.0 as usize).map_or(&[], Vec::as_slice)
    }

    /// What is known of the VM's end, where such knowledge has come true of late.
    pub(super) fn end(&self, vm: &VmRequest) -> Option<ExpectedEnd> {
        vm.end.filter(|_| self.trust.holds())
    }

    /// Why nothing is said of a VM's end, for people.
    pub(super) fn why_unknown(&self) -> &'static str {
        if self.trust.holds() {
            "nobody knows when the VM will end"
        } else {
            "most VMs of late ended far from when they were expected to"
        }
    }

    /// Learns what happened to whom.
    pub(super) fn handle_event(&mut self, now: Instant, cluster: &Cluster, event: &Event<'_>) {
        let hosts = event.hosts().map(|host| host.0 as usize + 1).max();
        if let Some(hosts) = hosts.filter(|hosts| self.hosts.len() < *hosts) {
            self.hosts.resize(hosts, Vec::new());
        }
        let [left, came] = event.guests();
        if let Some((vm, host)) = left {
            let guest = self.remove(vm.id, host);
            if let (Event::Ended { .. }, Some(guest)) = (event, guest) {
                self.trust.ended(guest.end, guest.since, now, cluster.curves());
            }
        }
        if let Event::Placed { vm, .. } = event {
            self.trust.came(vm.end);
        }
        if let Some((vm, host)) = came {
            self.hosts[host.0 as usize].push(Guest::of(now, cluster, vm));
        }
    }

    fn remove(&mut self, vm: VmKey, host: HostId) -> Option<Guest> {
        let guests = self.hosts.get_mut(host.0 as usize)?;
        // The last is looked at first: what is held is released in this order.
        let place = guests.iter().rposition(|guest| guest.vm == vm)?;
        Some(guests.swap_remove(place))
    }

    /// When curves say something else of a host; `None` where all of its VMs have a known end or none.
    pub(super) fn look_again(&self, host: HostId, now: Instant) -> Option<Instant> {
        let curved = self.of(host).iter().filter(|guest| matches!(guest.end, Some(ExpectedEnd::Curve(_))));
        let youngest = curved.map(|guest| now.since(guest.since)).min()?;
        Some(now + (youngest / OLDER).clamp(SHORTEST, LONGEST))
    }
}

/// When to look at which host again.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    due: Vec<Option<Instant>>,
    /// When the host is next met in the queue: no later than it is due.
    queued: Vec<Option<Instant>>,
    queue: BinaryHeap<Reverse<(Instant, HostId)>>,
}

impl Looks {
    /// Looks at a host then, and no more where that is `None`.
    pub fn set(&mut self, host: HostId, due: Option<Instant>) {
        let at = host.0 as usize;
        if self.due.len() <= at {
            if due.is_none() {
                return;
            }
            self.due.resize(at + 1, None);
            self.queued.resize(at + 1, None);
        }
        self.due[at] = due;
        if let Some(due) = due
            && self.queued[at].is_none_or(|queued| queued > due)
        {
            self.queued[at] = Some(due);
            self.queue.push(Reverse((due, host)));
        }
    }

    /// Whether a host is to be looked at again.
    pub(super) fn is_set(&self, host: HostId) -> bool {
        self.due.get(host.0 as usize).is_some_and(Option::is_some)
    }

    /// Whether a host was looked at lately.
    pub(super) fn is_fresh(&self, host: HostId, now: Instant) -> bool {
        self.due.get(host.0 as usize).is_some_and(|due| due.is_some_and(|due| now < due))
    }

    /// A host that is due.
    pub fn pop(&mut self, now: Instant) -> Option<HostId> {
        while let Some(Reverse((at, host))) = self.queue.peek().copied().filter(|next| next.0.0 <= now) {
            self.queue.pop();
            let number = host.0 as usize;
            if self.queued[number] != Some(at) {
                continue;
            }
            self.queued[number] = None;
            match self.due[number] {
                Some(due) if due > now => self.set(host, Some(due)),
                Some(_) => return Some(host),
                None => {}
            }
        }
        None
    }

    /// When a host may be due.
    pub fn next(&self) -> Option<Instant> {
        self.queue.peek().map(|next| next.0.0)
    }
}

/// How much longer until then; nothing where the time is over.
pub fn left_s(now: Instant, exit: Instant) -> f64 {
    exit.since(now).as_secs_f64()
}

/// In words for people.
pub fn in_words(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s if s < 3.2e9 => format!("{:.1} days", s / 86_400.0),
        _ => "for ever".to_owned(),
    }
}
