//! Which manager rules: epochs, instances, and what agents say of other managers.
//!
//! A manager's epoch rises at every start; its instance is drawn at random, so that two managers that were
//! started from copies of one ledger are told apart. An agent obeys one instance in one epoch. A single agent
//! that contradicts is set aside, for it may be mistaken: it was moved from another chassis, or its memory or
//! the ledger was restored from a backup. Two agents, or all there are, are believed, if the other manager's
//! messages advance: another manager rules, and this one is fenced. Where the agents are split, the manager
//! of the higher instance takes the next epoch, which all agents obey.

use core::time::Duration;

use ballast_types::wire::{EventKind, OtherManager};
use ballast_types::{Epoch, Instance, Instant, Seq};

use super::Chassis;
use crate::slots::Agent;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    epoch: Epoch,
    started: Instant,
    /// The epoch of the manager that rules instead.
    rival: Option<Epoch>,
    fenced_at: Option<Instant>,
    /// The manager that agents were last found to refuse for this one.
    refused: Option<Instance>,
}

impl Identity {
    pub(super) fn new(epoch: Epoch, started: Instant) -> Self {
        Self { epoch, started, rival: None, fenced_at: None, refused: None }
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn rival(&self) -> Option<Epoch> {
        self.rival
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.fenced_at.is_some()
    }

    pub(super) fn fenced_at(&self) -> Option<Instant> {
        self.fenced_at
    }
}

impl Chassis {
    /// An agent obeys another manager: a newer epoch, or another instance in this one.
    pub(super) fn contradict(
        &mut self,
        now: Instant,
        i: usize,
        seq: Seq,
        (newest, instance, newest_seq): (Epoch, Option<Instance>, Seq),
    ) {
        if seq <= self.agents[i].heard_seq {
            self.refuse();
            return;
        }
        let first = self.agents[i].other.is_none();
        self.agents[i].contradicts(now, newest, instance, newest_seq);

        let recent = |a: &&Agent| {
            a.is_messaged() && a.other.is_some_and(|o| now - o.at < self.silent_after())
        };
        let contradict: Vec<_> =
            self.agents.iter().filter(recent).filter_map(|a| a.other).collect();
        let messaged = self.agents.iter().filter(|a| a.is_messaged()).count();
        let believed = contradict.len() >= 2 || contradict.len() == messaged;
        let highest = contradict.iter().map(|o| o.epoch).max().unwrap_or(newest);

        // At the start the ledger may be older than what the agents have seen.
        let young = now - self.identity.started < self.tuning.adopts_for;
        let near = highest.0 - self.identity.epoch.0.min(highest.0) <= self.tuning.adopts_most;
        if young && believed && highest >= self.identity.epoch && near {
            return self.take_epoch(now, highest.next());
        }

        // The agents are split between two managers of one epoch.
        let obeyed = self.agents.iter().any(|a| a.other.is_none() && a.heard_seq > Seq(0));
        let lower = instance.is_some_and(|other| other < self.params.instance);
        if highest == self.identity.epoch && obeyed && lower {
            return self.take_epoch(now, highest.next());
        }

        if believed && contradict.iter().any(|o| o.advances()) {
            return self.fence(now, highest);
        }
        if first {
            let message = self.agents[i].contradiction(self.identity.epoch).unwrap_or_default();
            self.tell(now, EventKind::Alarm { message });
        }
        self.expel(now, i, seq, "obeys another manager");
    }

    /// The newest manager that an agent refuses for this one, as long as it goes on sending.
    pub(super) fn other_manager(&self, now: Instant) -> Option<(&Agent, OtherManager)> {
        let silent_after = self.silent_after();
        let others = self.agents.iter().filter_map(|agent| {
            let other = agent.fresh(now, silent_after)?.refused?;
            let age = (now - agent.heard_at).saturating_add(Duration::from_millis(other.age_ms));
            let alive = age < silent_after && other.instance != self.params.instance;
            alive.then_some((agent, other, age))
        });
        others.min_by_key(|&(.., age)| age).map(|(agent, other, _)| (agent, other))
    }

    /// Says once of every manager that agents refuse for this one that it is there: it was started by
    /// mistake, or rules where this one does not reach.
    pub(super) fn note_other_manager(&mut self, now: Instant) {
        let Some((_, other)) = self.other_manager(now) else { return };
        if self.identity.refused != Some(other.instance) {
            self.identity.refused = Some(other.instance);
            let message = self.other_manager_alarm(now).unwrap_or_default();
            self.tell(now, EventKind::Alarm { message });
        }
    }

    /// That another manager runs, in words.
    pub(super) fn other_manager_alarm(&self, now: Instant) -> Option<String> {
        self.other_manager(now).map(|(agent, other)| {
            format!(
                "two managers run for this chassis: {} obeys this one, and refuses messages of another one, \
                 epoch {}, instance {}",
                agent.server.id, other.epoch, other.instance.0
            )
        })
    }

    /// Everything is said again in a newer epoch; message numbers go on.
    fn take_epoch(&mut self, now: Instant, epoch: Epoch) {
        self.identity.epoch = epoch;
        for agent in &mut self.agents {
            agent.other = None;
            agent.next_at = now;
        }
    }

    /// Another manager rules: this one says nothing more.
    fn fence(&mut self, now: Instant, newest: Epoch) {
        self.identity.rival = Some(newest);
        self.identity.fenced_at = Some(now);
        self.cause = "agents obey another manager";
        let message = format!(
            "another manager rules this chassis: epoch {newest}, this one's is {}; nothing is sent any more",
            self.identity.epoch
        );
        self.tell(now, EventKind::Alarm { message });
    }
}
