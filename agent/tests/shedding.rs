//! Killing VMs whose tenants prefer that: when it happens, in which order, and when it must not.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod support;

use core::time::Duration;

use ballast_agent_core::*;
use ballast_types::wire::{AgentState, Level};
use ballast_types::*;
use support::*;

fn may_kill() -> Params {
    Params { kill_after: Some(Duration::from_millis(600)), ..params() }
}

/// The support's VMs, and which of them prefer to be killed.
fn preferring(kill: &[&str]) -> Vec<ControlledVm> {
    let mut vms = vms();
    for vm in vms.iter_mut().filter(|vm| kill.contains(&vm.id.as_str())) {
        vm.on_extreme = OnExtreme::Kill;
    }
    vms
}

/// Every low-priority core at its floor since now, and told to stay under 180 W.
fn floored(params: Params, vms: Vec<ControlledVm>) -> World {
    let mut it = World::with(params, RecoveredState::default());
    it.input(Input::Vms(vms));
    it.draw(150).samples(200, 1);
    it.tell_level(Some(180), Level::Emergency).tell(Some(180)).log();
    it
}

fn status(it: &World) -> wire::AgentStatus {
    it.agent.status(ms(it.now))
}

#[test]
fn the_kill_comes_before_the_servers_own_limit_which_comes_when_it_always_did() {
    for (params, kill, before) in [
        (params(), vec![], ""),
        (params(), vec!["soon", "late"], ""),
        (may_kill(), vec![], ""),
        // Even one that a wrong set calls killable.
        (may_kill(), vec!["uf"], ""),
        (may_kill(), vec!["soon", "late"], "kill soon"),
        (may_kill(), vec!["late"], "kill late"),
    ] {
        let mut it = floored(params, preferring(&kill));
        assert_eq!(it.samples(200, 2).log(), "", "{kill:?}");
        let log = it.samples(200, 1).log();
        assert!(log.starts_with(before), "{kill:?}: {log}");
        assert_eq!(log.contains("VmKilled"), !before.is_empty(), "{kill:?}: {log}");

        // 1.5 s after the first sample that shows the floor.
        it.samples(200, 6);
        assert!(!it.log().contains("limit"), "{kill:?}");
        it.samples(200, 1);
        let limit = "limit=180.0 W, Throttled>Shedding: the floor was not enough";
        assert!(it.log().contains(limit), "{kill:?}");
    }
}

/// What each of ten samples of 200 W brought.
fn ten_logs(it: &mut World) -> Vec<String> {
    let log = |_| {
        it.samples(200, 1);
        it.log()
    };
    (0..10).map(log).collect()
}

#[test]
fn an_order_sets_the_limit_no_sooner_than_the_kill() {
    let mut world = floored(may_kill(), preferring(&["soon"]));
    for _ in 0..2 {
        world.samples(200, 1);
        assert_eq!(world.steer(180, 0, true).log(), "");
    }
    let log = world.samples(200, 1).steer(180, 0, true).log();
    let limit = "limit=180.0 W, Throttled>Shedding: the floor was not enough";
    assert!(log.starts_with("kill soon") && log.contains(limit), "{log}");

    // Without an order there is neither a kill nor a limit.
    let mut world = floored(may_kill(), preferring(&["soon"]));
    assert_eq!(world.steer(180, 0, false).samples(200, 20).log(), "");
}

#[test]
fn kills_that_come_sooner_than_the_limit_do_not_delay_it() {
    let sooner = Params { kill_after: Some(Duration::from_millis(200)), ..params() };
    let mut it = floored(sooner, preferring(&["soon", "late"]));
    let logs = ten_logs(&mut it);
    let at = |what: &str| logs.iter().position(|log| log.contains(what));
    // Settled at 400 ms, and once more; there is time for both, each shown by settled samples.
    assert_eq!((at("kill soon"), at("kill late")), (Some(2), Some(5)), "{logs:?}");
    assert_eq!(at("limit=180.0 W"), Some(9), "{logs:?}");
}

#[test]
fn one_that_is_enough_spares_the_rest_and_the_limit() {
    let sooner = Params { kill_after: Some(Duration::from_millis(200)), ..params() };
    let mut it = floored(sooner, preferring(&["soon", "late"]));
    assert!(it.samples(200, 3).log().contains("kill soon"));
    let log = it.samples(170, 20).log();
    assert!(!log.contains("kill") && !log.contains("limit"), "{log}");
    let seen = status(&it);
    let killed: Vec<_> = seen.vms.iter().filter(|vm| vm.killed).map(|vm| vm.vm.as_str()).collect();
    assert_eq!((killed, seen.vm_kills), (vec!["soon"], 1));
    let kill = &seen.last_vm_kills[0];
    assert_eq!((kill.vm.as_str(), kill.power_w, kill.cap_w), ("soon", w(200), w(180)));
    // The VM is gone; the kill is remembered, and one of the same name would be another VM.
    it.input(Input::Vms(preferring(&["late"]).into_iter().take(2).collect()));
    assert_eq!((status(&it).vm_kills, status(&it).last_vm_kills.len()), (1, 1));
    it.input(Input::Vms(preferring(&["soon", "late"])));
    assert!(status(&it).vms.iter().all(|vm| !vm.killed));
}

#[test]
fn under_the_servers_own_limit_noise_around_the_cap_kills_nobody() {
    let mut it = floored(may_kill(), preferring(&["soon", "late"]));
    assert!(it.samples(200, 3).log().contains("kill soon"));
    it.steer(180, 0, true).log();
    assert_eq!(it.state(), AgentState::Shedding);
    assert_eq!(it.samples(184, 50).log(), "");
    // But the limit cannot hold it either.
    assert!(it.samples(185, 5).log().starts_with("kill late"));
    it.samples(200, 50);
    assert!(!it.log().contains("kill"));
}

#[test]
fn nobody_is_killed_by_a_stale_order_a_lost_meter_or_while_only_watching() {
    // The lease has ended: what holds is the fallback.
    let mut it = World::with(may_kill(), RecoveredState::default());
    it.input(Input::Vms(preferring(&["soon", "late"])));
    it.draw(150);
    it.input(Input::Alert(wire::Alert { level: Level::Cap, ..alert(1, Some(w(180)), None) }));
    let log = it.samples(230, 20).log();
    assert!(log.contains("limit=204.0 W") && !log.contains("kill"), "late: {log}");

    let mut it = floored(may_kill(), preferring(&["soon", "late"]));
    it.seq += 1;
    it.input(Input::Alert(alert(it.seq, Some(w(180)), Some(it.now - 1900))));
    it.samples(230, 2).pass(5000);
    assert_eq!(it.state(), AgentState::Blind);
    let log = it.samples(230, 20).log();
    assert!(log.contains("limit=") && !log.contains("kill"), "blind, then the lease over: {log}");

    // A cap below a watch: the chassis is calm.
    let mut it = floored(may_kill(), preferring(&["soon", "late"]));
    it.tell_level(Some(180), Level::Watch).samples(230, 20);
    assert!(!it.log().contains("kill"));

    let watching = Params { policy: Policy::None, ..may_kill() };
    let mut it = floored(watching, preferring(&["soon", "late"]));
    assert_eq!(it.samples(230, 20).log(), "");
}

#[test]
fn a_core_that_does_not_obey_is_not_at_its_floor() {
    let mut it = World::with(may_kill(), RecoveredState::default());
    it.input(Input::Vms(preferring(&["soon", "late"])));
    it.draw(150).samples(200, 1);
    it.result = Some(Err(ActuatorError::Permanent));
    it.tell_level(Some(180), Level::Emergency).samples(200, 20);
    assert!(!it.log().contains("kill"));
    // Mended: now it is extreme.
    it.result = Some(Ok(()));
    assert!(it.samples(200, 100).log().contains("kill soon"));
}

#[test]
fn a_floating_vm_is_killed_only_when_every_quota_is_at_its_floor_and_set() {
    for (set, killed) in [(true, true), (false, false)] {
        let mut it =
            World::with(Params { actuator: Actuator::CpuMax, ..may_kill() }, RecoveredState::default());
        it.input(Input::Vms(preferring(&["soon", "late"])));
        it.draw(150).samples(200, 1);
        it.result = set.then_some(Ok(()));
        it.tell_level(Some(180), Level::Emergency).tell(Some(180));
        it.samples(200, 3).tell_level(Some(180), Level::Emergency);
        let log = it.samples(200, 1).log();
        assert_eq!(log.contains("kill soon"), killed, "{log}");
        assert!(log.contains("limit=180.0 W"), "{log}");
        let seen = status(&it);
        let soon = seen.vms.iter().find(|vm| vm.vm.as_str() == "soon").unwrap();

        // Four slots at 1.0 of 1.4 GHz, for 800 ms.
        assert_eq!((soon.impact.floor_core_ms, soon.impact.lowest_khz), (3200, None));
        assert_eq!(soon.impact.lost_core_ms, 914);
    }
}

#[test]
fn a_kill_that_fails_is_tried_again_a_few_times_while_it_is_extreme_and_then_the_next_one() {
    let mut it = floored(may_kill(), preferring(&["soon", "late"]));
    it.samples(200, 2);
    it.result = Some(Err(ActuatorError::Transient));
    let mut log = String::new();

    while !log.contains("VM soon could not be killed") {
        assert!(it.now < 20_000 && !log.contains("kill late"), "{log}");
        it.samples(200, 1);
        log += &it.log();
    }

    assert_eq!(log.matches("kill soon").count(), 3, "{log}");
    it.result = Some(Ok(()));
    let log = it.samples(200, 10).log();
    assert!(log.contains("kill late") && !log.contains("kill soon"), "{log}");
    let seen = status(&it);
    assert_eq!(seen.vm_kills, 1);
    assert!(
        seen.alarms.iter().any(|alarm| alarm.message == "VM soon could not be killed"),
        "{:?}",
        seen.alarms
    );
    assert!(seen.report.actuator_failures > 0);

    // One that nobody answers counts as failed after a second, and no other dies meanwhile.
    let mut it = floored(may_kill(), preferring(&["soon", "late"]));
    it.samples(200, 2);
    it.result = None;
    assert_eq!(it.samples(200, 4).log().matches("kill").count(), 1);
    let log = it.samples(200, 4).log();
    assert_eq!((log.matches("kill soon").count(), log.matches("kill late").count()), (1, 0), "{log}");

    // And none at all when it is not extreme any more.
    it.samples(150, 50);
    assert!(!it.log().contains("kill"));
}
