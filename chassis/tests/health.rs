//! Silence, stalls, and answers that say nothing.
mod common;

use std::time::Duration;

use ballast_chassis_core::{Answer, Input, Params, Poll};
use ballast_types::wire::{ChassisState, ChassisStatus, EventKind, Level, Refusal, RefusalReason, Slot};
use ballast_types::{BootId, Epoch, Seq, Supply, SupplyState, Watts};
use common::{W, World, ms, name, params};

#[test]
fn a_silent_server_in_a_calm_chassis_is_an_alarm_not_a_cap() {
    let mut w = World::after(params(4), ms(2000));
    assert!(!w.silence(1).run(ms(1000)).has_alarm("silent"));
    let s = w.run(ms(1000)).status();
    assert_eq!((s.servers[1].slot, s.state), (Slot::Silent, ChassisState::Normal));
    assert!(w.has_alarm("s-01 is silent: no answer"));
    assert!(w.caps().is_empty() && !w.levels().contains(&Level::Cap));
    assert!(w.events().iter().any(|e| matches!(e, EventKind::SlotChanged { to: Slot::Silent, .. })));
    w.agent(1).answers = true;
    assert_eq!(w.run(ms(600)).status().servers[1].slot, Slot::Managed);
    assert!(!w.has_alarm("silent"));
}

#[test]
fn an_own_stall_is_nobodys_death() {
    for stall in [1600, 5000, 60_000] {
        let mut w = World::in_event(params(4), W(790));
        w.run(ms(2000));
        w.agent(1).answers = false;
        w.clear();
        // Nothing is read for so long; then everything at once.
        w.now += ms(stall);
        w.run(ms(2500));
        let silent = |e: &&&EventKind| matches!(e, EventKind::SlotChanged { to: Slot::Silent, .. });
        assert_eq!(w.events().iter().filter(silent).count(), 1, "{stall}: {:?}", w.events());
        assert_eq!(w.status().servers[1].slot, Slot::Silent, "that one has died");
        assert!(w.caps().iter().all(|(server, _)| *server == name(1)), "{stall}: {:?}", w.caps());
    }
}

#[test]
fn fallbacks_follow_need_and_fit() {
    let mut w = World::new(params(4));
    w.beside = Some(W(0));

    // Unlike each other; all of it fits. An even share would be 200 W.
    for (i, power) in [350, 120, 100, 130].into_iter().enumerate() {
        w.agent(i).power = Some(W(power));
    }
    w.run(ms(30_000));

    // When less may be shared they are lowered with the next message: within a heartbeat.
    let mut before = w.status().sharable_w;
    let mut check = |w: &World, covered: bool| {
        let sharable = w.status().sharable_w;
        assert!(w.fallbacks() <= sharable.max(before), "{} of {sharable}", w.fallbacks());
        before = sharable;

        for i in 0..4 {
            let fallback = w.alerts_to(i).last().unwrap().1.fallback_w;
            let draw = w.agents[&name(i)].draw().unwrap();
            assert!(!covered || fallback >= draw, "s-0{i}: {fallback} for {draw}");
        }
    };

    check(&w, true);

    // The load moves: who needs more gets it once the others are known to have less.
    for (i, power) in [100, 120, 350, 130].into_iter().enumerate() {
        w.agent(i).power = Some(W(power));
    }
    for _ in 0..60 {
        w.run(ms(500));
        check(&w, false);
    }

    check(&w, true);
    w.input(Input::Budget(Some(W(500))));
    w.run(ms(300));
    check(&w, false);
    w.run(ms(300));
    check(&w, false);
    w.input(Input::Budget(None)).run(ms(60_000));
    check(&w, true);
}

#[test]
fn the_reserve_of_a_server_that_comes_back_is_freed_when_it_obeys() {
    let mut p = params(4);
    p.servers[1].out_of_band_floor = None;
    let mut w = World::new(p);
    w.beside = Some(W(0));
    w.agents.values_mut().for_each(|a| (a.power, a.capped) = (Some(W(210)), true));
    w.run(ms(5000));
    w.silence(1).run(ms(2000));
    let s = w.input(Input::Budget(Some(W(600)))).status();
    let before = s.servers[1].reserved_w;
    let granted = w.alerts_to(1).last().unwrap().1.cap_w.unwrap();
    assert!(before >= granted && granted >= W(150), "it may still hold what it was granted");
    let others = |s: &ChassisStatus| [0, 2, 3].iter().map(|&i| s.servers[i].granted_w.unwrap()).sum();
    let less: Watts = others(&s);
    assert!(less + before <= s.sharable_w);
    w.agent(1).answers = true;
    let s = w.run(ms(1000)).status();
    let reserved: Watts = s.servers.iter().map(|x| x.reserved_w).sum();
    assert!(reserved <= s.sharable_w && s.servers[1].reserved_w < before, "{s:?}");
    assert!(others(&s) > less);
}

#[test]
fn numbers_of_a_previous_instance_free_nothing() {
    let mut p = params(4);
    p.servers[1].out_of_band_floor = None;
    let mut w = World::new(p);
    w.reads(W(790)).run(ms(3000));
    w.silence(1).run(ms(2000));
    w.input(Input::Budget(Some(W(600))));
    let others = |w: &World| w.granted() - w.status().servers[1].granted_w.unwrap();
    let before = others(&w);
    let alert = w.alerts_to(1).last().unwrap().1.clone();
    let mut report = common::report(&name(1), w.now, &alert, &w.agents[&name(1)]);
    (report.epoch_obeyed, report.enforced_seq) = (Epoch(0), Some(Seq(1_000_000)));
    let answer = Answer::Report(Box::new(report));
    let s = w.input(Input::Answer { server: name(1), seq: alert.seq, answer }).status();
    assert_eq!(s.servers[1].slot, Slot::Managed);
    assert!(others(&w) <= before, "the others do not get what it may hold");
}

#[test]
fn a_leaving_agent_is_expected_to_be_silent() {
    let mut w = World::after(params(4), ms(2000));
    w.agent(1).leaving = true;
    assert_eq!(w.run(ms(600)).status().servers[1].slot, Slot::Silent);
    assert!(w.has_alarm("s-01 is silent: leaving"));
    w.run(ms(1000));
    let moves = w.events().iter().filter(|e| matches!(e, EventKind::SlotChanged { .. })).count();
    assert_eq!(moves, 1, "it says so in every report");
    w.agent(1).leaving = false;
    assert_eq!(w.run(ms(600)).status().servers[1].slot, Slot::Managed);
}

/// The newest message to server 0.
fn newest(w: &World) -> ballast_types::wire::Alert {
    w.alerts_to(0).last().expect("a message").1.clone()
}
fn refuse(w: &mut World, seq: Seq, reason: RefusalReason, epoch: u64, newest_seq: u64) {
    let refusal = Refusal { reason, newest_epoch: Epoch(epoch), newest_seq: Seq(newest_seq), instance: None };
    w.input(Input::Answer { server: name(0), seq, answer: Answer::Refused(refusal) });
}

#[test]
fn a_server_that_will_not_obey_is_silent() {
    for reason in [RefusalReason::ForeignChassis, RefusalReason::EpochJump] {
        let mut w = World::after(params(4), ms(2000));
        w.silence(0).run(ms(500));
        let seq = newest(&w).seq;
        refuse(&mut w, seq, reason, 9, 9);
        assert_eq!(w.status().servers[0].slot, Slot::Silent);
        assert!(w.has_alarm("s-00 is silent: "));
    }
}

#[test]
fn old_and_foreign_answers_change_nothing() {
    let mut w = World::after(params(4), ms(3000));
    let (at, alert) = w.alerts_to(0).last().map(|&(t, a)| (t, a.clone())).unwrap();
    let agent = &w.agents[&name(0)];
    let good = common::report(&name(0), at, &alert, agent);
    let before = w.status();
    let mut older = good.clone();
    older.agent_ms -= 1;
    older.power_w = Some(W(1));
    let mut foreign = good.clone();
    foreign.server = name(1);
    foreign.agent_ms += 10;
    let mut rebooted = good.clone();
    rebooted.boot_id = BootId::new("boot-0").unwrap();

    for (seq, report) in [
        (alert.seq, good.clone()),            // twice
        (alert.seq, older),                   // overtaken
        (alert.seq, foreign),                 // somebody else's
        (Seq(alert.seq.0 - 1), rebooted),     // from before the reboot
        (Seq(alert.seq.0 + 5), good.clone()), // never sent
        (Seq(0), good),
    ] {
        w.input(Input::Answer { server: name(0), seq, answer: Answer::Report(Box::new(report)) });
    }

    let after = w.status();
    assert_eq!(after.refused_inputs, before.refused_inputs + 6);
    assert_eq!(after.servers, before.servers);
}

#[test]
fn an_answer_is_as_old_as_its_message() {
    let mut w = World::after(params(4), ms(2000));
    w.silence(0).run(ms(500));
    let (_, alert) = w.alerts_to(0).last().map(|&(t, a)| (t, a.clone())).unwrap();
    assert_eq!(w.run(ms(3000)).status().servers[0].slot, Slot::Silent);
    let report = common::report(&name(0), w.now, &alert, &w.agents[&name(0)]);
    w.input(Input::Answer { server: name(0), seq: alert.seq, answer: Answer::Report(Box::new(report)) });
    assert_eq!(w.status().servers[0].slot, Slot::Silent, "three seconds under way");
}

#[test]
fn nothing_configured_does_not_panic() {
    let zero = Duration::ZERO;
    let p = Params {
        servers: vec![],
        supply_rated: vec![],
        budget: W(-1),
        poll_period: zero,
        heartbeat: zero,
        lift_hold: zero,
        lift_stagger: zero,
        lease: zero,
        silent_after: zero,
        ..params(1)
    };

    World::after(p.clone(), ms(50));
    let mut w = World::after(Params { servers: params(3).servers, ..p }, ms(50));
    let supply = Supply { state: SupplyState::Active, input: Some(Watts::MAX) };
    w.input(Input::Psu(Poll { supplies: vec![supply; 9], taken_at: w.now }));
    assert!(w.status().refused_inputs > 0);
}

#[test]
fn what_a_silent_server_draws_is_not_taken_for_shared_watts() {
    let mut w = World::new(params(4));
    // At 798 W the fans take 110 W, and at 450 W much less: nobody has seen that before.
    w.beside = Some(W(110));
    w.each(|a| a.power = Some(W(172)));
    w.run(ms(20_000));
    w.beside = Some(W(50));
    w.each(|a| a.power = Some(W(100)));
    w.agent(0).restorable = W(500);
    w.silence(3).run(ms(70_000));
    let granted: Watts = (0..3).filter_map(|i| w.alerts_to(i).last()?.1.cap_w).sum();
    let sharable = w.chassis.sharable();
    assert!(granted > W(400) && granted + W(100) <= sharable, "{granted} of {sharable}");
}

#[test]
fn the_highest_draw_seen_survives_a_restart_and_is_seldom_written() {
    let mut w = World::after(params(4), ms(5000));
    w.clear();
    for step in 1..=600 {
        w.agent(0).power = Some(W(150) + Watts::from_milli(50 * step));
        w.run(ms(200));
    }
    assert!((1..=3).contains(&w.ledgers().len()), "{} in two minutes", w.ledgers().len());
    w.run(ms(60_000));
    let ledger = w.ledgers().last().map(|&ledger| ledger.clone()).unwrap();
    assert!(ledger.highest_w.contains(&(name(0), W(180))), "{ledger:?}");

    // It never answers this manager: an even share would be 150 W or so.
    let mut w = World::with(params(4), ledger);
    assert_eq!(w.silence(0).run(ms(65_000)).status().servers[0].reserved_w, W(180));
}

#[test]
fn a_server_that_an_earlier_manager_ruled_counts_with_all_that_is_read_beside_the_reports() {
    let mut p = params(4);
    p.servers[0].out_of_band_floor = None;
    let mut w = World::new(p);
    w.beside = Some(W(0));
    w.agents.values_mut().for_each(|a| (a.power, a.capped) = (Some(W(200)), true));
    // Its agent is dead, and its cores are where an earlier manager had them.
    w.agent(0).answers = false;
    w.agent(0).power = Some(W(250));
    for _ in 0..10 {
        w.run(ms(2000));
        let granted: Watts = (1..4).filter_map(|i| w.alerts_to(i).last()?.1.cap_w).sum();
        let sharable = w.chassis.sharable();
        assert!(granted + W(250) <= sharable, "{granted} of {sharable}");
    }
}

#[test]
fn a_start_with_a_silent_server_lowers_no_fallback_below_a_draw() {
    let mut w = World::new(params(4));
    w.beside = Some(W(40));
    w.silence(0).run(ms(20_000));
    for i in 1..4 {
        let lowest = w.alerts_to(i).iter().map(|(_, alert)| alert.fallback_w).min().unwrap();
        assert!(lowest > W(150), "{lowest}");
    }
}
