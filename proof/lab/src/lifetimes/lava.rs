//! Hosts that refill themselves with VMs of shorter and shorter lives: LAVA.
//!
//! Source: LAVA, arXiv 2412.09840, section 4, and Table 3 for the transitions.

use core::time::Duration;

use ballast_placement::rules::{Guest, Looks, Nilas, in_words, left_s};
use ballast_placement::{Ask, Cluster, Event, HostId, Rule, Ties, VmKey};
use ballast_types::Instant;

/// The upper bounds of the classes but the last, in hours; the last goes up to a thousand hours, and beyond.
const BOUNDS_H: [u64; 4] = [1, 10, 100, 1000];
/// A host of a class is expected to live no longer than this times its bound.
const GRACE: f64 = 1.1;
/// A host takes VMs of its own class until it is so full.
const FULL: f64 = 0.9;

/// What "closest class first" comes to, of which the paper's text can be read in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LavaReading {
    /// Among hosts of higher classes those of the next class come first, then those of the one after it.
    ClosestFirst,
    /// Hosts of all higher classes are alike: NILAS decides among them.
    Flat,
}

/// Hosts have a class of lifetimes, that of their first VM. Full ones are recycled: VMs of lower classes fill what becomes
/// free. When the VMs are gone that were there, the class falls by one; when the host outlives its class, it rises.
///
/// The order: recycled hosts of higher classes; open hosts of the VM's class; other hosts with VMs; empty ones. Within
/// each [`Nilas`] decides, and a later tier. Room that was held and is released may leave a class that it changed.
#[derive(Clone, Debug)]
pub(super) struct Lava {
    reading: LavaReading,
    nilas: Nilas,
    hosts: Vec<LavaHost>,
    deadlines: Looks,
}

#[derive(Clone, Debug, Default)]
struct LavaHost {
    /// Whether the host was full once: VMs of lower classes may come.
    recycles: bool,
    /// 1 to 4; 0 where there is no VM.
    class: u8,
    /// The VMs that its class stands for.
    residual: Vec<VmKey>,
}

fn class(life: Duration) -> u8 {
    1 + BOUNDS_H[..3].iter().filter(|hours| life >= Duration::from_secs(**hours * 3600)).count() as u8
}

fn deadline(now: Instant, class: u8) -> Instant {
    let hours = BOUNDS_H[usize::from(class.clamp(1, 4)) - 1];
    now + Duration::from_secs_f64(hours as f64 * 3600.0 * GRACE)
}

impl Lava {
    /// For a cluster whose VMs it is told of afterwards, under a ranking with these ties.
    pub(super) fn new(cluster: &Cluster, ties: Ties, reading: LavaReading) -> Self {
        Self { reading, nilas: Nilas::classes(cluster, ties), hosts: Vec::new(), deadlines: Looks::default() }
    }

    fn class_of(now: Instant, guest: &Guest, cluster: &Cluster) -> u8 {
        class(guest.exit(cluster.curves(), now).since(now))
    }

    /// Higher is better: the tier, and how close the classes are.
    fn tier(&self, ask: &Ask<'_>, host: HostId) -> (i64, i64) {
        let vm = Self::class_of(ask.now, &Guest::asked(ask), ask.cluster);
        match self.hosts.get(host.0 as usize) {
            Some(LavaHost { recycles: true, class, .. }) if *class > vm => match self.reading {
                LavaReading::ClosestFirst => (3, 4 - i64::from(*class - vm)),
                LavaReading::Flat => (3, 0),
            },
            Some(LavaHost { recycles: false, class, .. }) if *class == vm => (2, 0),
            Some(LavaHost { class: 1.., .. }) => (1, 0),
            _ => (0, 0),
        }
    }

    fn change(&mut self, now: Instant, cluster: &Cluster, event: &Event<'_>, host: HostId) {
        let at = host.0 as usize;
        if self.hosts.len() <= at {
            self.hosts.resize(at + 1, LavaHost::default());
        }
        let (state, guests) = (&mut self.hosts[at], self.nilas.guests(host));
        let Some(newest) = guests.last() else {
            *state = LavaHost::default();
            self.deadlines.set(host, None);
            return;
        };

        let [left, _] = event.guests();
        if let Some((vm, _)) = left.filter(|(_, from)| *from == host) {
            state.residual.retain(|other| *other != vm.id || guests.iter().any(|guest| guest.vm == vm.id));
        }
        if state.class == 0 {
            state.class = Self::class_of(now, newest, cluster);
            self.deadlines.set(host, Some(deadline(now, state.class)));
        }
        if state.recycles && state.residual.is_empty() {
            state.class = (state.class - 1).max(1);
            self.recycle(now, host);
        } else if !state.recycles && is_full(cluster, host) {
            state.recycles = true;
            state.residual = guests.iter().map(|guest| guest.vm).collect();
        }
    }

    /// All that are there stand for the class from now on.
    fn recycle(&mut self, now: Instant, host: HostId) {
        let state = &mut self.hosts[host.0 as usize];
        state.recycles = true;
        state.residual = self.nilas.guests(host).iter().map(|guest| guest.vm).collect();
        self.deadlines.set(host, Some(deadline(now, state.class)));
    }
}

fn is_full(cluster: &Cluster, host: HostId) -> bool {
    let (room, free) = (cluster.host(host).room, cluster.free(host));
    let (milli, kb) = (f64::from(room.cores.milli()), room.memory.kb() as f64);
    f64::from(free.cores.milli()) < milli * (1.0 - FULL) || (free.memory.kb() as f64) < kb * (1.0 - FULL)
}

impl Rule for Lava {
    fn name(&self) -> &'static str {
        "lava"
    }

    fn is_silent(&self, ask: &Ask<'_>) -> bool {
        self.nilas.exit(ask).is_none()
    }

    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64 {
        let (tier, close) = self.tier(ask, host);
        (tier * 8 + close) * 64 + self.nilas.score(ask, host)
    }

    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String {
        let of = |hours: u8| BOUNDS_H[usize::from(hours.clamp(1, 4)) - 1];
        let hosts = self.hosts.get(host.0 as usize);
        let state = match hosts {
            Some(LavaHost { class: 0, .. }) | None => "it has no class".to_owned(),
            Some(LavaHost { recycles, class, .. }) => {
                let takes = if *recycles { "shorter lives" } else { "its class" };
                format!("its class goes up to {} h, and it takes VMs of {takes}", of(*class))
            }
        };
        let vm = self.nilas.exit(ask).map_or(0.0, |exit| left_s(ask.now, exit));
        let life = in_words(vm);
        format!("{state}; this VM lives {life}; {}", self.nilas.explain(ask, host))
    }

    fn handle_event(&mut self, now: Instant, cluster: &Cluster, event: &Event<'_>) {
        self.nilas.handle_event(now, cluster, event);
        event.hosts().for_each(|host| self.change(now, cluster, event, host));
        if matches!(event, Event::Deadline) {
            while let Some(host) = self.deadlines.pop(now) {
                let state = &mut self.hosts[host.0 as usize];
                state.class = (state.class + 1).min(4);
                self.recycle(now, host);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.nilas.poll_timeout(), self.deadlines.next()].into_iter().flatten().min()
    }
}
