//! Real daemons with `actuator = "cpu-max"`: nothing is bound to cores, and bandwidth holds the budget.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ballast_testbed::lab::{Lab, steady};
use ballast_types::VmClass;
use ballast_types::wire::{AgentState, Report};

ballast_testbed::wall_time![
    bandwidth_alone_holds_the_budget_and_an_end_puts_everything_back,
    quotas_of_an_agent_that_was_killed_are_adopted_and_lifted,
    another_actuator_after_a_crash_leaves_nothing_of_the_first,
    somebody_elses_limit_is_told_of_and_left,
];

/// Two servers that would draw some 500 W on a budget of 440 W; at the floor of their bandwidth they draw
/// some 400 W.
fn overloaded() -> Lab {
    Lab::with(steady(2, 440, (0.3, 0.95)), "", "[throttle]\nactuator = \"cpu-max\"\n")
}

/// Servers with any VM limited, by their own word.
fn limited(lab: &Lab) -> usize {
    let share =
        |name: &&String| lab.agent(name).is_some_and(|status| status.report.min_share_percent.is_some());
    lab.servers().iter().filter(share).count()
}

/// The files that differ from `before`, by name.
fn changed(lab: &Lab, before: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let now = lab.limits();
    let differs = |(path, text): &(&PathBuf, &String)| now.get(*path) != Some(*text);
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    before.iter().filter(differs).map(|(path, _)| name(path)).collect()
}

fn bandwidth_alone_holds_the_budget_and_an_end_puts_everything_back() {
    let mut lab = overloaded();
    let before = lab.limits();
    lab.start_all();
    lab.wait("both servers are limited", |lab| limited(lab) == 2);
    lab.wait("the budget holds", Lab::holds);
    let changed = changed(&lab, &before);
    assert!(!changed.is_empty() && changed.iter().all(|name| name == "cpu.max"), "{changed:?}");

    let agent = lab.agent("s01").unwrap();
    let (batch, web): (Vec<_>, Vec<_>) = agent.vms.iter().partition(|vm| vm.class == VmClass::NonUserFacing);
    assert!(web.iter().all(|vm| vm.quota_millicores.is_none()), "{web:?}");

    for vm in batch.iter().filter(|vm| vm.quota_millicores.is_some()) {
        let (quota, cores) = (vm.quota_millicores.unwrap(), u32::from(vm.cores));
        assert!((500 * cores..1000 * cores).contains(&quota), "{vm:?}");
    }

    let (_, metrics) = lab.get("s01", "/metrics");
    assert!(metrics.contains("ballast_agent_vm_quota_cores{vm="), "{metrics}");

    lab.end_all();
    lab.wait_restored(&before, "");
    let rig = lab.end_rig();
    let truth = rig.plant().truth();
    assert_eq!(truth.user_facing_throttled_core_s.total(), 0.0);
    assert!(truth.batch_throttled_core_s.software > 0.0);
}

/// Tells the agent of `s01` to keep under a cap, as a chassis manager would; it is the fallback too.
pub(crate) fn cap(lab: &Lab, watts: u64) {
    let tell = |seq: u32, boot: Option<&str>, ms: Option<u64>| -> Report {
        let body = serde_json::json!({
            "chassis_id": "lab", "epoch": 1, "seq": seq, "level": "cap", "echo_boot_id": boot,
            "echo_agent_ms": ms, "chassis_power_w": 500, "chassis_limit_w": 440, "cap_w": watts,
            "fallback_w": watts, "valid_for_ms": 2000
        });

        let (status, text) = lab.order("POST", "s01", "/v1/alert", &body.to_string());
        assert_eq!(status, 200, "{text}");

        serde_json::from_str(&text).expect("a report")
    };

    // A first epoch is remembered once an echo has shown that it is no message from long ago.
    let report = tell(1, None, None);
    tell(2, Some(report.boot_id.as_str()), Some(report.agent_ms));

    // What is obeyed at once is on disk a moment later.
    let memory = lab.home("s01").join("state/memory.json");
    let fallback = format!("\"fallback_w\": {watts}");
    lab.wait("it remembers its fallback", |_| {
        std::fs::read_to_string(&memory).is_ok_and(|text| text.contains(&fallback))
    });
}

fn quotas_of_an_agent_that_was_killed_are_adopted_and_lifted() {
    let mut lab = overloaded();
    let before = lab.limits();
    lab.start("s01");
    lab.wait("ready", |lab| lab.get("s01", "/readyz").0 == 200);
    cap(&lab, 205);
    lab.wait("it is limited", |lab| limited(lab) == 1);
    lab.kill("s01");
    let left = changed(&lab, &before);
    assert!(left.contains(&"cpu.max".to_owned()), "the kill must leave quotas behind: {left:?}");

    // Its next life knows them, and goes on from there under its fallback.
    lab.start("s01");
    // Nobody renews the lease: there is no manager.
    lab.wait("it reads", |lab| lab.agent("s01").is_some_and(|it| it.report.state != AgentState::Boot));
    assert!(lab.get("s01", "/readyz").1.contains("no live lease"));
    assert_eq!(limited(&lab), 1);

    // A VM that is gone gives back what it had, while the others stay limited.
    let gone = lab.agent("s01").unwrap().vms;
    let gone = gone.iter().find(|vm| vm.quota_millicores.is_some()).unwrap();
    let (vm, cpu_max) = (gone.vm.clone(), format!("{}.scope/cpu.max", gone.vm));
    let (status, text) = lab.order("DELETE", "s01", &format!("/v1/vms/{vm}"), "");
    assert_eq!(status, 204, "{text}");
    lab.wait("its bandwidth is back", |lab| {
        let now = lab.limits();
        let file = |path: &&PathBuf| {
            let path = path.to_string_lossy();
            path.contains("/s01/") && path.ends_with(&cpu_max)
        };

        now.iter().filter(|(path, _)| file(path)).all(|(_, text)| text == "max 100000")
    });

    lab.end("s01");
    lab.wait_restored(&before, "");
}

fn another_actuator_after_a_crash_leaves_nothing_of_the_first() {
    let mut lab = overloaded();
    let before = lab.limits();
    let floating = std::fs::read_to_string(lab.config("s01")).unwrap();
    let bound = floating.replace("\"cpu-max\"", "\"pstate\"");
    assert_ne!(floating, bound);
    let count = |lab: &Lab, name: &str| changed(lab, &before).iter().filter(|n| *n == name).count();
    let ready = |lab: &Lab| lab.get("s01", "/readyz").0 == 200;
    lab.start("s01");
    lab.wait("ready", ready);
    cap(&lab, 205);
    lab.wait("VMs are limited", |lab| count(lab, "cpu.max") > 0);

    for (config, own, others) in
        [(&bound, "scaling_max_freq", "cpu.max"), (&floating, "cpu.max", "scaling_max_freq")]
    {
        lab.kill("s01");
        assert!(count(&lab, others) > 0);
        std::fs::write(lab.config("s01"), config).unwrap();
        lab.start("s01");

        // Its fallback holds, by other means.
        lab.wait("it throttles", |lab| count(lab, own) > 0);
        lab.wait("what the other did is undone", |lab| count(lab, others) == 0);
    }

    lab.wait("VMs are bound no more", |lab| count(lab, "cpuset.cpus") == 0);
    lab.end("s01");
    lab.wait_restored(&before, "");
}

fn somebody_elses_limit_is_told_of_and_left() {
    let mut lab = overloaded();
    lab.start_all();
    lab.wait("both servers are limited", |lab| limited(lab) == 2);
    let is_ours = |path: &PathBuf, text: &String| {
        path.ends_with("cpu.max") && path.to_string_lossy().contains("/s01/") && !text.starts_with("max")
    };

    let find =
        |lab: &Lab| lab.limits().into_iter().find(|(path, text)| is_ours(path, text)).map(|(path, _)| path);
    let file = find(&lab).expect("a limited VM");
    std::fs::write(&file, "max 50000\n").unwrap();
    lab.wait("an alarm", |lab| {
        let alarms = lab.agent("s01").map(|agent| agent.alarms).unwrap_or_default();
        alarms.iter().any(|alarm| alarm.message.contains("another program writes"))
    });

    for name in ["chassis", "s01", "s02"] {
        lab.end(name);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "max 50000\n");
}
