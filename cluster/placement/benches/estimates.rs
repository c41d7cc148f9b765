//! How long a test of fit takes, and how long it takes to pack a thousand tasks.
//!
//! `cargo bench -p ballast-placement --bench estimates` prints the median of a test, its ratio to a plain sum that is compared
//! with a capacity, and the fastest of 21 packings: other work on the machine only adds to these.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::hint::black_box;
use std::time::Instant as Clock;

use ballast_placement::fits::estimate::{
    Aligned, Convolution, Gaussian, Heuristic, Histogram, Hourly, Load, Profile, Promise, Samples,
    Simultaneous, Size, Sizes, Skewed, pack,
};
use ballast_types::SplitMix64;

/// A week of five-minute samples.
const SAMPLES: usize = 2016;
const TASKS: usize = 1000;
/// Tests of fit in one timing, and timings.
const TESTS: usize = 2000;
const TIMINGS: usize = 101;

/// A task's use: most of the time nearly nothing, for a tenth of it a spike.
fn task(n: u64) -> Vec<f32> {
    let mut random = SplitMix64::new(n);
    let mut uniform = || (random.draw() >> 40) as f32 / (1u64 << 24) as f32;
    let level = 0.01 + 0.03 * uniform();
    (0..SAMPLES).map(|_| level * uniform() + if uniform() < 0.1 { 0.06 * uniform() } else { 0.0 }).collect()
}

fn median(mut took: Vec<f64>) -> f64 {
    took.sort_by(f64::total_cmp);
    took[took.len() / 2]
}

/// Median nanoseconds of one test of fit on a machine that is nearly full; and the fewest milliseconds to pack all tasks.
fn measure<L: Load>(name: &str, vms: &[L::Usage], promise: &Promise, plain: Option<f64>) -> f64 {
    let mut machines = pack::<L>(vms, 0..vms.len(), promise, Heuristic::FirstFit);
    let machine = machines.swap_remove(0);
    let mut full = L::default();
    // Without its last task it has room for some, and none for others: nobody can guess.
    for vm in &machine.vms()[..machine.vms().len() - 1] {
        full.add(&vms[*vm]);
    }

    let test = || {
        let start = Clock::now();
        let fitting = (0..TESTS).filter(|n| black_box(&full).fits(black_box(&vms[n % TASKS]), promise));
        black_box(fitting.count());
        start.elapsed().as_secs_f64() * 1e9 / TESTS as f64
    };
    let test_ns = median((0..TIMINGS).map(|_| test()).collect());
    let packing = || {
        let start = Clock::now();
        black_box(pack::<L>(vms, 0..vms.len(), promise, Heuristic::FirstFit));
        start.elapsed().as_secs_f64() * 1e3
    };
    let pack_ms = (0..TIMINGS / 5 + 1).map(|_| packing()).fold(f64::INFINITY, f64::min);

    let (count, ratio) = (machines.len() + 1, test_ns / plain.unwrap_or(test_ns));
    let packing = format!("first fit of {TASKS} {pack_ms:7.3} ms   {count} machines");
    println!("{name:12} test of fit {test_ns:8.1} ns   {ratio:6.1} x a plain sum   {packing}");
    test_ns
}

fn main() {
    let tasks: Vec<Vec<f32>> = (0..TASKS as u64).map(task).collect();
    let promise = Promise::new(1.0, 0.01).unwrap();
    let samples = || tasks.iter().map(|values| Samples::new(values).unwrap());
    let moments: Vec<_> = samples().map(Samples::moments).collect();

    let sizes: Vec<_> = moments.iter().map(|task| Size::cantelli(task, 0.5).unwrap()).collect();
    let plain = Some(measure::<Sizes>("sizes", &sizes, &promise, None));
    measure::<Gaussian>("gaussian", &moments, &promise, plain);
    measure::<Skewed>("skewed", &moments, &promise, plain);

    let histograms: Vec<_> = samples().map(|task| Histogram::new(task, 1.0).unwrap()).collect();
    measure::<Convolution>("convolution", &histograms, &promise, plain);
    let aligned: Vec<_> = samples().map(|task| Aligned::new(task, SAMPLES, 1.0, 1.0).unwrap()).collect();
    measure::<Simultaneous>("joint", &aligned, &promise, plain);
    let profiles: Vec<_> = samples().map(|task| Profile::new(task, 0.0, 300.0)).collect();
    measure::<Hourly>("hourly", &profiles, &promise, plain);

    // What removal costs: a distribution is made anew.
    let mut machine = Convolution::default();
    for task in &histograms[..30] {
        machine.add(task);
    }
    let removal = || {
        let mut machine = machine.clone();
        let start = Clock::now();
        machine.remove(&histograms[15]);
        black_box(machine);
        start.elapsed().as_secs_f64() * 1e6
    };
    let removal_us = median((0..TIMINGS).map(|_| removal()).collect());
    println!("convolution: one of 30 tasks removed {removal_us:.1} us");
}
