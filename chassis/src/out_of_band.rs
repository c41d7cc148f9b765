//! One server's out-of-band cap.
//!
//! ```text
//!   ┌─────┐  set   ┌─────────┐   ok    ┌────┐
//!   │ Off │───────▶│ Setting │────────▶│ On │◀── ledger
//!   └─────┘        └─────────┘         └────┘
//!      ▲             ▲  │ lift     set │  │ lift
//!      │ ok      set │  ▼              ▼  ▼
//!      │           ┌─────────┐    (Setting, Lifting)
//!      └───────────│ Lifting │
//!                  └─────────┘
//! ```
//! Until a lift is answered with success the cap may be on, and stands in the ledger.

use core::time::Duration;

use ballast_types::{ActionId, Instant, Watts};
use serde::{Deserialize, Serialize};

/// Tries in quick succession.
const QUICK_TRIES: u32 = 3;
/// Between two quick tries.
const QUICK: Duration = Duration::from_secs(1);
/// Between two tries after that; it is never given up.
const SLOW: Duration = Duration::from_secs(30);

/// A hardware cap that is on for so long has been read back: that is done every ten seconds.
const READ_BACK: Duration = Duration::from_secs(15);

/// A cap that is lower by less than this share (2 %) is not worth an order to a BMC.
const SLACK_PPM: u32 = 20_000;

/// An action that is not known to have succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attempt {
    id: ActionId,
    tries: u32,
    /// When to try again: after a failure, or where no answer comes.
    again_at: Instant,
    answered: bool,
}

/// Where one server's cap stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    Off,
    // Ordered.
    Setting(Watts, Attempt),
    // On; `sure` unless it was only found in the ledger.
    On { watts: Watts, sure: bool, since: Instant },
    Lifting(Watts, Attempt),
}

/// What an answer changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Not an answer to the newest action.
    None,
    Set,
    Lifted,
    Failed,
}

/// One server's out-of-band cap, and why its last action failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OutOfBand {
    pub(crate) phase: Phase,
    pub(crate) error: Option<String>,
}

impl OutOfBand {
    /// As the ledger has it.
    pub(crate) fn recover(watts: Option<Watts>, since: Instant) -> Self {
        let phase = watts.map_or(Phase::Off, |watts| Phase::On { watts, sure: false, since });
        Self { phase, error: None }
    }

    /// The cap that is, or may be, on.
    pub(crate) fn watts(&self) -> Option<Watts> {
        match self.phase {
            Phase::Off => None,
            Phase::Setting(watts, _) | Phase::On { watts, .. } | Phase::Lifting(watts, _) => Some(watts),
        }
    }

    /// The cap that certainly is on.
    pub(crate) fn certain(&self) -> Option<Watts> {
        match self.phase {
            Phase::On { watts, sure: true, .. } => Some(watts),
            _ => None,
        }
    }

    /// The cap that certainly is on, where the BMC has said so when it was asked later.
    pub(crate) fn read_back(&self, now: Instant) -> Option<Watts> {
        self.certain().filter(|_| self.on_since(now) >= READ_BACK)
    }

    /// Whether it is on, or ordered, and nobody is lifting it.
    pub(crate) fn is_requested(&self) -> bool {
        matches!(self.phase, Phase::On { .. } | Phase::Setting(..))
    }

    /// For how long it has been on.
    pub(crate) fn on_since(&self, now: Instant) -> Duration {
        match self.phase {
            Phase::On { since, .. } => now - since,
            _ => Duration::ZERO,
        }
    }

    /// Whether an order of `watts` would add anything.
    pub(crate) fn needs(&self, watts: Watts) -> bool {
        let slack = watts.ppm(SLACK_PPM).max(Watts::from_whole(1));
        match self.phase {
            Phase::Off | Phase::Lifting(..) | Phase::On { sure: false, .. } => true,
            Phase::On { watts: old, .. } | Phase::Setting(old, _) => old - watts > slack,
        }
    }

    /// Orders a cap; an answer is waited for during `patience`.
    pub(crate) fn set(&mut self, now: Instant, id: ActionId, watts: Watts, patience: Duration) {
        self.phase = Phase::Setting(watts, Attempt::first(now, id, patience));
    }

    /// Orders its release.
    pub(crate) fn lift(&mut self, now: Instant, id: ActionId, patience: Duration) {
        if let Some(watts) = self.watts() {
            self.phase = Phase::Lifting(watts, Attempt::first(now, id, patience));
        }
    }

    /// Counts one more try of what is under way; the caller sends it.
    pub(crate) fn again(&mut self, now: Instant, id: ActionId, patience: Duration) {
        if let Phase::Setting(_, attempt) | Phase::Lifting(_, attempt) = &mut self.phase {
            let tries = attempt.tries.saturating_add(1);
            *attempt = Attempt { tries, ..Attempt::first(now, id, patience) };
        }
    }

    /// When the action under way is to be tried again.
    pub(crate) fn again_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Setting(_, attempt) | Phase::Lifting(_, attempt) => Some(attempt.again_at),
            _ => None,
        }
    }

    /// Tries of the action under way.
    pub(crate) fn tries(&self) -> u32 {
        match self.phase {
            Phase::Setting(_, attempt) | Phase::Lifting(_, attempt) => attempt.tries,
            _ => 0,
        }
    }

    /// Whether `id` is the action under way, and not answered yet.
    pub(crate) fn expects(&self, id: ActionId) -> bool {
        matches!(self.phase, Phase::Setting(_, a) | Phase::Lifting(_, a) if a.id == id && !a.answered)
    }

    /// The BMC was asked for its cap while nothing was under way. What is said of it, where that is another
    /// than what was ordered; then the BMC is believed.
    pub(crate) fn apply_readback(&mut self, now: Instant, cap: Option<Watts>) -> Option<String> {
        match (self.phase, cap) {
            (Phase::Off, Some(watts)) => {
                self.phase = Phase::On { watts, sure: true, since: now };
                Some(format!("a hardware cap of {watts} is on that this manager did not order: adopted"))
            }
            (Phase::On { watts, .. }, None) => {
                self.phase = Phase::Off;
                Some(format!("the hardware cap of {watts} has gone by itself"))
            }
            (Phase::On { watts, sure, since }, Some(found)) => {
                self.phase = Phase::On { watts: found, sure: true, since };
                let same = (found - watts).milli().abs() <= watts.ppm(SLACK_PPM).milli();
                (!same && sure).then(|| format!("the hardware cap is {found}, and {watts} was ordered"))
            }
            _ => None,
        }
    }

    pub(crate) fn answered(&mut self, now: Instant, id: ActionId, result: Result<(), String>) -> Change {
        if !self.expects(id) {
            return Change::None;
        }
        let (Phase::Setting(_, attempt) | Phase::Lifting(_, attempt)) = &mut self.phase else {
            return Change::None;
        };
        if let Err(reason) = result {
            attempt.answered = true;
            attempt.again_at = now + if attempt.tries < QUICK_TRIES { QUICK } else { SLOW };
            self.error = Some(reason);
            return Change::Failed;
        }

        self.error = None;

        if let Phase::Setting(watts, _) = self.phase {
            self.phase = Phase::On { watts, sure: true, since: now };
            Change::Set
        } else {
            self.phase = Phase::Off;
            Change::Lifted
        }
    }
}

impl Attempt {
    fn first(now: Instant, id: ActionId, patience: Duration) -> Self {
        Self { id, tries: 1, again_at: now + patience.max(QUICK), answered: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);
    const CAP: Watts = Watts::from_whole(150);

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn set_and_lifted() {
        let mut o = OutOfBand::recover(None, Instant::ZERO);
        assert!(o.needs(CAP));
        o.set(at(0), ActionId(1), CAP, PATIENCE);
        assert_eq!((o.watts(), o.certain()), (Some(CAP), None));
        assert!(!o.needs(CAP));
        assert_eq!(o.answered(at(1), ActionId(9), Ok(())), Change::None, "another action's answer");
        assert_eq!(o.answered(at(1), ActionId(1), Ok(())), Change::Set);
        assert_eq!(o.answered(at(1), ActionId(1), Ok(())), Change::None, "twice");
        assert_eq!(o.certain(), Some(CAP));
        for (watts, needs) in [(160, false), (150, false), (148, false), (146, true)] {
            assert_eq!(o.needs(Watts::from_whole(watts)), needs, "{watts}: 2 % are not worth it");
        }
        o.lift(at(2), ActionId(2), PATIENCE);
        assert_eq!((o.watts(), o.certain(), o.is_requested()), (Some(CAP), None, false));
        assert_eq!(o.answered(at(3), ActionId(2), Ok(())), Change::Lifted);
        assert_eq!(o.watts(), None);
    }

    #[test]
    fn a_failure_is_tried_three_times_quickly_and_then_slowly() {
        let mut o = OutOfBand::recover(None, Instant::ZERO);
        o.set(at(0), ActionId(1), CAP, PATIENCE);
        let mut now = at(0);
        let mut gaps = vec![];
        for id in 1..=5 {
            assert_eq!(o.answered(now, ActionId(id), Err("busy".into())), Change::Failed);
            let again = o.again_at().unwrap();
            gaps.push((again - now).as_secs());
            now = again;
            o.again(now, ActionId(id + 1), PATIENCE);
        }
        assert_eq!(gaps, [1, 1, 30, 30, 30]);
        assert_eq!(o.again_at(), Some(now + PATIENCE), "no answer is a failure too");
        assert_eq!(o.tries(), 6);
        assert_eq!(o.answered(now, ActionId(6), Ok(())), Change::Set);
        assert_eq!((o.error.as_deref(), o.again_at(), o.tries()), (None, None, 0));
    }

    #[test]
    fn a_cap_from_the_ledger_is_on_but_not_sure() {
        let o = OutOfBand::recover(Some(CAP), Instant::ZERO);
        assert_eq!((o.watts(), o.certain()), (Some(CAP), None));
        assert!(o.is_requested() && o.needs(CAP));
    }

    fn on(watts: Watts, sure: bool) -> Phase {
        Phase::On { watts, sure, since: at(1) }
    }

    /// What the BMC reads back is believed wherever no action is under way.
    #[test]
    fn what_is_read_back_replaces_what_was_ordered() {
        let (watts, since, now) = (CAP, at(1), at(2));
        let under_way = Attempt::first(since, ActionId(1), PATIENCE);
        let (setting, lifting) = (Phase::Setting(CAP, under_way), Phase::Lifting(CAP, under_way));
        let adopted = Phase::On { watts, sure: true, since: now };
        let w = Watts::from_whole;
        let table = [
            (Phase::Off, None, Phase::Off, None),
            (Phase::Off, Some(w(150)), adopted, Some("did not order: adopted")),
            (on(CAP, true), None, Phase::Off, Some("has gone by itself")),
            (on(CAP, false), None, Phase::Off, Some("has gone by itself")),
            (on(CAP, true), Some(w(150)), on(w(150), true), None),
            (on(CAP, true), Some(w(153)), on(w(153), true), None),
            (on(CAP, true), Some(w(154)), on(w(154), true), Some("was ordered")),
            (on(CAP, true), Some(w(147)), on(w(147), true), None),
            (on(CAP, true), Some(w(146)), on(w(146), true), Some("was ordered")),
            (on(CAP, false), Some(w(120)), on(w(120), true), None),
            (setting, None, setting, None),
            (setting, Some(w(120)), setting, None),
            (lifting, None, lifting, None),
            (lifting, Some(w(120)), lifting, None),
        ];
        for (phase, found, then, says) in table {
            let mut o = OutOfBand { phase, error: None };
            let message = o.apply_readback(now, found);
            assert_eq!(o.phase, then, "{phase:?}, {found:?}");
            assert_eq!(message.is_some(), says.is_some(), "{phase:?}, {found:?}: {message:?}");
            assert!(message.is_none_or(|m| m.contains(says.unwrap_or_default())), "{phase:?}, {found:?}");
        }
    }
}
