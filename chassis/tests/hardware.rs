//! Hardware caps: when they come, and how they are given back.
mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use ballast_chassis_core::{Input, Ledger, Output, Params};
use ballast_types::wire::{ChassisState, EventKind, Level, SharePolicy, Slot};
use ballast_types::{Epoch, Instance, Machine, Watts};
use common::{W, World, action_ids, check_ledger_first, ms, name, params};

/// A chassis under hardware caps: `n` servers draw 300 W each, 1.5 times the budget, whatever they are told.
fn escalated(n: usize) -> World {
    let mut w = World::new(params(n));
    w.beside = Some(W(0));
    w.run(ms(2_000));
    load(&mut w, 300, false);
    w.until(ChassisState::HardwareCaps);
    w
}

/// From now on every server would draw `power`, and its agent keeps it under its cap, or does not.
fn load(w: &mut World, power: i64, capped: bool) {
    for agent in w.agents.values_mut() {
        (agent.power, agent.capped) = (Some(W(power)), capped);
    }
}

/// A chassis of `n` servers in a capping event, in which server 1 falls silent and is capped by hardware, because
/// the total exceeds the limit. It drew `drew` before.
fn one_dead(n: usize, drew: i64) -> World {
    let mut w = World::new(params(n));
    w.agent(1).power = Some(W(drew));
    w.begin_event(W(206 * n as i64)).run(ms(400));
    w.silence(1).until(ChassisState::HardwareCaps);
    w.reads(W(197 * n as i64));
    w
}

/// A server whose answers are late, or whose agent restarts, may obey all the same.
#[test]
fn a_silent_server_is_not_capped_by_hardware_while_the_total_is_under_the_limit() {
    let mut w = World::in_event(params(4), W(790));
    (0..3).for_each(|i| _ = w.silence(i));
    assert_eq!(w.run(ms(30_000)).caps(), []);
    assert_eq!(w.state(), ChassisState::Alerting);

    // A manager that cannot read the supplies cannot wait for them.
    w.reads(None).run(ms(2_000));
    assert_eq!(w.caps().into_iter().map(|(server, _)| server).collect::<Vec<_>>(), [0, 1, 2].map(name));
}

#[test]
fn a_silent_server_in_an_event_is_capped_by_hardware() {
    let mut w = one_dead(4, 150);
    w.run(ms(2000));
    assert_eq!(w.caps().into_iter().map(|(server, _)| server).collect::<Vec<_>>(), [name(1)]);
    check_ledger_first(&w.log);
    assert_eq!(w.alerts_to(0).last().unwrap().1.level, Level::Cap, "the others hear on");
}

#[test]
fn a_dead_servers_cap_is_given_back_when_what_it_drew_fits() {
    // It drew 300 W before its cap of less than 200 W.
    for (others, lifts) in [(120, 1), (190, 0)] {
        let mut w = escalated(4);
        w.agent(1).answers = false;
        load(&mut w, others, true);
        w.agent(1).power = Some(W(300));
        w.run(Duration::from_secs(29));
        assert!(w.lifts().iter().all(|(_, server)| *server != name(1)), "the hold is 30 s");
        w.run(Duration::from_secs(91));
        let lifted = |w: &World| w.lifts().iter().filter(|(_, s)| *s == name(1)).count();
        assert_eq!(lifted(&w), lifts, "{others} W");
        w.agent(1).power = Some(W(0));
        w.input(Input::Powered { server: name(1), on: false }).run(Duration::from_secs(35));
        assert_eq!(lifted(&w), 1, "off and calm");
    }
}

#[test]
fn a_server_that_obeys_is_lifted_at_once() {
    // Its agent comes back while the load lasts: the agent's own cap holds it.
    let mut w = one_dead(4, 150);
    w.run(ms(5000));
    (w.agent(1).answers, w.agent(1).capped) = (true, true);
    w.run(ms(1000));
    assert_eq!((w.lifts().len(), w.state()), (1, ChassisState::Alerting));

    // All of them, under a load of which a third is held back.
    let mut w = escalated(4);
    load(&mut w, 300, true);
    w.run(ms(25_000));
    assert_eq!((w.lifts().len(), w.state()), (4, ChassisState::Alerting));
    assert!((0..4).all(|i| w.alerts_to(i).last().unwrap().1.cap_w.is_some()), "their caps stay");
    assert!(w.ledgers().last().unwrap().out_of_band.is_empty());
    let on = w.status().hardware_caps_ms;
    assert_eq!(w.run(ms(5000)).status().hardware_caps_ms, on, "counted while on only");
    assert!(action_ids(&w.log).windows(2).all(|p| p[0] < p[1]));
}

#[test]
fn a_hundred_servers_that_obey_are_lifted_within_a_minute_and_not_all_at_once() {
    let mut w = escalated(100);
    load(&mut w, 300, true);
    w.clear();
    let from = w.now;
    while w.state() == ChassisState::HardwareCaps {
        w.run(ms(1000));
    }
    assert!(w.now - from <= Duration::from_secs(60), "{:?}", w.now - from);
    let lifts = w.lifts();
    assert_eq!(lifts.len(), 100);
    let in_a_second =
        |(from, _): &(_, _)| lifts.iter().filter(|(at, _)| *at >= *from && *at - *from < ms(1000)).count();
    assert!(lifts.iter().map(in_a_second).max().unwrap() <= 12, "so many watts a second");
    assert_eq!(w.caps(), [], "and no excess follows");
}

#[test]
fn a_lift_that_came_too_early_is_blamed_and_waits_longer() {
    let mut w = escalated(4);
    load(&mut w, 300, true);
    w.run(ms(25_000));
    let lifts = w.lifts();
    assert_eq!(lifts.len(), 4);
    let newest = lifts[3].0;
    let blamed: Vec<_> =
        lifts.into_iter().filter(|(at, _)| newest - *at <= ms(5000)).map(|(_, s)| s).collect();

    // Not so much that hardware would come before the next reports.
    load(&mut w, 230, false);
    w.until(ChassisState::HardwareCaps);
    let alarm = |e: &&EventKind| match e {
        EventKind::Alarm { message } if message.contains("too early") => Some(message.clone()),
        _ => None,
    };

    let said: Vec<_> = w.events().iter().filter_map(alarm).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    let named = |i| said[0].contains(name(i).as_str());
    assert!((0..4).all(|i| named(i) == blamed.contains(&name(i))), "{said:?} {blamed:?}");

    load(&mut w, 300, true);
    w.clear();
    w.run(Duration::from_secs(55));
    let waits = |w: &World| (0..4).filter(|&i| !w.lifts().iter().any(|(_, s)| *s == name(i))).collect();
    let waiting: Vec<usize> = waits(&w);
    assert!(waiting.iter().map(|&i| name(i)).eq((0..4).map(name).filter(|s| blamed.contains(s))));
    w.run(Duration::from_secs(25));
    let waiting: Vec<usize> = waits(&w);
    assert!(waiting.is_empty(), "the hold is twice as long, a minute: {waiting:?}");
}

#[test]
fn who_was_lifted_too_early_waits_no_longer_once_its_cap_holds_nothing_back() {
    let mut w = escalated(4);
    load(&mut w, 300, true);
    w.run(ms(25_000));
    load(&mut w, 230, false);
    w.until(ChassisState::HardwareCaps);
    load(&mut w, 300, true);
    assert_eq!(w.run(ms(20_000)).state(), ChassisState::HardwareCaps, "somebody waits for a minute");
    load(&mut w, 80, true);
    assert_eq!(w.run(ms(10_000)).state(), ChassisState::Alerting, "all caps are lifted");
}

#[test]
fn only_lifts_that_an_excess_followed_and_servers_that_drew_more_are_blamed() {
    let too_early = |w: &World| {
        let alarm = |e: &&EventKind| match e {
            EventKind::Alarm { message } if message.contains("too early") => Some(message.clone()),
            _ => None,
        };

        w.events().iter().filter_map(alarm).collect::<Vec<_>>()
    };

    let lifted = |power| {
        let mut w = escalated(2);
        load(&mut w, power, true);
        w.run(ms(25_000));
        assert_eq!(w.lifts().len(), 2);

        w
    };

    // One dies and is capped, for it is silent and the manager cannot read the supplies: there is no excess.
    let mut w = lifted(300);
    w.beside = None;
    w.reads(None).silence(0).run(ms(5_000));
    assert_eq!(w.caps().last().unwrap().0, name(0));
    assert!(too_early(&w).is_empty(), "{:?}", too_early(&w));

    // The one that was lifted last draws what it drew; the other draws more than there is.
    let mut w = lifted(100);
    let last = w.lifts()[1].1.clone();
    let other = usize::from(last == name(0));
    (w.agent(other).power, w.agent(other).capped) = (Some(W(600)), false);
    w.until(ChassisState::HardwareCaps);
    assert!(too_early(&w).iter().all(|said| !said.contains(last.as_str())), "{:?}", too_early(&w));
}

#[test]
fn every_server_is_capped_in_one_turn_those_that_draw_more_first() {
    // Even shares, so that one server's draw is above its own.
    let mut w = World::after(Params { shares: SharePolicy::Even, ..params(5) }, ms(2000));
    w.agent(2).power = Some(W(250));
    w.agent(3).power = None;
    w.input(Input::Powered { server: name(4), on: false });
    w.total = Some(W(1500));
    w.clear();
    w.until(ChassisState::HardwareCaps);
    let order: Vec<_> = w.caps().into_iter().map(|(s, _)| s).collect();
    assert_eq!(order, [name(2), name(3), name(0), name(1)], "and none that is off");
    let is = |(_, o): &&(_, Output)| matches!(o, Output::OutOfBandCap { .. });
    let turns: Vec<_> = w.log.iter().filter(is).map(|(t, _)| *t).collect();
    assert!(turns.iter().all(|&t| t == turns[0]), "in one turn");
    assert_eq!(w.status().servers[4].granted_w, None, "nothing to a server that is off");

    // Still over with everything capped: more is shared than was thought.
    let newest = |w: &World| w.caps().into_iter().collect::<BTreeMap<_, _>>().into_values().sum();
    let before: Watts = newest(&w);
    w.run(ms(5000));
    assert!(newest(&w) < before, "{} after {before}", newest(&w));
}

#[test]
fn a_server_that_draws_more_than_its_grant_is_paid_for_and_then_capped_by_hardware() {
    let mut p = params(4);
    p.shared_floor = Some(W(0));
    let mut w = World::new(p);
    w.beside = Some(W(0));

    for i in 0..4 {
        let agent = w.agent(i);
        (agent.power, agent.capped) = (Some(W(230)), i != 0);
    }

    w.agent(0).low_cores = 0;
    w.until(ChassisState::Alerting);
    w.agent(0).power = Some(W(400));
    let from = w.now;
    let s = w.run(ms(2500)).status();
    let others: Watts = s.servers[1..].iter().filter_map(|s| s.granted_w).sum();
    assert!(others < W(500), "the others pay: {others}");
    w.until(ChassisState::HardwareCaps);
    assert_eq!(w.caps().len(), 1, "it alone: {:?}", w.caps());
    assert_eq!(w.caps()[0].0, name(0));
    assert!((2000..5000).contains(&(w.now - from).as_millis()), "{:?}", w.now - from);
    w.run(ms(10_000));
    let power = w.status().power_w.unwrap();
    assert!(power <= W(808), "and the excess ends: {power}");
}

#[test]
fn without_a_path_there_is_an_alarm() {
    let mut p = params(4);
    p.servers[1].out_of_band_floor = None;
    p.servers[2].out_of_band_floor = Some(W(300));
    let mut w = World::in_event(p, W(824));
    w.agent(1).answers = false;
    assert!(w.silence(2).run(ms(6000)).has_alarm("s-01 is silent in a capping event"));
    assert_eq!(w.caps(), [(name(2), W(300))], "never under its floor");
    assert!(w.has_alarm("s-02 has the lowest hardware cap"));
    let s = w.status();
    assert_eq!(s.servers[2].reserved_w, W(300));
    let counts = |s: &ballast_types::wire::ServerStatus| match s.slot {
        Slot::Managed => s.granted_w.unwrap(),
        _ => s.reserved_w,
    };

    let sum: Watts = s.servers.iter().map(counts).sum();
    assert!(sum <= s.sharable_w, "{sum} of {}", s.sharable_w);
}

#[test]
fn a_failed_action_is_tried_again_with_an_alarm() {
    let mut w = World::after(params(1), ms(2000));
    w.actuator = Some(Err("BMC busy".into()));
    assert!(w.reads(W(300)).until(ChassisState::HardwareCaps).has_alarm("BMC busy"));
    w.silence(0).run(ms(1_800)).reads(W(190)); // no lower cap is wanted
    w.run(ms(60_000));
    let is = |(_, o): &&(_, Output)| matches!(o, Output::OutOfBandCap { .. });
    let times: Vec<_> = w.log.iter().filter(is).map(|(t, _)| *t).collect();
    let gaps: Vec<_> = times.windows(2).map(|p| (p[1] - p[0]).as_secs()).collect();
    assert!(gaps.ends_with(&[1, 1, 30]), "{gaps:?}");
    w.actuator = Some(Ok(()));
    assert!(!w.run(ms(31_000)).has_alarm("BMC busy"));
}

#[test]
fn an_action_without_an_answer_is_tried_again() {
    let mut w = World::after(params(1), ms(2000));
    w.actuator = None;
    w.reads(W(300)).until(ChassisState::HardwareCaps);
    w.silence(0).run(ms(1_800)).reads(W(190)).run(ms(8_300));
    let is = |(_, o): &&(_, Output)| matches!(o, Output::OutOfBandCap { .. });
    let times: Vec<_> = w.log.iter().filter(is).map(|(t, _)| *t).collect();
    let gaps: Vec<_> = times.windows(2).map(|p| (p[1] - p[0]).as_secs()).collect();
    assert!(gaps.ends_with(&[5]) && gaps.len() <= 3, "every trip time: {gaps:?}");
    let ids = action_ids(&w.log);
    w.input(Input::Applied { id: ids[0], result: Ok(()) });
    assert_eq!(w.status().refused_inputs, 1, "a late answer to an older try says nothing");
}

#[test]
fn caps_in_the_ledger_are_adopted_and_given_back() {
    let gone = ballast_types::ServerId::new("gone").unwrap();
    let out_of_band = vec![(name(1), W(150)), (gone, W(99))];
    let ledger = Ledger { epoch: Epoch(3), out_of_band: out_of_band.clone(), ..Ledger::default() };

    for (answers, seconds) in [(true, 0..5), (false, 28..35)] {
        let mut w = World::with(params(4), ledger.clone());
        w.agent(1).answers = answers;
        assert!(matches!(&w.log[0].1, Output::Ledger(l) if l.epoch == Epoch(4) && l.out_of_band.len() == 2));
        assert_eq!(w.state(), ChassisState::HardwareCaps);
        let from = w.now;

        while w.lifts().is_empty() {
            assert!(!answers || !w.levels().contains(&Level::Watch), "nobody is released before");
            w.run(ms(100));
        }

        assert!(seconds.contains(&(w.now - from).as_secs()), "{answers}: {:?}", w.now - from);
        w.until(ChassisState::Normal);
        assert_eq!(w.ledgers().last().unwrap().out_of_band, out_of_band[1..]);
        assert!(w.has_alarm("gone"));
        check_ledger_first(&w.log);
    }
}

#[test]
fn a_stop_lifts_what_is_safe_to_lift() {
    for (power, lifts) in [(300, 0), (150, 4)] {
        let mut w = escalated(4);
        w.actuator = None; // nothing is lifted before
        load(&mut w, power, false);
        w.run(ms(400));
        w.actuator = Some(Ok(()));
        let before = w.lifts().len();
        w.input(Input::Leave);

        if lifts == 0 {
            assert_eq!(w.lifts().len(), before, "over the limit the caps stay");
            assert!(!w.ledgers().last().unwrap().out_of_band.is_empty(), "and stay in the ledger");
        } else {
            assert!(w.lifts().len() >= lifts, "{:?}", w.lifts());
        }

        w.clear();
        w.run(ms(5000));
        assert!(w.log.is_empty());
        assert_eq!(w.chassis.poll_timeout(), None);
    }
}

/// A manager that has been fenced for 10 s, of servers that draw nothing near a limit.
fn fenced() -> World {
    let mut w = World::after(params(4), ms(12_000));
    (0..2).for_each(|i| w.agent(i).obeys = Some((Epoch(2), Some(Instance(9)))));
    w.until(ChassisState::Fenced).run(ms(10_000)).clear();
    w
}

#[test]
fn a_fenced_manager_acts_by_hardware_when_the_supplies_are_near_their_trip() {
    // Of supplies that carry 1600 W: the budget of 800 W is the ruler's business.
    let mut w = fenced();
    w.reads(W(1590)).run(ms(60_000));
    assert!(w.acts().is_empty(), "{:?}", w.acts());

    w.total = Some(W(1760)); // 10 % over: a trip after 10 s
    let from = w.now;
    while w.caps().is_empty() {
        w.run(ms(100));
    }
    assert!((7200..8000).contains(&(w.now - from).as_millis()), "0.75: {:?}", w.now - from);
    assert_eq!(w.caps().len(), 4);
    assert!(w.caps().iter().map(|(_, watts)| *watts).sum::<Watts>() <= W(1600));
    let orders = |o: &&Output| matches!(o, Output::OutOfBandCap { .. } | Output::Event(_));
    assert!(w.acts().iter().all(orders), "the agents and the ledger are another's");

    w.total = Some(W(1400));
    (0..2).for_each(|i| w.agent(i).ruler_gone = true);
    w.run(ms(60_000));
    assert!(w.lifts().is_empty(), "nobody rules");
    (0..2).for_each(|i| w.agent(i).ruler_gone = false);
    w.run(ms(10_000));
    assert_eq!(w.lifts().len(), 4, "given back after the hold");
}

#[test]
fn a_fenced_manager_tries_a_failed_action_again() {
    let mut w = fenced();
    w.actuator = Some(Err("BMC busy".into()));
    w.total = Some(W(1760));
    while w.caps().is_empty() {
        w.run(ms(100));
    }
    assert_eq!(w.run(ms(1500)).caps().len(), 8, "each once more after a second");
}

#[test]
fn blind_a_hardware_cap_shows_which_meter_is_wrong() {
    let mut w = World::new(params(12));
    w.reads(W(2000)).run(ms(20_000));
    w.total = None;
    w.agent(3).says = Some(W(3000));
    assert!(!w.run(ms(10_000)).has_alarm("its meter"), "nobody can tell yet");
    assert!((0..12).all(|i| w.caps().iter().any(|(id, _)| *id == name(i))));

    assert!(w.run(ms(60_000)).has_alarm("its meter says far more"));
    let s = w.status();
    assert!(s.servers.iter().all(|s| s.granted_w.is_none()), "the others' 1650 W fit");

    // Nothing else bounds what it draws.
    for (i, server) in s.servers.iter().enumerate() {
        assert_eq!(server.hardware_cap_w.is_some(), i == 3, "{i}");
    }

    // With sight it is lifted.
    w.total = Some(W(2000));
    w.agent(3).says = None;
    w.run(ms(2_000));
    assert!(!w.has_alarm("its meter") && w.lifts().iter().any(|(_, id)| *id == name(3)));
}

#[test]
fn a_manager_that_is_fenced_gives_its_caps_back_after_the_hold() {
    let mut w = escalated(4);
    // Later than a start at which a newer epoch is adopted.
    w.run(ms(12_000));
    (0..2).for_each(|i| w.agent(i).obeys = Some((Epoch(2), Some(Instance(9)))));
    w.until(ChassisState::Fenced).clear();
    assert!(w.run(Duration::from_secs(29)).lifts().is_empty(), "the hold of 30 s begins with the fence");
    assert_eq!(w.run(Duration::from_secs(6)).lifts().len(), 4);
}

/// The BMC is believed: a cap that it lost is ordered again, and one that it has is given back.
#[test]
fn a_cap_that_a_bmc_reads_back_replaces_what_was_ordered() {
    let mut w = escalated(4);
    w.clear();
    w.input(Input::RecoveredCap { server: name(1), cap: None });
    assert!(w.events().iter().any(
        |event| matches!(event, EventKind::Alarm { message } if message.contains("has gone by itself"))
    ));
    assert!(w.run(ms(2_000)).caps().iter().any(|(server, _)| *server == name(1)), "ordered again");

    let mut w = World::after(params(4), ms(5_000));
    w.input(Input::RecoveredCap { server: name(2), cap: Some(W(130)) });
    assert!(w.ledgers().iter().any(|ledger| ledger.out_of_band == [(name(2), W(130))]));
    w.until(ChassisState::Normal);
    assert_eq!(w.lifts().into_iter().map(|(_, server)| server).collect::<Vec<_>>(), [name(2)]);
    assert!(w.ledgers().last().unwrap().out_of_band.is_empty());
}
