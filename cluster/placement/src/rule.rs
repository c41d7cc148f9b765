//! What constraints and preferences are.

use core::fmt;

use ballast_types::Instant;

use crate::measured::Measured;
use crate::{Cluster, Host, HostId, VmKey, VmRequest};

/// One question: where should this VM go, now?
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The time of the question.
    pub now: Instant,
    /// The VM that this is about.
    pub vm: &'a VmRequest,
    /// The inventory as it is.
    pub cluster: &'a Cluster,
}

/// What happened. The cluster is already as it is afterwards.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A VM came, at the time of the event: of a VM that was found, or that was there before the rule, this is earlier
    /// than events before it. A deployment's VMs come together,
    /// once all have found a host.
    Placed {
        /// The VM that this is about.
        vm: &'a VmRequest,
        /// The host that the VM is on.
        host: HostId,
    },
    /// A VM has gone.
    Ended {
        /// The VM that this is about.
        vm: &'a VmRequest,
        /// The host that it was on.
        host: HostId,
    },
    /// Room is held for a VM that is not there: it counts as if it were, and asks for no [`Event::Deadline`].
    Held {
        /// The VM that is to come.
        vm: &'a VmRequest,
        /// The host that it is to come to.
        host: HostId,
    },
    /// What was held is so no more: nothing is left of it.
    Released {
        /// The VM that was to come.
        vm: &'a VmRequest,
        /// The host that it was to come to.
        host: HostId,
    },
    /// A VM has moved.
    Migrated {
        /// The VM that this is about.
        vm: &'a VmRequest,
        /// The host that it leaves.
        from: HostId,
        /// The host that it comes to.
        to: HostId,
    },
    /// A VM takes more or less than before.
    Resized {
        /// The VM as it was before the change.
        before: &'a VmRequest,
        /// The VM as it is after the change.
        after: &'a VmRequest,
        /// The host that it is on.
        host: HostId,
    },
    /// Something else is predicted of a VM than before.
    Repredicted {
        /// The VM as it was before the change.
        before: &'a VmRequest,
        /// The VM as it is after the change.
        after: &'a VmRequest,
        /// The host that it is on.
        host: HostId,
    },
    /// A host came, is otherwise than before, with the VMs that it has, or has gone, and had none. Its state does not count.
    HostChanged {
        /// The host, as the cluster now has it or not.
        host: HostId,
        /// What it was; `None` where it came.
        before: Option<&'a Host>,
    },
    /// What VMs use was measured. What was measured of the host before counts no longer.
    Measured {
        /// The host whose VMs they are.
        host: HostId,
        /// What was measured there, and nothing where that is too old.
        measured: &'a Measured<VmKey>,
    },
    /// The instant that `poll_timeout` named has come.
    Deadline,
}

impl Event<'_> {
    /// Hosts whose VMs, holds or room may be otherwise than before.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        let (one, other) = match *self {
            Event::Placed { host, .. }
            | Event::Ended { host, .. }
            | Event::Held { host, .. }
            | Event::Released { host, .. }
            | Event::Resized { host, .. }
            | Event::Repredicted { host, .. }
            | Event::HostChanged { host, .. } => (Some(host), None),
            Event::Migrated { from, to, .. } => (Some(from), Some(to)),
            // Neither VMs nor room are others.
            Event::Measured { .. } | Event::Deadline => (None, None),
        };
        one.into_iter().chain(other)
    }

    /// VMs and holds that are on a host no more, and those that now are; one that is otherwise than before is among both.
    pub fn guests(&self) -> [Option<(&VmRequest, HostId)>; 2] {
        match *self {
            Event::Placed { vm, host } | Event::Held { vm, host } => [None, Some((vm, host))],
            Event::Ended { vm, host } | Event::Released { vm, host } => [Some((vm, host)), None],
            Event::Migrated { vm, from, to } => [Some((vm, from)), Some((vm, to))],
            Event::Resized { before, after, host } | Event::Repredicted { before, after, host } => {
                [Some((before, host)), Some((after, host))]
            }
            Event::HostChanged { .. } | Event::Measured { .. } | Event::Deadline => [None, None],
        }
    }
}

/// A constraint: it refuses hosts.
pub trait Fit: fmt::Debug + Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &'static str;
    /// Why the host may not have the VM; `None` where it may.
    fn refusal(&self, ask: &Ask<'_>, host: HostId) -> Option<String>;
    /// Whether the host may have the VM: what [`Fit::refusal`] says, without the words.
    fn admits(&self, ask: &Ask<'_>, host: HostId) -> bool;
    /// Keeps the hosts that may.
    fn retain(&self, ask: &Ask<'_>, hosts: &mut Vec<HostId>) {
        hosts.retain(|host| self.admits(ask, *host));
    }
    /// For which share of the time the host breaks a promise as it is, or would with the VM; `None` where nothing is promised.
    fn risk(&self, _cluster: &Cluster, _vm: Option<&VmRequest>, _host: HostId) -> Option<f64> {
        None
    }
    /// What the host would be with the VM, in words.
    fn remark(&self, _ask: &Ask<'_>, _host: HostId) -> Option<String> {
        None
    }
    /// Learns what happened.
    fn handle_event(&mut self, _now: Instant, _cluster: &Cluster, _event: &Event<'_>) {}
    /// When it wants [`Event::Deadline`].
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// What a rule found that keeps its hosts in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// It keeps no order: score every host.
    Unordered,
    /// The host of the highest score among the admitted ones, the first by its [`crate::Ties`] on a tie.
    Best(Option<HostId>),
}

/// Hosts with their scores, the highest first; those that tie come in the order of [`crate::Ties`]. Every host that fits is
/// named; others may be.
pub type Walk<'a> = Box<dyn Iterator<Item = (i64, HostId)> + 'a>;

/// A preference: it scores hosts, higher is better.
pub trait Rule: fmt::Debug + Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &'static str;
    /// How much it likes the host for this VM. Only the order matters. The host fits.
    fn score(&self, ask: &Ask<'_>, host: HostId) -> i64;
    /// Why: one line for people; empty where the rule has nothing to say to anybody.
    fn explain(&self, ask: &Ask<'_>, host: HostId) -> String;
    /// Scores many.
    fn scores(&self, ask: &Ask<'_>, hosts: &[HostId], scores: &mut Vec<i64>) {
        scores.extend(hosts.iter().map(|host| self.score(ask, *host)));
    }
    /// Whether it likes all hosts alike for this VM: it is not asked then.
    fn is_silent(&self, _ask: &Ask<'_>) -> bool {
        false
    }
    /// The best host without scoring all of them, where the rule can.
    fn search(&self, _ask: &Ask<'_>, _admits: &mut dyn FnMut(HostId) -> bool) -> Search {
        Search::Unordered
    }
    /// The score of the best host among the admitted ones, where the rule can tell it without scoring all of them; `None`
    /// in it where none is admitted. For rules that put hosts into few classes.
    fn best_class(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Option<Option<i64>> {
        let mut walk = self.walk(ask)?;
        Some(walk.find(|(_, host)| admits(*host)).map(|(score, _)| score))
    }
    /// All hosts in order, where the rule keeps them so.
    fn walk<'a>(&'a self, _ask: &Ask<'a>) -> Option<Walk<'a>> {
        None
    }
    /// Learns what happened.
    fn handle_event(&mut self, _now: Instant, _cluster: &Cluster, _event: &Event<'_>) {}
    /// When it wants [`Event::Deadline`].
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
