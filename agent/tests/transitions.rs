//! The agent's life, as a table of what goes in and what comes out.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod support;

use core::time::Duration;

use ballast_agent_core::*;
use ballast_types::wire::{AgentState, Alarm, AlarmId, Level, RefusalReason};
use ballast_types::*;
use support::*;

const SOON_FLOORED: &str = "8=1000, 9=1000, 10=1000, 11=1000";

#[test]
fn under_its_cap_nothing_happens_until_a_sample_is_above() {
    let mut it = World::new();
    assert_eq!(it.tell(Some(180)).log(), "remember 1 Some(Watts(204000))");
    it.samples(180, 1);
    assert_eq!((it.log(), it.state()), (String::new(), AgentState::Uncapped));
    it.samples(181, 1);
    assert_eq!(it.log(), format!("{SOON_FLOORED}, Uncapped>Throttled: above the cap"));
}

#[test]
fn above_the_cap_the_classes_reach_the_floor_one_by_one() {
    let mut it = World::new();
    it.draw(150).samples(200, 1);
    let log = it.tell(Some(180)).log();
    let floored = format!("{SOON_FLOORED}, Uncapped>Throttled: above the cap, floor 1.1 4");
    assert!(log.contains(&floored), "{log}");

    // The report is given after the actions, and shows them.
    assert_eq!(it.reports.last().unwrap().state, AgentState::Throttled);
    assert_eq!(it.reports.last().unwrap().min_khz, Some(KiloHertz::from_mhz(1000)));
    assert_eq!(it.samples(200, 1).log(), "", "not settled");
    assert_eq!(it.samples(200, 1).log(), "6=1000, 7=1000");

    // Again too much, but the floor is reached: one step of escalation, not of cores; 1.5 s after the
    // first sample that shows it.
    assert_eq!(it.samples(200, 9).log(), "");
    assert_eq!(it.samples(200, 1).log(), LIMITED);
}

const LIMITED: &str = "limit=180.0 W, Throttled>Shedding: the floor was not enough";

#[test]
fn under_a_lease_the_last_resort_comes_with_the_order_and_goes_with_it() {
    // Floored, and a sample at 11 000 ms is the first that shows world.
    let floored = |draw| {
        let mut world = World::new();
        world.samples(200, 1).tell_level(Some(180), Level::Emergency);
        world.steer(180, 0, false).samples(draw, 4).log();

        world
    };

    let mut world = floored(200);
    assert_eq!(world.samples(200, 20).steer(180, 0, false).log(), "", "without an order");
    assert_eq!(world.steer(180, 0, true).log(), LIMITED);
    // The limit stays as long as the order, even with a low draw.
    assert_eq!(world.samples(150, 5).steer(180, 0, true).samples(150, 5).log(), "");
    let lifted = "limit=free, Shedding>Throttled: the chassis no longer orders the server's own limit";
    assert_eq!(world.steer(180, 0, false).log(), lifted);
    assert_eq!(world.limit, None);

    // Under an order an excess within the meter's noise counts too. A draw at the cap needs no limit.
    assert_eq!(floored(185).steer(180, 0, true).log(), LIMITED);
    assert_eq!(floored(180).steer(180, 0, true).samples(180, 8).log(), "");

    // In an emergency nobody waits.
    let mut world = floored(200);
    assert_eq!(world.tell_level(Some(180), Level::Emergency).log(), LIMITED);
    let mut world = World::new();
    world.samples(200, 1).tell_level(Some(180), Level::Emergency).log();
    assert_eq!(world.samples(200, 1).log(), "", "not settled");
    assert_eq!(world.samples(200, 1).log(), LIMITED);
}

#[test]
fn the_height_moves_low_priority_cores_whatever_the_server_draws() {
    let mut world = World::new();
    world.input(Input::Vms(vec![vm("b", VmClass::NonUserFacing, 0, &[0, 1, 2, 3])]));
    let lowest = |world: &World| world.caps.values().min().copied();

    world.samples(150, 1).steer(180, 1_000_000, false);
    assert_eq!(world.caps.len(), 0, "free");
    world.samples(250, 3).steer(180, 1_000_000, false);
    assert_eq!((world.caps.len(), world.limit), (0, None), "a server may draw more than its cap");
    world.steer(180, 500_000, false);
    let half = lowest(&world).expect("lowered");
    world.samples(100, 3).steer(180, 0, false);
    let floor = lowest(&world).expect("at the floor");
    assert!(floor < half && world.caps.len() == 4, "{floor} {half}");
    world.steer(180, 500_000, false);
    assert_eq!(lowest(&world), Some(half));

    // A late message may lower the height and never raises it.
    world.late(180, 900_000);
    assert_eq!(lowest(&world), Some(half));
    world.late(180, 0);
    assert_eq!(lowest(&world), Some(floor));

    // Without a lease the fallback of 204 W is the cap.
    world.samples(150, 400);
    assert_eq!((world.caps.len(), world.agent.cap()), (0, Some(w(204))));
}

#[test]
fn without_a_lease_the_last_resort_comes_after_its_time() {
    let mut it = World::new();
    it.input(Input::Vms(vec![]));
    it.input(Input::Alert(wire::Alert { valid_for_ms: 30_000, ..alert(1, Some(w(180)), None) }));
    it.log();
    assert_eq!(it.samples(200, 1).log(), "Uncapped>Throttled: above the cap");
    // A draw under the fallback of 204 W needs no limit, although the last cap is lower.
    assert_eq!(it.samples(200, 9).log(), "");
    assert_eq!(it.samples(205, 1).log(), LIMITED.replace("180", "204"));
}

#[test]
fn the_last_resort_follows_the_cap_and_comes_back_at_once_after_it_was_lifted() {
    let mut world = World::new();
    world.samples(200, 1).tell_level(Some(180), Level::Emergency);
    assert!(world.samples(200, 2).log().contains(LIMITED));
    assert_eq!(world.steer(199, 0, true).log(), "limit=199.0 W");
    world.steer(200, 0, false);
    assert_eq!(
        world.log(),
        "limit=free, Shedding>Throttled: the chassis no longer orders the server's own limit"
    );
    // Draw and order come back.
    assert_eq!(world.samples(220, 2).log(), "");
    world.steer(200, 0, true);
    assert_eq!(world.log(), "limit=200.0 W, Throttled>Shedding: the floor was not enough");
}

#[test]
fn a_server_whose_draw_fits_its_cap_drops_nothing_unless_the_chassis_is_over_its_limit() {
    for (power, floored) in [(None, true), (Some(2451), true), (Some(2450), false)] {
        let mut it = World::new();
        // A second before this alert there was a sample, and none since.
        it.pass(500);
        let told = alert(1, Some(w(180)), Some(it.now));
        it.input(Input::Alert(wire::Alert { chassis_power_w: power.map(w), ..told }));
        assert_eq!(it.log().contains(SOON_FLOORED), floored, "{power:?}");
    }
}

/// Both batch VMs are so busy.
fn usage(id: &str, share: f64) -> VmUsage {
    let utilisation = Utilisation::from_ratio(share).unwrap();
    VmUsage { vm: VmId::new(id).unwrap(), utilisation, throttled: false }
}

fn used(it: &mut World, share: f64) {
    it.input(Input::Usage(vec![usage("soon", share), usage("late", share)]));
}

#[test]
fn a_cap_that_falls_within_an_event_is_answered_in_one_write() {
    // Dynamic watts of a core at p-state n.
    let core = |mhz: f64| 198.0 / 12.0 * PowerModel::PAPER.scale(mhz / 1400.0);
    let recovered = |steps, share: Option<f64>| {
        let mut it = World::of(Params { steps, ..params() });
        it.samples(200, 1).tell(Some(190));
        it.samples(150, 40);

        if let Some(share) = share {
            used(&mut it, share);
        }
        assert!(it.caps.is_empty(), "all free again: {:?}", it.caps);
        it.samples(186, 3).log();

        it
    };

    // By the power model: one class to its floor, and the rest by the next.
    let mut it = recovered(Steps::OneWrite, Some(1.0));
    it.tell(Some(160));
    let saved: f64 = it.caps.values().map(|mhz| core(1400.0) - core(f64::from(*mhz))).sum();
    let target = 160.0 * 0.98;
    assert!((186.0 - saved) <= target && (186.0 - saved) > target - 4.0, "{saved}: {:?}", it.caps);

    // A watt less, before a sample shows what was written: that counts already.
    it.samples(186, 1).log();
    assert!(it.tell(Some(159)).log().matches('=').count() <= 1, "{:?}", it.caps);

    // Idle cores shed nothing: all of them to the floor.
    let mut it = recovered(Steps::OneWrite, Some(0.0));
    it.tell(Some(160));
    assert_eq!(it.caps.len(), 6, "{:?}", it.caps);

    // Without any use known: the floor, class by class.
    let mut it = recovered(Steps::OneWrite, None);
    let log = it.tell(Some(160)).log();
    assert!(log.contains(SOON_FLOORED) && it.caps.len() == 4, "{log}");

    // The paper's steps wait for samples.
    let mut it = recovered(Steps::Paper, Some(1.0));
    it.tell(Some(160));
    assert!(it.caps.is_empty(), "{:?}", it.caps);
}

#[test]
fn a_large_server_recovers_as_fast_as_a_small_one() {
    for cores in [20, 40, 192] {
        let mhz = KiloHertz::from_mhz;
        let ladder = Ladder::stepped(mhz(1200), mhz(2400), mhz(100)).unwrap();
        let all: Vec<u16> = (0..cores).collect();
        let params = Params {
            cores: all.iter().map(|n| Core { id: CoreId(*n), ladder: ladder.clone() }).collect(),
            ..params()
        };

        let mut it = World::of(params);
        it.input(Input::Vms(vec![vm("batch", VmClass::NonUserFacing, 0, &all)]));
        used(&mut it, 1.0);
        it.tell(Some(180)).samples(200, 1);
        assert_eq!(it.caps.len(), usize::from(cores));
        let floored = it.now;

        while !it.caps.is_empty() && it.now < floored + 60_000 {
            it.tell(Some(180));

            // As it is in life: read a while after it was taken.
            it.pass(200);
            let (watts, taken_at) = (w(120), ms(it.now - 100));
            it.input(Input::Power(Reading::Sample { watts, taken_at }));
        }

        let took = it.now - floored;
        assert!((3_000..=30_000).contains(&took), "{cores} cores: {took} ms");
    }
}

#[test]
fn a_sample_counts_as_settled_up_to_an_eighth_of_a_period_early() {
    for (early, moves) in [(25, true), (26, false)] {
        let mut it = World::new();
        it.samples(200, 1).tell_level(Some(180), Level::Emergency);
        it.tell(Some(180)).log();
        it.pass(400 - early).draw(150);
        assert_eq!(!it.log().is_empty(), moves, "{early} ms early");
    }
}

#[test]
fn a_sample_from_before_the_alert_counts_with_what_the_draw_may_have_risen_since() {
    // 198 W a second over 200 ms of lag: 39.6 W.
    for (draw, floored) in [(140, false), (141, true)] {
        let mut it = World::new();
        it.samples(draw, 1);
        assert_eq!(it.tell(Some(180)).log().contains(SOON_FLOORED), floored, "{draw} W");
        // What was taken after the alert counts as it is.
        it.samples(179, 1).log();
        assert_eq!(it.tell(Some(180)).log(), "", "{draw} W");
    }
}

#[test]
fn before_the_first_sample_a_calm_chassis_floors_nothing_and_an_alert_does() {
    for (level, floored) in [(Level::Watch, false), (Level::Cap, true)] {
        let mut it = World::with(params(), RecoveredState::default());
        it.input(Input::Vms(vms()));
        let cap = (level == Level::Cap).then(|| w(180));
        it.input(Input::Alert(wire::Alert { level, ..alert(1, cap, None) }));
        assert_eq!(it.log().contains(SOON_FLOORED), floored, "{level:?}");
    }
}

#[test]
fn without_a_current_sample_it_is_taken_to_be_far_above() {
    let mut it = World::new();
    assert!(it.pass(500).tell(Some(1000)).log().contains(SOON_FLOORED));
}

#[test]
fn recovery_is_one_step_per_settled_sample_in_reverse_order() {
    let mut it = World::new();
    it.samples(200, 1).tell_level(Some(180), Level::Emergency).log();
    it.tell(Some(180)).samples(150, 2);

    // The class throttled last is released first.
    assert_eq!(it.log(), "Throttled>Recovering: room under the cap, 6=1100, 7=1100");
    assert_eq!(it.samples(150, 6).log(), "6=1200, 7=1200, 6=1300, 7=1300, 6=free, 7=free");
    assert_eq!(it.samples(150, 2).log(), "8=1100, 9=1100, 10=1100, 11=1100");

    // Target 176.4 W, deadband 1 W: between them nothing moves.
    assert_eq!(it.samples(176, 2).log(), "");
    assert_eq!(it.samples(177, 2).log(), "8=1000, 9=1000, 10=1000, 11=1000");

    // Above the cap in a row: no second floor drop, but larger steps for what is left.
    assert_eq!(it.samples(181, 2).log(), "6=1300, 7=1300");
    it.tell(None);
    assert_eq!(
        it.log(),
        "6=free, 7=free, 8=free, 9=free, 10=free, 11=free, Recovering>Uncapped: the chassis lifted the cap"
    );

    assert!(it.caps.is_empty());
}

#[test]
fn a_run_above_the_cap_makes_larger_steps_or_one_write() {
    for steps in [Steps::Paper, Steps::OneWrite] {
        let mut it = World::with(Params { steps, step_cores: 1, ..params() }, RecoveredState::default());
        it.input(Input::Vms(vms()));
        it.draw(200).tell(Some(180));

        // Up twice: 8 and 9 (class "late" was never lowered).
        it.samples(150, 4).log();
        it.samples(150, 2);

        if steps == Steps::OneWrite {
            assert_eq!(it.log(), "10=1200, 11=1200, 8=1300", "as much as the room allows");

            // Nobody knows what the cores draw: the floor, without waiting for a sample that is settled.
            let log = it.samples(190, 1).log();
            assert!(log.contains("8=1000, 9=1000, 10=1000"), "{log}");
            assert!(log.ends_with("Recovering>Throttled: above the cap"), "{log}");
            continue;
        }

        assert_eq!(it.log(), "10=1100");
        assert_eq!(it.samples(190, 2).log(), "8=1000");
        assert_eq!(it.samples(190, 2).log(), "9=1000, 10=1000");
    }
}

#[test]
fn an_emergency_floors_every_class_and_allows_no_raise() {
    let mut it = World::new();
    let log = it.tell_level(Some(180), Level::Emergency).log();
    assert!(log.contains(&format!("{SOON_FLOORED}, 6=1000, 7=1000")), "{log}");
    it.samples(100, 5);
    assert_eq!((it.log(), it.state()), (String::new(), AgentState::Throttled));
    assert!(it.tell(Some(180)).samples(100, 1).log().contains("6=1100"));
    it.tell_level(Some(180), Level::Emergency);
    assert_eq!(it.log(), "6=1000, 7=1000, Recovering>Throttled: emergency, floor 1.3 2");
}

#[test]
fn the_last_resort_is_lifted_first_and_held_longer_when_the_draw_comes_back() {
    let mut it = World::new();
    it.tell_level(Some(180), Level::Emergency).samples(200, 4);
    it.tell(Some(180)).log();
    assert_eq!((it.state(), it.limit), (AgentState::Shedding, Some(w(180))));
    assert_eq!(it.tell(Some(100)).log(), "limit=150.0 W", "not below what the hardware takes");
    assert_eq!(it.tell(Some(180)).samples(150, 10).log(), "limit=180.0 W");
    it.samples(150, 1);
    assert_eq!(it.log(), "limit=free, Shedding>Throttled: under the target for the hold time");
    assert_eq!(it.samples(190, 1).log(), "", "not settled");
    it.samples(190, 1);
    assert_eq!(it.log(), "limit=180.0 W, Throttled>Shedding: the floor was not enough");
    assert_eq!(it.samples(150, 20).log(), "", "4 s now");
    assert!(it.samples(150, 1).log().contains("limit=free"));
    assert!(it.samples(150, 2).log().contains("6=1100"), "cores rise only without the limit");
}

#[test]
fn silence_and_faults_make_it_blind() {
    let mut it = World::new();
    it.tell(Some(180)).samples(150, 1).log();
    it.pass(599);
    assert_eq!(it.input(Input::Power(Reading::Fault(SensorFault::Implausible))).log(), "");
    let log = it.pass(1).log();
    assert!(log.starts_with("Uncapped>Blind: no power reading, 8=1000"), "{log}");
    assert_eq!(it.caps.len(), 6, "every class");
    assert_eq!(it.report().power_w, None);
    assert_eq!(it.pass(600).log(), "limit=180.0 W");

    // A higher cap raises nothing while it cannot see.
    it.tell(Some(300));
    assert_eq!((it.log(), it.state()), (String::new(), AgentState::Blind));
    assert_eq!(it.draw(150).log(), "Blind>Shedding: a power reading, limit=300.0 W");
    it.pass(600).log();
    assert!(it.tell(None).log().starts_with("limit=free, 6=free"), "a live lease lifts even then");
    assert!(it.caps.is_empty() && it.limit.is_none());
    assert_eq!(it.samples(150, 1).log(), "Blind>Uncapped: a power reading");
}

#[test]
fn a_lost_chassis_means_the_fallback() {
    let mut it = World::new();
    it.seq += 1;
    it.input(Input::Alert(alert(1, None, Some(it.now))));
    it.samples(250, 9).log();
    assert_eq!(it.report().cap_w, None);
    let log = it.samples(250, 1).log();
    assert!(log.contains("Uncapped>Throttled: above the cap"), "{log}");
    assert_eq!(it.report().cap_w, Some(w(204)));
}

#[test]
fn a_lease_that_ends_drops_nothing_where_the_newest_sample_fits_the_fallback() {
    // A meter whose samples are half a second old when they are read.
    for (draw, floored) in [(204, false), (205, true)] {
        let stale_after = Some(Duration::from_secs(2));
        let mut it = World::of(Params { stale_after, ..params() });
        it.input(Input::Alert(alert(1, None, Some(it.now))));
        it.samples(draw, 7).log();
        it.pass(600);
        assert_eq!(it.report().cap_w, Some(w(204)), "the lease has ended");
        assert_eq!(it.log().contains(SOON_FLOORED), floored, "{draw} W");
    }
}

#[test]
fn what_a_previous_instance_restricted_stays_until_a_sample() {
    let mhz = KiloHertz::from_mhz;
    let found = |fallback_w| RecoveredState {
        memory: Memory { epoch: Epoch(1), fallback_w, ..Memory::default() },
        capped: vec![(CoreId(8), mhz(1100)), (CoreId(9), mhz(1250)), (CoreId(99), mhz(1000))],
        server_limit: false,
        quotas: vec![],
    };

    let mut it = World::with(params(), found(None));
    assert_eq!(it.input(Input::Vms(vms())).log(), "");
    assert_eq!(it.draw(150).log(), "8=free, 9=free, Boot>Uncapped: a power reading");

    let mut it = World::with(params(), found(Some(w(200))));
    assert_eq!(it.samples(150, 19).log(), "Boot>Recovering: a power reading");

    // Whatever that life was told to keep under, its leases have run out by now.
    assert_eq!(it.samples(150, 2).log(), "8=1200, 9=1300");

    // A core that is not low-priority is lifted at once.
    it.input(Input::Vms(vec![vm("uf", VmClass::UserFacing, 0, &[8])]));
    assert_eq!(it.log(), "8=free, 9=free");

    // Told to cap before any sample: the floor.
    let mut it = World::with(params(), found(None));
    it.input(Input::Vms(vms()));
    assert!(it.tell(Some(180)).log().contains("floor 1.1 4"));
    assert_eq!(it.state(), AgentState::Boot);
    it.draw(200);
    assert_eq!(it.samples(200, 2).log(), "Boot>Throttled: a power reading, 6=1000, 7=1000");

    let both = RecoveredState { server_limit: true, ..found(Some(w(200))) };
    let mut it = World::with(params(), both.clone());
    assert_eq!(it.draw(150).log(), "Boot>Shedding: a power reading, limit=200.0 W");
    let mut it = World::with(Params { policy: Policy::None, ..params() }, both);
    assert_eq!(it.log(), "limit=free, 8=free, 9=free");
    it.draw(1000).tell_level(Some(100), Level::Emergency);
    it.pass(2000);

    // Core 99 is not one of this server's.
    assert!(it.caps.keys().eq(&[99]) && it.limit.is_none());
}

#[test]
fn a_new_set_of_vms_moves_the_classes_under_a_cap() {
    let mut it = World::new();
    it.samples(200, 1).tell(Some(180)).log();
    it.input(Input::Vms(vec![
        vm("uf", VmClass::UserFacing, 0, &[8]),
        vm("soon", VmClass::NonUserFacing, 1, &[5, 9, 10]),
        vm("new", VmClass::NonUserFacing, 0, &[4]),
        vm("last", VmClass::NonUserFacing, 9, &[7]),
    ]));
    assert_eq!(it.log(), "8=free, 11=free, 5=1000, 4=1000");
    assert_eq!(it.report().low_cores, 5);
}

#[test]
fn no_low_priority_core_leads_to_the_last_resort() {
    let mut it = World::new();
    it.input(Input::Vms(vec![]));
    it.tell(Some(180)).log();
    assert_eq!(it.samples(200, 1).log(), "Uncapped>Throttled: above the cap");
    assert_eq!(it.steer(180, 0, true).log(), LIMITED);
    // Without one to set it says so.
    let mut it = World::with(Params { server_limit_floor: None, ..params() }, RecoveredState::default());
    it.draw(200).tell(Some(180));
    it.samples(200, 20);
    assert!(it.limit.is_none());
    assert_eq!(it.agent.status(ms(it.now)).alarms.len(), 1);
}

#[test]
fn full_server_moves_every_core_together() {
    let mut it = World::with(Params { policy: Policy::FullServer, ..params() }, RecoveredState::default());
    it.input(Input::Vms(vms()));
    it.draw(200).tell(Some(180));
    assert!(it.caps.len() == 12 && it.caps.values().all(|mhz| *mhz == 1000));
    it.samples(150, 2);
    assert!(it.caps.len() == 12 && it.caps.values().all(|mhz| *mhz == 1100));
    it.samples(178, 2);
    assert!(it.caps.values().all(|mhz| *mhz == 1000));
    assert_eq!(it.report().low_cores, 12);
}

#[test]
fn failed_actions_are_tried_again_then_counted() {
    let mut it = World::new();
    it.result = Some(Err(ActuatorError::Transient));
    it.input(Input::Vms(vec![vm("a", VmClass::NonUserFacing, 0, &[5])]));
    let log = it.tell(Some(100)).pass(99).log();
    assert_eq!(log.matches("5=1000").count(), 2, "{log}");
    assert_eq!(it.report().actuator_failures, 0);
    assert_eq!(it.pass(1).log(), "5=1000, core 5 could not be capped at 1000000 kHz, floor 1.1 1");
    assert_eq!(it.report().actuator_failures, 1);

    // Unknown: sheds nothing, but may bring back everything.
    assert_eq!(it.report().sheddable_w, w(0));
    assert!(it.report().restorable_w > w(0));

    // A different wish starts anew; an action without an answer fails after a second.
    it.result = None;
    assert_eq!(it.tell(None).log().matches("5=free").count(), 1);
    assert_eq!(it.pass(1049).log().matches("5=free").count(), 0);
    it.result = Some(Ok(()));
    assert_eq!(it.pass(1).log().matches("5=free").count(), 1);
    let fails = |alarm: &Alarm| alarm.id == AlarmId::ActuatorFailing;
    assert!(!it.agent.status(ms(it.now)).alarms.iter().any(fails));
    assert_eq!(it.agent.poll_timeout().map(|(_, why)| why), Some("the lease ends"));
}

#[test]
fn what_was_given_up_is_mended_later() {
    let mut it = World::new();
    it.samples(200, 1).tell(Some(180));
    it.result = Some(Err(ActuatorError::Permanent));
    it.tell(None).log();
    assert_eq!(it.agent.status(ms(it.now)).alarms.len(), 4);
    it.pass(9_999).log();
    it.pass(1).log();
    assert_eq!(it.report().actuator_failures, 4, "counted once");
    it.result = Some(Ok(()));
    assert_eq!(it.pass(10_000).log(), "8=free, 9=free, 10=free, 11=free");
    assert!(it.caps.is_empty());
}

#[test]
fn a_limit_that_could_not_be_lifted_is_not_set_again() {
    let found = RecoveredState { server_limit: true, ..RecoveredState::default() };
    let mut it = World::with(params(), found);
    it.result = Some(Err(ActuatorError::Permanent));
    it.draw(120);
    it.result = Some(Ok(()));
    it.log();
    assert!(it.report().server_limit, "it may still be on");
    assert_eq!(it.tell(Some(180)).log(), "remember 1 Some(Watts(204000))");
    it.samples(150, 50);
    assert!(it.limit.is_none() && !it.report().server_limit);
}

#[test]
fn enforced_follows_the_meter_and_a_new_epoch() {
    let mut it = World::new();
    it.tell(Some(180));

    // The meter shows a mean over 200 ms that ended 200 ms ago.
    it.pass(399).draw(150);
    assert_eq!(it.report().enforced_seq, None);
    it.pass(1).draw(150);
    assert_eq!(it.report().enforced_seq, Some(Seq(1)));
    let next = wire::Alert { epoch: Epoch(2), ..alert(1, Some(w(180)), None) };
    it.input(Input::Alert(next.clone()));
    assert_eq!(it.report().enforced_seq, None);
    it.input(Input::Alert(next));
    let refusal = it.refusals.pop().unwrap();
    let expected = (RefusalReason::Stale, Epoch(2), Seq(1));
    assert_eq!((refusal.reason, refusal.newest_epoch, refusal.newest_seq), expected);
    assert_eq!(it.agent.status(ms(it.now)).refused_alerts, 1);
}

#[test]
fn leaving_is_said_before_everything_is_lifted_and_obeys_nobody() {
    let mut it = World::new();
    it.tell_level(Some(100), Level::Emergency).samples(200, 4);
    it.input(Input::Leave);
    it.samples(200, 1);
    assert!(it.limit.is_some() && it.caps.len() == 6, "nobody knows yet");
    it.log();
    it.tell_level(Some(90), Level::Emergency);
    assert!(it.limit.is_none() && it.caps.is_empty());
    let last = it.reports.last().unwrap().clone();
    assert!(last.leaving && last.seq_obeyed == Seq(1));
    assert!(last.server_limit && last.min_khz.is_some(), "the report goes first");
    it.log();
    it.tell_level(Some(90), Level::Emergency).samples(200, 1);
    assert_eq!(it.pass(2000).log(), "Uncapped>Blind: no power reading");

    // Nobody asks.
    let mut it = World::new();
    it.tell_level(Some(100), Level::Emergency);
    it.input(Input::Leave);
    it.pass(599);
    assert_eq!(it.caps.len(), 6);
    it.pass(1);
    assert!(it.caps.is_empty());
}

#[test]
fn another_manager_of_the_epoch_is_refused_and_named() {
    let mut it = World::new();
    let from = |instance, seq, now| wire::Alert {
        instance: Some(Instance(instance)),
        ..alert(seq, Some(w(180)), Some(now))
    };
    it.input(Input::Alert(from(1, 1, it.now)));
    it.input(Input::Alert(from(2, 1, it.now)));
    let refusal = it.refusals.pop().unwrap();
    let expected = (RefusalReason::OtherInstance, Epoch(1), Some(Instance(1)));
    assert_eq!((refusal.reason, refusal.newest_epoch, refusal.instance), expected);
    it.pass(300);
    let report = it.report();
    assert_eq!(report.instance_obeyed, Some(Instance(1)));
    let refused = report.refused.unwrap();
    assert_eq!((refused.instance, refused.seq, refused.age_ms), (Instance(2), Seq(1), 300));
    assert_eq!(report.cores, Some(CORES));
}

#[test]
fn estimates_follow_the_model() {
    let mut it = World::new();
    assert_eq!(it.report().sheddable_w, w(0), "unknown use sheds nothing");
    it.input(Input::Usage(vec![usage("soon", 0.5), usage("late", 1.0)]));

    // (4 × 0.5 + 2 × 1) cores × 198 W / 12 × (1 − (1000 / 1400)^1.771)
    let all = 4.0 * 198.0 / 12.0 * (1.0 - PowerModel::PAPER.scale(1000.0 / 1400.0));
    let report = it.report();
    assert_eq!((report.sheddable_w, report.restorable_w), (Watts::from_f64(all).unwrap(), w(0)));
    it.tell_level(Some(180), Level::Emergency);
    let report = it.report();
    assert_eq!((report.sheddable_w, report.restorable_w), (w(0), Watts::from_f64(all).unwrap()));

    // The last resort hides what it holds down. Cores that are known are two thirds busy: with all
    // of them so, unrestricted, 112 + 132 W.
    it.samples(200, 4);
    assert_eq!(it.report().restorable_w, w(244 - 200));
    it.pass(100);
    let vms = it.agent.status(ms(it.now)).vms;
    assert_eq!((vms[0].impact.throttled_core_ms, vms[1].impact.throttled_core_ms), (0, 2 * 900));
    assert_eq!(vms[2].impact.throttled_core_ms, 4 * 900);
}

#[test]
fn odd_parameters_do_no_harm() {
    let mut odd = params();
    odd.cores.clear();
    odd.step_cores = 0;
    odd.actuator_tries = 0;
    odd.sample_period = Duration::ZERO;
    odd.settle = Duration::MAX;
    odd.escalate_after = Duration::ZERO;
    let mut it = World::with(odd, RecoveredState::default());
    it.input(Input::Vms(vms()));
    it.draw(200).tell(Some(-5));
    it.pass(10_000);
    assert_eq!((it.state(), it.limit), (AgentState::Blind, Some(w(150))));
}

#[test]
fn a_class_goes_no_lower_than_its_floor() {
    // 79 % of 1400 MHz: 1200.
    let floors = [(1, 79)].into();
    let mut it = World::of(Params { floors, ..params() });
    used(&mut it, 1.0);
    it.samples(200, 1).tell_level(Some(180), Level::Emergency);
    assert!((8..12).all(|core| it.caps[&core] == 1200), "{:?}", it.caps);
    assert!((6..8).all(|core| it.caps[&core] == 1000), "{:?}", it.caps);
    let report = it.report();
    assert_eq!(report.sheddable_w, w(0), "nothing is left to shed");
    let of: Vec<_> = report.classes.iter().map(|it| (it.class, it.order, it.cores)).collect();
    assert_eq!(of, [(VmClass::NonUserFacing, 1, 4), (VmClass::NonUserFacing, 9, 2)]);
    let restorable: Watts = report.classes.iter().map(|it| it.restorable_w).sum();
    assert!((restorable - report.restorable_w).milli().abs() <= 2, "{report:?}");
    // And that is a floor that is not enough.
    assert!(it.samples(200, 2).log().contains(LIMITED));
}

#[test]
fn user_facing_cores_are_the_last_class_where_that_is_allowed() {
    for allowed in [false, true] {
        let user_facing_floor_percent = allowed.then_some(80);
        let mut it = World::of(Params { user_facing_floor_percent, ..params() });
        used(&mut it, 1.0);
        it.samples(200, 1).tell_level(Some(180), Level::Emergency);
        it.tell(Some(180));
        assert_eq!(it.caps.len(), 6, "not with the others: {:?}", it.caps);
        let report = it.report();
        assert_eq!((report.low_cores, report.sheddable_w), (6, w(0)));
        assert_eq!(report.classes.len(), if allowed { 3 } else { 2 });

        // As much above as noise may be.
        it.samples(184, 5);
        assert_eq!(it.caps.len(), 6, "{:?}", it.caps);
        it.samples(200, 1);
        let web: Vec<_> = (1..4).filter_map(|core| it.caps.get(&core).copied()).collect();
        assert_eq!(web, if allowed { vec![1200; 3] } else { vec![] });

        if !allowed {
            continue;
        }
        let last = *it.report().classes.last().unwrap();
        assert_eq!((last.class, last.cores, last.sheddable_w), (VmClass::UserFacing, 3, w(0)));

        // Only then the server's own limit.
        assert_eq!(it.limit, None);
        it.samples(200, 2).steer(180, 0, true);
        assert_eq!(it.limit, Some(w(180)));

        // They are the first to be lifted.
        let mut it = World::of(Params { user_facing_floor_percent, ..params() });
        it.samples(200, 1).tell_level(Some(180), Level::Emergency);
        it.tell(Some(180)).samples(200, 2);
        assert_eq!(it.caps.len(), 9);
        it.samples(150, 4);
        assert!((1..4).all(|core| !it.caps.contains_key(&core)), "{:?}", it.caps);
        assert_eq!(it.caps.len(), 6, "{:?}", it.caps);
    }
}

#[test]
fn a_jump_of_user_facing_load_is_limited_within_a_second_where_that_is_ordered() {
    let mut it = World::new();
    it.input(Input::Vms(vec![vm("uf", VmClass::UserFacing, 0, &[1, 2, 3])]));
    it.tell(Some(180)).samples(120, 10);
    let (jump, mut echo) = (it.now, it.now);

    for _ in 0..10 {
        // The meter shows a mean of 200 ms that ended 200 ms ago.
        it.pass(100);
        let age = it.now - jump;

        if age.is_multiple_of(200) {
            it.draw(if age < 400 { 120 } else { 300 });
        } else {
            it.seq += 1;
            let told = alert(it.seq, Some(w(180)), Some(echo));
            it.input(Input::Alert(wire::Alert { height_ppm: Some(0), ..told }));
            echo = it.now;
        }

        if it.limit.is_some() {
            break;
        }
    }

    assert!(it.limit == Some(w(180)) && it.now - jump <= 800, "{:?} {}", it.limit, it.now - jump);
}

#[test]
fn a_step_up_takes_a_part_of_the_room() {
    let mhz = KiloHertz::from_mhz;
    let ladder = Ladder::stepped(mhz(1200), mhz(2400), mhz(100)).unwrap();
    let all: Vec<u16> = (0..40).collect();
    let cores = all.iter().map(|n| Core { id: CoreId(*n), ladder: ladder.clone() }).collect();
    let mut it = World::of(Params { cores, ..params() });
    it.input(Input::Vms(vec![vm("soon", VmClass::NonUserFacing, 0, &all)]));
    used(&mut it, 1.0);
    it.tell(Some(180)).samples(200, 1);
    assert_eq!(it.caps.len(), 40);
    it.tell(Some(180)).samples(166, 2);

    // A p-state of one core is 0.29 W. One step takes less than the 9.4 W that are left, and more than the least.
    let steps: u32 = it.caps.values().map(|mhz| (mhz - 1200) / 100).sum();
    assert!((5..30).contains(&steps), "{steps}");
}

#[test]
fn a_dry_run_reports_that_nothing_is_restricted() {
    let mut it = World::of(Params { dry_run: Some("trial".to_owned()), ..params() });
    it.samples(200, 1).tell_level(Some(180), Level::Emergency);
    let report = it.report();
    assert!(report.dry_run);
    assert_eq!((report.enforced_seq, report.low_cores, report.classes.len()), (None, 0, 0));
    assert_eq!((report.min_khz, report.min_share_percent, report.server_limit), (None, None, false));
    assert_eq!((report.sheddable_w, report.restorable_w), (w(0), w(0)));
}

#[test]
fn a_cap_that_falls_at_the_floor_lowers_no_user_facing_core_before_the_draw_shows_that_it_must() {
    let mut it = World::of(Params { user_facing_floor_percent: Some(80), ..params() });
    it.input(Input::Usage(["uf", "soon", "late"].map(|id| usage(id, 1.0)).to_vec()));
    it.samples(200, 1).tell_level(Some(180), Level::Emergency);
    it.tell(Some(180)).samples(179, 3);
    assert_eq!(it.caps.len(), 6, "{:?}", it.caps);
    it.tell(Some(170));
    assert_eq!(it.caps.len(), 6, "{:?}", it.caps);
}
