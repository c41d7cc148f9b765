//! The bytes of the wire, as first shipped. A change here breaks daemons of different versions.

use std::collections::BTreeSet;

use ballast_types::wire::{
    AgentState, Alert, BudgetRequest, ChassisState, ClassWatts, Event, Level, OtherManager, Predictions,
    Refusal, RefusalReason, Report, Slot, VERSION, VmSpec,
};
use ballast_types::{Epoch, Instance, Seq, VmClass, Watts};
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
    r#""cap_w":182.3,"fallback_w":182.3,"valid_for_ms":2000}"#
);
const REPORT: &str = concat!(
    r#"{"server":"s01","boot_id":"b-1","agent_ms":123456,"epoch_obeyed":3,"seq_obeyed":17,"#,
    r#""enforced_seq":16,"state":"recovering","power_w":155.8,"cap_w":182.3,"#,
    r#""sheddable_w":5.2,"restorable_w":31.4,"low_cores":18,"min_khz":1300000,"#,
    r#""server_limit":false,"leaving":false,"actuator_failures":0}"#
);
const REFUSAL: &str = r#"{"reason":"stale","newest_epoch":4,"newest_seq":9}"#;

#[test]
fn alerts() {
    pinned::<Alert>(ALERT);
    pinned::<Alert>(concat!(
        r#"{"chassis_id":"c1","epoch":3,"seq":18,"level":"watch","echo_boot_id":null,"#,
        r#""echo_agent_ms":null,"chassis_power_w":null,"chassis_limit_w":2450.0,"#,
        r#""cap_w":null,"fallback_w":182.3,"valid_for_ms":2000}"#
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
        r#""server_limit":false,"leaving":false,"actuator_failures":0,"dry_run":true}"#
    ));
    for state in ["boot", "uncapped", "throttled", "recovering", "shedding", "blind"] {
        pinned::<AgentState>(&format!("\"{state}\""));
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
        r#""cgroup":"machine.slice/v.scope","on_extreme":"none","tenant":"shop"}"#
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

/// The structs of version 1, as they were when it was shipped: never to be changed.
mod version_1 {
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub(super) enum Level {
        Watch,
        Cap,
        Emergency,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    pub(super) struct Alert {
        chassis_id: String,
        epoch: u64,
        seq: u64,
        level: Level,
        echo_boot_id: Option<String>,
        echo_agent_ms: Option<u64>,
        chassis_power_w: Option<f64>,
        chassis_limit_w: f64,
        cap_w: Option<f64>,
        fallback_w: f64,
        valid_for_ms: u64,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub(super) enum AgentState {
        Boot,
        Uncapped,
        Throttled,
        Recovering,
        Shedding,
        Blind,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    pub(super) struct Report {
        server: String,
        boot_id: String,
        agent_ms: u64,
        epoch_obeyed: u64,
        seq_obeyed: u64,
        enforced_seq: Option<u64>,
        state: AgentState,
        power_w: Option<f64>,
        cap_w: Option<f64>,
        sheddable_w: f64,
        restorable_w: f64,
        low_cores: u16,
        min_khz: Option<u32>,
        min_share_percent: Option<u8>,
        server_limit: bool,
        leaving: bool,
        actuator_failures: u64,
        #[serde(default)]
        dry_run: bool,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub(super) enum RefusalReason {
        Stale,
        ForeignChassis,
        EpochJump,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    pub(super) struct Refusal {
        reason: RefusalReason,
        newest_epoch: u64,
        newest_seq: u64,
    }
}

/// A message of this build, made of one of version 1 by `add`, has the keys `added` besides, and version
/// 1 reads in it what it read in its own.
fn read_by_version_1<New, Old>(first: &str, add: impl FnOnce(&mut New), added: &[&str])
where
    New: Serialize + DeserializeOwned,
    Old: DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let keys = |text: &str| -> BTreeSet<String> {
        let object: serde_json::Map<_, _> = serde_json::from_str(text).expect(text);
        object.into_iter().map(|(key, _)| key).collect()
    };
    let mut message: New = serde_json::from_str(first).expect(first);
    add(&mut message);
    let text = serde_json::to_string(&message).expect("a message");
    let new: Vec<_> = keys(&text).difference(&keys(first)).cloned().collect();
    assert_eq!(new, added);
    let old = |text: &str| serde_json::from_str::<Old>(text).expect(text);
    assert_eq!(old(&text), old(first));
}

#[test]
fn version_1_reads_what_this_build_says() {
    let instance = Some(Instance((1 << 53) - 1));
    let other = OtherManager { instance: Instance(7), epoch: Epoch(3), seq: Seq(4), age_ms: 120 };
    let class = ClassWatts {
        class: VmClass::NonUserFacing,
        order: 1,
        cores: 18,
        sheddable_w: Watts::from_milli(5_200),
        restorable_w: Watts::from_milli(31_400),
    };

    read_by_version_1::<Alert, version_1::Alert>(
        ALERT,
        |alert| {
            alert.version = VERSION;
            alert.instance = instance;
            alert.target_w = Some(Watts::from_whole(190));
            alert.margin_w = Some(Watts::from_whole(2));
        },
        &["instance", "margin_w", "target_w", "version"],
    );

    read_by_version_1::<Report, version_1::Report>(
        REPORT,
        |report| {
            report.version = VERSION;
            report.instance_obeyed = instance;
            report.refused = Some(other);
            report.cores = Some(40);
            report.classes = vec![class];
            report.flicker_w = Some(Watts::from_whole(3));
            report.orphan_hold_ms = Some(60_000);
        },
        &["classes", "cores", "flicker_w", "instance_obeyed", "orphan_hold_ms", "refused", "version"],
    );

    read_by_version_1::<Refusal, version_1::Refusal>(
        REFUSAL,
        |refusal| refusal.instance = instance,
        &["instance"],
    );

    // A reason that it does not have makes the whole answer none, which is what a refusal comes to.
    let newer = REFUSAL.replace("stale", "other_instance");
    assert!(serde_json::from_str::<version_1::Refusal>(&newer).is_err());
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

#[test]
fn a_message_without_a_version_is_of_the_first() {
    let alert: Alert = serde_json::from_str(ALERT).expect("an alert");
    assert_eq!((alert.version, alert.instance, alert.target_w), (1, None, None));
    let report: Report = serde_json::from_str(REPORT).expect("a report");
    assert_eq!((report.version, report.instance_obeyed, report.classes), (1, None, vec![]));
    let refusal: Refusal = serde_json::from_str(REFUSAL).expect("a refusal");
    assert_eq!(refusal.instance, None);
}
