use std::time::Duration;

use ballast_types::{Cap, CapError, Watts};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Redfish;
use super::http::Patched;
use super::schema::{Control, EnvironmentMetrics, Power, PowerLimit};
use crate::BmcError;

/// A BMC may round a limit by so much.
const ROUNDING_W: f64 = 1.0;
/// A BMC takes a change over in its own time: it is read back so often, this far apart.
const LOOKS: u32 = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// A server's power limit as its BMC has it, in one of the two generations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RedfishCapState {
    /// `Power`: `PowerControl[0].PowerLimit`.
    Power {
        /// `LimitInWatts`; `None` (null) is no limit.
        limit_w: Option<f64>,
        /// `LimitException`: what the BMC does when it cannot hold the limit.
        exception: Option<String>,
    },
    /// `EnvironmentMetrics`: `PowerLimitWatts`.
    Environment {
        set_point_w: Option<f64>,
        /// `ControlMode`: it is in force unless `Disabled`.
        mode: Option<String>,
    },
}

impl RedfishCapState {
    /// What the newer generation says. The error is a unit that cannot be used.
    pub(super) fn of_control(control: Control) -> Result<Self, String> {
        let units = control.set_point_units.as_deref().unwrap_or("W");
        if units != "W" {
            return Err(format!("SetPointUnits = {units:?}: only watts (\"W\") can be used"));
        }
        Ok(Self::Environment { set_point_w: control.set_point, mode: control.control_mode })
    }

    /// What the older generation says.
    pub(super) fn of_limit(limit: PowerLimit) -> Self {
        Self::Power { limit_w: limit.limit_in_watts, exception: limit.limit_exception }
    }

    /// The limit in force, in watts. 0 is how some BMCs say that there is none.
    pub fn in_force(&self) -> Option<f64> {
        let watts = match self {
            Self::Power { limit_w, .. } => *limit_w,
            Self::Environment { set_point_w, mode } => {
                set_point_w.filter(|_| mode.as_deref() != Some("Disabled"))
            }
        };
        watts.filter(|watts| *watts > 0.0)
    }

    /// Whether this is `wanted`, but for rounding.
    fn is(&self, wanted: &Self) -> bool {
        match (self.in_force(), wanted.in_force()) {
            (Some(is), Some(wanted)) => (is - wanted).abs() <= ROUNDING_W,
            (None, None) => true,
            _ => false,
        }
    }
}

/// The power limit of one server at its BMC.
pub struct RedfishCap(Redfish);

/// The limit, where it was read, and that resource's version.
struct LimitResource {
    path: String,
    etag: Option<String>,
    state: RedfishCapState,
    /// What it may be set to, in watts.
    range: (f64, f64),
    /// Entries of `PowerControl`: a change must name them all.
    entries: usize,
}

impl RedfishCap {
    pub fn new(redfish: Redfish) -> Self {
        Self(redfish)
    }

    fn see(&mut self) -> Result<LimitResource, BmcError> {
        let bmc = &mut self.0;
        let found = bmc.found()?;
        if let Some(path) = found.environment {
            let fetched = bmc.get::<EnvironmentMetrics>(&path)?;
            let etag = fetched.etag.or(fetched.value.etag);
            if let Some(control) = fetched.value.power_limit_watts {
                let range =
                    (control.allowable_min.unwrap_or(1.0), control.allowable_max.unwrap_or(f64::INFINITY));
                let state = RedfishCapState::of_control(control)
                    .map_err(|why| BmcError::unusable(bmc.of(&path, "PowerLimitWatts"), why))?;

                return Ok(LimitResource { path, etag, state, range, entries: 0 });
            }
        }

        let Some(path) = found.power else { return Err(bmc.missing("power limit")) };
        let fetched = bmc.get::<Power>(&path)?;
        let etag = fetched.etag.or(fetched.value.etag);
        let entries = fetched.value.power_control.len();
        let first = fetched.value.power_control.into_iter().next();
        let Some(limit) = first.and_then(|control| control.power_limit) else {
            return Err(bmc.missing("PowerLimit"));
        };
        let state = RedfishCapState::of_limit(limit);
        Ok(LimitResource { path, etag, state, range: (1.0, f64::INFINITY), entries })
    }

    /// Writes what `wanted` says into the resource that was seen. If somebody else changed it meanwhile, it is
    /// read anew once.
    fn write(&mut self, mut seen: LimitResource, wanted: &RedfishCapState) -> Result<(), BmcError> {
        for last in [false, true] {
            let body = body(wanted, seen.entries);
            let bmc = &mut self.0;
            let patch = bmc.http.patch(&seen.path, seen.etag.as_deref(), &body);
            if bmc.runtime.block_on(patch)? == Patched::Done {
                break;
            }
            if last {
                let why = "somebody else changes it at the same time (412)".to_owned();
                let of = bmc.of(&seen.path, "PATCH");
                return Err(BmcError::Refused { of, why, transient: true });
            }
            seen = self.see()?;
        }
        self.verify(wanted)
    }

    fn verify(&mut self, wanted: &RedfishCapState) -> Result<(), BmcError> {
        let mut look = 1;
        loop {
            let seen = self.see()?;
            if seen.state.is(wanted) {
                return Ok(());
            }
            if look == LOOKS {
                let of = self.0.of(&seen.path, "power limit");
                return Err(BmcError::NotKept { of, is: text(&seen.state), written: text(wanted) });
            }
            look += 1;
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    fn try_set(&mut self, watts: Watts, original: &RedfishCapState) -> Result<(), BmcError> {
        let seen = self.see()?;
        let of = self.0.of(&seen.path, "power limit");
        let asked = (watts.as_f64()).floor().min(original.in_force().unwrap_or(f64::INFINITY));
        let (least, most) = seen.range;

        if !(least..=most).contains(&asked) || asked < 1.0 {
            let allowed = format!("{least} to {most} W (slot_floor_w must not be below that)");
            return Err(BmcError::malformed(of, format_args!("{asked} W"), allowed));
        }

        let wanted = match &seen.state {
            RedfishCapState::Power { exception, .. } => {
                if !matches!(exception.as_deref(), None | Some("NoAction" | "LogEventOnly")) {
                    let why = format!(
                        "LimitException = {:?}: a limit that may switch the server off is never set; \
                         make it NoAction or LogEventOnly",
                        exception.as_deref().unwrap_or_default()
                    );

                    return Err(BmcError::unusable(of, why));
                }

                RedfishCapState::Power { limit_w: Some(asked), exception: exception.clone() }
            }
            RedfishCapState::Environment { mode, .. } => {
                let mode = match mode.as_deref() {
                    None => None,
                    Some("Automatic" | "Disabled") => Some("Automatic".to_owned()),
                    Some("Manual") => Some("Manual".to_owned()),
                    Some(other) => {
                        let why = format!("ControlMode = {other:?}: allowed: Automatic, Manual or Disabled");
                        return Err(BmcError::unusable(of, why));
                    }
                };

                RedfishCapState::Environment { set_point_w: Some(asked), mode }
            }
        };

        self.write(seen, &wanted)
    }

    fn try_put_back(&mut self, original: &RedfishCapState) -> Result<(), BmcError> {
        let seen = self.see()?;
        if seen.state == *original {
            return Ok(());
        }
        if core::mem::discriminant(&seen.state) != core::mem::discriminant(original) {
            let of = self.0.of(&seen.path, "power limit");
            let why = "the BMC has another generation of resources than when the cap was set";
            return Err(BmcError::unusable(of, why));
        }

        let RedfishCapState::Environment { set_point_w, mode } = original else {
            return self.write(seen, original);
        };

        if set_point_w.is_none() || mode.as_deref() != Some("Disabled") {
            return self.write(seen, original);
        }

        // One after the other: OpenBMC refuses a set point while the limit is disabled.
        if seen.state.in_force().is_some() {
            let set_point = RedfishCapState::Environment { set_point_w: *set_point_w, mode: None };
            if let Err(error) = self.write(seen, &set_point) {
                tracing::warn!(%error, "the BMC does not take back the set point of a limit that was off: \
                                        the limit stays off");
            }
        }

        let off = RedfishCapState::Environment { set_point_w: None, mode: mode.clone() };
        let seen = self.see()?;

        self.write(seen, &off)
    }
}

impl Cap for RedfishCap {
    type State = RedfishCapState;

    fn read(&mut self) -> Result<RedfishCapState, CapError> {
        Ok(self.see()?.state)
    }

    fn set(&mut self, watts: Watts, original: &RedfishCapState) -> Result<(), CapError> {
        Ok(self.try_set(watts, original)?)
    }

    fn put_back(&mut self, original: &RedfishCapState) -> Result<(), CapError> {
        Ok(self.try_put_back(original)?)
    }

    fn is_on(now: &RedfishCapState, original: &RedfishCapState) -> bool {
        match (now.in_force(), original.in_force()) {
            (Some(now), Some(original)) => now + ROUNDING_W < original,
            (now, original) => now.is_some() && original.is_none(),
        }
    }
}

/// The change that makes the limit `wanted`. `LimitException` is never part of it.
fn body(wanted: &RedfishCapState, entries: usize) -> Value {
    match wanted {
        RedfishCapState::Power { limit_w, .. } => {
            let mut controls = vec![json!({ "PowerLimit": { "LimitInWatts": number(*limit_w) } })];

            // An empty object leaves an entry as it is; a shorter list would remove it (DSP0266, 7.5).
            controls.resize_with(entries.max(1), || json!({}));

            json!({ "PowerControl": controls })
        }
        RedfishCapState::Environment { set_point_w, mode } => {
            let mut limit = serde_json::Map::new();

            // Null is how a limit is lifted that has no mode.
            if set_point_w.is_some() || mode.as_deref() != Some("Disabled") {
                limit.insert("SetPoint".into(), number(*set_point_w));
            }
            if let Some(mode) = mode {
                limit.insert("ControlMode".into(), mode.as_str().into());
            }
            json!({ "PowerLimitWatts": limit })
        }
    }
}

/// A whole number where it is one: some BMCs take nothing else.
fn number(watts: Option<f64>) -> Value {
    watts.map_or(Value::Null, |watts| {
        if watts.fract() == 0.0 && watts.abs() < 1e9 { json!(watts as i64) } else { json!(watts) }
    })
}

fn text(state: &RedfishCapState) -> String {
    state.in_force().map_or("no limit".to_owned(), |watts| format!("{watts} W"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_names_the_limit_and_never_the_exception() {
        let power = |limit_w| RedfishCapState::Power { limit_w, exception: Some("HardPowerOff".into()) };
        assert_eq!(
            body(&power(Some(180.0)), 3).to_string(),
            r#"{"PowerControl":[{"PowerLimit":{"LimitInWatts":180}},{},{}]}"#
        );

        assert_eq!(
            body(&power(None), 1).to_string(),
            r#"{"PowerControl":[{"PowerLimit":{"LimitInWatts":null}}]}"#
        );

        let environment = |set_point_w, mode: &str| {
            body(&RedfishCapState::Environment { set_point_w, mode: Some(mode.into()) }, 0)
        };
        assert_eq!(
            environment(Some(180.5), "Automatic"),
            json!({"PowerLimitWatts": {"SetPoint": 180.5, "ControlMode": "Automatic"}})
        );

        assert_eq!(environment(None, "Disabled"), json!({"PowerLimitWatts": {"ControlMode": "Disabled"}}));
    }

    #[test]
    fn only_a_lower_limit_is_on() {
        let state = |limit_w| RedfishCapState::Power { limit_w, exception: None };
        for (now, original, on) in [
            (Some(180.0), None, true),
            (Some(180.0), Some(300.0), true),
            (Some(299.5), Some(300.0), false),
            (Some(300.0), Some(300.0), false),
            (None, Some(300.0), false),
            (None, None, false),
            // 0 W is no limit.
            (Some(180.0), Some(0.0), true),
            (Some(0.0), Some(300.0), false),
            (Some(0.0), None, false),
        ] {
            assert_eq!(RedfishCap::is_on(&state(now), &state(original)), on, "{now:?} {original:?}");
        }

        let off = RedfishCapState::Environment { set_point_w: Some(100.0), mode: Some("Disabled".into()) };
        assert_eq!(off.in_force(), None);
    }
}
