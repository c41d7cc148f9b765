//! Decisions that the outputs of a chassis show only much later.

use ballast_types::wire::{AgentState, AlarmId, Report};
use ballast_types::{BootId, ChassisId, Supply, SupplyState};

use super::*;
use crate::slots::Bound;
use crate::{Answer, Poll, Server};

const W: fn(i64) -> Watts = Watts::from_whole;

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// A chassis of four servers and 800 W, behind two supplies that carry 1600 W.
fn chassis() -> Chassis {
    let names = (0..4).map(|n| ServerId::new(&format!("s-{n}")).unwrap());
    let servers = names.map(|name| Server::new(name, Some(W(120)))).collect();
    let id = ChassisId::new("c").unwrap();
    let params = Params::defaults(id, W(800), vec![W(800), W(800)], servers);
    Chassis::new(params, Ledger::default(), at(1000))
}

/// A report of 180 W, of which 60 W can be shed; 25 W are held back.
fn report(chassis: &Chassis, i: usize) -> Report {
    Report {
        epoch_obeyed: chassis.identity.epoch(),
        state: AgentState::Uncapped,
        power_w: Some(W(180)),
        sheddable_w: W(60),
        restorable_w: W(25),
        low_cores: 10,
        ..Report::blank(chassis.agents[i].server.id.clone(), BootId::new("b").unwrap())
    }
}

/// Server `i` answers its newest message.
fn answers(chassis: &mut Chassis, now: Instant, i: usize, report: Report) {
    let agent = &chassis.agents[i];
    let (server, seq) = (agent.server.id.clone(), agent.seq);
    let answer = Answer::Report(Box::new(report));
    chassis.handle_input(now, Input::Answer { server, seq, answer });
}

/// The supplies read `total`.
fn reads(chassis: &mut Chassis, now: Instant, total: Watts) {
    let supply = Supply { state: SupplyState::Active, input: Some(total.per(2)) };
    chassis.handle_input(now, Input::Psu(Poll { supplies: vec![supply; 2], taken_at: now }));
}

/// All four servers have reported, and the supplies read 740 W.
fn settled() -> Chassis {
    let mut chassis = chassis();
    reads(&mut chassis, at(1100), W(740));
    for i in 0..4 {
        let report = report(&chassis, i);
        answers(&mut chassis, at(1200), i, report);
    }
    reads(&mut chassis, at(1300), W(740));
    chassis
}

#[test]
fn the_floor_is_the_draw_less_what_the_servers_can_shed() {
    let mut chassis = settled();
    assert_eq!(chassis.floor_of(at(1300), W(740)), W(740 - 4 * 60));
    chassis.agents[3].move_to(at(1300), Slot::Silent, "no answer");
    assert_eq!(chassis.floor_of(at(1300), W(740)), W(740 - 3 * 60), "a silent server sheds nothing");
}

#[test]
fn what_would_come_back_is_what_reports_say_and_what_unheard_servers_may_draw() {
    let chassis = settled();
    let now = at(1300);
    assert_eq!(chassis.restorable(now), W(4 * 25));

    // One that has not reported may rise to an even share, less what certainly is drawn beside the reports.
    let mut unheard = chassis.clone();
    unheard.agents[3].report = None;
    let even = unheard.even();
    assert!(even > W(100), "{even}");
    unheard.unseen = W(0);
    let uncertain = unheard.shared.at(W(740)) - unheard.shared.lower_bound(W(740));
    assert_eq!(unheard.restorable(now), W(3 * 25) + even);
    unheard.unseen = uncertain + W(30);
    assert_eq!(unheard.restorable(now), W(3 * 25) + even - W(30));

    // One that fell silent may rise to its bound.
    let mut silent = chassis;
    silent.agents[3].move_to(now, Slot::Silent, "no answer");
    let bound = silent.may_draw(now, &silent.agents[3], even).map(Bound::watts).unwrap();
    assert!(bound > W(180), "{bound}");
    assert_eq!(silent.restorable(now), W(3 * 25) + bound - W(180));
}

#[test]
fn servers_that_want_more_than_their_targets_lack_watts() {
    let mut chassis = settled();
    for (power, lacking) in [(100, false), (250, true)] {
        for i in 0..4 {
            let hungry = Report { agent_ms: power, power_w: Some(W(power as i64)), ..report(&chassis, i) };
            answers(&mut chassis, at(1200 + power), i, hungry);
        }
        chassis.plan(at(1200 + power));
        assert_eq!(chassis.lacking, lacking, "{power} W");
    }
}

#[test]
fn only_a_silent_server_is_capped_for_its_silence() {
    let mut chassis = settled();
    assert_eq!(chassis.caps_for_silent(at(1300)), []);
    assert!(!chassis.is_capping());
    chassis.event = Some(CappingEvent::new(at(1300)));
    chassis.sighted = false;
    assert!(chassis.is_capping());
    assert_eq!(chassis.caps_for_silent(at(9000)), []);
    chassis.agents[2].move_to(at(1300), Slot::Silent, "no answer");
    let caps = chassis.caps_for_silent(at(9000));
    assert_eq!(caps.iter().map(|&(i, _)| i).collect::<Vec<_>>(), [2]);
    assert!(caps[0].1 >= W(180), "what it drew, at least: {}", caps[0].1);
}

#[test]
fn in_an_emergency_every_server_that_is_on_is_capped_at_its_target() {
    let mut chassis = settled();
    chassis.agents[3].slot = Slot::Off;
    let targets = chassis.hardware_targets();
    let expected: Vec<_> = (0..3).map(|i| (i, targets[i].max(W(120)))).collect();
    let mut caps = chassis.caps_for_all();
    caps.sort();
    assert_eq!(caps, expected);
}

#[test]
fn a_meter_that_says_far_more_than_the_others_leave_is_wrong() {
    let mut chassis = settled();
    let now = at(1300);
    chassis.find_wrong_meter(now, W(740));
    assert!(chassis.agents.iter().all(|agent| agent.wrong_above().is_none()));
    chassis.agents[1].report.as_mut().unwrap().power_w = Some(W(700));
    chassis.find_wrong_meter(now, W(740));
    let wrong: Vec<_> = chassis.agents.iter().map(|agent| agent.wrong_above().is_some()).collect();
    assert_eq!(wrong, [false, true, false, false]);
    // The others leave 200 W. Twice that and 10 % of the reading are 474 W.
    for (before, power, is_wrong) in [
        (None, W(474), false),
        (None, W(474) + Watts::from_milli(1), true),
        // Once it is wrong, 5 % above what the others leave suffice: 237 W. Above 380 W no other meter explains it.
        (Some(W(474)), W(400), true),
        (Some(W(474)), W(370), false),
    ] {
        chassis.agents[1].meter_is_wrong(before);
        chassis.agents[1].report.as_mut().unwrap().power_w = Some(power);
        chassis.find_wrong_meter(now, W(740));
        assert_eq!(chassis.agents[1].wrong_above().is_some(), is_wrong, "{before:?} {power}");
    }
    // Of two servers that report, either may be wrong.
    (0..2).for_each(|i| chassis.agents[i].meter_is_wrong(None));
    (2..4).for_each(|i| chassis.agents[i].report = None);
    chassis.find_wrong_meter(now, W(740));
    assert!(chassis.agents.iter().all(|agent| agent.wrong_above().is_none()));
}

/// The order for own limits stays while the floor is within 0.5 % of the limit, or above.
#[test]
fn own_limits_stay_ordered_while_the_floor_is_near_the_limit() {
    for (floor, stays) in [(801, true), (797, true), (795, false), (700, false)] {
        let mut chassis = settled();
        let mut event = CappingEvent::new(at(1300));
        event.own_limits_since = Some(at(1300));
        event.follow_floor(W(floor), W(10));
        chassis.event = Some(event);
        let range = Range { down: W(100), up: W(0) };
        chassis.order_own_limits(at(1300), W(740), range);
        assert_eq!(chassis.own_limits_since(), stays.then(|| at(1300)), "{floor} W");
    }
}

fn alarms(chassis: &Chassis, wanted: AlarmId) -> usize {
    chassis.status(at(1300)).alarms.iter().filter(|alarm| alarm.id == wanted).count()
}

#[test]
fn a_hardware_cap_that_is_too_high_or_missing_is_an_alarm() {
    // The lowest cap is 120 W.
    for (cap, target, slot, too_high) in [
        (120, 100, Slot::Managed, 1),
        (120, 100, Slot::Off, 0),
        (120, 120, Slot::Managed, 0),
        (130, 100, Slot::Managed, 0),
    ] {
        let mut chassis = settled();
        let agent = &mut chassis.agents[1];
        agent.out_of_band.set(at(1300), ActionId(1), W(cap), Duration::from_secs(5));
        (agent.target, agent.slot) = (W(target), slot);
        assert_eq!(alarms(&chassis, AlarmId::HardwareCapOn), 1);
        assert_eq!(alarms(&chassis, AlarmId::HardwareCapTooHigh), too_high, "{cap} {target} {slot:?}");
    }
    for (has_event, floor, missing) in
        [(true, None, 1), (true, Some(W(120)), 0), (false, None, 0), (false, Some(W(120)), 0)]
    {
        let mut chassis = settled();
        chassis.event = has_event.then(|| CappingEvent::new(at(1300)));
        chassis.agents[1].server.out_of_band_floor = floor;
        chassis.agents[1].move_to(at(1300), Slot::Silent, "no answer");
        assert_eq!(alarms(&chassis, AlarmId::HardwareCapMissing), missing, "{has_event} {floor:?}");
    }
}

/// With every low-priority core at its floor long enough, a floor above a reading's noise needs the servers' own limits.
#[test]
fn own_limits_are_ordered_when_the_floor_is_above_the_limit() {
    let noise = settled().limit().ppm(settled().params.noise_ppm);
    for (floor, height_is_shown, ordered) in
        [(W(801) + noise, true, true), (W(800) + noise, true, false), (W(850), false, false)]
    {
        let mut chassis = settled();
        let mut event = CappingEvent::new(at(0));
        event.follow_floor(floor, W(10));
        chassis.event = Some(event);
        chassis.height.drop_to_floor(if height_is_shown { at(0) } else { at(1300) });
        chassis.order_own_limits(at(1300), W(740), Range { down: W(100), up: W(0) });
        assert_eq!(chassis.own_limits_since().is_some(), ordered, "{floor} {height_is_shown}");
    }
}

#[test]
fn a_draw_above_the_aim_lowers_the_height_and_one_below_raises_it() {
    for (aim, falls) in [(700, true), (780, false)] {
        let mut chassis = settled();
        chassis.event = Some(CappingEvent::new(at(1300)));
        chassis.height = Height::at(Range { down: W(50), up: W(50) });
        chassis.steer(at(1300), W(740), W(aim));
        let height = chassis.height.ppm(1);
        assert_eq!((height < 500_000, height > 500_000), (falls, !falls), "aim {aim} W: {height}");
    }
}
