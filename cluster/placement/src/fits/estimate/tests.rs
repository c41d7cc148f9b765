use proptest::prelude::*;

use std::sync::Arc;

use super::*;

fn samples(values: &[f32]) -> Samples<'_> {
    Samples::new(values).unwrap()
}

fn promise(capacity: f64, target: f64) -> Promise {
    Promise::new(capacity, target).unwrap()
}

fn loaded<L: Load>(vms: &[L::Usage]) -> L {
    let mut load = L::default();
    for vm in vms {
        load.add(vm);
    }
    load
}

fn close(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance, "{value} is not {expected}");
}

/// A use of 0.25 cores for a fifth of the time.
const FIFTH: [f32; 5] = [0.25, 0.0, 0.0, 0.0, 0.0];

#[test]
fn the_normal_tail_is_that_of_tables() {
    // Four VMs of 0.2 cores with a variance of 0.0025 each: the capacity is two standard deviations above the sum.
    let vm = samples(&[0.15, 0.25]).moments();
    close(vm.deviation(), 0.05, 1e-7);
    let load: Gaussian = loaded(&[vm; 4]);
    close(load.risk(None, &promise(1.0, 0.1)), 0.022_750_13, 1e-6);
    for (target, sigmas) in [(0.1, 1.281_551_57), (0.01, 2.326_347_87), (0.001, 3.090_232_31)] {
        close(promise(1.0, target).sigmas(), sigmas, 1e-8);
    }
    assert!(loaded::<Gaussian>(&[vm; 3]).fits(&vm, &promise(1.0, 0.022_76)));
    assert!(!loaded::<Gaussian>(&[vm; 3]).fits(&vm, &promise(1.0, 0.022_74)));
}

#[test]
fn the_third_cumulant_is_the_first_term_of_edgeworth() {
    let vm = samples(&FIFTH).moments();
    // Of a Bernoulli variable of 0.2, times 0.25.
    close(vm.mean(), 0.05, 1e-12);
    close(vm.variance(), 0.16 / 16.0, 1e-12);
    close(vm.third(), 0.096 / 64.0, 1e-12);

    // z = (1 - 0.5) / sqrt(0.1) = 1.58114; skewness = 0.015 / 0.1^1.5 = 0.474342.
    let plain: Gaussian = loaded(&[vm; 10]);
    let skewed: Skewed = loaded(&[vm; 10]);
    let p = promise(1.0, 0.01);
    close(plain.risk(None, &p), 0.056_923, 1e-6);
    close(skewed.risk(None, &p), 0.056_923 + 0.114_300 * 0.474_342 / 6.0 * 1.5, 1e-5);
}

#[test]
fn the_convolution_of_bernoulli_variables_is_binomial() {
    let vm = Histogram::new(samples(&FIFTH), 1.25).unwrap();
    let load: Convolution = loaded(&vec![vm; 10]);
    // P(Bin(10, 0.2) > 4): five of them need the capacity, which counts as above.
    close(load.risk(None, &promise(1.25, 0.01)), 0.032_793_497_6, 1e-7);
}

#[test]
fn joint_samples_know_what_peaks_together() {
    let vm = |values: &[f32], factor| Aligned::new(samples(values), 4, 1.0, factor).unwrap();
    let (morning, evening) = (vm(&[0.9, 0.1, 0.1, 0.1], 1.0), vm(&[0.1, 0.1, 0.1, 0.9], 1.0));
    let p = promise(1.0, 0.0);
    let load: Simultaneous = loaded(&[Arc::clone(&morning)]);
    assert!(load.fits(&evening, &p) && !load.fits(&morning, &p));
    assert_eq!(load.risk(Some(&morning), &p), 0.25);
    assert!(load.fits(&morning, &promise(1.0, 0.25)));

    // A tenth above the peak does not fit; an older, shorter series counts as its peak.
    assert!(
        !loaded::<Simultaneous>(&[vm(&[0.9, 0.1, 0.1, 0.1], 1.1)]).fits(&vm(&[0.1, 0.1, 0.1, 0.9], 1.1), &p)
    );
    assert_eq!(vm(&[0.2, 0.7], 1.0), vm(&[0.7, 0.7, 0.2, 0.7], 1.0));
}

#[test]
fn hours_keep_apart_what_is_busy_by_day_and_by_night() {
    let day: Vec<f32> = (0..48).map(|n| if n % 24 < 12 { 0.5 } else { 0.1 }).collect();
    let night: Vec<f32> = (0..48).map(|n| if n % 24 < 12 { 0.1 } else { 0.5 }).collect();
    let profile = |values: &[f32]| Profile::new(samples(values), 0.0, 3600.0);
    let p = promise(0.7, 0.01);
    let load: Hourly = loaded(&[profile(&day)]);
    assert_eq!(load.risk(Some(&profile(&night)), &p), 0.0);
    assert_eq!(load.risk(Some(&profile(&day)), &p), 0.5);
    // Twelve hours later the same VM is the other one.
    assert_eq!(Profile::new(samples(&day), 12.0 * 3600.0, 3600.0), profile(&night));
}

#[test]
fn sizes_are_percentiles_averages_and_cantellis() {
    let sorted = [0.1, 0.2, 0.3, 0.4, 0.5];
    let moments = samples(&sorted).moments();
    let holds = |size: Size, sum: f64| {
        let load: Sizes = loaded(&[size]);
        load.risk(None, &promise(sum + 1e-6, 0.0)) == 0.0 && load.risk(None, &promise(sum - 1e-6, 0.0)) == 1.0
    };
    assert!(holds(Size::percentile(samples(&sorted), 100.0).unwrap(), 0.5));
    assert!(holds(Size::percentile(samples(&sorted), 62.5).unwrap(), 0.35));
    assert!(holds(Size::average(&moments, 2.0).unwrap(), 0.6));
    assert!(holds(Size::cantelli(&moments, 1.0).unwrap(), 0.3 + f64::sqrt(0.02)));
}

#[test]
fn what_cannot_be_is_refused_with_what_can() {
    for (values, said) in [
        (&[][..], "no sample"),
        (&[0.1, f32::NAN], "sample 1 is NaN"),
        (&[-0.1], "sample 0 is -0.1"),
        (&[f32::INFINITY], "sample 0 is inf"),
        (&[70_000.0], "0 to 65536 cores"),
    ] {
        assert!(Samples::new(values).unwrap_err().to_string().contains(said), "{values:?}");
    }
    for capacity in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e6] {
        assert!(matches!(Promise::new(capacity, 0.1), Err(EstimateError::Capacity(_))), "{capacity}");
        assert!(Histogram::new(samples(&[0.1]), capacity).is_err(), "{capacity}");
    }
    for target in [-0.1, 1.1, f64::NAN] {
        assert!(Promise::new(1.0, target).is_err(), "{target}");
    }
    assert!(Size::percentile(samples(&[0.1]), 101.0).unwrap_err().to_string().contains("0 to 100"));
}

#[test]
fn a_vm_larger_than_a_machine_has_one_for_itself() {
    let (small, large) = (samples(&[0.3, 0.4]).moments(), samples(&[1.5, 1.6]).moments());
    let p = promise(1.0, 0.01);
    let machines = pack::<Gaussian>(&[small, large, small, small], 0..4, &p, Heuristic::FirstFit);
    let vms: Vec<&[usize]> = machines.iter().map(Machine::vms).collect();
    assert_eq!(vms, [&[0, 2][..], &[1], &[3]]);
    assert!(machines[1].risk(&p) > 0.99);
}

#[test]
fn best_fit_takes_the_machine_with_the_highest_risk_that_keeps_the_promise() {
    let vm = |cores: f32| Size::average(&samples(&[cores]).moments(), 1.0).unwrap();
    let vms = [vm(0.6), vm(0.7), vm(0.3)];
    let moments: Vec<Moments> =
        [0.6, 0.7, 0.3].map(|cores| samples(&[cores, cores + 0.01]).moments()).to_vec();
    let p = promise(1.1, 0.4);
    let first = pack::<Sizes>(&vms, 0..3, &p, Heuristic::FirstFit);
    let best = pack::<Gaussian>(&moments, 0..3, &p, Heuristic::BestFit);
    assert_eq!((first[0].vms(), best[1].vms()), (&[0, 2][..], &[1, 2][..]));
}

#[test]
fn rebalancing_fills_the_last_machine_and_loses_nobody() {
    let vms: Vec<Moments> =
        (0..40).map(|n| samples(&[0.05, 0.1 + 0.01 * (n % 7) as f32]).moments()).collect();
    let p = promise(1.0, 0.05);
    let packed = || pack::<Gaussian>(&vms, 0..39, &p, Heuristic::FirstFit);
    let risk = |machines: &[Machine<Gaussian>]| machines.iter().map(|m| m.risk(&p)).sum::<f64>();
    let (mut robin, mut greedy) = (packed(), packed());
    let before = risk(&packed());

    assert!(rebalance::round_robin(&mut robin, &vms, &p) > 0);
    assert!(rebalance::greedy(&mut greedy, &vms, |vm| vms[vm].mean(), &p, 20) > 0);
    for machines in [&robin, &greedy] {
        assert!(risk(machines) < before);
        let mut there: Vec<usize> = machines.iter().flat_map(|machine| machine.vms().to_vec()).collect();
        there.sort_unstable();
        assert_eq!(there, (0..39).collect::<Vec<_>>());
        assert!(machines.iter().all(|machine| machine.risk(&p) <= p.target()));
    }
    assert!(risk(&greedy) <= risk(&robin));
}

/// What one VM is in all forms.
type All = Both<Both<Gaussian, Skewed>, Both<Both<Convolution, Simultaneous>, Both<Hourly, Sizes>>>;

fn all(values: &[f32]) -> <All as Load>::Usage {
    let samples = samples(values);
    let moments = samples.moments();
    let histogram = Histogram::new(samples, 2.0).unwrap();
    let aligned = Aligned::new(samples, 12, 2.0, 1.0).unwrap();
    let size = Size::cantelli(&moments, 1.0).unwrap();
    ((moments, moments), ((histogram, aligned), (Profile::new(samples, 0.0, 7200.0), size)))
}

fn series() -> impl Strategy<Value = Vec<f32>> {
    let sample =
        prop_oneof![4 => 0.0_f32..1.0, 1 => Just(0.0_f32), 1 => 0.0_f32..60_000.0, 1 => Just(1e-30_f32)];
    prop_oneof![
        prop::collection::vec(sample, 1..20),
        (0.0_f32..3.0, 1..20_usize).prop_map(|(x, n)| vec![x; n])
    ]
}

proptest! {
    #[test]
    fn what_is_added_and_removed_leaves_nothing(
        there in prop::collection::vec(series(), 0..6),
        passing in prop::collection::vec(series(), 1..6),
        probe in series(),
    ) {
        let vms = |series: &[Vec<f32>]| series.iter().map(|values| all(values)).collect::<Vec<_>>();
        let (there, passing, probe) = (vms(&there), vms(&passing), all(&probe));
        let mut load: All = loaded(&there);
        let before = load.clone();
        for vm in &passing {
            load.add(vm);
        }
        for vm in &passing {
            load.remove(vm);
        }

        let p = promise(2.0, 0.01);
        prop_assert_eq!(load.risk(Some(&probe), &p).to_bits(), before.risk(Some(&probe), &p).to_bits());
        prop_assert_eq!(load.fits(&probe, &p), before.fits(&probe, &p));
        // Joint samples of an empty machine may have a length.
        if !there.is_empty() {
            prop_assert_eq!(format!("{load:?}"), format!("{before:?}"));
        }
    }

    #[test]
    fn no_risk_is_nan_and_a_vm_that_fits_keeps_the_promise(
        there in prop::collection::vec(series(), 0..6),
        probe in series(),
        capacity in 0.001_f64..65_536.0,
        target in prop_oneof![Just(0.0), Just(1.0), 0.0_f64..1.0],
    ) {
        let p = promise(capacity, target);
        let vms: Vec<_> = there.iter().map(|values| all(values)).collect();
        let (load, probe) = (loaded::<All>(&vms), all(&probe));
        fn check<L: Load>(load: &L, probe: &L::Usage, p: &Promise) -> Result<(), TestCaseError> {
            for vm in [None, Some(probe)] {
                let risk = load.risk(vm, p);
                prop_assert!((0.0..=1.0).contains(&risk), "{risk} of {load:?}");
            }
            let (risk, target) = (load.risk(Some(probe), p), p.target());
            let near = (risk - target).abs() < 1e-9;
            prop_assert!(near || load.fits(probe, p) == (risk <= target), "{risk} {load:?}");
            Ok(())
        }
        check(&load.0.0, &probe.0.0, &p)?;
        check(&load.0.1, &probe.0.1, &p)?;
        check(&load.1.0.0, &probe.1.0.0, &p)?;
        check(&load.1.0.1, &probe.1.0.1, &p)?;
        check(&load.1.1.0, &probe.1.1.0, &p)?;
        check(&load.1.1.1, &probe.1.1.1, &p)?;
        check(&load, &probe, &p)?;
    }

    #[test]
    fn risk_grows_with_every_vm(
        there in prop::collection::vec(series(), 0..6),
        probe in series(),
    ) {
        let p = promise(2.0, 0.01);
        let vms: Vec<_> = there.iter().map(|values| all(values)).collect();
        let (load, probe) = (loaded::<All>(&vms), all(&probe));
        fn grows<L: Load>(load: &L, probe: &L::Usage, p: &Promise) -> bool {
            load.risk(Some(probe), p) >= load.risk(None, p) - 1e-6
        }
        prop_assert!(grows(&load.1.0.0, &probe.1.0.0, &p), "convolution");
        prop_assert!(grows(&load.1.0.1, &probe.1.0.1, &p), "joint");
        prop_assert!(grows(&load.1.1.1, &probe.1.1.1, &p), "sizes");
        // More variance brings a normal variable nearer to a half: from above, too.
        if load.0.0.risk(None, &p) <= 0.5 {
            prop_assert!(grows(&load.0.0, &probe.0.0, &p), "gaussian");
        }
    }
}
