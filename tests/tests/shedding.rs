//! Killing VMs that prefer it, end to end: real daemons, a rig instead of hardware.

use std::fs;

use ballast_testbed::lab::{Lab, steady};
use ballast_types::wire::AgentStatus;
use ballast_types::{OnExtreme, VmClass};

ballast_testbed::wall_time![
    a_vm_that_prefers_it_dies_and_leaves_the_set_and_everybody_else_stays,
    without_the_agents_own_key_nobody_dies,
];

/// Two servers that draw some 8 W more than their share even at the floor; `batch1` may be killed.
fn extreme(config: &str) -> Lab {
    let mut spec = steady(2, 428, (0.95, 1.0));
    let batch = |vm: &&mut ballast_sim::plant::VmLoad| vm.class == VmClass::NonUserFacing;
    for vm in spec.servers.iter_mut().flat_map(|server| &mut server.vms).filter(batch) {
        if vm.id.as_str() == "batch1" {
            vm.on_extreme = OnExtreme::Kill;
        }
    }
    let lab = Lab::new(spec, "");
    for name in lab.servers() {
        let file = lab.config(&name);
        let text = fs::read_to_string(&file).expect("a config");
        fs::write(&file, format!("{text}{config}")).expect("a config");
    }
    lab
}

fn has(status: &AgentStatus, vm: &str) -> bool {
    status.vms.iter().any(|status| status.vm.as_str() == vm)
}

/// The VMs that the plant says were killed.
fn dead(lab: &mut Lab) -> Vec<String> {
    let rig = lab.end_rig();
    let killed = rig.plant().truth().vms.iter().filter(|vm| vm.killed_at_s.is_some());
    killed.map(|vm| format!("{}/{}", vm.server, vm.vm)).collect()
}

fn a_vm_that_prefers_it_dies_and_leaves_the_set_and_everybody_else_stays() {
    let mut lab = extreme("[shedding]\nallow_kill = true\n");
    lab.start_all();
    lab.wait("both servers have killed one VM, and it is gone", |lab| {
        let done = |name: &String| {
            lab.agent(name).is_some_and(|agent| agent.vm_kills == 1 && !has(&agent, "batch1"))
        };
        lab.servers().iter().all(done)
    });

    let status = lab.agent("s01").unwrap();
    assert_eq!(status.last_vm_kills[0].vm.as_str(), "batch1");
    assert!(status.last_vm_kills[0].power_w > status.last_vm_kills[0].cap_w);
    assert!(has(&status, "web0") && has(&status, "batch0") && has(&status, "batch2"));
    assert!(status.vms.iter().any(|vm| vm.impact.floor_core_ms > 0), "{status:?}");
    let (_, metrics) = lab.get("s01", "/metrics");

    for line in [
        "ballast_agent_vm_kills_total 1",
        "ballast_agent_vm_killed{class=\"user-facing\",vm=\"web0\"} 0",
        "ballast_agent_vm_lost_core_seconds_total{class=\"non-user-facing\",vm=\"batch0\"} ",
    ] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }

    assert!(!metrics.contains("batch1"), "labels of a VM that is gone: {metrics}");
    assert!(!lab.get("s01", "/v1/vms").1.contains("batch1"));

    for name in ["chassis", "s01", "s02"] {
        lab.end(name);
    }
    lab.replay("s01");
    assert_eq!(dead(&mut lab), ["s01/batch1", "s02/batch1"]);
}

fn without_the_agents_own_key_nobody_dies() {
    let mut lab = extreme("");
    lab.start_all();
    lab.wait("both servers are at the floor, and use their own limit", |lab| {
        let limited = |name: &String| lab.agent(name).is_some_and(|agent| agent.report.server_limit);
        lab.servers().iter().all(limited)
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    for name in lab.servers() {
        let status = lab.agent(&name).unwrap();
        assert!(status.vm_kills == 0 && has(&status, "batch1"), "{status:?}");
        let limited = |vm: &ballast_types::wire::VmStatus| vm.impact.limited_core_ms > 0;
        assert!(status.vms.iter().all(limited), "the limit hits every VM: {status:?}");
    }
    assert_eq!(dead(&mut lab), Vec::<String>::new());
}
