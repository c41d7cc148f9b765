//! Silence, refusals, out-of-band caps, restarts and stops.
mod common;

use std::time::Duration;

use ballast_chassis_core::{Answer, Input, Ledger, Mode, Output, Params, Poll};
use ballast_types::wire::{
    ChassisState, ChassisStatus, EventKind, Level, Refusal, RefusalReason, SharePolicy, Slot,
};
use ballast_types::{BootId, Epoch, Machine, Seq, Supply, SupplyState, Watts};
use common::{W, World, action_ids, check_ledger_first, ms, name, params};

/// A chassis that has escalated out of band.
fn escalated() -> World {
    let mut w = World::new(params(4));
    w.run(ms(2000));
    w.total = Some(W(820));
    while w.state() != ChassisState::OutOfBand {
        w.run(ms(100));
    }
    w
}

#[test]
fn a_silent_server_in_a_calm_chassis_is_an_alarm_not_a_cap() {
    let mut w = World::new(params(4));
    w.run(ms(2000));
    w.agent(1).answers = false;
    w.run(ms(1000));
    assert!(!w.has_alarm("silent"));
    w.run(ms(1000));
    let s = w.chassis.status(w.now);
    assert_eq!((s.servers[1].slot, s.state), (Slot::Silent, ChassisState::Normal));
    assert!(w.has_alarm("s-01 is silent: no answer"));
    assert!(w.caps().is_empty() && !w.levels().contains(&Level::Cap));
    assert!(
        w.events().iter().any(|e| matches!(e, EventKind::SlotChanged { to: Slot::Silent, .. }))
    );
    w.agent(1).answers = true;
    w.run(ms(600));
    assert_eq!(w.chassis.status(w.now).servers[1].slot, Slot::Managed);
    assert!(!w.has_alarm("silent"));
}

#[test]
fn a_silent_server_in_an_episode_is_capped_out_of_band() {
    let mut w = World::new(params(4));
    w.total = Some(W(790));
    w.run(ms(2000));
    w.agent(1).answers = false;
    w.run(ms(2000));
    assert_eq!(w.state(), ChassisState::OutOfBand);
    let caps = w.caps();
    assert_eq!(caps.len(), 1);
    assert_eq!(caps[0].0, name(1));
    check_ledger_first(&w.log);
    assert!(w.alerts_to(0).last().unwrap().1.level == Level::Cap, "the others hear on");
}

#[test]
fn a_dead_servers_cap_stays_and_the_others_are_released() {
    let mut w = World::new(params(4));
    w.total = Some(W(790));
    w.agent(1).answers = false;
    w.run(ms(5000));
    w.total = Some(W(500));
    w.run(Duration::from_secs(120));
    let s = w.chassis.status(w.now);
    assert_eq!(s.state, ChassisState::OutOfBand);
    assert!(s.servers[1].out_of_band_w.is_some() && w.lifts().is_empty());
    assert!([0, 2, 3].iter().all(|&i| s.servers[i].granted_w.is_none()));
    w.input(Input::Powered { server: name(1), on: false });
    w.run(ms(400));
    assert_eq!(w.lifts().len(), 1, "off and calm");
    assert_eq!(w.state(), ChassisState::Normal);
}

#[test]
fn a_server_that_comes_back_is_lifted_after_the_hold() {
    let mut w = World::new(params(4));
    w.total = Some(W(790));
    w.agent(1).answers = false;
    w.run(ms(5000));
    w.total = Some(W(500));
    w.run(Duration::from_secs(120));
    w.agent(1).answers = true;
    w.run(Duration::from_secs(29));
    assert!(w.lifts().is_empty());
    w.run(Duration::from_secs(3));
    assert_eq!(w.lifts().len(), 1);
}

#[test]
fn a_server_that_is_off_is_not_capped() {
    let mut w = World::new(params(4));
    w.run(ms(2000));
    w.input(Input::Powered { server: name(0), on: false });
    w.total = Some(W(820));
    w.run(ms(4000));
    assert_eq!(w.caps().len(), 3);
    w.input(Input::Powered { server: name(2), on: false });
    let s = w.chassis.status(w.now);
    assert_eq!(s.servers[2].granted_w, None, "nothing is granted to a server that is off");
}

#[test]
fn without_a_path_there_is_an_alarm() {
    let mut p = params(4);
    p.servers[1].out_of_band_floor = None;
    p.servers[2].out_of_band_floor = Some(W(300));
    let mut w = World::new(p);
    w.total = Some(W(790));
    w.agent(1).answers = false;
    w.agent(2).answers = false;
    w.run(ms(4000));
    assert!(w.has_alarm("s-01 is silent in a capping episode"));
    assert_eq!(w.caps(), [(name(2), W(300))], "never under its floor");
    assert!(w.has_alarm("s-02 cannot be capped under"));
    let s = w.chassis.status(w.now);
    assert_eq!(s.servers[2].reserved_w, W(300));
    let sum: Watts = s
        .servers
        .iter()
        .map(|s| if s.slot == Slot::Managed { s.granted_w.unwrap() } else { s.reserved_w })
        .sum();
    assert!(sum <= s.sharable_w, "{sum} of {}", s.sharable_w);
}

#[test]
fn over_the_limit_for_too_long_caps_every_server_worst_first() {
    // Even shares, so that one server's draw is above its own.
    let mut w = World::new(Params { shares: SharePolicy::Even, ..params(4) });
    w.run(ms(2000));
    w.agent(2).power = Some(W(250));
    w.agent(3).power = None;
    w.total = Some(W(820));
    w.clear();
    w.run(ms(2400));
    assert_eq!(w.state(), ChassisState::Alerting);
    w.run(ms(400));
    assert_eq!(w.state(), ChassisState::OutOfBand);
    let granted = |w: &World, i| w.alerts_to(i).last().and_then(|(_, alert)| alert.cap_w);
    let caps = w.caps();
    assert!((0..4).all(|i| caps.contains(&(name(i), granted(&w, i).unwrap()))), "{caps:?}");
    let order: Vec<_> = w.caps().into_iter().map(|(s, _)| s).collect();
    assert_eq!(order, [name(2), name(3), name(0), name(1)]);
    let turns: Vec<_> = w
        .log
        .iter()
        .filter(|(_, o)| matches!(o, Output::OutOfBandCap { .. }))
        .map(|(t, _)| *t)
        .collect();
    assert!(turns.iter().all(|&t| t == turns[0]), "in one turn");
    w.total = Some(W(790));
    w.run(ms(5000));
    assert_eq!(w.caps().len(), 4, "once each");
    // Still over with everything capped, and not every draw is known: more is shared than was thought.
    w.total = Some(W(820));
    w.clear();
    w.run(ms(5000));
    let lower = |(id, watts): &(_, Watts)| caps.iter().any(|(was, w)| was == id && watts < w);
    assert!(w.caps().last().is_some_and(lower), "{:?}", w.caps());
}

#[test]
fn under_a_lasting_load_caps_are_lifted_where_agents_hold_the_budget() {
    let mut w = escalated();
    w.run(ms(1000));
    // 780 W is under 98 % of 800 W; with what would come back it is far over the lift threshold.
    w.total = Some(W(780));
    (0..4).for_each(|i| w.agent(i).restorable = W(200));
    w.clear();
    w.run(Duration::from_secs(29));
    assert!(w.lifts().is_empty());
    w.run(Duration::from_secs(20));
    assert_eq!(w.lifts().len(), 4);
    assert_eq!(w.state(), ChassisState::Alerting, "the agents' caps stay");
    assert!(w.alerts_to(0).last().is_some_and(|(_, alert)| alert.cap_w.is_some()));
}

#[test]
fn caps_are_lifted_one_by_one_after_the_hold() {
    let mut w = escalated();
    w.run(ms(1000));
    w.total = Some(W(600));
    w.clear();
    w.run(Duration::from_secs(29));
    assert!(w.lifts().is_empty());
    w.run(Duration::from_secs(20));
    let lifts = w.lifts();
    assert_eq!(lifts.len(), 4);
    assert!(lifts.windows(2).all(|p| p[1].0 - p[0].0 == Duration::from_secs(5)), "{lifts:?}");
    assert!(w.ledgers().last().unwrap().out_of_band.is_empty());
    assert_eq!(w.state(), ChassisState::Normal);
    let last_lift = lifts[3].0;
    let released = (0..4).flat_map(|i| w.alerts_to(i)).filter(|(_, a)| a.level == Level::Watch);
    assert!(released.into_iter().all(|(at, _)| at >= last_lift), "under the agents' caps");
    let on = w.chassis.status(w.now).out_of_band_ms;
    w.run(ms(5000));
    assert_eq!(w.chassis.status(w.now).out_of_band_ms, on, "counted while on only");
    assert!((40_000..60_000).contains(&on), "{on}");
    let ids = action_ids(&w.log);
    assert!(ids.windows(2).all(|p| p[0] < p[1]));
}

#[test]
fn the_hold_doubles_on_a_new_escalation() {
    let mut w = escalated();
    w.run(ms(1000));
    w.total = Some(W(600));
    w.run(Duration::from_secs(60));
    assert_eq!(w.state(), ChassisState::Normal);
    w.total = Some(W(820));
    w.run(ms(4000));
    assert_eq!(w.state(), ChassisState::OutOfBand);
    w.total = Some(W(600));
    w.clear();
    w.run(Duration::from_secs(59));
    assert!(w.lifts().is_empty());
    w.run(Duration::from_secs(2));
    assert_eq!(w.lifts().len(), 1);
}

#[test]
fn a_failed_action_is_tried_again_with_an_alarm() {
    let mut w = World::new(params(1));
    w.run(ms(2000));
    w.actuator = Some(Err("BMC busy".into()));
    w.total = Some(W(220));
    w.run(ms(3000));
    assert!(w.has_alarm("BMC busy"));
    w.run(ms(60_000));
    let times: Vec<_> = w
        .log
        .iter()
        .filter(|(_, o)| matches!(o, Output::OutOfBandCap { .. }))
        .map(|(t, _)| *t)
        .collect();
    let gaps: Vec<_> = times.windows(2).map(|p| (p[1] - p[0]).as_secs()).collect();
    assert_eq!(gaps, [1, 1, 30]);
    w.actuator = Some(Ok(()));
    w.run(ms(31_000));
    assert!(!w.has_alarm("BMC busy"));
}

#[test]
fn an_action_without_an_answer_is_tried_again() {
    let mut w = World::new(params(1));
    w.run(ms(2000));
    w.actuator = None;
    w.total = Some(W(220));
    w.run(ms(14_000));
    let ids = action_ids(&w.log);
    assert_eq!(ids.len(), 3, "every trip time");
    w.input(Input::Applied { id: ids[0], result: Ok(()) });
    assert_eq!(
        w.chassis.status(w.now).refused_inputs,
        1,
        "a late answer to an older try says nothing"
    );
}

#[test]
fn a_fenced_manager_leaves_the_ledger_alone() {
    let mut w = escalated();
    w.total = Some(W(600));
    w.actuator = None;
    while w.lifts().is_empty() {
        w.run(ms(200));
    }
    let id = *action_ids(&w.log).last().unwrap();
    two_obey(&mut w, Epoch(2));
    w.clear();
    w.input(Input::Applied { id, result: Ok(()) });
    assert!(w.log.is_empty());
}

#[test]
fn caps_in_the_ledger_are_adopted_and_lifted_by_the_normal_rule() {
    let out_of_band =
        vec![(name(1), W(150)), (ballast_types::ServerId::new("gone").unwrap(), W(99))];
    let ledger = Ledger { epoch: Epoch(3), out_of_band: out_of_band.clone(), ..Ledger::default() };
    let mut w = World::with(params(4), ledger);
    assert!(
        matches!(&w.log[0].1, Output::Ledger(l) if l.epoch == Epoch(4) && l.out_of_band.len() == 2)
    );
    assert_eq!(w.state(), ChassisState::OutOfBand);
    w.run(Duration::from_secs(28));
    assert!(w.lifts().is_empty());
    assert!(!w.levels().contains(&Level::Watch), "nobody is released before");
    w.run(Duration::from_secs(35));
    assert_eq!(w.lifts().len(), 1);
    assert_eq!(w.state(), ChassisState::Normal);
    assert_eq!(w.ledgers().last().unwrap().out_of_band, out_of_band[1..]);
    assert!(w.has_alarm("gone"));
    check_ledger_first(&w.log);
}

#[test]
fn the_reserve_of_a_server_that_comes_back_is_freed_when_it_obeys() {
    let mut p = params(4);
    p.servers[1].out_of_band_floor = None;
    let mut w = World::new(p);
    w.total = Some(W(790));
    w.run(ms(3000));
    let before = w.chassis.status(w.now).servers[0].granted_w.unwrap();
    w.agent(1).answers = false;
    w.run(ms(2000));
    w.input(Input::Budget(Some(W(600))));
    let s = w.chassis.status(w.now);
    assert_eq!(s.servers[1].reserved_w, before, "it may still hold what it was granted");
    let others =
        |s: &ChassisStatus| [0, 2, 3].iter().map(|&i| s.servers[i].granted_w.unwrap()).sum();
    let less: Watts = others(&s);
    assert!(less + before <= s.sharable_w);
    w.agent(1).answers = true;
    w.total = Some(W(595));
    w.run(ms(1000));
    let s = w.chassis.status(w.now);
    let reserved: Watts = s.servers.iter().map(|x| x.reserved_w).sum();
    assert!(reserved <= s.sharable_w && s.servers[1].reserved_w < before, "{s:?}");
    assert!(others(&s) > less);
}

#[test]
fn numbers_of_an_earlier_life_free_nothing() {
    let mut p = params(4);
    p.servers[1].out_of_band_floor = None;
    let mut w = World::new(p);
    w.total = Some(W(790));
    w.run(ms(3000));
    w.agent(1).answers = false;
    w.run(ms(2000));
    w.input(Input::Budget(Some(W(600))));
    let held = w.chassis.status(w.now).servers[1].reserved_w;
    let alert = w.alerts_to(1).last().unwrap().1.clone();
    let mut report = common::report(&name(1), w.now, &alert, &w.agents[&name(1)]);
    (report.epoch_seen, report.enforced_seq) = (Epoch(0), Some(Seq(1_000_000)));
    let answer = Answer::Report(Box::new(report));
    w.input(Input::Answer { server: name(1), seq: alert.seq, answer });
    let s = w.chassis.status(w.now);
    assert_eq!((s.servers[1].slot, s.servers[1].reserved_w), (Slot::Managed, held));
}

#[test]
fn a_leaving_agent_is_expected_to_be_silent() {
    let mut w = World::new(params(4));
    w.run(ms(2000));
    w.agent(1).leaving = true;
    w.run(ms(600));
    assert_eq!(w.chassis.status(w.now).servers[1].slot, Slot::Silent);
    assert!(w.has_alarm("s-01 is silent: leaving"));
    w.run(ms(1000));
    let moves = w.events().iter().filter(|e| matches!(e, EventKind::SlotChanged { .. })).count();
    assert_eq!(moves, 1, "it says so in every report");
    w.agent(1).leaving = false;
    w.run(ms(600));
    assert_eq!(w.chassis.status(w.now).servers[1].slot, Slot::Managed);
}

/// The newest message to server 0.
fn newest(w: &World) -> ballast_types::wire::Alert {
    w.alerts_to(0).last().expect("a message").1.clone()
}
fn refuse(w: &mut World, seq: Seq, reason: RefusalReason, epoch: u64, newest_seq: u64) {
    let refusal =
        Refusal { reason, newest_epoch: Epoch(epoch), newest_seq: Seq(newest_seq), instance: None };
    w.input(Input::Answer { server: name(0), seq, answer: Answer::Refused(refusal) });
}

#[test]
fn at_start_a_newer_epoch_is_adopted_once() {
    let mut w = World::new(params(4));
    for i in 0..4 {
        w.agent(i).answers = false;
    }
    w.run(ms(700));
    let seq = newest(&w).seq;
    w.clear();
    refuse(&mut w, seq, RefusalReason::Stale, 41, 1000);
    assert!(matches!(&w.log[0].1, Output::Ledger(l) if l.epoch == Epoch(42)), "written first");
    assert!((0..4).all(|i| w.alerts_to(i)[0].1.epoch == Epoch(42)), "said again");
    assert!(newest(&w).seq > seq, "numbers go on");
    refuse(&mut w, seq, RefusalReason::Stale, 41, 1000);
    assert_eq!(
        w.chassis.status(w.now).epoch,
        Epoch(42),
        "late refusals of the old epoch say nothing"
    );
    let seq = newest(&w).seq;
    refuse(&mut w, seq, RefusalReason::Stale, 43, 1);
    assert_eq!(w.chassis.status(w.now).epoch, Epoch(42), "it has had its say");
    assert_eq!(w.chassis.status(w.now).servers[0].slot, Slot::Silent);
}

/// Two of the agents obey `epoch` from now on, and have said so.
fn two_obey(w: &mut World, epoch: Epoch) {
    w.agent(0).obeys = Some((epoch, None));
    w.agent(2).obeys = Some((epoch, None));
    w.run(ms(600));
    assert_eq!(w.state(), ChassisState::Fenced);
}

#[test]
fn a_lone_agent_that_obeys_a_newer_epoch_is_set_aside_and_rejoins() {
    let mut w = World::new(params(4));
    w.run(ms(2000));
    w.agent(0).obeys = Some((Epoch(9), None));
    w.run(ms(60_000));
    let s = w.chassis.status(w.now);
    assert_eq!((s.state, s.servers[0].slot), (ChassisState::Normal, Slot::Silent));
    assert!(w.has_alarm("s-00 refuses this manager, epoch 1: it obeys epoch 9"), "{:?}", s.alarms);
    assert!(w.has_alarm("s-00 is silent: obeys a newer epoch"), "{:?}", s.alarms);
    let told =
        |e: &&&EventKind| matches!(e, EventKind::Alarm { message } if message.contains("s-00"));
    assert_eq!(w.events().iter().filter(told).count(), 1, "once");
    w.clear();
    w.run(ms(1000));
    assert!((0..4).all(|i| !w.alerts_to(i).is_empty()), "all are messaged, it too");

    w.agent(0).obeys = None;
    w.run(ms(600));
    assert_eq!(w.chassis.status(w.now).servers[0].slot, Slot::Managed);
    assert!(!w.has_alarm("epoch"));
    w.agent(1).obeys = Some((Epoch(9), None));
    w.run(ms(5000));
    assert_eq!(w.state(), ChassisState::Normal, "what the first one said is forgotten");
}

#[test]
fn an_agent_that_is_set_aside_is_capped_out_of_band_in_an_episode() {
    let mut w = World::new(params(4));
    w.total = Some(W(790));
    w.run(ms(2000));
    w.agent(0).obeys = Some((Epoch(9), None));
    w.run(ms(1000));
    assert_eq!(w.state(), ChassisState::OutOfBand);
    assert_eq!(w.caps().into_iter().map(|(server, _)| server).collect::<Vec<_>>(), [name(0)]);
    assert!(w.alerts_to(1).last().unwrap().1.level == Level::Cap, "the others hear on");
}

#[test]
fn the_only_agent_there_is_fences_this_manager() {
    let mut w = World::new(params(1));
    w.run(ms(2000));
    w.agent(0).obeys = Some((Epoch(9), None));
    w.run(ms(600));
    assert_eq!(w.state(), ChassisState::Fenced);

    let mut p = params(4);
    p.servers[1].mode = Mode::Maintenance;
    p.servers[2].mode = Mode::Unmanaged;
    let mut w = World::new(p);
    w.run(ms(2000));
    w.input(Input::Powered { server: name(3), on: false });
    w.agent(0).obeys = Some((Epoch(9), None));
    w.run(ms(600));
    assert_eq!(w.state(), ChassisState::Fenced, "the others are not messaged");
}

#[test]
fn an_agent_that_no_longer_says_so_does_not_count() {
    let mut w = World::new(params(4));
    w.run(ms(2000));
    w.agent(0).obeys = Some((Epoch(9), None));
    w.run(ms(600));
    w.agent(0).answers = false;
    w.run(ms(5000));
    w.agent(1).obeys = Some((Epoch(9), None));
    w.run(ms(5000));
    assert_eq!(w.state(), ChassisState::Normal, "the first one died");
    w.agent(0).answers = true;
    w.run(ms(600));
    assert_eq!(w.state(), ChassisState::Fenced, "and has come back");

    let mut w = World::new(params(4));
    w.run(ms(2000));
    let seq = newest(&w).seq;
    refuse(&mut w, seq, RefusalReason::Stale, 9, 1);
    assert_eq!(w.chassis.status(w.now).servers[0].slot, Slot::Managed, "obeyed that message");
}

#[test]
fn two_agents_that_obey_a_rival_fence_this_manager() {
    let mut w = escalated();
    two_obey(&mut w, Epoch(2));
    assert!(w.has_alarm("another manager rules"));
    w.clear();
    w.total = Some(W(2000));
    w.run(ms(60_000));
    assert!(w.log.is_empty(), "{:?}", w.log);
    assert_eq!(w.chassis.poll_timeout(), None);
}

#[test]
fn a_repeated_message_is_no_rival() {
    let mut w = World::new(params(4));
    w.run(ms(2000));
    let seq = newest(&w).seq;
    refuse(&mut w, seq, RefusalReason::Stale, 1, seq.0 + 70);
    assert_eq!(w.state(), ChassisState::Normal);
    w.run(ms(500));
    assert_eq!(newest(&w).seq, Seq(seq.0 + 71), "counts on above");
    refuse(&mut w, Seq(seq.0 + 71), RefusalReason::Stale, 1, u64::MAX);
    w.run(ms(500));
    assert_eq!(newest(&w).seq, Seq(seq.0 + 72), "but not to the end of numbers");
}

#[test]
fn a_server_that_will_not_obey_is_silent() {
    for reason in [RefusalReason::ForeignChassis, RefusalReason::EpochJump] {
        let mut w = World::new(params(4));
        w.run(ms(2000));
        w.agent(0).answers = false;
        w.run(ms(500));
        let seq = newest(&w).seq;
        refuse(&mut w, seq, reason, 9, 9);
        assert_eq!(w.chassis.status(w.now).servers[0].slot, Slot::Silent);
        assert!(w.has_alarm("s-00 is silent: "));
    }
}

#[test]
fn old_and_foreign_answers_change_nothing() {
    let mut w = World::new(params(4));
    w.run(ms(3000));
    let (at, alert) = w.alerts_to(0).last().map(|&(t, a)| (t, a.clone())).unwrap();
    let agent = &w.agents[&name(0)];
    let good = common::report(&name(0), at, &alert, agent);
    let before = w.chassis.status(w.now);
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
    let after = w.chassis.status(w.now);
    assert_eq!(after.refused_inputs, before.refused_inputs + 6);
    assert_eq!(after.servers, before.servers);
}

#[test]
fn an_answer_is_as_old_as_its_message() {
    let mut w = World::new(params(4));
    w.run(ms(2000));
    w.agent(0).answers = false;
    w.run(ms(500));
    let (_, alert) = w.alerts_to(0).last().map(|&(t, a)| (t, a.clone())).unwrap();
    w.run(ms(3000));
    assert_eq!(w.chassis.status(w.now).servers[0].slot, Slot::Silent);
    let report = common::report(&name(0), w.now, &alert, &w.agents[&name(0)]);
    w.input(Input::Answer {
        server: name(0),
        seq: alert.seq,
        answer: Answer::Report(Box::new(report)),
    });
    assert_eq!(w.chassis.status(w.now).servers[0].slot, Slot::Silent, "three seconds under way");
}

#[test]
fn a_stop_lifts_what_is_safe_to_lift() {
    let mut w = escalated();
    w.clear();
    w.input(Input::Leave);
    assert!(w.lifts().is_empty(), "over the limit: the caps stay, and stay in the ledger");
    w.run(ms(5000));
    assert!(w.log.is_empty());
    assert_eq!(w.chassis.poll_timeout(), None);

    let mut w = escalated();
    w.total = Some(W(600));
    w.run(ms(400));
    w.clear();
    w.input(Input::Leave);
    assert_eq!(w.lifts().len(), 4);
    assert!(w.ledgers().last().unwrap().out_of_band.is_empty());
    w.clear();
    w.run(ms(5000));
    assert!(w.levels().is_empty());
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
        emergency_after: zero,
        out_of_band_after: zero,
        silent_after: zero,
        ..params(1)
    };
    let mut w = World::new(p.clone());
    w.run(ms(50));
    let mut w = World::new(Params { servers: params(3).servers, ..p });
    w.run(ms(50));
    let supply = Supply { state: SupplyState::Active, input: Some(Watts::MAX) };
    w.input(Input::Psu(Poll { supplies: vec![supply; 9], taken_at: w.now }));
    assert!(w.chassis.status(w.now).refused_inputs > 0);
}
