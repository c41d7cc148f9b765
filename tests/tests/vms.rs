//! Many VMs, and machines without those who should bind them.

use std::fs;
use std::path::Path;

use ballast_runtime::config::EXIT_CONFIG;
use ballast_testbed::lab::{Lab, steady};
use ballast_testbed::rig::server_root;
use ballast_types::ServerId;
use ballast_types::wire::AlarmId;

ballast_testbed::wall_time![
    a_thousand_vms_are_followed_and_the_budget_holds,
    without_a_bus_vms_count_as_user_facing_and_the_agent_answers,
    without_libvirt_vms_count_as_user_facing_and_the_agent_answers,
    a_vm_that_the_machine_can_never_hold_is_refused_before_anything_runs,
];

/// The VMs that an agent has an alarm with this id about.
fn about(lab: &Lab, id: AlarmId) -> usize {
    lab.agent("s01").map_or(0, |status| status.alarms.iter().filter(|alarm| alarm.id == id).count())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

fn a_thousand_vms_are_followed_and_the_budget_holds() {
    let found = "[[discover]]\npattern = \"machine.slice/found-*.scope\"\ncores = 1\n";
    let mut lab = Lab::with(steady(1, 210, (0.3, 0.95)), "", found);
    let slice = server_root(&lab.tree(), &ServerId::new("s01").unwrap()).join("sys/fs/cgroup/machine.slice");
    let one = fs::read_dir(&slice).unwrap().flatten().next().unwrap().path();
    for n in 0..1000 {
        copy(&one, &slice.join(format!("found-{n:04}.scope")));
    }
    let before = lab.limits();

    lab.start_all();
    // Who does not fit runs anywhere, and is named.
    lab.wait("all are known", |lab| {
        let vms = lab.agent("s01").map_or(0, |status| status.vms.len());
        vms + about(lab, AlarmId::VmLeftOut) > 1000
    });
    lab.wait("the budget holds", Lab::holds);
    for path in ["/v1/status", "/v1/vms", "/metrics", "/healthz"] {
        assert_eq!(lab.get("s01", path).0, 200, "{path}");
    }
    lab.end_all();
    // A hardware cap may stay, where lifting it could be too much.
    lab.wait_restored(&before, "power1_cap");
}

fn without_a_bus_vms_count_as_user_facing_and_the_agent_answers() {
    unbound("systemd", ("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus"));
}

fn without_libvirt_vms_count_as_user_facing_and_the_agent_answers() {
    unbound("libvirt", ("PATH", "/nonexistent"));
}

/// Nobody can bind: every VM is named, and no core of it is lowered.
fn unbound(by: &str, environment: (&str, &str)) {
    let mut lab = Lab::with(steady(1, 600, (0.2, 0.2)), "", &format!("[groups]\nby = {by:?}\n"));
    let before = lab.limits();
    lab.start_with("s01", &[environment]);
    lab.start("chassis");
    lab.wait("ready", |lab| lab.get("s01", "/readyz").0 == 200);
    lab.wait("every VM is named", |lab| {
        let vms = lab.agent("s01").unwrap().vms.len();
        vms > 0 && about(lab, AlarmId::VmNotBound) == vms
    });
    assert_eq!(lab.agent("s01").unwrap().report.low_cores, 0);
    lab.wait("the manager hears it", |lab| lab.get("chassis", "/readyz").0 == 200);
    lab.end_all();
    assert_eq!(lab.limits(), before);
}

fn a_vm_that_the_machine_can_never_hold_is_refused_before_anything_runs() {
    let lab = Lab::new(steady(1, 300, (0.2, 0.2)), "");
    let config = lab.config("s01");
    let text = fs::read_to_string(&config).expect("a config");
    let huge = "[[vm]]\nid = \"huge\"\nclass = \"user-facing\"\ncores = 400\n";
    fs::write(&config, format!("{text}\n{huge}")).expect("a config");

    for more in [&[][..], &["--check-config"]] {
        let args = ["agent", "--config", config.to_str().expect("UTF-8")];
        let output = Lab::ballast(&[&args[..], more].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(i32::from(EXIT_CONFIG)), "{said}");
        assert!(
            said.contains("s01.toml: VM huge: cores = 400: at most 40, the CPUs of this machine"),
            "{said}"
        );
    }
}
