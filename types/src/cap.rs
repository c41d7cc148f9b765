//! The one way to cap power by hardware: read, save what was there, set, verify, put back.

use core::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Watts;

/// A power cap of some hardware: RAPL, a hwmon `power1_cap`, DCMI, Redfish.
///
/// The device keeps no memory: what was there before is the caller's to save, on disk before the first
/// change, and is handed back to every call that needs it.
pub trait Cap: Send {
    /// All that must be put back.
    type State: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + Send + 'static;

    /// The cap as it stands. Changes nothing.
    ///
    /// # Errors
    /// If it cannot be read, or says what it must not say.
    fn read(&mut self) -> Result<Self::State, CapError>;

    /// Caps at `watts`, never higher than `original` does, and reads it back.
    ///
    /// # Errors
    /// If the cap is refused, out of range, or not there when it is read back.
    fn set(&mut self, watts: Watts, original: &Self::State) -> Result<(), CapError>;

    /// Puts `original` back, and reads it back. Doing it twice is doing it once.
    ///
    /// # Errors
    /// If any part of it could not be put back; every part is tried.
    fn put_back(&mut self, original: &Self::State) -> Result<(), CapError>;

    /// Whether `now` caps lower than `original` does.
    fn is_on(now: &Self::State, original: &Self::State) -> bool
    where
        Self: Sized;
}

/// Why a cap could not be read, set or put back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct CapError {
    /// What failed: which device, which value, what is allowed.
    pub reason: String,
    /// Whether trying again may help.
    pub transient: bool,
}

/// A draw above a cap by less than this share of it, in parts per million, may be flicker or a meter's noise (3 %).
const NOISE_PPM: u32 = 30_000;

/// And by less than this on small servers.
const NOISE: Watts = Watts::from_whole(5);

/// How far flicker and a meter's noise may bring a draw above `cap`; agents and chassis take the same.
pub fn noise_above(cap: Watts) -> Watts {
    cap.ppm(NOISE_PPM).max(NOISE)
}
