use ballast_planner::{Chassis, Terms};
use ballast_types::{PowerModel, Watts};
use proptest::prelude::*;

use super::chassis::{MeasuredVm, Part, Population, Rack, made_cores};
use super::weeks::{interval, resampled};
use super::*;

const TENTH: Watts = Watts::from_milli(100);

fn case(history: Histogram, held_out: Option<Histogram>) -> Case {
    let chassis = Chassis::default();
    let terms = Terms::paper(&chassis);
    Case { chassis, terms, history, held_out, back_tests: vec![], needed: vec![] }
}

/// A VM of so many cores that is `busy` all the time, in weeks of 14 half days.
fn vm(cores: u16, busy: [f32; 2]) -> MeasuredVm {
    let week = |share: f32| vec![share; 14];
    let history = busy.map(week).concat();
    MeasuredVm { cores, user_facing: cores > 4, held_out: history.clone(), history }
}

const HALF_DAY_S: u32 = 43_200;
const RACK: Rack = Rack { servers: 2, cores: 10, alloc: 0.5 };

fn readings(chassis: &[Draws]) -> Vec<String> {
    let all = chassis.iter().flat_map(Draws::iter);
    all.step_by(14).map(|w| format!("{:.1}", w.as_f64())).collect()
}

#[test]
fn servers_draw_what_their_vms_need() {
    let of = Population::new(vec![vm(5, [0.2, 0.2]), vm(5, [0.6, 0.6])], HALF_DAY_S);
    let fleet = of.pack(1, 1, RACK);
    assert_eq!(fleet.alloc(), 0.5);
    let model = PowerModel::PAPER;
    let busy = fleet.busy(&of, Part::History, &[0, 1]);
    // 2 × 112 W idle, and 4 of 20 cores are busy: 0.4 servers of 198 W.
    assert_eq!(readings(&busy.draws(&model, 1.0)), ["303.2", "303.2"]);
    // Five times that: one server would need 5, the other 15 of 10 cores.
    assert_eq!(readings(&busy.draws(&model, 5.0)), ["521.0", "521.0"]);
    let factor = busy.factor(&model, 0.6 * 620.0).unwrap();
    assert!((factor - 1.8687).abs() < 1e-3, "{factor}");
    assert_eq!(busy.factor(&model, 100.0), None);
    assert_eq!(busy.factor(&model, 621.0), None);
}

#[test]
fn a_chassis_is_estimated_from_its_vms() {
    let of = Population::new(vec![vm(6, [0.2, 0.2]), vm(4, [0.5, 0.5])], HALF_DAY_S);
    let fleet = of.pack(1, 4, RACK);
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-6, "{a}, not {b}");
    let as_is = of.estimate(&fleet, 1.0, PowerModel::PAPER);
    close(as_is.alloc, 0.5);
    close(as_is.beta, 0.6);
    close(as_is.util_user_facing, 0.2);
    close(as_is.util_non_user_facing, 0.5);
    // Three times as much: alloc ends at all cores, and no VM counts with more than its own ones.
    let scaled = of.estimate(&fleet, 3.0, PowerModel::PAPER);
    close(scaled.alloc, 1.0);
    close(scaled.util_user_facing, 0.6 * 0.5);
    close(scaled.util_non_user_facing, 1.0 * 0.5);
    assert_eq!(scaled.check(), Ok(()));
}

#[test]
fn weeks_stay_where_they_were_and_are_resampled_whole() {
    let of = Population::new(vec![vm(5, [0.0, 0.4]), vm(5, [0.0, 0.8])], HALF_DAY_S);
    let fleet = of.pack(1, 50, RACK);
    let draws = |weeks: &[usize]| fleet.busy(&of, Part::History, weeks).draws(&PowerModel::PAPER, 1.0);

    // Both are idle in the first week, and busy with 6 of 20 cores in the second.
    let all = readings(&draws(&[0, 1]));
    assert!(all.chunks(2).all(|pair| pair == ["224.0", "342.8"]), "{all:?}");
    assert!(readings(&draws(&[0, 0])).iter().all(|w| w == "224.0"));
}

#[test]
fn loads_say_who_is_busy() {
    let of = Population::new(vec![vm(6, [0.2, 0.2]), vm(4, [0.5, 0.5])], HALF_DAY_S);
    let busy = of.pack(1, 1, RACK).busy(&of, Part::History, &[0, 1]);
    let load = |factor: f64| busy.loaded(&PowerModel::PAPER, factor)[0].peak(28).unwrap();

    // 1.2 of 10 cores user-facing, 2 of 10 others'; three times that; and all of both servers.
    for (factor, user_facing, others) in [(1.0, 0.12, 0.2), (3.0, 0.36, 0.6), (100.0, 1.0, 1.0)] {
        let found = load(factor);
        let off = (found.user_facing - user_facing).abs().max((found.others - others).abs());
        assert!(off < 1e-4, "{factor}: {found:?}");
    }
    assert_eq!(busy.loaded(&PowerModel::PAPER, 1.0)[0].get(3), busy.draws(&PowerModel::PAPER, 1.0)[0].get(3));
}

#[test]
fn gaps_stay_gaps() {
    let gap = |vm: MeasuredVm, units: core::ops::Range<usize>| {
        let mut vm = vm;
        vm.history[units].fill(f32::NAN);
        vm
    };

    // A tenth of the cores may be unknown; they count with their mean.
    let vms = vec![gap(vm(9, [0.5, 0.5]), 3..5), gap(vm(1, [0.2, 0.4]), 0..2)];
    let of = Population::new(vms, HALF_DAY_S);
    let rack = Rack { servers: 2, cores: 10, alloc: 0.5 };
    let draws = of.pack(1, 1, rack).busy(&of, Part::History, &[0]).draws(&PowerModel::PAPER, 1.0);
    assert_eq!((draws[0].len(), draws[0].iter().count()), (14, 12), "{draws:?}");
    assert_eq!(histogram(&draws, TENTH).unwrap().readings(), 12);

    // Who was not measured for long is left out, and so is who has no cores.
    let vms = vec![gap(vm(2, [0.1; 2]), 0..6), vm(0, [0.1; 2]), vm(3, [0.1; 2])];
    let of = Population::new(vms, HALF_DAY_S);
    assert_eq!((of.vms().len(), of.left_out(), of.weeks(Part::HeldOut)), (1, 2, 2));

    // A last week that lacks an hour counts; one that lacks two days does not.
    let mut short = vm(3, [0.1; 2]);
    short.history.truncate(27);
    short.held_out.truncate(24);
    let of = Population::new(vec![short], HALF_DAY_S);
    assert_eq!((of.weeks(Part::History), of.weeks(Part::HeldOut)), (2, 1));
}

#[test]
fn resampled_weeks_are_seeded_and_within_range() {
    let all = resampled(1, 4, 200);
    assert_eq!(all, resampled(1, 4, 200));
    assert!(all != resampled(2, 4, 200));
    let mut counts = [0; 4];
    all.iter().flatten().for_each(|week| counts[*week] += 1);
    assert!(counts.iter().all(|n| (140..260).contains(n)), "{counts:?}");
    assert_eq!(interval(&[]), None);
    assert_eq!(interval(&[3.0, 1.0, 2.0]), Some((1.0, 3.0)));
    let hundred: Vec<f64> = (0..=100).map(f64::from).collect();
    assert_eq!(interval(&hundred), Some((3.0, 98.0)));
}

#[test]
fn cores_that_were_made_have_the_papers_shares() {
    let all: Vec<u16> = (0..2000).map(|vm| made_cores(1, vm)).collect();
    let one = all.iter().filter(|cores| **cores == 1).count();
    assert!((580..740).contains(&one), "{one}");
    assert_eq!(all[..50], (0..50).map(|vm| made_cores(1, vm)).collect::<Vec<_>>());
}

#[test]
fn a_plan_that_later_weeks_break_says_so() {
    let draws = |percent: i64| {
        let mut draws = Histogram::new(TENTH).unwrap();
        for (w, times) in [(2046, 98_899), (2973, 1_000), (3172, 100), (3236, 1)] {
            draws.add(Watts::from_milli(w * 10 * percent), times);
        }
        draws
    };

    // Later everything draws 8 % more: a buffer of ten percent carries that, none does not.
    let with = |buffer_ppm: u32| {
        let mut case = case(draws(100), Some(draws(108)));
        case.terms.buffer_ppm = buffer_ppm;
        judge(&case).into_iter().find(|row| row.approach == "no-impact").unwrap()
    };
    let (buffered, without) = (with(100_000), with(0));
    assert!(buffered.held_out && buffered.history.kept && buffered.rates.kept, "{buffered:?}");
    assert!(!without.rates.kept && without.rates.unmet > 0.0, "{without:?}");
    assert!(without.rates.user_facing >= without.rates.unmet);

    let empty = case(Histogram::new(TENTH).unwrap(), None);
    assert!(deltas(&empty.history, &empty).is_empty());
}

proptest! {
    #[test]
    fn every_vm_is_dealt_as_often_as_every_other_one(
        cores in prop::collection::vec(1_u16..10, 2..12),
        seed in 0_u64..1000,
    ) {
        let vms = cores.iter().map(|cores| vm(*cores, [0.5, 0.5])).collect();
        let of = Population::new(vms, HALF_DAY_S);
        let rack = Rack { servers: 3, cores: 10, alloc: 0.8 };
        let fleet = of.pack(seed, 20, rack);
        prop_assert!(fleet.alloc() > 0.0 && fleet.alloc() <= 0.8);
        let busy = fleet.busy(&of, Part::History, &[0, 1]).draws(&PowerModel::PAPER, 1.0);
        // All are half busy: each chassis draws half of its allocated cores.
        let mean = busy.iter().filter_map(|c| c.get(0)).map(Watts::as_f64).sum::<f64>() / 20.0;
        let expected = 3.0 * (112.0 + 198.0 * 0.5 * fleet.alloc());
        prop_assert!((mean - expected).abs() < 0.01, "{mean}, not {expected}");
    }
}
