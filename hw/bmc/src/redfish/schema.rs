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
    // URL parsers take %2e for a dot, in these two names too (WHATWG URL, 4.1).
    text.starts_with("/redfish/")
        && text.len() <= 512
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/-_.~%:#@$+,=!*()'".contains(c))
        && !text.split('/').any(|part| part.to_ascii_lowercase().replace("%2e", ".") == "..")
}

macro_rules! resources {
    ($($(#[$doc:meta])* $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "PascalCase", default)]
        pub(super) struct $name {
            $($(#[$attribute])* pub(super) $field: $type,)*
        }
    )*};
}

resources! {
    ServiceRoot { chassis: Option<Link>, systems: Option<Link>, }
    Collection { members: Vec<Link>, }
    Chassis {
        power: Option<Link>,
        environment_metrics: Option<Link>,
        power_subsystem: Option<Link>,
        links: Option<ChassisLinks>,
    }
    ChassisLinks { computer_systems: Vec<Link>, }
    System { power_state: Option<String>, }

    /// The older generation: everything in one resource.
    Power {
        #[serde(rename = "@odata.etag")]
        etag: Option<String>,
        power_control: Vec<PowerControl>,
        power_supplies: Vec<LegacySupply>,
    }
    PowerControl { power_consumed_watts: Option<f64>, power_limit: Option<PowerLimit>, }
    PowerLimit { limit_in_watts: Option<f64>, limit_exception: Option<String>, }
    LegacySupply { member_id: Option<String>, power_input_watts: Option<f64>, status: Option<Status>, }

    /// The newer generation: the chassis's draw and limit.
    EnvironmentMetrics {
        #[serde(rename = "@odata.etag")]
        etag: Option<String>,
        power_watts: Option<Reading>,
        power_limit_watts: Option<Control>,
    }
    Reading { reading: Option<f64>, }
    Control {
        set_point: Option<f64>,
        set_point_units: Option<String>,
        control_mode: Option<String>,
        allowable_min: Option<f64>,
        allowable_max: Option<f64>,
    }
    PowerSubsystem { power_supplies: Option<Link>, }
    PowerSupply { status: Option<Status>, metrics: Option<Link>, }
    SupplyMetrics { input_power_watts: Option<Reading>, }
    Status { state: Option<String>, health: Option<String>, }
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
