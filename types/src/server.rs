//! A server as the controllers see it: cores with a ladder of p-states, and VMs in two classes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{CoreId, KiloHertz};

/// The p-states that a core may be capped to, lowest first; never empty, strictly rising.
///
/// The lowest is the floor of software throttling (half of the reference frequency), the highest
/// means "not capped".
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<KiloHertz>", into = "Vec<KiloHertz>")]
pub struct Ladder(Arc<[KiloHertz]>);

/// Why a list of frequencies is no ladder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ladder is one or more frequencies above 0, strictly rising")]
pub struct LadderError;

impl Ladder {
    /// From frequencies, lowest first.
    ///
    /// # Errors
    /// If there is none, one is zero, or they do not strictly rise.
    pub fn new(steps: &[KiloHertz]) -> Result<Self, LadderError> {
        let rising = steps.windows(2).all(|w| w[0] < w[1]);
        if steps.is_empty() || steps[0].get() == 0 || !rising {
            return Err(LadderError);
        }
        Ok(Self(steps.into()))
    }

    /// From `floor` to `max` in steps of `step`, counted down from `max`.
    ///
    /// # Errors
    /// If a frequency is zero or the floor is above the maximum.
    pub fn stepped(floor: KiloHertz, max: KiloHertz, step: KiloHertz) -> Result<Self, LadderError> {
        if floor.get() == 0 || step.get() == 0 || floor > max {
            return Err(LadderError);
        }
        let mut steps: Vec<_> = (0..)
            .map_while(|n: u32| max.get().checked_sub(n.checked_mul(step.get())?))
            .take_while(|khz| *khz >= floor.get())
            .map(KiloHertz::new)
            .collect();
        if steps.last() != Some(&floor) {
            steps.push(floor);
        }
        steps.reverse();
        Self::new(&steps)
    }

    /// How many p-states there are.
    #[expect(clippy::len_without_is_empty, reason = "a ladder is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// The index of the highest p-state.
    pub fn top(&self) -> usize {
        self.0.len() - 1
    }
    /// The frequency of p-state `index`; the highest for an index beyond the ladder.
    pub fn khz(&self, index: usize) -> KiloHertz {
        self.0[index.min(self.top())]
    }
    /// The floor.
    pub fn floor(&self) -> KiloHertz {
        self.0[0]
    }
    /// The highest frequency.
    pub fn max(&self) -> KiloHertz {
        self.khz(self.top())
    }
    /// The highest p-state at or below `khz`; the floor if there is none.
    pub fn at_or_below(&self, khz: KiloHertz) -> usize {
        self.0.partition_point(|step| *step <= khz).saturating_sub(1)
    }
}
impl TryFrom<Vec<KiloHertz>> for Ladder {
    type Error = LadderError;
    fn try_from(steps: Vec<KiloHertz>) -> Result<Self, LadderError> {
        Self::new(&steps)
    }
}
impl From<Ladder> for Vec<KiloHertz> {
    fn from(ladder: Ladder) -> Self {
        ladder.0.to_vec()
    }
}

/// One core that is clocked by itself: all its threads, or whatever else hardware clocks together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Core {
    /// The number that the kernel gives the core.
    pub id: CoreId,
    /// What it can be capped to.
    pub ladder: Ladder,
}

/// Who a VM works for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmClass {
    /// Somebody waits for its answers: its cores are never lowered while others can be.
    UserFacing,
    /// Batch, internal, or whatever may run slower: its cores are low-priority.
    NonUserFacing,
}

impl VmClass {
    /// Both.
    pub const ALL: [Self; 2] = [Self::UserFacing, Self::NonUserFacing];

    /// Its word in files, labels and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::UserFacing => "user-facing",
            Self::NonUserFacing => "non-user-facing",
        }
    }

    /// The class of this word, if it is one.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == word)
    }
}

/// What may be done to a VM when throttling is not enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnExtreme {
    /// Nothing more than throttling.
    #[default]
    None,
    /// It may be killed: its tenant prefers that to unpredictable throttling (the paper's Section V).
    Kill,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stepped_ladder_runs_from_floor_to_maximum() {
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::stepped(mhz(1200), mhz(2400), mhz(100)).unwrap();
        assert_eq!(ladder.len(), 13);
        assert_eq!((ladder.floor(), ladder.max()), (mhz(1200), mhz(2400)));
        // A floor between two steps stays reachable.
        let odd = Ladder::stepped(mhz(1250), mhz(2400), mhz(100)).unwrap();
        assert_eq!((odd.floor(), odd.khz(1)), (mhz(1250), mhz(1300)));
    }

    #[test]
    fn a_frequency_maps_to_the_p_state_at_or_below() {
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::new(&[mhz(1500), mhz(2000), mhz(2600)]).unwrap();
        for (khz, index) in [(100, 0), (1500, 0), (1999, 0), (2000, 1), (2600, 2), (9999, 2)] {
            assert_eq!(ladder.at_or_below(mhz(khz)), index, "{khz}");
        }
    }

    #[test]
    fn ladders_that_do_not_rise_are_refused() {
        for bad in ["[]", "[0,5]", "[5,5]", "[6,5]"] {
            assert!(serde_json::from_str::<Ladder>(bad).is_err(), "{bad}");
        }
    }
}
