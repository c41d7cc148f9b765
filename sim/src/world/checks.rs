//! What must hold in every run, faults or none.

use ballast_types::Instant;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    Breaker,
    /// The draw is never above the limit for longer than the trip time.
    TripTime,
    /// Software lowers no core of a user-facing VM, and kills none that must live.
    UserFacing,
    /// No user-facing core is slowed while a low-priority core runs above its floor, longer than a reaction time.
    Inversion,
    /// The caps in force add up to no more than is shared.
    SumOfCaps,
    /// What servers draw beyond their caps is paid for by the others.
    SumOfDraws,
    /// Nobody without a fault is throttled below its need while watts are free.
    WorkConservation,
    /// Who has no fault is free within a minute, once everything fits.
    Liveness,
    /// Every original value is put back.
    Restored,
    /// A machine answers, and lets go of its timers.
    Protocol,
}

impl Promise {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Breaker => "breaker",
            Self::TripTime => "trip-time",
            Self::UserFacing => "user-facing",
            Self::Inversion => "inversion",
            Self::SumOfCaps => "sum-of-caps",
            Self::SumOfDraws => "sum-of-draws",
            Self::WorkConservation => "work-conservation",
            Self::Liveness => "liveness",
            Self::Restored => "restored",
            Self::Protocol => "protocol",
        }
    }
}

/// Why a promise could not be kept by anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Excuse {
    /// The excess left the feasible part of the curve: it tripped the breaker before hardware can act.
    TooFast,
    /// Faults took the last actor that could act: what was left could not bring the draw under the limit.
    LastActor,
    /// No honest reading was left: neither the supplies' total nor that of all servers.
    AllMeters,
}

impl Excuse {
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooFast => "too_fast",
            Self::LastActor => "last_actor",
            Self::AllMeters => "all_meters",
        }
    }
}

/// A promise that was broken, and how to see it again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at {:.3} s; reproduce with seed={seed}", at.as_secs_f64())]
pub struct Violation {
    pub seed: u64,
    pub at: Instant,
    pub promise: Promise,
    pub what: String,
    /// Why nobody could have kept the promise, if that is so.
    pub excuse: Option<Excuse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// [`Promise::Breaker`]: means over 100 ms of the true draw, under every budget in force.
    pub breaker: bool,
    /// [`Promise::TripTime`]: every single step of the plant.
    pub trip_time: bool,
    pub user_facing: bool,
    pub inversion: bool,
    /// [`Promise::SumOfCaps`], apart from what stands at `sum`.
    pub sum_of_caps: bool,
    pub sum_of_draws: bool,
    pub conservation: bool,
}

impl Checks {
    /// None: for policies that promise nothing.
    pub const NONE: Self = Self {
        breaker: false,
        trip_time: false,
        user_facing: false,
        inversion: false,
        sum_of_caps: false,
        sum_of_draws: false,
        conservation: false,
    };
    /// What no run may break, whatever its policy and shares.
    pub const USUAL: Self = Self { breaker: true, user_facing: true, sum_of_caps: true, ..Self::NONE };
    /// What the oracles judge: the breaker instead of steps in a row, draws beside caps, and that
    /// nobody is throttled for nothing.
    pub const ORACLES: Self = Self {
        breaker: true,
        trip_time: false,
        user_facing: true,
        inversion: true,
        sum_of_caps: true,
        sum_of_draws: true,
        conservation: true,
    };
}
