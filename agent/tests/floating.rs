//! Floating VMs (`cpu-max`): what goes in and what comes out.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod support;

use ballast_agent_core::*;
use ballast_types::wire::{AgentState, Level};
use ballast_types::*;
use support::*;

/// The same server and VMs as elsewhere, floating: `soon` has 4 cores and goes first, `late` has 2. The
/// floor is 714 of 1000 (1.0 of 1.4 GHz).
fn floating() -> Params {
    Params { actuator: Actuator::CpuMax, ..params() }
}
fn usage(id: &str, share: f64, throttled: bool) -> VmUsage {
    let utilisation = Utilisation::from_ratio(share).unwrap();
    VmUsage { vm: VmId::new(id).unwrap(), utilisation, throttled }
}
fn found(vm: &str, cores: u16, millicores: u32) -> RecoveredQuota {
    RecoveredQuota { vm: VmId::new(vm).unwrap(), cores, millicores }
}

#[test]
fn classes_reach_their_floor_one_by_one_as_one_quota_a_vm() {
    let mut it = World::of(floating());
    it.draw(150).samples(200, 1);
    let log = it.tell(Some(180)).log();
    let dropped = "soon=2856m, Uncapped>Throttled: above the cap, floor 1.1 1";
    assert!(log.contains(dropped), "{log}");
    let report = it.report();
    assert_eq!((report.min_khz, report.min_share_percent, report.low_cores), (None, Some(71), 6));
    assert_eq!(it.samples(200, 2).log(), "late=1428m");
    it.samples(200, 2).steer(180, 0, true);
    assert_eq!(it.log(), "limit=180.0 W, Throttled>Shedding: the floor was not enough");
}

#[test]
fn quotas_rise_by_four_slots_a_step_in_reverse_order_and_are_lifted_whole() {
    let mut it = World::of(floating());
    it.samples(200, 1).tell_level(Some(180), Level::Emergency);
    assert!(it.tell(Some(180)).log().contains("late=1428m, soon=2856m"));
    assert_eq!(it.samples(150, 2).log(), "Throttled>Recovering: room under the cap, late=1570m");
    for expected in ["late=1714m", "late=1856m", "late=free", "soon=3140m", "soon=3428m"] {
        assert_eq!(it.samples(150, 2).log(), expected);
    }
    // Above the target: the highest slots of the first class go down again.
    assert_eq!(it.samples(179, 2).log(), "soon=3140m");
    assert_eq!(it.tell(None).log(), "soon=free, Recovering>Uncapped: the chassis lifted the cap");
    assert_eq!((it.quotas.len(), it.report().min_share_percent), (0, None));
}

#[test]
fn vms_come_go_grow_and_change_class_under_a_cap() {
    let mut it = World::of(floating());
    it.samples(200, 1).tell_level(Some(180), Level::Emergency).log();
    let set = |list: &[(&str, VmClass, u16)]| {
        let cores = |n: &u16| (0..*n).collect::<Vec<_>>();
        let one = |(id, class, n): &(&str, VmClass, u16)| vm(id, *class, 0, &cores(n));
        Input::Vms(list.iter().map(one).collect())
    };

    use VmClass::{NonUserFacing as Nuf, UserFacing as Uf};

    // More cores in all than the server has: they float.
    for (vms, expected) in [
        (&[("soon", Nuf, 4), ("late", Nuf, 2), ("new", Nuf, 10)][..], "new=7140m"),
        (&[("soon", Nuf, 6), ("late", Nuf, 2), ("new", Nuf, 1)], "soon=4284m, new=714m"),
        (&[("soon", Uf, 6), ("late", Nuf, 2), ("new", Nuf, 1)], "soon=free"),
        (&[("soon", Nuf, 6), ("late", Nuf, 2)], "soon=4284m, new=free"),
        (&[("soon", Nuf, 6), ("soon", Nuf, 3)], "soon=2142m, late=free"),
        // Where nobody of its class shows that its turn has come, a newcomer starts free.
        (&[("other", Nuf, 2)], "soon=free"),
    ] {
        it.input(set(vms));
        let mut got: Vec<_> = it.log().split(", ").map(str::to_owned).collect();
        let mut expected: Vec<_> = expected.split(", ").map(str::to_owned).collect();
        got.sort_unstable();
        expected.sort_unstable();
        assert_eq!(got, expected, "{vms:?}");
    }

    assert_eq!(it.quotas.len(), 0);
}

#[test]
fn a_restart_takes_over_what_it_finds_and_lifts_what_is_nobodys() {
    let quotas = vec![found("soon", 4, 2856), found("late", 2, 1000), found("gone", 2, 1428)];
    let it = |quotas: &[RecoveredQuota]| {
        World::with(floating(), RecoveredState { quotas: quotas.to_vec(), ..RecoveredState::default() })
    };

    // Nothing moves before the VMs are told; then only what is nobody's.
    let mut world = it(&quotas);
    assert_eq!((world.log(), world.state()), (String::new(), AgentState::Boot));
    world.input(Input::Vms(vms()));
    assert_eq!(world.log(), "gone=free");

    // A cap: what was found is kept, and the next step is taken from there. `late` stood lower than its
    // floor: the first step that moves it brings it onto the ladder.
    world.tell(Some(180));
    world.log();
    world.draw(150);
    let (first, then) = ("Boot>Throttled: a power reading", "Throttled>Recovering: room under the cap");
    assert_eq!(world.log(), format!("{first}, {then}, late=1570m"));
    world.tell(None);
    assert_eq!((world.quotas.len(), world.report().restorable_w), (0, w(0)));

    // No cap: everything is lifted with the first sample, whatever it was.
    let mut world = it(&quotas);
    world.input(Input::Vms(vms()));
    world.draw(150);
    assert_eq!(world.quotas.len(), 0, "{}", world.log());

    // Even if nobody ever tells the VMs.
    let mut world = it(&quotas);
    world.draw(150);
    assert_eq!(world.quotas.len(), 0, "{}", world.log());
}

#[test]
fn a_quota_that_cannot_be_set_is_retried_given_up_and_mended() {
    let mut it = World::of(floating());
    it.samples(200, 1);
    it.input(Input::Usage(vec![usage("soon", 1.0, false), usage("late", 1.0, false)]));
    it.result = Some(Err(ActuatorError::Transient));
    it.tell_level(Some(180), Level::Emergency).log();
    let log = it.pass(150).log();
    assert!(log.contains("VM soon could not be limited to 2.856 cores"), "{log}");
    let report = it.report();
    assert_eq!((report.actuator_failures, report.sheddable_w), (2, w(0)));
    it.result = Some(Ok(()));
    assert!(it.pass(10_000).log().contains("late=1428m, soon=2856m"));
    assert_eq!(it.quotas.len(), 2);
}

#[test]
fn estimates_are_proportional_and_know_what_a_quota_holds_back() {
    // 198 W over 12 cores: 16.5 W a core.
    let per_core = |cores: f64| Watts::from_f64(cores * 16.5).unwrap();
    let mut it = World::of(floating());
    assert_eq!(it.report().sheddable_w, w(0), "unknown use sheds nothing");

    // `soon` would go on undisturbed at its floor of 2.856 cores, `late` would not at 1.428.
    it.input(Input::Usage(vec![usage("soon", 0.5, false), usage("late", 1.0, false)]));
    let report = it.report();
    assert_eq!((report.sheddable_w, report.restorable_w), (per_core(2.0 - 1.428), w(0)));
    it.samples(200, 1).tell_level(Some(180), Level::Emergency);

    // That use is from before the quota, which bites `late` alone.
    let report = it.report();
    assert_eq!((report.sheddable_w, report.restorable_w), (w(0), per_core(2.0 - 1.428)));

    // Below its quota on average, but stopped at times: it may want all its cores.
    it.input(Input::Usage(vec![usage("soon", 0.5, true), usage("late", 0.6, false)]));
    assert_eq!(it.report().restorable_w, per_core(4.0 - 2.0));
    it.samples(150, 30).tell_level(Some(180), Level::Emergency);
    assert_eq!(it.report().restorable_w, per_core(6.0 - 2.856 - 1.428), "unknown use: all");

    // Under the server's own limit: the rise to what they would use, unaccounted cores like the others.
    let mut it = World::of(floating());
    it.samples(200, 1).tell_level(Some(120), Level::Emergency);
    it.samples(200, 4);
    assert_eq!(it.state(), AgentState::Shedding);
    let all = [usage("uf", 0.5, false), usage("soon", 0.5, false), usage("late", 0.7, true)];
    it.input(Input::Usage(all.to_vec()));
    let used = (1.5 + 2.0 + 2.0) * 12.0 / 9.0;
    assert_eq!(it.report().restorable_w, w(112) + per_core(used) - w(200));
}

#[test]
fn by_frequency_a_vm_sheds_as_p_states_do_however_busy_it_is() {
    let clamped = || Params { actuator: Actuator::Uclamp, ..floating() };
    // Of one core, 16.5 W when busy, at the floor of 1.0 of 1.4 GHz.
    let floor = PowerModel::PAPER.scale(1.0 / 1.4);
    let per_core = |cores: f64| cores * 16.5;
    let close = |is: Watts, expected: f64| {
        assert!((is.as_f64() - expected).abs() < 0.1, "{is:?} is not {expected} W");
    };
    let mut it = World::of(clamped());
    assert_eq!(it.report().sheddable_w, w(0), "unknown use sheds nothing");

    // `soon` uses less than a quota at the floor would leave it, and sheds all the same.
    it.input(Input::Usage(vec![usage("soon", 0.5, false), usage("late", 1.0, false)]));
    let report = it.report();
    close(report.sheddable_w, per_core(2.0 + 2.0) * (1.0 - floor));
    close(report.restorable_w, 0.0);
    it.samples(200, 1).tell_level(Some(180), Level::Emergency);
    assert!(it.log().contains("late=1428m, soon=2856m"));
    let report = it.report();
    close(report.sheddable_w, 0.0);
    close(report.restorable_w, per_core(2.0 + 2.0) * (1.0 - floor));
    it.samples(150, 30).tell_level(Some(180), Level::Emergency);
    close(it.report().restorable_w, per_core(6.0) * (1.0 - floor));

    // Under the server's own limit: the rise to what they use, unaccounted cores like the others.
    let mut it = World::of(clamped());
    it.samples(200, 1).tell_level(Some(120), Level::Emergency);
    it.samples(200, 4);
    assert_eq!(it.state(), AgentState::Shedding);
    let all = [usage("uf", 0.5, false), usage("soon", 0.5, false), usage("late", 1.0, false)];
    it.input(Input::Usage(all.to_vec()));
    close(it.report().restorable_w, 112.0 + per_core((1.5 + 2.0 + 2.0) * 12.0 / 9.0) - 200.0);
}
