//! What must hold in every run, faults or none.

use core::fmt;

use ballast_types::Instant;

/// A promise that was broken, and how to see it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The run's seed.
    pub seed: u64,
    /// When.
    pub at: Instant,
    /// What.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at {:.3} s; reproduce with seed={}",
            self.what,
            self.at.as_secs_f64(),
            self.seed
        )
    }
}
impl std::error::Error for Violation {}

/// Which promises are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// The true draw is never above the limit longer than the trip time.
    pub trip_time: bool,
    /// Software never lowers a core that a user-facing VM, or nobody, has.
    pub user_facing: bool,
    /// The caps in force add up to no more than is shared, apart from what stands at `sum`.
    pub sum_of_caps: bool,
}

impl Checks {
    /// All of them.
    pub const ALL: Self = Self { trip_time: true, user_facing: true, sum_of_caps: true };
    /// None: for policies that promise nothing.
    pub const NONE: Self = Self { trip_time: false, user_facing: false, sum_of_caps: false };
}
