//! Which manager rules: epochs, instances, and what agents say of other managers.
//!
//! A manager's epoch rises at every start; its instance is drawn at random, so that two managers that were
//! started from copies of one ledger are told apart. An agent obeys one instance in one epoch. Of two managers
//! the one of the newer epoch has precedence, and in one epoch the one of the higher instance.
//!
//! A manager that an agent refuses for another one takes the next epoch, which all agents obey,
//! - where it has precedence: the agents are split within its epoch;
//! - at its start, on the word of two agents or of all there are: its ledger may be older than their memory;
//! - where the other one's messages do not advance: nobody is there whom it could take the rule from.
//!
//! Over one other manager it does so once, or two would race for ever. Otherwise two agents, or all there are,
//! are believed if the other's messages advance: another manager rules, and this one is fenced. A single
//! agent is set aside while others obey, for it may be mistaken. Since precedence only grows, of two managers never both are
//! fenced by each other.
//!
//! A fenced manager asks the agents from time to time whom they obey, by messages that nobody obeys. When half of
//! its agents answer, and none has heard from its ruler for two minutes, it starts anew, in the next epoch.

use core::time::Duration;

use ballast_types::wire::{Alert, ChassisState, EventKind, OtherManager, Refusal, RefusalReason};
use ballast_types::{Epoch, Instance, Instant, Seq};
use serde::{Deserialize, Serialize};

use super::Chassis;
use crate::slots::{Agent, Contradiction};
use crate::{Answer, Ledger, Output};

/// Over so many other managers the next epoch is taken within [`RISES_WITHIN`], and once over each: whoever
/// meets more is lied to.
const MAX_RISES: usize = 8;
/// See [`MAX_RISES`].
const RISES_WITHIN: Duration = Duration::from_secs(60 * 60);
/// Agents follow so far at once, whomever they have heard. One agent may lie about more.
const SHORT_RISE: u64 = 16;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Identity {
    epoch: Epoch,
    started: Instant,
    /// The epoch of the manager that rules instead.
    ruler: Option<Epoch>,
    fenced_at: Option<Instant>,
    /// When a fenced manager asks next.
    ask_at: Instant,
    /// The manager that agents were last found to refuse for this one.
    refused: Option<Instance>,
    /// The managers over which the next epoch was taken, and when.
    risen: Vec<(Option<Instance>, Instant)>,
}

impl Identity {
    pub(super) fn new(epoch: Epoch, started: Instant) -> Self {
        Self { epoch, started, ruler: None, fenced_at: None, ask_at: started, refused: None, risen: vec![] }
    }

    /// Whether the next epoch may be taken over this manager.
    fn may_rise(&mut self, now: Instant, over: Option<Instance>) -> bool {
        self.risen.retain(|&(_, at)| now - at < RISES_WITHIN);
        self.risen.len() < MAX_RISES && self.risen.iter().all(|&(other, _)| other != over)
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub(super) fn ruler(&self) -> Option<Epoch> {
        self.ruler
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.fenced_at.is_some()
    }

    pub(super) fn fenced_at(&self) -> Option<Instant> {
        self.fenced_at
    }

    /// When a fenced manager asks next.
    pub(super) fn ask_at(&self) -> Option<Instant> {
        self.fenced_at.map(|_| self.ask_at)
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

        let words = self.words(now, self.silent_after());
        let believed = words.len() >= 2 || words.len() == self.messaged() || self.is_obeyed_by_none(now);
        let Some(rival) = words.iter().copied().max_by_key(|o| (o.epoch, o.instance)) else {
            return;
        };

        let gone = (words.iter())
            .filter(|o| (o.epoch, o.instance) == (rival.epoch, rival.instance))
            .all(|o| o.is_still(now, self.silent_after().saturating_mul(2)));
        if self.rises(now, rival, believed, gone) && self.identity.may_rise(now, rival.instance) {
            self.identity.risen.push((rival.instance, now));
            return self.take_epoch(now, rival.epoch.next());
        }

        if believed && words.iter().any(|o| o.advances() && self.yields_to(*o)) {
            return self.fence(now, rival.epoch);
        }
        if first {
            let message = self.agents[i].contradiction(self.identity.epoch).unwrap_or_default();
            self.tell(now, EventKind::Alarm { message });
        }

        self.expel(now, i, seq, "obeys another manager");
    }

    /// What agents have said of other managers, no longer ago than this.
    fn words(&self, now: Instant, within: Duration) -> Vec<Contradiction> {
        let messaged = self.agents.iter().filter(|a| a.is_messaged());
        messaged.filter_map(|a| a.other).filter(|o| now - o.at < within).collect()
    }

    /// Whether no agent answers as one that obeys this manager, some time after its start. Then a single word suffices: all
    /// other agents may be gone for good.
    fn is_obeyed_by_none(&self, now: Instant) -> bool {
        let silent_after = self.silent_after();
        now - self.identity.started >= self.tuning.adopts_for
            && !self.agents.iter().any(|a| a.other.is_none() && a.fresh(now, silent_after).is_some())
    }

    fn messaged(&self) -> usize {
        self.agents.iter().filter(|a| a.is_messaged()).count()
    }

    /// Whether another manager has precedence.
    fn yields_to(&self, rival: Contradiction) -> bool {
        (rival.epoch, rival.instance) > (self.identity.epoch, Some(self.params.instance))
    }

    /// Whether the epoch after that of `rival` is this manager's; see the module.
    fn rises(&self, now: Instant, rival: Contradiction, believed: bool, gone: bool) -> bool {
        let rise = rival.epoch.next().0.saturating_sub(self.identity.epoch.0);
        let young = now - self.identity.started < self.tuning.adopts_for;
        if young && believed && rise <= self.tuning.adopts_within {
            return true;
        }
        (gone || !self.yields_to(rival)) && rise <= SHORT_RISE
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
        self.identity.ruler = Some(newest);
        self.identity.fenced_at = Some(now);
        self.identity.ask_at = now + self.tuning.asks_every;
        self.cause = "agents obey another manager".into();
        let message = format!(
            "another manager rules this chassis: epoch {newest}, this one's is {}; nothing is ordered any \
             more",
            self.identity.epoch
        );
        self.tell(now, EventKind::Alarm { message });
    }

    // ---- a fenced manager ----

    /// Asks who is obeyed: nobody obeys epoch 0, and a refusal names who is.
    pub(super) fn ask(&mut self, now: Instant) {
        if self.identity.ask_at > now {
            return;
        }
        self.identity.ask_at = now + self.tuning.asks_every;
        let (chassis, limit) = (self.params.chassis_id.clone(), self.limit());
        for agent in self.agents.iter_mut().filter(|a| a.is_messaged()) {
            let question = Alert {
                chassis_limit_w: limit,
                fallback_w: agent.fallback,
                ..Alert::watch(chassis.clone(), Epoch::default(), agent.number(now))
            };
            let server = agent.server.id.clone();
            self.outputs.push_back(Output::Alert { server, alert: question });
        }
    }

    /// Takes an agent's word on who is obeyed.
    pub(super) fn take_word(&mut self, now: Instant, i: usize, answer: &Answer) {
        let Answer::Refused(refusal) = answer else { return };
        let Refusal { reason, newest_epoch, newest_seq, instance } = *refusal;
        let far = newest_epoch.0 > self.identity.epoch.0.saturating_add(self.tuning.adopts_within);
        if matches!(reason, RefusalReason::Stale | RefusalReason::OtherInstance) && !far {
            self.agents[i].contradicts(now, newest_epoch, instance, newest_seq);
        }
    }

    /// What agents have answered to the last questions.
    fn answers(&self, now: Instant) -> Vec<Contradiction> {
        let lately = self.tuning.asks_every.saturating_mul(2).saturating_add(self.silent_after());
        self.words(now, lately)
    }

    /// Whether messages of a ruler have advanced since the last questions.
    pub(super) fn is_ruled(&self, now: Instant) -> bool {
        let lately = self.tuning.asks_every.saturating_mul(2);
        self.answers(now).iter().any(|o| o.advances() && !o.is_still(now, lately))
    }

    /// Rules again, if the ruler is gone: as after a restart, which knows what agents and BMCs may hold.
    pub(super) fn rule_again(&mut self, now: Instant) {
        let answers = self.answers(now);
        let gone_after = self.tuning.orphan_hold.saturating_mul(2);
        let gone = answers.iter().all(|o| o.is_still(now, gone_after));
        if answers.len() * 2 < self.messaged() || !gone {
            return;
        }
        let Some(epoch) = answers.iter().map(|o| o.epoch).max() else { return };
        let ledger = self.ledger(self.highest_draws());
        let ledger = Ledger { epoch: epoch.max(self.identity.epoch), ..ledger };
        let mut anew = Self::new(self.params.clone(), ledger, now);

        for (agent, before) in anew.agents.iter_mut().zip(&self.agents) {
            agent.seq = before.seq;
        }
        self.outputs.append(&mut anew.outputs);
        *self = Self {
            published: ChassisState::Fenced,
            cause: "the manager that ruled is gone".into(),
            last_action: self.last_action,
            alerts: self.alerts,
            refused: self.refused,
            outputs: core::mem::take(&mut self.outputs),
            ..anew
        };
    }
}
