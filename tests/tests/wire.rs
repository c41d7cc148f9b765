//! The bytes of the wire, as shipped. A change here breaks daemons of different versions.

use ballast_types::Seq;
use ballast_types::wire::{
    AgentState, Alert, BudgetRequest, ChassisState, Event, Level, Predictions, Refusal, RefusalReason,
    Report, Slot, VmSpec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The text is read, and written again to the byte.
fn pinned<T: Serialize + DeserializeOwned>(text: &str) {
    let value: T = serde_json::from_str(text).expect(text);
    assert_eq!(serde_json::to_string(&value).expect("a value"), text);
}

const ALERT: &str = concat!(
    r#"{"chassis_id":"c1","epoch":3,"seq":17,"level":"cap","echo_boot_id":"b-1","#,
    r#""echo_agent_ms":123456,"chassis_power_w":2410.5,"chassis_limit_w":2450.0,"#,
    r#""cap_w":182.3,"fallback_w":182.3,"valid_for_ms":2000,"instance":9007199254740991,"#,
    r#""height_ppm":620000,"own_limit":true,"judgements":41}"#
);
const REPORT: &str = concat!(
    r#"{"server":"s01","boot_id":"b-1","agent_ms":123456,"epoch_obeyed":3,"seq_obeyed":17,"#,
    r#""enforced_seq":16,"state":"recovering","power_w":155.8,"cap_w":182.3,"#,
    r#""sheddable_w":5.2,"restorable_w":31.4,"low_cores":18,"min_khz":1300000,"#,
    r#""min_share_percent":null,"server_limit":false,"leaving":false,"actuator_failures":0,"#,
    r#""dry_run":false,"instance_obeyed":7,"#,
    r#""refused":{"instance":8,"epoch":3,"seq":4,"age_ms":120},"cores":40,"#,
    r#""classes":[{"class":"non-user-facing","order":1,"cores":18,"sheddable_w":5.2,"restorable_w":31.4}],"#,
    r#""orphan_hold_ms":60000}"#
);

#[test]
fn alerts() {
    pinned::<Alert>(ALERT);
    pinned::<Alert>(concat!(
        r#"{"chassis_id":"c1","epoch":3,"seq":18,"level":"watch","echo_boot_id":null,"#,
        r#""echo_agent_ms":null,"chassis_power_w":null,"chassis_limit_w":2450.0,"#,
        r#""cap_w":null,"fallback_w":182.3,"valid_for_ms":2000,"#,
        r#""instance":null,"height_ppm":null,"own_limit":null,"judgements":null}"#
    ));
    for level in ["watch", "cap", "emergency"] {
        pinned::<Level>(&format!("\"{level}\""));
    }
}

#[test]
fn reports_and_refusals() {
    pinned::<Report>(REPORT);
    pinned::<Report>(concat!(
        r#"{"server":"s01","boot_id":"b-1","agent_ms":123456,"epoch_obeyed":3,"seq_obeyed":17,"#,
        r#""enforced_seq":null,"state":"throttled","power_w":211.8,"cap_w":182.3,"#,
        r#""sheddable_w":0.0,"restorable_w":0.0,"low_cores":0,"min_khz":null,"#,
        r#""min_share_percent":40,"server_limit":false,"leaving":false,"actuator_failures":0,"#,
        r#""dry_run":true,"instance_obeyed":null,"refused":null,"cores":null,"classes":[],"#,
        r#""orphan_hold_ms":null}"#
    ));
    for state in ["boot", "uncapped", "throttled", "recovering", "shedding", "blind"] {
        pinned::<AgentState>(&format!("\"{state}\""));
    }
    for reason in ["stale", "foreign_chassis", "epoch_jump"] {
        let text = format!(r#"{{"reason":"{reason}","newest_epoch":4,"newest_seq":9,"instance":null}}"#);
        pinned::<Refusal>(&text);
    }
}

#[test]
fn requests_and_events() {
    pinned::<BudgetRequest>(r#"{"budget_w":2000.0,"dry_run":false,"force":false,"for_s":null}"#);
    pinned::<VmSpec>(concat!(
        r#"{"class":"non-user-facing","throttle_order":1,"cores":6,"#,
        r#""cgroup":"machine.slice/v.scope","on_extreme":"none","tenant":"shop","pinned":false}"#
    ));
    pinned::<ballast_types::OnExtreme>("\"kill\"");
    pinned::<Predictions>(concat!(
        r#"{"seq":7,"valid_for_ms":300000,"vms":{"v1":{"class":"non-user-facing","p95_percent":50,"#,
        r#""throttle_order":2}}}"#
    ));
    pinned::<Event>(r#"{"at_ns":5,"event":"alert_sent","server":"s01","epoch":3,"seq":17,"level":"cap"}"#);
    pinned::<Event>(r#"{"at_ns":5,"event":"floor_reached","epoch":3,"seq":17,"cores":18}"#);
}

#[test]
fn fields_of_a_newer_peer_are_ignored() {
    let newer = r#"{"reason":"stale","newest_epoch":4,"newest_seq":9,"of_the_future":{"a":[1]}}"#;
    assert!(serde_json::from_str::<Refusal>(newer).is_ok());
}

#[test]
fn what_an_earlier_version_also_sent_is_ignored() {
    let alert = ALERT.replace("\"own_limit\":true", "\"own_limit\":true,\"margin_w\":2.0");
    let report = REPORT.replace("\"cores\":40", "\"cores\":40,\"flicker_w\":3.0");
    assert_eq!(serde_json::from_str::<Alert>(&alert).ok(), serde_json::from_str(ALERT).ok());
    assert_eq!(serde_json::from_str::<Report>(&report).ok(), serde_json::from_str(REPORT).ok());
    assert!(alert != ALERT && report != REPORT);
}

#[test]
fn words_of_a_newer_version_are_unknown_and_the_rest_of_the_message_counts() {
    fn word<T: DeserializeOwned>() -> T {
        serde_json::from_str("\"of_the_future\"").expect("a word of a newer version")
    }
    assert_eq!(word::<Level>(), Level::Unknown);
    assert_eq!(word::<AgentState>(), AgentState::Unknown);
    assert_eq!(word::<RefusalReason>(), RefusalReason::Unknown);
    assert_eq!(word::<Slot>(), Slot::Unknown);
    assert_eq!(word::<ChassisState>(), ChassisState::Unknown);

    let alert = ALERT.replace("\"cap\"", "\"of_the_future\"");
    let alert: Alert = serde_json::from_str(&alert).expect("an alert");
    assert_eq!((alert.level, alert.seq), (Level::Unknown, Seq(17)));
    let report = REPORT.replace("recovering", "of_the_future");
    let report: Report = serde_json::from_str(&report).expect("a report");
    assert_eq!((report.state, report.seq_obeyed), (AgentState::Unknown, Seq(17)));
}
