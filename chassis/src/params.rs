//! Validated parameters of the chassis's controller.

use core::time::Duration;

use ballast_types::{ChassisId, ServerId, Watts};
use serde::{Deserialize, Serialize};

/// One configured server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Which.
    pub id: ServerId,
    /// What is expected of its agent.
    pub mode: Mode,
    /// The lowest out-of-band cap it can be given; `None` if it has no out-of-band path.
    pub out_of_band_floor: Option<Watts>,
}

/// What is expected of a server's agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// It answers.
    #[default]
    Managed,
    /// The operator has set it aside: silence is no alarm.
    Maintenance,
    /// It has none.
    Unmanaged,
}

/// How a capping episode ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiftRule {
    /// When the draw plus what would come back stayed under the lift threshold for the hold time.
    #[default]
    Restorable,
    /// A plain timer after the draw came under the threshold (the paper's 30 s).
    Paper,
}

/// Everything the controller needs to know beforehand. The daemon's config makes one, and checks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// This chassis.
    pub chassis_id: ChassisId,
    /// The configured budget, at the power supplies' input.
    pub budget: Watts,
    /// What each configured power supply can carry at its input.
    pub supply_rated: Vec<Watts>,
    /// The servers, in configured order.
    pub servers: Vec<Server>,
    /// At least this much is drawn by what no agent's meter sees.
    pub shared_floor: Watts,
    /// How often the supplies are polled (200 ms).
    pub poll_period: Duration,
    /// Between two messages to a calm server (500 ms); while alerting it is the poll period.
    pub heartbeat: Duration,
    /// Alerting begins at this share of the limit, in parts per million (980 000).
    pub alert_ppm: u32,
    /// Alerting ends below this share of the limit (960 000).
    pub lift_ppm: u32,
    /// For how long it must stay below (30 s).
    pub lift_hold: Duration,
    /// How a capping episode ends.
    pub lift_rule: LiftRule,
    /// Between two servers told `watch` at an episode's end (100 ms).
    pub lift_stagger: Duration,
    /// How long a raise lasts (2 000 ms); at most the trip time.
    pub lease: Duration,
    /// Over the limit for this long in an episode: `emergency` (600 ms).
    pub emergency_after: Duration,
    /// Over the limit for this long: out-of-band caps; less than the trip time.
    pub out_of_band_after: Duration,
    /// Healthy and under threshold for this long before an out-of-band cap is lifted (30 s).
    pub out_of_band_hold: Duration,
    /// Between two out-of-band lifts (5 s).
    pub out_of_band_stagger: Duration,
    /// Without an answer for this long a server is silent (3 heartbeats).
    pub silent_after: Duration,
    /// Within this time an overload must be gone.
    pub trip_time: Duration,
}
