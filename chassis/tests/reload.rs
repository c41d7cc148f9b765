//! The configuration is read anew while the manager runs.
mod common;

use ballast_chassis_core::{Input, Ledger, Mode, Output, Params, Poll};
use ballast_types::wire::{ChassisState, Level, Slot};
use ballast_types::{Epoch, Supply, SupplyState};
use common::{W, World, ms, name, params};

impl World {
    fn reload(&mut self, params: Params) -> &mut Self {
        self.input(Input::Params(Box::new(params)))
    }

    fn epoch(&self) -> Option<Epoch> {
        self.ledgers().last().map(|ledger| ledger.epoch)
    }
}

#[test]
fn a_lower_budget_is_in_force_at_once_without_a_new_epoch_or_a_lift() {
    let mut w = World::in_event(params(4), W(780));
    w.run(ms(1000));
    let (epoch, granted) = (w.epoch(), w.granted());
    assert!(granted > W(0));
    w.clear();

    let lower = Params { budget: W(700), ..params(4) };
    w.reload(lower.clone()).run(ms(1000));
    let status = w.status();
    assert_eq!((status.budget_w, status.state), (W(700), ChassisState::Alerting));
    assert!(w.granted() < granted, "everybody gets less");
    assert!(w.levels().iter().all(|level| *level != Level::Watch), "nobody was released");
    assert!(w.ledgers().iter().all(|ledger| Some(ledger.epoch) == epoch));

    // What the operator had ordered stays while it is the lower one.
    w.input(Input::Budget(Some(W(650)))).reload(lower.clone());
    assert_eq!(w.status().budget_w, W(650));
    w.reload(Params { budget: W(600), ..lower });
    assert_eq!((w.status().budget_w, w.ledgers().last().unwrap().budget_w), (W(600), None));
}

#[test]
fn a_server_that_is_new_is_told_at_once_and_takes_its_part() {
    let mut w = World::with(params(3), Ledger::default());
    let two = Params { servers: params(3).servers[..2].to_vec(), budget: W(600), ..params(2) };
    w.run(ms(1000)).reload(two.clone()).run(ms(1000));
    assert_eq!(w.status().servers.len(), 2);
    w.clear();

    let all = params(3);
    w.reload(all.clone());
    let first = w.alerts_to(2).first().map(|(at, alert)| (*at, alert.seq)).expect("a message at once");
    assert_eq!(first.0, w.now);
    w.run(ms(1000));
    assert_eq!(w.status().servers[2].slot, Slot::Managed);

    // The same agent, once more: it obeys only numbers that rise.
    w.reload(two).run(ms(1000)).clear();
    w.reload(all);
    let again = w.alerts_to(2).first().map(|(_, alert)| alert.seq).expect("a message");
    assert!(again > first.1, "{again} after {}", first.1);
}

#[test]
fn a_cap_on_a_server_that_is_gone_stays_in_the_ledger_until_that_server_is_back() {
    let ledger = Ledger { out_of_band: vec![(name(1), W(130))], ..Ledger::default() };
    let mut w = World::with(params(3), ledger);
    w.actuator = Some(Err("the BMC does not answer".into()));
    let mut fewer = params(3);
    fewer.servers.remove(1);
    w.run(ms(1000)).reload(fewer).run(ms(60_000));
    assert_eq!(w.ledgers().last().unwrap().out_of_band, [(name(1), W(130))]);
    assert!(w.has_alarm("s-01"), "somebody must know of it: {:?}", w.status().alarms);
    w.clear();
    w.actuator = Some(Ok(()));
    w.run(ms(60_000));
    assert!(w.lifts().is_empty(), "nobody can lift it from here");

    w.reload(params(3)).run(ms(60_000));
    assert_eq!((w.lifts().len(), w.state()), (1, ChassisState::Normal));
    assert!(w.ledgers().last().unwrap().out_of_band.is_empty());
}

#[test]
fn a_server_in_maintenance_is_no_alarm_and_comes_back() {
    let mut w = World::after(params(3), ms(1000));
    let mut aside = params(3);
    aside.servers[1].mode = Mode::Maintenance;
    w.silence(1).reload(aside).run(ms(10_000));
    assert_eq!(w.status().servers[1].slot, Slot::Maintenance);
    assert!(w.status().alarms.is_empty(), "{:?}", w.status().alarms);
    w.agent(1).answers = true;
    w.reload(params(3)).run(ms(1000));
    assert_eq!(w.status().servers[1].slot, Slot::Managed);
}

#[test]
fn another_supply_counts_from_the_poll_that_has_it() {
    let named = |names: &[&str]| {
        let supply_names = names.iter().map(|&name| name.to_owned()).collect();
        Params { supply_rated: vec![W(300); names.len()], supply_names, ..params(4) }
    };
    let mut w = World::after(named(&["a", "b"]), ms(1000));
    assert_eq!(w.status().limit_w, W(600), "less than the budget");
    w.polls = false;
    w.reload(named(&["b", "c", "a"]));
    assert_eq!(w.status().limit_w, W(600));

    let mut poll = Poll {
        supplies: vec![Supply { state: SupplyState::Active, input: Some(W(190)) }; 3],
        taken_at: w.now + ms(200),
    };
    w.run(ms(200)).input(Input::Psu(poll.clone()));
    assert_eq!((w.status().limit_w, w.status().power_w), (W(800), Some(W(570))));

    // One goes: the rest can carry less at once.
    w.reload(named(&["c", "b"]));
    assert_eq!(w.status().limit_w, W(600));
    poll.supplies.truncate(2);
    poll.taken_at = w.now + ms(200);
    w.run(ms(200)).input(Input::Psu(poll));
    assert_eq!(w.status().power_w, Some(W(380)));
}

#[test]
fn who_the_manager_is_stays() {
    let mut w = World::after(params(2), ms(1000));
    let before = w.chassis.params().clone();
    let mut other = params(2);
    other.instance.0 += 1;
    w.reload(other).run(ms(1000));
    assert_eq!(*w.chassis.params(), before);
    assert!(w.log.iter().all(|(_, output)| !matches!(output, Output::OutOfBandLift { .. })));
}

#[test]
fn what_a_server_draws_that_is_gone_is_not_granted_to_the_others() {
    let mut w = World::in_event(params(4), W(780));
    w.run(ms(5000));
    let fewer = Params { servers: params(4).servers[..3].to_vec(), budget: params(4).budget, ..params(4) };
    let drawn = w.status().servers[3].report.as_ref().unwrap().power_w.unwrap();
    w.reload(fewer);
    w.run(ms(400));
    let status = w.status();
    assert!(w.granted() + drawn <= status.limit_w, "{} and {drawn} of {}", w.granted(), status.limit_w);
}

#[test]
fn a_server_that_comes_out_of_maintenance_is_heard_before_its_cap_is_lifted() {
    let ledger = Ledger { out_of_band: vec![(name(1), W(130))], ..Ledger::default() };
    let mut w = World::with(params(3), ledger.clone());
    w.actuator = Some(Err("the BMC does not answer".into()));
    let mut aside = params(3);
    aside.servers[1].mode = Mode::Maintenance;
    w.run(ms(1000)).reload(aside).silence(1).run(ms(10_000));
    w.actuator = Some(Ok(()));
    w.clear();
    w.reload(params(3));
    assert!(w.lifts().is_empty(), "by a report of before");
    assert_eq!(w.ledgers().last().map_or(ledger.out_of_band.len(), |it| it.out_of_band.len()), 1);
}
