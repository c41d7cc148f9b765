//! From labels of a VM's weeks to its class: slowly to batch, at once to user-facing.
//!
//! ```text
//!                    batch                     batch, of two weeks that share no day
//!   ┌─▶ UserFacing ─────────▶ Agreeing ───────────────────────────────▶ Batch
//!   │                            │                                        │
//!   └────────────────────────────┴── user-facing, or no label for a week ─┘
//! ```
//! Being batch is a permission to throttle, and permissions expire: without a label it ends.

use ballast_types::VmClass;

/// Working days of a week.
const WEEK: u32 = 5;

/// What is held of one VM. Working days are counted by the caller, from any one on, without gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoClass {
    /// Not known to be batch.
    #[default]
    UserFacing,
    /// Batch in every week looked at so far, which are not two yet.
    Agreeing {
        /// The last day of the first such week.
        first: u32,
        /// That of the newest.
        newest: u32,
    },
    /// Two whole weeks have agreed, and none disagreed since.
    Batch {
        /// The last day of the newest week that was labelled.
        newest: u32,
    },
}

impl AutoClass {
    /// Takes the label of the five working days that end with `day`, later than any before; `None` where too
    /// much of them is missing.
    pub fn next(self, day: u32, label: Option<VmClass>) -> Self {
        use AutoClass::{Agreeing, Batch, UserFacing};
        match (self, label) {
            (_, Some(VmClass::UserFacing)) => UserFacing,
            (UserFacing, None) => UserFacing,
            (Agreeing { newest, .. } | Batch { newest }, None) if day > newest + WEEK => UserFacing,
            (held, None) => held,
            (UserFacing, Some(VmClass::NonUserFacing)) => Agreeing { first: day, newest: day },
            (Agreeing { first, .. }, Some(VmClass::NonUserFacing)) if day < first + WEEK => {
                Agreeing { first, newest: day }
            }
            (Agreeing { newest, .. } | Batch { newest }, Some(VmClass::NonUserFacing))
                if day > newest + WEEK =>
            {
                Agreeing { first: day, newest: day }
            }
            (Agreeing { .. } | Batch { .. }, Some(VmClass::NonUserFacing)) => Batch { newest: day },
        }
    }

    /// The class that follows.
    pub const fn class(self) -> VmClass {
        match self {
            Self::UserFacing | Self::Agreeing { .. } => VmClass::UserFacing,
            Self::Batch { .. } => VmClass::NonUserFacing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AutoClass::{Agreeing, Batch, UserFacing};
    use super::*;
    use proptest::prelude::*;

    const B: Option<VmClass> = Some(VmClass::NonUserFacing);
    const U: Option<VmClass> = Some(VmClass::UserFacing);

    #[test]
    fn transitions() {
        let agreeing = Agreeing { first: 10, newest: 12 };
        let batch = Batch { newest: 20 };
        for (held, day, label, then) in [
            (UserFacing, 10, None, UserFacing),
            (UserFacing, 10, U, UserFacing),
            (UserFacing, 10, B, Agreeing { first: 10, newest: 10 }),
            (agreeing, 13, U, UserFacing),
            (agreeing, 14, B, Agreeing { first: 10, newest: 14 }),
            (agreeing, 15, B, Batch { newest: 15 }),
            (agreeing, 17, B, Batch { newest: 17 }),
            (agreeing, 17, None, agreeing),
            (agreeing, 18, None, UserFacing),
            (agreeing, 18, B, Agreeing { first: 18, newest: 18 }),
            (batch, 21, B, Batch { newest: 21 }),
            (batch, 21, U, UserFacing),
            (batch, 25, None, batch),
            (batch, 26, None, UserFacing),
            (batch, 26, B, Agreeing { first: 26, newest: 26 }),
        ] {
            assert_eq!(held.next(day, label), then, "{held:?} {day} {label:?}");
        }
    }

    proptest! {
        #[test]
        fn batch_needs_two_whole_weeks_and_ends_with_the_first_disagreement(
            labels in proptest::collection::vec(
                prop_oneof![6 => Just(B), 1 => Just(U), 2 => Just(None)], 1..60,
            ),
        ) {
            let mut held = AutoClass::default();
            for (day, label) in labels.iter().enumerate() {
                held = held.next(day as u32, *label);
                let since = labels[..=day].iter().rposition(|label| *label == U).map_or(0, |n| n + 1);
                let agreed: Vec<_> = (since..=day).filter(|day| labels[*day] == B).collect();

                if held.class() == VmClass::NonUserFacing {
                    let whole = agreed.last().zip(agreed.first());
                    prop_assert!(whole.is_some_and(|(last, first)| last - first >= 5), "{labels:?}");
                    prop_assert!(agreed.last().is_some_and(|last| day - last <= 5), "{labels:?}");
                }

                if *label == U {
                    prop_assert_eq!(held, UserFacing);
                }

                // And two weeks without a gap do suffice.
                if day >= 5 && labels[day - 5..=day].iter().all(|label| *label == B) {
                    prop_assert_eq!(held.class(), VmClass::NonUserFacing);
                }
            }
        }
    }
}
