//! Which manager rules.
mod common;

use ballast_chassis_core::{Answer, Input, Mode, Output, Params};
use ballast_types::wire::{
    Alert, ChassisState, EventKind, Level, OtherManager, Refusal, RefusalReason, Slot,
};
use ballast_types::{Epoch, Instance, Seq};
use common::{W, World, action_ids, ms, name, params};

/// Four servers and a manager that is not young any more.
fn settled() -> World {
    World::after(params(4), ms(12_000))
}

/// A manager of another epoch and instance, that `agents` obey from now on.
fn obey(w: &mut World, agents: &[usize], epoch: u64, instance: Option<u64>) {
    for &i in agents {
        w.agent(i).obeys = Some((Epoch(epoch), instance.map(Instance)));
    }
}

/// The newest message to server 0.
fn newest(w: &World) -> ballast_types::wire::Alert {
    w.alerts_to(0).last().expect("a message").1.clone()
}

fn refuse(w: &mut World, i: usize, seq: Seq, epoch: u64, newest_seq: u64) {
    let reason = RefusalReason::Stale;
    let refusal = Refusal { reason, newest_epoch: Epoch(epoch), newest_seq: Seq(newest_seq), instance: None };
    w.input(Input::Answer { server: name(i), seq, answer: Answer::Refused(refusal) });
}

#[test]
fn at_the_start_a_newer_epoch_is_adopted_on_the_word_of_two() {
    // Where there is one server, it is all there are.
    for (servers, speak, epoch, adopted) in
        [(4, 1, 41, false), (4, 2, 41, true), (1, 1, 41, true), (4, 2, 1002, false)]
    {
        let mut w = World::new(params(servers));
        w.polls = false;
        for i in 0..servers {
            w.agent(i).answers = false;
        }
        w.run(ms(700));
        let seq = newest(&w).seq;
        w.clear();
        (0..speak).for_each(|i| refuse(&mut w, i, seq, epoch, 1000));
        let s = w.status();
        assert_eq!(s.epoch, Epoch(if adopted { epoch + 1 } else { 1 }), "{servers} {speak} {epoch}");

        if adopted {
            assert!((0..servers).all(|i| w.alerts_to(i).last().unwrap().1.epoch == s.epoch), "said again");

            assert!(newest(&w).seq > seq, "numbers go on");
        }
    }

    let mut w = settled();
    obey(&mut w, &[0, 1], 41, None);
    w.run(ms(1000));
    assert_eq!((w.status().epoch, w.state()), (Epoch(1), ChassisState::Fenced), "too late");
}

#[test]
fn a_lone_agent_that_obeys_a_newer_epoch_is_set_aside_and_rejoins() {
    let mut w = settled();
    obey(&mut w, &[0], 9, None);
    let s = w.run(ms(60_000)).status();
    assert_eq!((s.state, s.servers[0].slot), (ChassisState::Normal, Slot::Silent));
    assert!(w.has_alarm("s-00 refuses this manager, epoch 1: it obeys epoch 9"), "{:?}", s.alarms);
    assert!(w.has_alarm("s-00 is silent: obeys another manager"), "{:?}", s.alarms);
    let told = |e: &&&EventKind| matches!(e, EventKind::Alarm { message } if message.contains("s-00"));
    assert_eq!(w.events().iter().filter(told).count(), 1, "once");
    w.clear();
    w.run(ms(1000));
    assert!((0..4).all(|i| !w.alerts_to(i).is_empty()), "all are messaged, it too");

    w.agent(0).obeys = None;
    assert_eq!(w.run(ms(600)).status().servers[0].slot, Slot::Managed);
    assert!(!w.has_alarm("epoch"));
    obey(&mut w, &[1], 9, None);
    w.run(ms(5000));
    assert_eq!(w.state(), ChassisState::Normal, "what the first one said is forgotten");
}

/// Agent 0 says for four seconds that it obeys a manager of this epoch, whose newest message stays the same.
fn insist(w: &mut World, epoch: u64) {
    w.agent(0).answers = false;
    for _ in 0..8 {
        w.run(ms(500));
        let seq = newest(w).seq;
        refuse(w, 0, seq, epoch, 77);
    }
    w.agent(0).answers = true;
    w.run(ms(600));
}

#[test]
fn a_lone_agent_of_a_manager_that_is_gone_is_taken_back() {
    // A ledger was lost, and the other agents' memory: agent 0 alone remembers. Farther ahead it may lie, and
    // the others would not follow.
    for (epoch, taken) in [(9, 10), (16, 17), (17, 1)] {
        let mut w = settled();
        insist(&mut w, epoch);
        assert_eq!(w.status().epoch, Epoch(taken), "{epoch}");
        assert!((0..4).all(|i| w.alerts_to(i).last().unwrap().1.epoch == Epoch(taken)), "{epoch}");
        assert_eq!(w.state(), ChassisState::Normal);
    }
}

#[test]
fn over_one_manager_the_next_epoch_is_taken_once() {
    // Two that have just started: the other one takes the next epoch too.
    let mut w = World::after(params(4), ms(1000));

    for (other, ms_later, state) in [(6, 600, ChassisState::Normal), (8, 1100, ChassisState::Fenced)] {
        obey(&mut w, &[0, 1, 2, 3], other, Some(77));
        w.run(ms(ms_later));
        assert_eq!((w.status().epoch, w.state()), (Epoch(7), state));
        w.each(|a| a.obeys = None);
        w.run(ms(600));
    }

    // A liar names another one every time.
    let mut w = World::after(Params { instance: Instance(1000), ..params(4) }, ms(12_000));
    w.agent(0).answers = false;

    for liar in 0..200 {
        w.run(ms(500));
        let (seq, newest_epoch) = (newest(&w).seq, newest(&w).epoch);
        let (reason, instance) = (RefusalReason::OtherInstance, Some(Instance(liar)));
        let refusal = Refusal { reason, newest_epoch, newest_seq: Seq(1), instance };
        w.input(Input::Answer { server: name(0), seq, answer: Answer::Refused(refusal) });
    }

    assert_eq!(w.status().epoch, Epoch(9), "eight an hour");
}

#[test]
fn an_agent_that_is_set_aside_is_capped_by_hardware_in_an_event() {
    let mut w = settled();
    w.begin_event(W(824));
    obey(&mut w, &[0], 9, None);
    w.until(ChassisState::HardwareCaps);
    assert_eq!(w.caps().into_iter().map(|(server, _)| server).collect::<Vec<_>>(), [name(0)]);
    assert_eq!(w.alerts_to(1).last().unwrap().1.level, Level::Cap, "the others hear on");
}

#[test]
fn two_agents_that_obey_a_manager_that_is_alive_fence_this_one() {
    let mut w = settled();
    obey(&mut w, &[0, 2], 2, None);
    assert!(w.until(ChassisState::Fenced).has_alarm("another manager rules"));
    w.clear();
    w.run(ms(60_000));
    assert!(w.acts().is_empty(), "{:?}", w.acts());
    let asked = w.alerts_to(3);
    assert!(asked.len() == 12, "every five seconds: {asked:?}");
    let grants = |alert: &Alert| alert.level != Level::Watch || alert.echo_agent_ms.is_some();
    assert!(!asked.iter().any(|(_, alert)| grants(alert)), "{asked:?}");

    // One suffices once no other agent answers, or both managers would order hardware caps for ever.
    let mut w = settled();
    obey(&mut w, &[0], 2, None);
    w.run(ms(12_000));
    assert_ne!(w.state(), ChassisState::Fenced, "others obey");
    for i in 1..4 {
        w.silence(i);
    }
    assert!(w.until(ChassisState::Fenced).has_alarm("another manager rules"));

    // A manager whose messages do not advance is no more: they are set aside.
    let mut w = settled();
    for i in [0, 2] {
        w.silence(i).run(ms(600));
        for _ in 0..3 {
            let seq = w.alerts_to(i).last().unwrap().1.seq;
            refuse(&mut w, i, seq, 9, 77);
        }
    }

    assert_eq!(w.state(), ChassisState::Normal);
}

#[test]
fn a_fenced_manager_rules_again_when_half_of_its_agents_miss_the_ruler() {
    // Of four agents so many answer, and so many of these have lost the ruler.
    for (answer, lost, rules) in [(4, 4, true), (2, 2, true), (1, 1, false), (4, 3, false)] {
        let mut w = settled();
        obey(&mut w, &[0, 1, 2, 3], 2, Some(77));
        w.until(ChassisState::Fenced).run(ms(300_000));
        assert_eq!(w.state(), ChassisState::Fenced, "as long as its messages advance");

        (0..lost).for_each(|i| w.agent(i).ruler_gone = true);
        (answer..4).for_each(|i| w.agent(i).answers = false);
        assert_eq!(w.run(ms(115_000)).state(), ChassisState::Fenced);
        w.clear();
        let s = w.run(ms(15_000)).status();
        assert_eq!(s.state != ChassisState::Fenced, rules, "{answer} answer, {lost} miss it");
        let left =
            |event: &&EventKind| matches!(event, EventKind::ChassisState { from: ChassisState::Fenced, .. });
        assert_eq!(w.events().into_iter().any(|event| left(&event)), rules, "one event");
        assert_eq!(s.epoch, Epoch(if rules { 3 } else { 1 }));
        let managed = s.servers.iter().filter(|s| s.slot == Slot::Managed).count();
        assert!(!rules || managed == answer, "{managed}");
    }
}

#[test]
fn all_agents_there_are_are_believed_too() {
    let mut w = World::after(params(1), ms(12_000));
    obey(&mut w, &[0], 9, None);
    w.until(ChassisState::Fenced);

    let mut p = params(4);
    p.servers[1].mode = Mode::Maintenance;
    p.servers[2].mode = Mode::Unmanaged;
    let mut w = World::after(p, ms(12_000));
    w.input(Input::Powered { server: name(3), on: false });
    obey(&mut w, &[0], 9, None);
    assert_eq!(w.run(ms(1100)).state(), ChassisState::Fenced, "the others are not messaged");
}

#[test]
fn an_agent_that_no_longer_says_so_does_not_count() {
    let mut w = settled();
    obey(&mut w, &[0], 9, None);
    w.run(ms(600));
    w.silence(0).run(ms(5000));
    obey(&mut w, &[1], 9, None);
    assert_eq!(w.run(ms(5000)).state(), ChassisState::Normal, "the first one died");
    w.agent(0).answers = true;
    assert_eq!(w.run(ms(1100)).state(), ChassisState::Fenced, "and has come back");

    let mut w = settled();
    let seq = newest(&w).seq;
    refuse(&mut w, 0, seq, 9, 1);
    assert_eq!(w.status().servers[0].slot, Slot::Managed, "obeyed that message");
}

#[test]
fn of_two_managers_of_one_epoch_the_higher_instance_takes_the_next() {
    for (own, other, agents, epoch, state) in [
        (7, 3, &[0, 1][..], 2, ChassisState::Normal),
        (3, 7, &[0, 1], 1, ChassisState::Fenced),
        (3, 7, &[0], 1, ChassisState::Normal), // one alone is set aside
    ] {
        let mut p = params(4);
        p.instance = Instance(own);
        let mut w = World::after(p, ms(12_000));
        obey(&mut w, agents, 1, Some(other));
        let s = w.run(ms(1500)).status();
        assert_eq!((s.epoch, s.state), (Epoch(epoch), state), "{own} against {other}, {agents:?}");
    }
}

#[test]
fn a_fenced_manager_leaves_the_ledger_alone() {
    let mut w = settled();
    w.total = Some(W(1200));
    w.actuator = None;
    w.until(ChassisState::HardwareCaps);
    let id = *action_ids(&w.log).last().unwrap();
    obey(&mut w, &[0, 2], 2, None);
    w.until(ChassisState::Fenced);
    w.total = Some(W(600));
    w.clear();
    w.input(Input::Applied { id, result: Ok(()) });
    assert!(!w.log.iter().any(|(_, o)| matches!(o, Output::Ledger(_))), "{:?}", w.log);
}

#[test]
fn a_repeated_message_is_no_rival_manager() {
    let mut w = World::after(params(4), ms(2000));
    let seq = newest(&w).seq;
    refuse(&mut w, 0, seq, 1, seq.0 + 70);
    assert_eq!(w.state(), ChassisState::Normal);
    w.run(ms(500));
    assert_eq!(newest(&w).seq, Seq(seq.0 + 71), "counts on above");
    refuse(&mut w, 0, Seq(seq.0 + 71), 1, u64::MAX);
    w.run(ms(500));
    assert_eq!(newest(&w).seq, Seq(seq.0 + 72), "but not to the end of numbers");
}

#[test]
fn a_manager_that_agents_refuse_for_this_one_is_an_alarm() {
    const ALARM: &str = "two managers run for this chassis: s-02 obeys this one";
    let mut w = settled();
    let other = |age_ms| {
        let (instance, epoch, seq) = (Instance(77), Epoch(1), Seq(5));
        Some(OtherManager { instance, epoch, seq, age_ms })
    };

    w.agent(2).refuses = other(100);
    w.run(ms(5000));
    assert!(w.has_alarm(ALARM), "{:?}", w.status().alarms);
    let told = |e: &&&EventKind| matches!(e, EventKind::Alarm { message } if message.contains("epoch 1"));
    assert_eq!(w.events().iter().filter(told).count(), 1, "once");
    assert_eq!(w.state(), ChassisState::Normal, "it rules on");

    // It says nothing more, or it is this manager before the agent knew it.
    let own = w.chassis.params().instance;
    let before = other(100).map(|other| OtherManager { instance: own, ..other });

    for refuses in [other(60_000), before, None] {
        w.agent(2).refuses = refuses;
        assert!(!w.run(ms(1000)).has_alarm(ALARM), "{refuses:?}");
    }
}
