//! One power supply, as whoever reads it tells it to whoever decides.

use serde::{Deserialize, Serialize};

use crate::Watts;

/// One power supply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Supply {
    /// Whether the supply carries load.
    pub state: SupplyState,
    /// What it draws from its feed; `None` when there is no usable value.
    pub input: Option<Watts>,
}

impl Supply {
    /// One that cannot be told.
    pub const UNKNOWN: Self = Self { state: SupplyState::Unknown, input: None };
}

/// How a power supply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SupplyState {
    /// Carries load. A zero reading is then a missing one.
    Active,
    /// Ready, carries nothing. Zero is a valid reading.
    Standby,
    /// Broken, or its feed is lost. Zero is a valid reading; it can carry nothing.
    Failed,
    /// Not there; it can carry nothing.
    Absent,
    /// Cannot be told: its reading is missing.
    Unknown,
}
