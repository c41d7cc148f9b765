use ballast_planner::{Binding, Chassis, Terms};
use ballast_types::{PowerModel, Watts};
use proptest::prelude::*;

use super::chassis::{MeasuredVm, Part, Population, Rack, made_cores};
use super::synthesis::{Quantiles, Size, draws};
use super::weeks::{WEEK_S, interval, resampled};
use super::*;

const TENTH: Watts = Watts::from_milli(100);

fn made(seed: u64, size: Size) -> Vec<Draws> {
    let chassis = Chassis::default();
    let idle_w = f64::from(chassis.servers) * chassis.server.idle_w;
    draws(seed, size, &Quantiles::PAPER, chassis.nameplate().as_f64(), idle_w)
}

const SMALL: Size = Size { chassis: 12, weeks: 2, period_s: 300 };

#[test]
fn made_draws_have_the_quantiles_and_give_the_papers_table() {
    for seed in [1, 2, 3] {
        let history = histogram(&made(seed, SMALL), TENTH).unwrap();
        assert_eq!(history.readings(), 12 * 2 * 2016);
        let share = |w: Option<Watts>| w.unwrap().as_f64() / 3720.0;

        for (ppm, quantile) in [(10_000, 0.7991), (1_000, 0.8527), (0, 0.87)] {
            let found = share(history.exceeded_by(ppm));
            assert!((found - quantile).abs() < 2e-5, "{ppm}: {found}");
        }

        assert!((share(history.mean()) - 0.55).abs() < 0.01, "{:?}", history.mean());
        assert!(history.iter().next().unwrap().0 >= Watts::from_whole(12 * 112));
        let chassis = Chassis::default();
        let terms = Terms::paper(&chassis);
        let judged = judge(&Case { chassis, terms, history, held_out: None });
        let paper = [0.0, 6.2, 11.0, 12.1, 8.4, 10.3, 10.6, 12.1];
        assert_eq!(judged.len(), paper.len());

        for (row, delta) in judged.iter().zip(paper) {
            assert!((row.delta_percent - delta).abs() <= 0.1, "{row:?}");
            assert!(row.rates.kept && !row.held_out, "{row:?}");
        }

        assert_eq!(judged[2].binding, Binding::Depth);
        assert_eq!(judged[5].binding, Binding::UserFacingRate);
    }
}

#[test]
fn made_draws_depend_on_the_seed_alone_and_none_are_possible() {
    assert_eq!(made(7, SMALL), made(7, SMALL));
    assert!(made(7, SMALL) != made(8, SMALL));
    assert!(made(1, Size { chassis: 0, ..SMALL }).is_empty());
    assert!(made(1, Size { weeks: 0, ..SMALL }).is_empty());
    let one = made(1, Size { chassis: 1, weeks: 1, period_s: WEEK_S });
    assert_eq!(one[0].get(0), Watts::from_f64(0.87 * 3720.0));
}

#[test]
fn a_day_and_noise_are_in_them() {
    let watts = |draws: &Draws| draws.iter().map(Watts::as_f64).collect::<Vec<_>>();
    let chassis: Vec<_> = made(1, SMALL).iter().map(watts).collect();
    let alike = |lag: usize| {
        let (mut both, mut all) = (0.0, 0.0);
        for series in &chassis {
            let mean = series.iter().sum::<f64>() / series.len() as f64;
            for (a, b) in series.iter().zip(&series[lag..]) {
                both += (a - mean) * (b - mean);
                all += (a - mean) * (a - mean);
            }
        }
        both / all
    };
    // Alike after five minutes and after a day, not after half a day.
    assert!(alike(1) > 0.9 && alike(288) > 0.3 && alike(144) < 0.0, "{}", alike(144));
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
fn weeks_are_shifted_and_resampled_whole() {
    let of = Population::new(vec![vm(5, [0.0, 0.4]), vm(5, [0.0, 0.8])], HALF_DAY_S);
    let fleet = of.pack(1, 50, RACK);
    let busy = |weeks: &[usize]| fleet.busy(&of, Part::History, weeks);
    let all = readings(&busy(&[0, 1]).draws(&PowerModel::PAPER, 1.0));
    // Two cores busy, four, six or none; each chassis has each VM's busy week once.
    let found: std::collections::BTreeSet<_> = all.iter().map(String::as_str).collect();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["224.0", "263.6", "303.2", "342.8"]);
    for pair in all.chunks(2) {
        let sum: f64 = pair.iter().map(|w| w.parse::<f64>().unwrap()).sum();
        assert!((sum - 566.8).abs() < 0.01, "{pair:?}");
    }
    let idle = busy(&[0, 0]).draws(&PowerModel::PAPER, 1.0);
    assert!(readings(&idle).iter().all(|w| w == "224.0"));
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
    let history = histogram(&made(1, SMALL), TENTH).unwrap();
    // Later everything draws 8 % more.
    let mut held_out = Histogram::new(TENTH).unwrap();
    for (draw, count) in history.iter() {
        held_out.add(Watts::from_milli(draw.milli() * 108 / 100), count);
    }
    let chassis = Chassis::default();
    let terms = Terms::paper(&chassis);
    let judged = judge(&Case { chassis, terms, history, held_out: Some(held_out) });
    let no_impact = &judged[2];
    assert!(no_impact.held_out && no_impact.history.kept);
    assert!(no_impact.rates.kept, "a buffer of ten percent carries eight: {no_impact:?}");
    let without = no_impact.buffers.last().unwrap();
    assert_eq!(without.buffer_percent, 0.0);
    assert!(!without.rates.kept && without.rates.unmet > 0.0, "{without:?}");
    assert!(without.rates.user_facing >= without.rates.unmet);
    assert!(deltas(&Histogram::new(TENTH).unwrap(), &chassis, &terms).is_empty());
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
