//! The supplies' total against the servers' reports.
mod common;

use ballast_types::wire::{ChassisState, EventKind};
use common::{W, World, ms, params};

fn alarms(w: &World) -> usize {
    let is = |e: &&&EventKind| matches!(e, EventKind::Alarm { message } if message.contains("[[supply]]"));
    w.events().iter().filter(is).count()
}

/// Four servers of `each` watts, and a budget of 408 W; one supply of four is listed.
fn one_supply_of_four(each: f64) -> World {
    let mut p = params(4);
    p.budget = W(408);
    let mut w = World::new(p);
    w.total = Some(W(152));
    w.each(|a| a.power = ballast_types::Watts::from_f64(each));
    w
}

#[test]
fn what_servers_report_is_judged_when_a_supply_is_not_listed() {
    let mut w = one_supply_of_four(105.75);
    let s = w.run(ms(1500)).status();
    assert_eq!((s.power_w, s.reported_w), (Some(W(152)), Some(W(423))));
    assert_eq!((s.state, s.alerts), (ChassisState::Alerting, 1), "423 of 408 W");
    assert!(!w.has_alarm("[[supply]]"), "not yet");
    w.run(ms(2500));
    assert!(w.has_alarm("the servers report 423.0 W, the power supplies read 152.0 W"));
    assert_eq!(w.run(ms(12_000)).state(), ChassisState::HardwareCaps, "and they do not obey");
    w.run(ms(60_000));
    assert_eq!(alarms(&w), 1, "once");

    w.each(|a| a.power = Some(W(30)));
    assert!(!w.run(ms(2000)).has_alarm("[[supply]]"), "120 W of 152 W");
    w.each(|a| a.power = Some(W(90)));
    w.run(ms(5000));
    assert_eq!(alarms(&w), 2, "again");
}

#[test]
fn a_server_that_does_not_report_is_left_out_of_the_sum() {
    let mut w = one_supply_of_four(105.75);
    w.agent(0).power = None;
    w.agent(1).power = Some(W(1601)); // above the rating of both supplies
    let s = w.silence(2).run(ms(1500)).status();
    assert_eq!(s.state, ChassisState::Normal);
    assert_eq!(s.reported_w.map(|w| w.to_string()).as_deref(), Some("105.8 W"));
}

#[test]
fn a_load_that_falls_or_moves_begins_no_episode() {
    // Reports come one after the other within 500 ms. Those of the first six servers rise before those
    // of the last six fall: for a moment they add up to 2880 W of 2400 W.
    let mut w = World::new(params(12));
    let load = |w: &mut World, first: i64, last: i64| {
        w.total = Some(W(6 * (first + last) + 20));
        (0..12).for_each(|i| w.agent(i).power = Some(W(if i < 6 { first } else { last })));
    };

    load(&mut w, 140, 240);
    w.run(ms(3000));

    for offset in 0..20 {
        load(&mut w, 240, 140);
        w.run(ms(1000 + 37 * offset));
        load(&mut w, 140, 240);
        w.run(ms(1000 + 53 * offset));
        load(&mut w, 100, 100);
        w.run(ms(1000 + 11 * offset));
    }

    assert_eq!((w.status().alerts, alarms(&w)), (0, 0));
}

#[test]
fn noise_of_the_servers_meters_begins_no_episode() {
    let mut w = World::new(params(12));
    w.total = Some(W(2300)); // as much as the servers draw: nothing is shared
    let mut random = 1_u64;
    for _ in 0..600 {
        for i in 0..12 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // 191.7 W, 3 % up or down.
            let error = (random >> 33) as i64 % 11_500 - 5_750;
            w.agent(i).power = Some(ballast_types::Watts::from_milli(191_700 + error));
        }
        w.run(ms(100));
    }
    let s = w.status();
    assert_eq!((s.state, s.alerts, alarms(&w)), (ChassisState::Normal, 0, 0));
}
