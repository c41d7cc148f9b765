//! Empty hosts that are switched off, and what that saves.

use std::collections::VecDeque;

use ballast_placement::{Cluster, HostId, Resident};
use serde::Serialize;

use super::engine::{Probe, RequestedVm};

/// How empty hosts are switched off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PowerDownOptions {
    /// So many empty hosts stay on, for VMs that need one at once.
    pub reserve_hosts: u32,
    /// What an empty host draws that is on, or wakes up.
    pub idle_w: f64,
    pub off_w: f64,
    /// How long a host takes to wake up, in milliseconds.
    pub wake_ms: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PowerDownOutcome {
    /// By so much less the cluster draws on average than with all hosts on.
    pub saved_w: f64,
    /// The share of hosts that are off, over time.
    pub off_host_ratio: f64,
    /// How often a host was woken up.
    pub wakes: u64,
    /// VMs that had to wait for a host that was not on yet.
    pub waited_vms: u64,
    pub longest_wait_s: f64,
}

/// Switches empty hosts off beyond a reserve, and wakes one up as soon as the reserve is short. It changes no placement: hosts
/// are alike, so a VM that needs an empty host has one of those that are on; if there is none, it waits.
#[derive(Clone, Debug)]
pub struct PowerDown {
    options: PowerDownOptions,
    /// Empty hosts that are off, and that are on; `None` before anything was seen.
    hosts: Option<Empty>,
    /// When those that wake up are on, the next one first.
    waking_ms: VecDeque<u64>,
    span_ms: f64,
    off_ms: f64,
    host_ms: f64,
    outcome: PowerDownOutcome,
}

#[derive(Clone, Copy, Debug)]
struct Empty {
    used: u32,
    off: u32,
    on: u32,
}

impl PowerDown {
    pub fn new(options: PowerDownOptions) -> Self {
        Self {
            options,
            hosts: None,
            waking_ms: VecDeque::new(),
            span_ms: 0.0,
            off_ms: 0.0,
            host_ms: 0.0,
            outcome: PowerDownOutcome::default(),
        }
    }

    pub fn outcome(&self) -> PowerDownOutcome {
        if self.span_ms == 0.0 {
            return self.outcome;
        }
        let off = self.off_ms / self.span_ms;
        let saved_w = off * (self.options.idle_w - self.options.off_w);
        PowerDownOutcome { saved_w, off_host_ratio: self.off_ms / self.host_ms, ..self.outcome }
    }

    /// Follows the number of hosts with VMs.
    fn follow(&mut self, cluster: &Cluster, at_ms: u64) {
        let used = cluster.used_hosts();
        let all = cluster.len() as u32;
        let first = Empty { used, off: 0, on: all.saturating_sub(used) };
        let mut hosts = *self.hosts.get_or_insert(first);
        while self.waking_ms.pop_front_if(|ready_ms| *ready_ms <= at_ms).is_some() {
            hosts.on += 1;
        }

        hosts.on += hosts.used.saturating_sub(used);
        for _ in hosts.used..used {
            if hosts.on > 0 {
                hosts.on -= 1;
            } else {
                self.wait(&mut hosts, at_ms);
            }
        }

        let reserve = self.options.reserve_hosts;
        let ready = hosts.on + self.waking_ms.len() as u32;
        let surplus = ready.saturating_sub(reserve).min(hosts.on);
        (hosts.on, hosts.off) = (hosts.on - surplus, hosts.off + surplus);
        for _ in 0..reserve.saturating_sub(ready).min(hosts.off) {
            hosts.off -= 1;
            self.outcome.wakes += 1;
            self.waking_ms.push_back(at_ms + self.options.wake_ms);
        }
        self.hosts = Some(Empty { used, ..hosts });
    }

    /// A VM waits for a host: one that wakes up already, or one that is woken up for it.
    fn wait(&mut self, hosts: &mut Empty, at_ms: u64) {
        let ready_ms = match self.waking_ms.pop_front() {
            Some(ready_ms) => ready_ms,
            None => {
                hosts.off = hosts.off.saturating_sub(1);
                self.outcome.wakes += 1;
                at_ms + self.options.wake_ms
            }
        };
        self.outcome.waited_vms += 1;
        let wait_s = ready_ms.saturating_sub(at_ms) as f64 / 1e3;
        self.outcome.longest_wait_s = self.outcome.longest_wait_s.max(wait_s);
    }
}

impl Probe for PowerDown {
    fn pass(&mut self, cluster: &Cluster, from_ms: u64, to_ms: u64) {
        self.follow(cluster, from_ms);
        let span_ms = (to_ms - from_ms) as f64;
        self.span_ms += span_ms;
        self.off_ms += span_ms * f64::from(self.hosts.map_or(0, |hosts| hosts.off));
        self.host_ms += span_ms * cluster.len() as f64;
    }

    fn placed(&mut self, cluster: &Cluster, at_ms: u64, _: &RequestedVm, _: HostId) {
        self.follow(cluster, at_ms);
    }

    fn ended(&mut self, cluster: &Cluster, at_ms: u64, _: &Resident) {
        self.follow(cluster, at_ms);
    }
}

#[cfg(test)]
mod tests {
    use ballast_placement::{
        ChassisId, Host, MemoryKb, MilliCores, Policy, Resources, Scheduler, VmKey, VmRequest,
    };
    use ballast_types::Instant;

    use super::*;

    const OPTIONS: PowerDownOptions =
        PowerDownOptions { reserve_hosts: 1, idle_w: 110.0, off_w: 10.0, wake_ms: 60_000 };

    /// Places VMs of a whole host each at these seconds, and looks until the last.
    fn watch(probe: &mut PowerDown, hosts: u32, steps: &[(u64, bool)]) -> PowerDownOutcome {
        let size = Resources::new(MilliCores::from_cores(8), MemoryKb::ZERO);
        let all: Vec<Host> = (0..hosts).map(|_| Host::new(ChassisId(0), size)).collect();
        let mut scheduler: Scheduler = Policy::BEST_FIT.scheduler(Cluster::new(&all));
        let (mut now_ms, mut came, mut left) = (0, 0, 0);
        for (at_s, comes) in steps {
            let at_ms = at_s * 1000;
            if at_ms > now_ms {
                probe.pass(scheduler.cluster(), now_ms, at_ms);
            }
            now_ms = at_ms;
            let now = Instant::from_millis(now_ms);
            if *comes {
                let request = VmRequest::new(VmKey(came), size);
                came += 1;
                let host = scheduler.place(now, &request).unwrap();
                let vm = RequestedVm { request, lifetime_ms: None, index: 0 };
                probe.placed(scheduler.cluster(), now_ms, &vm, host);
            } else {
                let resident = scheduler.remove(now, VmKey(left)).unwrap();
                left += 1;
                probe.ended(scheduler.cluster(), now_ms, &resident);
            }
        }
        probe.outcome()
    }

    #[test]
    fn empty_hosts_beyond_the_reserve_are_off() {
        // Of four hosts one is used from 100 s to 200 s: three are off at first, then two, while one wakes up at once.
        let outcome = watch(&mut PowerDown::new(OPTIONS), 4, &[(100, true), (200, false), (300, true)]);
        let off = (3.0 * 100.0 + 2.0 * 100.0 + 3.0 * 100.0) / 300.0;
        assert!((outcome.saved_w - off * 100.0).abs() < 1e-9, "{outcome:?}");
        assert!((outcome.off_host_ratio - off / 4.0).abs() < 1e-9);
        assert_eq!((outcome.wakes, outcome.waited_vms), (2, 0));
    }

    #[test]
    fn who_finds_the_reserve_used_up_waits_for_the_host_that_wakes_up() {
        let outcome = watch(&mut PowerDown::new(OPTIONS), 4, &[(100, true), (110, true), (111, true)]);
        // The second takes the host that was woken up for the reserve ten seconds before; the third one more that was.
        assert_eq!((outcome.waited_vms, outcome.longest_wait_s), (2, 59.0));
        let none = PowerDownOptions { reserve_hosts: 0, ..OPTIONS };
        let outcome = watch(&mut PowerDown::new(none), 2, &[(100, true), (200, true)]);
        assert_eq!((outcome.wakes, outcome.waited_vms, outcome.longest_wait_s), (2, 2, 60.0));
    }
}
