//! The bytes of the wire, as first shipped. A change here breaks daemons of different versions.

use ballast_types::wire::{Alert, BudgetRequest, Event, Refusal, Report, VmSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The text is read, and written again to the byte.
fn pinned<T: Serialize + DeserializeOwned>(text: &str) {
    let value: T = serde_json::from_str(text).expect(text);
    assert_eq!(serde_json::to_string(&value).expect("a value"), text);
}

#[test]
fn alerts() {
    pinned::<Alert>(concat!(
        r#"{"chassis_id":"c1","epoch":3,"seq":17,"level":"cap","echo_boot_id":"b-1","#,
        r#""echo_agent_ms":123456,"chassis_power_w":2410.5,"chassis_limit_w":2450.0,"#,
        r#""cap_w":182.3,"fallback_w":182.3,"valid_for_ms":2000}"#
    ));
    pinned::<Alert>(concat!(
        r#"{"chassis_id":"c1","epoch":3,"seq":18,"level":"watch","echo_boot_id":null,"#,
        r#""echo_agent_ms":null,"chassis_power_w":null,"chassis_limit_w":2450.0,"#,
        r#""cap_w":null,"fallback_w":182.3,"valid_for_ms":2000}"#
    ));
    for level in ["watch", "cap", "emergency"] {
        pinned::<ballast_types::wire::Level>(&format!("\"{level}\""));
    }
}

#[test]
fn reports_and_refusals() {
    pinned::<Report>(concat!(
        r#"{"server":"s01","boot_id":"b-1","agent_ms":123456,"epoch_seen":3,"seq_seen":17,"#,
        r#""enforced_seq":16,"state":"recovering","power_w":155.8,"cap_w":182.3,"#,
        r#""sheddable_w":5.2,"restorable_w":31.4,"low_cores":18,"min_khz":1300000,"#,
        r#""server_limit":false,"leaving":false,"actuator_failures":0}"#
    ));
    pinned::<Report>(concat!(
        r#"{"server":"s01","boot_id":"b-1","agent_ms":123456,"epoch_seen":3,"seq_seen":17,"#,
        r#""enforced_seq":null,"state":"throttled","power_w":211.8,"cap_w":182.3,"#,
        r#""sheddable_w":0.0,"restorable_w":0.0,"low_cores":0,"min_khz":null,"#,
        r#""server_limit":false,"leaving":false,"actuator_failures":0,"dry_run":true}"#
    ));
    for state in ["boot", "uncapped", "throttled", "recovering", "shedding", "blind"] {
        pinned::<ballast_types::wire::AgentState>(&format!("\"{state}\""));
    }
    for reason in ["stale", "foreign_chassis", "epoch_jump"] {
        let text = format!(r#"{{"reason":"{reason}","newest_epoch":4,"newest_seq":9}}"#);
        pinned::<Refusal>(&text);
    }
}

#[test]
fn requests_and_events() {
    pinned::<BudgetRequest>(r#"{"budget_w":2000.0}"#);
    pinned::<VmSpec>(concat!(
        r#"{"class":"non-user-facing","throttle_order":1,"cores":6,"#,
        r#""cgroup":"machine.slice/v.scope","on_extreme":"none"}"#
    ));
    pinned::<ballast_types::OnExtreme>("\"kill\"");
    pinned::<Event>(
        r#"{"at_ns":5,"event":"alert_sent","server":"s01","epoch":3,"seq":17,"level":"cap"}"#,
    );
    pinned::<Event>(r#"{"at_ns":5,"event":"floor_reached","epoch":3,"seq":17,"cores":18}"#);
}

#[test]
fn fields_of_a_newer_peer_are_ignored() {
    let newer = r#"{"reason":"stale","newest_epoch":4,"newest_seq":9,"of_the_future":{"a":[1]}}"#;
    assert!(serde_json::from_str::<Refusal>(newer).is_ok());
}
