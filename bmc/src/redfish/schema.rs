//! The parts of DMTF's schemas that are read here. Everything may be missing or null; numbers may be
//! integers or not.
//!
//! Source: DMTF DSP8010: `Chassis`, `Power`, `EnvironmentMetrics`, `PowerSubsystem`, `PowerSupply`,
//! `PowerSupplyMetrics`, `ComputerSystem`; DSP0266 for the protocol.

use serde::Deserialize;

/// A reference to another resource.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Link {
    #[serde(rename = "@odata.id")]
    path: String,
}

impl Link {
    /// Where it leads; `None` if that is not a path on the same BMC.
    pub(super) fn path(&self) -> Option<&str> {
        is_path(&self.path).then(|| self.path.trim_end_matches('/'))
    }

    /// The last part of the path: the member's id.
    pub(super) fn id(&self) -> &str {
        self.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
    }
}

/// Whether a text from a BMC is a plain path below Redfish's root: no other host, no way up, no query.
pub(super) fn is_path(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.~%:#@$+,=!*()'".contains(c);
    // URL parsers take %2e for a dot, in these two names too (WHATWG URL, 4.1).
    let leads_up = |part: &str| part.to_ascii_lowercase().replace("%2e", ".") == "..";
    text.starts_with("/redfish/")
        && text.len() <= 512
        && text.chars().all(plain)
        && !text.split('/').any(leads_up)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ServiceRoot {
    pub(super) chassis: Option<Link>,
    pub(super) systems: Option<Link>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Collection {
    #[serde(default)]
    pub(super) members: Vec<Link>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Chassis {
    pub(super) power: Option<Link>,
    pub(super) environment_metrics: Option<Link>,
    pub(super) power_subsystem: Option<Link>,
    pub(super) links: Option<ChassisLinks>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ChassisLinks {
    #[serde(default)]
    pub(super) computer_systems: Vec<Link>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct System {
    pub(super) power_state: Option<String>,
}

/// The older generation: everything in one resource.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Power {
    #[serde(rename = "@odata.etag")]
    pub(super) etag: Option<String>,
    #[serde(default)]
    pub(super) power_control: Vec<PowerControl>,
    #[serde(default)]
    pub(super) power_supplies: Vec<LegacySupply>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PowerControl {
    pub(super) power_consumed_watts: Option<f64>,
    pub(super) power_limit: Option<PowerLimit>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PowerLimit {
    pub(super) limit_in_watts: Option<f64>,
    pub(super) limit_exception: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct LegacySupply {
    pub(super) member_id: Option<String>,
    pub(super) power_input_watts: Option<f64>,
    pub(super) status: Option<Status>,
}

/// The newer generation: the chassis's draw and limit.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct EnvironmentMetrics {
    #[serde(rename = "@odata.etag")]
    pub(super) etag: Option<String>,
    pub(super) power_watts: Option<Reading>,
    pub(super) power_limit_watts: Option<Control>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Reading {
    pub(super) reading: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Control {
    pub(super) set_point: Option<f64>,
    pub(super) set_point_units: Option<String>,
    pub(super) control_mode: Option<String>,
    pub(super) allowable_min: Option<f64>,
    pub(super) allowable_max: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PowerSubsystem {
    pub(super) power_supplies: Option<Link>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PowerSupply {
    pub(super) status: Option<Status>,
    pub(super) metrics: Option<Link>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct SupplyMetrics {
    pub(super) input_power_watts: Option<Reading>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Status {
    pub(super) state: Option<String>,
    pub(super) health: Option<String>,
}

/// What a BMC says of a refused request: the first extended message, or the error's own.
pub(super) fn message(body: &[u8]) -> Option<String> {
    let value: serde_json::Value = serde_json::from_slice(body).ok()?;
    let error = &value["error"];
    let first = &error["@Message.ExtendedInfo"][0]["Message"];
    first.as_str().or_else(|| error["message"].as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_plain_paths_on_the_same_bmc_are_followed() {
        for (path, good) in [
            ("/redfish/v1/Chassis/1", true),
            ("/redfish/v1/Chassis/System.Embedded.1/Power#/PowerControl/0", true),
            ("/redfish/v1/../../etc", false),
            ("/redfish/v1/%2e%2E/.%2e/etc", false),
            ("/redfish/v1/Chassis/a%2eb%2F..c", true),
            ("https://elsewhere/redfish/v1", false),
            ("//elsewhere/redfish/v1", false),
            ("/other", false),
            ("/redfish/v1?x=1", false),
            ("/redfish/v1 x", false),
        ] {
            assert_eq!(is_path(path), good, "{path}");
        }
        assert!(!is_path(&format!("/redfish/{}", "x".repeat(600))));
    }

    #[test]
    fn numbers_may_be_null_missing_whole_or_not() {
        let parse = |text: &str| serde_json::from_str::<Power>(text).unwrap();
        for (text, expected) in [
            (r#"{"PowerControl":[{"PowerConsumedWatts":230}]}"#, Some(230.0)),
            (r#"{"PowerControl":[{"PowerConsumedWatts":230.5,"PowerLimit":null}]}"#, Some(230.5)),
            (r#"{"PowerControl":[{"PowerConsumedWatts":null}]}"#, None),
            (r#"{"PowerControl":[{}]}"#, None),
        ] {
            assert_eq!(parse(text).power_control[0].power_consumed_watts, expected, "{text}");
        }
        assert!(parse("{}").power_control.is_empty());
    }

    #[test]
    fn a_refusals_message_is_found() {
        let body = br#"{"error":{"message":"a","@Message.ExtendedInfo":[{"Message":"b"}]}}"#;
        assert_eq!(message(body).as_deref(), Some("b"));
        assert_eq!(message(br#"{"error":{"message":"a"}}"#).as_deref(), Some("a"));
        assert_eq!(message(b"<html>"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_a_resource_or_an_error(text in "\\PC{0,200}") {
            let _ = serde_json::from_str::<Power>(&text);
            let _ = serde_json::from_str::<EnvironmentMetrics>(&text);
            let _ = message(text.as_bytes());
        }
    }
}
