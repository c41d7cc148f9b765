//! Real daemons with `policy = "predictive"` and `shares = "critical-first"`.

use ballast_testbed::lab::{Lab, steady};
use ballast_types::wire::{AgentState, SharePolicy};

ballast_testbed::wall_time![
    the_model_is_learnt_from_the_files_and_holds_the_budget,
    without_rapl_the_agent_says_once_that_it_steps_and_that_is_no_alarm,
];

/// The rig's counters move every 10 ms, and on a busy machine late: its windows are longer than a real
/// server's.
const PREDICTIVE: &str = "policy = \"predictive\"\n[predictive]\nperiod_ms = 200\n";

/// Two servers that would draw some 500 W on a budget of 440 W.
fn overloaded() -> Lab {
    let shares = "shares = \"critical-first\"";
    Lab::with(steady(2, 440, (0.3, 0.95)), shares, PREDICTIVE)
}

/// Whether this agent's model chooses the p-states, and some are restricted.
fn predicts(lab: &Lab, name: &str) -> bool {
    lab.agent(name).is_some_and(|agent| {
        let trusted = agent.recovery.is_some_and(|recovery| recovery.doubt.is_none());
        trusted && agent.report.state == AgentState::Recovering
    })
}

fn the_model_is_learnt_from_the_files_and_holds_the_budget() {
    let mut lab = overloaded();
    let before = lab.limits();
    lab.start_all();

    // One after the other: on a busy machine a late window makes a model doubt for a while.
    for name in lab.servers() {
        lab.wait("the model is trusted", |lab| predicts(lab, &name));
    }
    lab.wait("the budget holds", Lab::holds);
    assert_eq!(lab.chassis().map(|chassis| chassis.shares), Some(SharePolicy::CriticalFirst));
    lab.wait("its metrics say so", |lab| {
        let (_, metrics) = lab.get("s01", "/metrics");
        metrics.contains("ballast_agent_model_trusted 1")
            && metrics.contains("ballast_agent_model_margin_watts")
    });

    // Every window is in the recording, and so is every choice.
    lab.end_all();
    for name in ["chassis", "s01"] {
        lab.replay(name);
    }
    lab.wait_restored(&before, "");
    assert_eq!(lab.end_rig().plant().truth().user_facing_throttled_core_s.total(), 0.0);
}

fn without_rapl_the_agent_says_once_that_it_steps_and_that_is_no_alarm() {
    let mut lab = Lab::with(steady(1, 600, (0.3, 0.3)), "", PREDICTIVE);
    let zones = std::fs::read_dir(lab.tree().join("servers/s01/sys/class/powercap"));
    for zone in zones.expect("a folder").flatten() {
        std::fs::write(zone.path().join("name"), "uncore\n").expect("a file");
    }
    lab.start("s01");
    let line = "policy = \"predictive\" is configured, and \"stepwise\" acts: no RAPL";
    let said = |lab: &Lab| lab.log("s01").matches(line).count();
    lab.wait("it says so", |lab| said(lab) > 0);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(said(&lab), 1);
    let status = lab.agent("s01").unwrap();
    assert_eq!((status.policy.as_str(), status.policy_effective.as_str()), ("predictive", "stepwise"));
    assert!(!status.alarms.iter().any(|alarm| alarm.message.contains("predictive")), "{status:?}");
}
