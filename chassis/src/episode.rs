//! The manager's states, and every way from one to the next.
//!
//! ```text
//!            first reading          reached                over for too long,
//!   ┌──────┐           ┌────────┐──────────▶┌──────────┐   server silent   ┌───────────┐
//!   │ Boot │──────────▶│ Normal │           │ Alerting │──────────────────▶│ OutOfBand │◀── caps in
//!   └──────┘           └────────┘◀──────────└──────────┘◀──────────────────└───────────┘    the ledger
//!       │                  │ ▲     calm          │ ▲      last cap lifted        │ ▲
//!       │                  ▼ │                   ▼ │                             ▼ │
//!       │  no reading  ┌───────────────────────────────────────────────────────────────┐
//!       └─────────────▶│ Blind        (a reading leads back to where it came from)     │
//!                      └───────────────────────────────────────────────────────────────┘
//!   from every state, for good: another manager rules ──▶ Fenced
//! ```
//! An episode is independent of out-of-band caps: the cap of a dead server stays while the others
//! are calm. So `OutOfBand` and `Blind` hold an episode, or none.

use ballast_types::wire::ChassisState;
use ballast_types::{Instant, Watts};

/// One capping episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Episode {
    /// When it began.
    pub(crate) began: Instant,
    /// When the draw last was at or over the alert threshold.
    pub(crate) high_at: Instant,
    /// Since when every reading is over the limit. A missing one does not end it.
    pub(crate) over_since: Option<Instant>,
    /// The draw is over the limit, noise or not.
    pub(crate) excess: Option<Excess>,
    /// Whether agents are told `emergency`.
    pub(crate) emergency: bool,
}

impl Episode {
    /// One that begins now.
    pub(crate) fn new(now: Instant) -> Self {
        Self { began: now, high_at: now, over_since: None, excess: None, emergency: false }
    }
}

/// A draw over the limit, as long as it may last.
///
/// One reading at or under the limit does not end it: under a draw a little above the limit a meter's
/// noise gives such readings all the time, and software would never be found wanting. It ends with a
/// reading at or under the alert threshold, or when the running mean is half-way down to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// Since when.
    pub(crate) since: Instant,
    /// Of about the last four readings.
    mean: Watts,
}

impl Excess {
    /// What is known after the reading `total`.
    pub(crate) fn after(
        before: Option<Self>,
        now: Instant,
        total: Watts,
        threshold: Watts,
        limit: Watts,
    ) -> Option<Self> {
        let Some(before) = before else {
            return (total > limit).then_some(Self { since: now, mean: total });
        };
        let mean = before.mean + (total - before.mean).per(4);
        let ended = total <= threshold || mean - threshold <= (limit - threshold).per(2);
        (!ended).then_some(Self { mean, ..before })
    }
}

/// What the manager is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No reading yet; agents are not spoken to, so that none is released unseen.
    Boot,
    /// Under the threshold.
    Normal,
    /// A capping episode.
    Alerting(Episode),
    /// Out-of-band caps are on.
    OutOfBand(Option<Episode>),
    /// No reading.
    Blind(Option<Episode>),
    /// Another manager rules: nothing is sent any more.
    Fenced,
}

/// What moves the manager from state to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// A usable reading came; and whether out-of-band caps are on.
    Sight { caps_on: bool },
    /// No usable reading for three polls.
    SightLost,
    /// An episode begins.
    Reached(Episode),
    /// The episode's lift rule holds.
    Calm,
    /// The first out-of-band cap goes on.
    CapsOn,
    /// The last out-of-band cap is lifted.
    CapsOff,
    /// An agent obeys a newer manager.
    Rival,
}

impl State {
    /// The state after `trigger`; the same where it does not apply.
    pub(crate) fn after(self, trigger: Trigger) -> Self {
        match (self, trigger) {
            (Self::Fenced, _) | (_, Trigger::Rival) => Self::Fenced,
            (Self::Boot, Trigger::Sight { caps_on }) => settled(None, caps_on),
            (Self::Blind(episode), Trigger::Sight { caps_on }) => settled(episode, caps_on),
            (_, Trigger::SightLost) => Self::Blind(self.episode().copied()),
            (Self::Boot | Self::Normal, Trigger::Reached(e)) => Self::Alerting(e),
            (Self::OutOfBand(None), Trigger::Reached(e)) => Self::OutOfBand(Some(e)),
            (Self::Blind(None), Trigger::Reached(e)) => Self::Blind(Some(e)),
            (Self::Alerting(_), Trigger::Calm) => Self::Normal,
            (Self::OutOfBand(_), Trigger::Calm) => Self::OutOfBand(None),
            (Self::Boot | Self::Normal, Trigger::CapsOn) => Self::OutOfBand(None),
            (Self::Alerting(e), Trigger::CapsOn) => Self::OutOfBand(Some(e)),
            (Self::OutOfBand(episode), Trigger::CapsOff) => settled(episode, false),
            _ => self,
        }
    }

    /// Its name on the wire.
    pub(crate) fn name(&self) -> ChassisState {
        match self {
            Self::Boot => ChassisState::Boot,
            Self::Normal => ChassisState::Normal,
            Self::Alerting(_) => ChassisState::Alerting,
            Self::OutOfBand(_) => ChassisState::OutOfBand,
            Self::Blind(_) => ChassisState::Blind,
            Self::Fenced => ChassisState::Fenced,
        }
    }

    /// The episode, if there is one.
    pub(crate) fn episode(&self) -> Option<&Episode> {
        match self {
            Self::Alerting(e) | Self::OutOfBand(Some(e)) | Self::Blind(Some(e)) => Some(e),
            _ => None,
        }
    }

    /// The episode, to be changed.
    pub(crate) fn episode_mut(&mut self) -> Option<&mut Episode> {
        match self {
            Self::Alerting(e) | Self::OutOfBand(Some(e)) | Self::Blind(Some(e)) => Some(e),
            _ => None,
        }
    }
}

/// Where a manager that sees belongs.
fn settled(episode: Option<Episode>, caps_on: bool) -> State {
    match (episode, caps_on) {
        (episode, true) => State::OutOfBand(episode),
        (Some(e), false) => State::Alerting(e),
        (None, false) => State::Normal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use State::{Alerting, Blind, Boot, Fenced, Normal, OutOfBand};

    #[test]
    fn an_excess_is_not_ended_by_one_reading_at_the_limit() {
        let (threshold, limit) = (Watts::from_whole(980), Watts::from_whole(1000));
        let ends_after = |readings: &[i64]| {
            let mut over = None;
            for (n, w) in (0..).zip(readings) {
                let was = over;
                let now = Instant::from_millis(200 * n);
                over = Excess::after(over, now, Watts::from_whole(*w), threshold, limit);
                if was.is_some() && over.is_none() {
                    return Some(n);
                }
            }
            assert_eq!(over.map_or(Instant::ZERO, |over| over.since), Instant::ZERO);
            None
        };
        assert_eq!(ends_after(&[1000, 1000]), None, "at the limit is not over it");
        assert_eq!(ends_after(&[1001, 999, 996, 1003, 997, 1002]), None);
        assert_eq!(ends_after(&[1020, 980]), Some(1), "the threshold ends it at once");
        assert_eq!(ends_after(&[1001, 985, 985, 985, 985, 985]), Some(5), "so does a mean of 990");
    }

    #[test]
    fn every_transition() {
        let e = Episode::new(Instant::from_millis(7));
        let (on, off) = (Trigger::Sight { caps_on: true }, Trigger::Sight { caps_on: false });
        let states = [
            Boot,
            Normal,
            Alerting(e),
            OutOfBand(None),
            OutOfBand(Some(e)),
            Blind(None),
            Blind(Some(e)),
            Fenced,
        ];
        #[rustfmt::skip]
        let table = [
            //                    Boot             Normal           Alerting            OutOfBand        OutOfBand+e         Blind            Blind+e             Fenced
            (off,                 [Normal,          Normal,          Alerting(e),        OutOfBand(None), OutOfBand(Some(e)), Normal,          Alerting(e),        Fenced]),
            (on,                  [OutOfBand(None), Normal,          Alerting(e),        OutOfBand(None), OutOfBand(Some(e)), OutOfBand(None), OutOfBand(Some(e)), Fenced]),
            (Trigger::SightLost,  [Blind(None),     Blind(None),     Blind(Some(e)),     Blind(None),     Blind(Some(e)),     Blind(None),     Blind(Some(e)),     Fenced]),
            (Trigger::Reached(e), [Alerting(e),     Alerting(e),     Alerting(e),        OutOfBand(Some(e)), OutOfBand(Some(e)), Blind(Some(e)), Blind(Some(e)),   Fenced]),
            (Trigger::Calm,       [Boot,            Normal,          Normal,             OutOfBand(None), OutOfBand(None),    Blind(None),     Blind(Some(e)),     Fenced]),
            (Trigger::CapsOn,     [OutOfBand(None), OutOfBand(None), OutOfBand(Some(e)), OutOfBand(None), OutOfBand(Some(e)), Blind(None),     Blind(Some(e)),     Fenced]),
            (Trigger::CapsOff,    [Boot,            Normal,          Alerting(e),        Normal,          Alerting(e),        Blind(None),     Blind(Some(e)),     Fenced]),
            (Trigger::Rival,      [Fenced; 8]),
        ];
        for (trigger, expected) in table {
            for (from, to) in states.into_iter().zip(expected) {
                assert_eq!(from.after(trigger), to, "{from:?} on {trigger:?}");
            }
        }
    }
}
