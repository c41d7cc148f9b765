//! The configuration read anew, on SIGHUP: what follows it, what needs a restart, and what is refused.

use std::fs;

use ballast_testbed::lab::{Lab, steady};
use ballast_types::VmClass;
use ballast_types::wire::{AlarmId, ChassisState, Slot};
use nix::sys::signal::Signal;

ballast_testbed::wall_time![
    a_lower_budget_is_taken_without_a_new_epoch_and_without_lifting_a_cap,
    a_refused_configuration_changes_nothing_and_is_an_alarm,
    servers_and_supplies_come_and_go_while_the_manager_runs,
    vms_change_their_class_while_the_agent_runs,
    five_hundred_hangups_end_nobody,
];

/// Replaces text in a daemon's configuration.
fn edit(lab: &Lab, name: &str, from: &str, to: &str) {
    let path = lab.config(name);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}: {text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

/// How often a daemon has read its configuration anew.
fn reloads(lab: &Lab, name: &str) -> usize {
    lab.log(name).matches(" reload ").count()
}

/// Sends SIGHUP, and waits until it is obeyed.
fn reload(lab: &mut Lab, name: &str) {
    let before = reloads(lab, name);
    lab.signal(name, Signal::SIGHUP);
    lab.wait("the configuration is read", |lab| reloads(lab, name) > before);
}

fn alarm(lab: &Lab, id: AlarmId) -> Option<String> {
    let alarms = lab.chassis().unwrap().alarms;
    alarms.into_iter().find(|alarm| alarm.id == id).map(|alarm| alarm.message)
}

fn a_lower_budget_is_taken_without_a_new_epoch_and_without_lifting_a_cap() {
    let mut lab = Lab::new(steady(2, 420, (0.3, 0.95)), "");
    lab.start_all();
    lab.wait("the budget holds", |lab| lab.holds() && lab.chassis().unwrap().state == ChassisState::Alerting);
    let epoch = lab.chassis().unwrap().epoch;

    edit(&lab, "chassis", "budget_w = 420", "log_level = \"debug\"\nbudget_w = 400");
    reload(&mut lab, "chassis");
    lab.wait("it is in force", |lab| lab.chassis().unwrap().budget_w.as_f64() == 400.0);
    lab.wait("it holds", Lab::holds);
    let status = lab.chassis().unwrap();
    assert_eq!((status.epoch, status.state), (epoch, ChassisState::Alerting));
    assert!(status.servers.iter().all(|server| server.granted_w.is_some()), "{status:?}");
    let log = lab.log("chassis");
    assert!(log.contains(r#"changed=["budget_w","log_level"]"#), "{log}");
    assert!(!log.contains("from=alerting to=normal"), "{log}");

    // The most that may be ordered is the new budget.
    assert_eq!(lab.order("PUT", "chassis", "/v1/budget", r#"{"budget_w":410,"force":true}"#).0, 400);
    lab.wait("its log says more", |lab| lab.log("chassis").contains("DEBUG"));
}

fn a_refused_configuration_changes_nothing_and_is_an_alarm() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    lab.start_all();
    edit(&lab, "chassis", "budget_w = 600", "budget_w = 1");
    reload(&mut lab, "chassis");
    let refused = |lab: &Lab| alarm(lab, AlarmId::ReloadRefused);
    lab.wait("it is an alarm", |lab| refused(lab).is_some());
    let why = refused(&lab).unwrap();
    assert!(why.contains("chassis.toml:2: budget_w = 1: above 112 W"), "{why}");
    assert_eq!(lab.chassis().unwrap().budget_w.as_f64(), 600.0);

    // What is good is taken; what only a restart changes is named, and stays so.
    edit(&lab, "chassis", "budget_w = 1", "dry_run = true\nbudget_w = 590");
    for _ in 0..2 {
        reload(&mut lab, "chassis");
        lab.wait("it is in force", |lab| {
            let waits = alarm(lab, AlarmId::RestartNeeded).is_some();
            lab.chassis().unwrap().budget_w.as_f64() == 590.0 && refused(lab).is_none() && waits
        });
        let waits = alarm(&lab, AlarmId::RestartNeeded).unwrap();
        assert!(waits.ends_with("only a restart changes dry_run"), "{waits}");
        assert!(!lab.chassis().unwrap().dry_run);
    }
    edit(&lab, "chassis", "dry_run = true\n", "");
    reload(&mut lab, "chassis");
    lab.wait("nothing waits", |lab| alarm(lab, AlarmId::RestartNeeded).is_none());
    lab.wait("it is ready", |lab| lab.get("chassis", "/readyz").0 == 200);
}

fn servers_and_supplies_come_and_go_while_the_manager_runs() {
    let mut lab = Lab::new(steady(2, 600, (0.2, 0.2)), "");
    let all = fs::read_to_string(lab.config("chassis")).unwrap();
    let (rest, second) = all.rsplit_once("[[server]]").unwrap();
    let second = format!("[[server]]{second}");
    lab.start_all();
    let epoch = lab.chassis().unwrap().epoch;

    edit(&lab, "chassis", &second, "");
    reload(&mut lab, "chassis");
    lab.wait("one is gone", |lab| lab.chassis().unwrap().servers.len() == 1);
    lab.wait("nobody orders it any more", |lab| {
        lab.agent("s02").is_some_and(|status| status.lease_ms.is_none())
    });
    fs::write(lab.config("chassis"), &all).unwrap();
    reload(&mut lab, "chassis");
    lab.wait("it is back", |lab| {
        let status = lab.chassis().unwrap();
        status.servers.len() == 2 && status.servers.iter().all(|server| server.slot == Slot::Managed)
    });

    // A supply that is not there is missing: nobody knows the draw then.
    let more = "[[supply]]\nhwmon = \"none\"\nrated_w = 3000\n";
    fs::write(lab.config("chassis"), format!("{rest}{more}{second}")).unwrap();
    reload(&mut lab, "chassis");
    lab.wait("it is blind", |lab| lab.chassis().unwrap().state == ChassisState::Blind);
    fs::write(lab.config("chassis"), &all).unwrap();
    reload(&mut lab, "chassis");
    lab.wait("it sees", |lab| lab.get("chassis", "/readyz").0 == 200);
    assert_eq!(lab.chassis().unwrap().epoch, epoch);
    assert!(lab.log("chassis").contains(r#"changed=["supply"]"#));
    lab.end_all();
    lab.replay("chassis");
}

fn vms_change_their_class_while_the_agent_runs() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    lab.start_all();
    let low = |lab: &Lab| lab.agent("s01").unwrap().report.low_cores;
    let before = low(&lab);
    assert!(before > 0);
    edit(&lab, "s01", "class = \"non-user-facing\"", "class = \"user-facing\"");
    reload(&mut lab, "s01");
    lab.wait("no core is low any more", |lab| low(lab) == 0);
    let vms = lab.agent("s01").unwrap().vms;
    assert!(vms.iter().all(|vm| vm.class == VmClass::UserFacing), "{vms:?}");

    // More than there is.
    edit(&lab, "s01", "cores = ", "cores = 9");
    reload(&mut lab, "s01");
    let told = |lab: &Lab| lab.get("s01", "/v1/status").1;
    lab.wait("it is refused", |lab| told(lab).contains("reload_refused"));
    assert_eq!(lab.agent("s01").unwrap().vms.len(), vms.len());
    edit(&lab, "s01", "cores = 9", "cores = ");
    edit(&lab, "s01", "class = \"user-facing\"", "class = \"non-user-facing\"");
    reload(&mut lab, "s01");
    lab.wait("all are low", |lab| low(lab) >= before && !told(lab).contains("reload_refused"));
}

fn five_hundred_hangups_end_nobody() {
    let mut lab = Lab::new(steady(1, 600, (0.2, 0.2)), "");
    lab.start_all();
    let epoch = lab.chassis().unwrap().epoch;
    for n in 0..500 {
        let budget = if n % 2 == 0 { "budget_w = 600" } else { "budget_w = 599" };
        let other = if n % 2 == 0 { "budget_w = 599" } else { "budget_w = 600" };
        edit(&lab, "chassis", budget, other);
        lab.signal("s01", Signal::SIGHUP);
        // The kernel makes one of those that come together.
        if n % 10 == 0 {
            reload(&mut lab, "chassis");
            lab.wait("it is ready", |lab| lab.get("chassis", "/readyz").0 == 200);
        } else {
            lab.signal("chassis", Signal::SIGHUP);
        }
    }
    lab.wait("the last one is obeyed", |lab| lab.chassis().unwrap().budget_w.as_f64() == 600.0);
    assert_eq!(lab.chassis().unwrap().epoch, epoch);
    lab.end_all();
}
