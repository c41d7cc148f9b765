//! Validated parameters of the chassis's controller.

use core::time::Duration;

use ballast_types::wire::SharePolicy;
use ballast_types::{ChassisId, Instance, ServerId, TripCurve, Watts};
use serde::{Deserialize, Serialize};

use crate::tuning::{ACTUATION, WIRE};

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Server {
    pub id: ServerId,
    /// What is expected of its agent.
    pub mode: Mode,
    /// The lowest out-of-band cap it can be given; `None` if it has no out-of-band path.
    pub out_of_band_floor: Option<Watts>,
    /// How many times the usual part of what low-priority work may draw it gets, where not everybody gets what
    /// it lacks; `None` where nobody has told it: then once.
    pub weight: Option<u32>,
    /// What it gets before anybody gets more; `None` where nobody has told it.
    pub min_w: Option<Watts>,
    /// What it draws at most; `None` where nobody has told it.
    pub max_w: Option<Watts>,
}

impl Server {
    /// A managed server of which nothing else is told.
    pub fn new(id: ServerId, out_of_band_floor: Option<Watts>) -> Self {
        let (weight, min_w, max_w) = (None, None, None);
        Self { id, mode: Mode::Managed, out_of_band_floor, weight, min_w, max_w }
    }
}

/// What is expected of a server's agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LiftRule {
    /// When the draw plus what would come back stayed under the lift threshold for the hold time.
    #[default]
    Restorable,
    /// A plain timer after the draw came under the threshold (the paper's 30 s).
    Paper,
}

/// Everything the controller needs to know beforehand. The daemon's config makes one, and checks it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Params {
    pub chassis_id: ChassisId,
    /// This start of the manager, drawn at random by whoever starts it.
    pub instance: Instance,
    /// The configured budget, at the power supplies' input.
    pub budget: Watts,
    /// What each configured power supply can carry at its input.
    pub supply_rated: Vec<Watts>,
    /// What operators call each of them.
    pub supply_names: Vec<String>,
    /// The servers, in configured order.
    pub servers: Vec<Server>,
    /// At least this much is drawn by what no agent's meter sees; `None` where nobody has told it.
    pub shared_floor: Option<Watts>,
    /// How the sharable watts are split over the servers ([`SharePolicy::CriticalFirst`]).
    pub shares: SharePolicy,
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
    /// How long a raise lasts (2 000 ms); at most [`ballast_types::TRIP_TIME`].
    pub lease: Duration,
    /// Healthy and under threshold for this long before an out-of-band cap is lifted (30 s).
    pub out_of_band_hold: Duration,
    /// Without an answer for this long a server is silent (3 heartbeats).
    pub silent_after: Duration,
    /// The breaker, as an inverse-time device.
    pub trip_curve: TripCurve,
    /// For so long a supply's reading is a mean over (200 ms).
    pub sensor_refresh: Duration,
    /// From the end of that until it can be read (200 ms).
    pub sensor_lag: Duration,
    /// The standard deviation of the readings' noise, in parts per million of the draw (10 000).
    pub noise_ppm: u32,
    /// The share of the readings in a capping event, in parts per million, that may lie above the limit (20 000): how far
    /// under the limit the draw is kept.
    pub above_share_ppm: u32,
}

impl Params {
    /// The documented defaults, for these servers behind these supplies.
    ///
    /// `shared_floor` is `None`, and the lift rule is [`LiftRule::Restorable`]. Every other default is
    /// documented at its field.
    pub fn defaults(chassis_id: ChassisId, budget: Watts, rated: Vec<Watts>, servers: Vec<Server>) -> Self {
        let heartbeat = Duration::from_millis(500);
        Self {
            chassis_id,
            budget,
            supply_rated: rated,
            supply_names: Vec::new(),
            servers,
            shared_floor: None,
            shares: SharePolicy::CriticalFirst,
            poll_period: Duration::from_millis(200),
            heartbeat,
            alert_ppm: 980_000,
            lift_ppm: 960_000,
            lift_hold: Duration::from_secs(30),
            lift_rule: LiftRule::Restorable,
            lift_stagger: Duration::from_millis(100),
            lease: Duration::from_secs(2),
            out_of_band_hold: Duration::from_secs(30),
            silent_after: heartbeat * 3,
            instance: Instance::default(),
            trip_curve: TripCurve::default(),
            sensor_refresh: Duration::from_millis(200),
            sensor_lag: Duration::from_millis(200),
            noise_ppm: 10_000,
            above_share_ppm: 20_000,
        }
    }

    /// The same with the rules of the paper: even shares, and a plain timer at an episode's end.
    pub fn as_in_the_paper(self) -> Self {
        Self { shares: SharePolicy::Even, lift_rule: LiftRule::Paper, ..self }
    }

    /// The longest time from an overload's start until hardware has ended it, should all software fail and
    /// hardware be asked at the first reading. A breaker that carries the highest excess for less is refused.
    ///
    /// | term | what passes |
    /// |---|---|
    /// | `sensor_refresh` | until the supply's meter takes its next value |
    /// | `sensor_lag` | until that value can be read |
    /// | `poll_period` | until it is read |
    /// | 100 ms | wire: from the decision to the BMC |
    /// | 1 500 ms | actuation: until the BMC has brought the draw down |
    pub fn reaction_time(&self) -> Duration {
        [self.sensor_refresh, self.sensor_lag, self.poll_period, WIRE, ACTUATION]
            .into_iter()
            .fold(Duration::ZERO, Duration::saturating_add)
    }

    /// What hardware needs from the decision on.
    pub(crate) fn hardware_takes(&self) -> Duration {
        self.poll() + WIRE + ACTUATION
    }

    /// A reading taken so long after a message shows what the message did.
    pub(crate) fn shows_after(&self) -> Duration {
        self.sensor_refresh.saturating_add(self.sensor_lag)
    }

    /// A reading at a poll so long after a change shows that change.
    pub(crate) fn polled_after(&self) -> Duration {
        self.shows_after().saturating_add(self.poll())
    }

    /// One standard deviation of the readings' noise, as a share of the limit.
    pub(crate) fn noise(&self) -> f64 {
        f64::from(self.noise_ppm) / 1e6
    }

    /// What operators call the supply at `index`.
    pub(crate) fn supply_name(&self, index: usize) -> String {
        self.supply_names.get(index).cloned().unwrap_or_else(|| format!("power supply {index}"))
    }

    /// The poll period; never zero, so that a timer always moves on.
    pub(crate) fn poll(&self) -> Duration {
        self.poll_period.max(SHORTEST)
    }

    /// The heartbeat; never zero.
    pub(crate) fn beat(&self) -> Duration {
        self.heartbeat.max(SHORTEST)
    }

    /// Without a fresh reading for this long the manager is blind: three polls.
    pub(crate) fn blind_after(&self) -> Duration {
        self.poll().saturating_mul(3)
    }
}

/// No period is shorter.
const SHORTEST: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> Params {
        Params::defaults(ChassisId::new("c").unwrap(), Watts::from_whole(2400), vec![], vec![])
    }

    #[test]
    fn the_defaults_react_before_the_breaker_trips_at_half_too_much() {
        let p = params();
        assert_eq!(p.reaction_time(), Duration::from_millis(2200));
        assert!(p.reaction_time().as_secs_f64() < p.trip_curve.seconds(1.5));
        let slow = Params { sensor_refresh: Duration::from_secs(3), ..p };
        assert!(slow.reaction_time().as_secs_f64() > slow.trip_curve.seconds(1.5));
    }

    #[test]
    fn the_default_shares_are_not_those_of_the_paper() {
        assert_eq!(params().shares, SharePolicy::CriticalFirst);
        let paper = Params { shares: SharePolicy::Even, lift_rule: LiftRule::Paper, ..params() };
        assert_eq!(params().as_in_the_paper(), paper);
    }

    #[test]
    fn no_sum_overflows() {
        let p = Params { sensor_lag: Duration::MAX, sensor_refresh: Duration::MAX, ..params() };
        assert_eq!(p.reaction_time(), Duration::MAX);
    }
}
