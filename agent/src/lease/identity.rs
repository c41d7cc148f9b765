//! Who is obeyed: one chassis, the newest epoch, and in it one start of a manager.
//!
//! Two managers of one epoch (a ledger that was copied or restored) are told apart by their instance. The
//! agent obeys the first that it hears, refuses the other, and names it in reports: which of them rules is
//! for the managers to settle.

use core::time::Duration;
use std::collections::VecDeque;

use ballast_types::wire::{Alert, OtherManager, RefusalReason};
use ballast_types::{ChassisId, Epoch, Instance, Instant, Seq};
use serde::{Deserialize, Serialize};

/// A manager cannot restart faster than this, and every restart costs one epoch.
const FASTEST_RESTART: Duration = Duration::from_millis(200);
/// Epochs that may be burnt at once (a crash loop before the first message).
const EPOCH_SLACK: u64 = 16;
/// So many epochs ahead may a manager be that was not heard before: its rivals may have burnt them.
const LONGEST_JUMP: u64 = 1000;
/// No manager gets so far by restarts; whoever is let in there leaves no epoch for the next one.
const HIGHEST_EPOCH: Epoch = Epoch(u64::MAX / 2);
/// Managers of this instance that are remembered as heard.
const HEARD: usize = 16;

/// The newest message of this instance.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Newest {
    seq: Seq,
    at: Instant,
}

/// Who is obeyed, and who was refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Identity {
    chassis_id: ChassisId,
    /// The newest epoch obeyed; 0 before any.
    epoch: Epoch,
    /// Who is obeyed in it; `None` if it does not say.
    instance: Option<Instance>,
    newest: Option<Newest>,
    /// Who was obeyed in this instance, newest last.
    heard: VecDeque<Option<Instance>>,
    refused: Option<(OtherManager, Instant)>,
}

impl Identity {
    pub(super) fn new(chassis_id: ChassisId, epoch: Epoch, instance: Option<Instance>) -> Self {
        let heard = VecDeque::with_capacity(HEARD);
        Self { chassis_id, epoch, instance, newest: None, heard, refused: None }
    }

    /// Takes a message that is to be obeyed; whether its numbers count from the start.
    pub(super) fn take(&mut self, now: Instant, alert: &Alert) -> Result<bool, RefusalReason> {
        self.hear(now, alert)?;
        let new = self.newest.is_none() || (self.epoch, self.instance) != (alert.epoch, alert.instance);
        (self.epoch, self.instance) = (alert.epoch, alert.instance);
        self.newest = Some(Newest { seq: alert.seq, at: now });
        if !self.heard.contains(&alert.instance) {
            if self.heard.len() == HEARD {
                self.heard.pop_front();
            }
            self.heard.push_back(alert.instance);
        }
        Ok(new)
    }

    /// Whether a message would be obeyed; another manager that would not be is noted.
    pub(super) fn hear(&mut self, now: Instant, alert: &Alert) -> Result<(), RefusalReason> {
        let refused = self.check(now, alert);
        if refused.is_err() {
            self.note(now, alert);
        }
        refused
    }

    fn check(&self, now: Instant, alert: &Alert) -> Result<(), RefusalReason> {
        if alert.chassis_id != self.chassis_id {
            return Err(RefusalReason::ForeignChassis);
        }

        // Epoch 0 is nobody's: whoever sends it asks who is obeyed.
        if alert.epoch < self.epoch || alert.epoch == Epoch::default() {
            return Err(RefusalReason::Stale);
        }
        if alert.epoch > self.epoch {
            return self.check_jump(now, alert);
        }
        match (self.instance, alert.instance) {
            (Some(obeyed), Some(other)) if obeyed != other => {
                return Err(RefusalReason::OtherInstance);
            }

            // Once somebody is known by name, whoever says none is another.
            (Some(_), None) => return Err(RefusalReason::Stale),
            _ => {}
        }

        // Numbers within the epoch are not kept over a restart: what an old message could grant has
        // expired with its echo.
        match self.newest {
            Some(newest) if alert.seq <= newest.seq => Err(RefusalReason::Stale),
            _ => Ok(()),
        }
    }

    /// Whether restarts explain a newer epoch.
    fn check_jump(&self, now: Instant, alert: &Alert) -> Result<(), RefusalReason> {
        if alert.epoch > HIGHEST_EPOCH {
            return Err(RefusalReason::EpochJump);
        }
        // Nobody was ever obeyed: there is nothing to compare with.
        if self.epoch == Epoch::default() {
            return Ok(());
        }
        let restarts = self.newest.map_or(0, |newest| {
            let restarts = now.since(newest.at).as_nanos() / FASTEST_RESTART.as_nanos();
            u64::try_from(restarts).unwrap_or(u64::MAX)
        });
        let strange = !self.heard.contains(&alert.instance);
        let most = EPOCH_SLACK.saturating_add(restarts).max(if strange { LONGEST_JUMP } else { 0 });
        let jump = alert.epoch.0.saturating_sub(self.epoch.0);
        if jump > most { Err(RefusalReason::EpochJump) } else { Ok(()) }
    }

    /// Remembers who was refused.
    fn note(&mut self, now: Instant, alert: &Alert) {
        let Some(instance) = alert.instance.filter(|other| self.instance != Some(*other)) else {
            return;
        };
        if alert.chassis_id != self.chassis_id {
            return;
        }
        let known = self.refused.map(|(other, _)| other);
        let newest = known
            .filter(|known| known.instance == instance)
            .map_or_else(Default::default, |known| (known.epoch, known.seq));
        // A message that was overtaken is not the newest.
        let (epoch, seq) = newest.max((alert.epoch, alert.seq));
        self.refused = Some((OtherManager { instance, epoch, seq, age_ms: 0 }, now));
    }

    /// The newest other manager that was refused.
    pub(super) fn refused(&self, now: Instant) -> Option<OtherManager> {
        let (other, at) = self.refused.filter(|(other, _)| self.instance != Some(other.instance))?;
        Some(OtherManager { age_ms: now.since(at).as_millis() as u64, ..other })
    }

    /// The epoch and the start of a manager that are obeyed.
    pub(super) fn obeyed(&self) -> (Epoch, Option<Instance>) {
        (self.epoch, self.instance)
    }

    /// The newest message obeyed in this instance.
    pub(super) fn newest_seq(&self) -> Seq {
        self.newest.map_or(Seq::default(), |newest| newest.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use RefusalReason::{EpochJump, ForeignChassis, OtherInstance, Stale};
    use ballast_types::Watts;
    use ballast_types::wire::Level;

    fn ms(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }
    fn chassis(id: &str) -> ChassisId {
        ChassisId::new(id).unwrap()
    }
    fn alert(epoch: u64, instance: Option<u64>, seq: u64) -> Alert {
        Alert {
            level: Level::Cap,
            chassis_limit_w: Watts::from_whole(2450),
            fallback_w: Watts::from_whole(200),
            valid_for_ms: 2000,
            instance: instance.map(Instance),
            ..Alert::watch(chassis("c"), Epoch(epoch), Seq(seq))
        }
    }
    /// What comes of messages, one after the other.
    fn play(identity: &mut Identity, told: &[(u64, Alert, Result<bool, RefusalReason>)]) {
        for (now, alert, expected) in told {
            let before = (identity.obeyed(), identity.newest_seq());
            assert_eq!(identity.take(ms(*now), alert), *expected, "{alert:?}");
            if expected.is_err() {
                assert_eq!((identity.obeyed(), identity.newest_seq()), before);
            }
        }
    }

    #[test]
    fn only_newer_messages_of_the_own_chassis_count() {
        let mut identity = Identity::new(chassis("c"), Epoch(5), None);
        let foreign = Alert { chassis_id: chassis("x"), ..alert(9, None, 9) };
        play(
            &mut identity,
            &[
                (0, foreign, Err(ForeignChassis)),
                (0, alert(4, None, 1), Err(Stale)),
                (0, alert(1006, None, 7), Err(EpochJump)),
                (0, alert(1005, None, 7), Ok(true)),
                (0, alert(1005, None, 7), Err(Stale)),
                (0, alert(1005, None, 6), Err(Stale)),
                (0, alert(1004, None, 8), Err(Stale)),
                (0, alert(1005, None, 9), Ok(false)),
                // After 1 s 16 + 5 epochs may have passed.
                (0, alert(1022, None, 1), Err(EpochJump)),
                (1000, alert(1027, None, 1), Err(EpochJump)),
                (1000, alert(1026, None, 1), Ok(true)),
            ],
        );
    }

    #[test]
    fn epoch_0_only_asks() {
        for known in [0, 5] {
            let mut identity = Identity::new(chassis("c"), Epoch(known), None);
            play(&mut identity, &[(0, alert(0, None, 1), Err(Stale))]);
            assert_eq!(identity.refused(ms(0)), None, "who asks is no other manager");
        }
    }

    #[test]
    fn one_instance_is_obeyed_in_one_epoch() {
        let mut identity = Identity::new(chassis("c"), Epoch(5), Some(Instance(1)));
        play(
            &mut identity,
            &[
                // Known from before the restart.
                (0, alert(5, Some(2), 1), Err(OtherInstance)),
                (0, alert(5, None, 1), Err(Stale)),
                (0, alert(5, Some(1), 7), Ok(true)),
                (100, alert(5, Some(2), 9), Err(OtherInstance)),
                (200, alert(5, Some(2), 8), Err(OtherInstance)),
            ],
        );

        let refused = identity.refused(ms(1200)).unwrap();
        let expected = (Instance(2), Epoch(5), Seq(9), 1000);
        assert_eq!((refused.instance, refused.epoch, refused.seq, refused.age_ms), expected);
        play(&mut identity, &[(1300, alert(6, Some(2), 1), Ok(true))]);
        assert_eq!(identity.refused(ms(1400)), None, "it is obeyed now");
        play(&mut identity, &[(1500, alert(5, Some(1), 10), Err(Stale))]);
        assert_eq!(identity.refused(ms(1500)).unwrap().instance, Instance(1));
    }

    #[test]
    fn a_manager_without_a_name_gives_way_to_one_that_has_one() {
        let mut identity = Identity::new(chassis("c"), Epoch(5), None);
        play(
            &mut identity,
            &[
                (0, alert(5, None, 3), Ok(true)),
                (0, alert(5, Some(1), 4), Ok(true)),
                (0, alert(5, None, 9), Err(Stale)),
            ],
        );
    }

    #[test]
    fn a_long_jump_is_taken_from_who_was_not_heard_before() {
        let mut identity = Identity::new(chassis("c"), Epoch(5), Some(Instance(1)));
        play(
            &mut identity,
            &[
                (0, alert(5, Some(1), 1), Ok(true)),
                (0, alert(22, Some(1), 1), Err(EpochJump)),
                (0, alert(1006, Some(2), 1), Err(EpochJump)),
                (0, alert(1005, Some(2), 1), Ok(true)),
                // Who was heard once stays so.
                (0, alert(1500, Some(1), 1), Err(EpochJump)),
                (0, alert(1021, Some(1), 1), Ok(true)),
            ],
        );
    }

    #[test]
    fn the_first_word_of_all_may_be_any_epoch_that_leaves_room_for_more() {
        for (epoch, expected) in
            [(1, Ok(true)), (1 << 40, Ok(true)), (u64::MAX, Err(EpochJump)), (u64::MAX - 999, Err(EpochJump))]
        {
            let mut identity = Identity::new(chassis("c"), Epoch(0), None);
            play(&mut identity, &[(0, alert(epoch, None, 1), expected)]);
        }
        let mut identity = Identity::new(chassis("c"), Epoch(u64::MAX / 2), None);
        play(&mut identity, &[(0, alert(u64::MAX / 2 + 1, None, 1), Err(EpochJump))]);
    }
}
