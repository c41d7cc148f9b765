//! How long a recommender takes for one VM and one window of five minutes, and how much it remembers.
//!
//! `cargo bench -p ballast-predict --bench limits` prints medians, and each as a multiple of the baseline: sorting the peaks of the
//! last day, which is the least that a percentile costs without a histogram.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::Instant as Clock;

use ballast_types::SplitMix64;
use ballast_usage::limits::bucket::UseBucket;
use ballast_usage::limits::experts::Experts;
use ballast_usage::limits::family::{Family, Resource, Settings};
use ballast_usage::limits::job::{Bounds, JobLimit};
use ballast_usage::limits::{Costs, DAY, Recommender, UseWindow};

const VMS: usize = 2_000;
const STEPS: u64 = 50;
/// A window has so many different uses: 300 seconds fall into few buckets.
const SAMPLES: usize = 8;

fn main() {
    let mut random = SplitMix64::new(7);
    let mut share = || (random.draw() >> 40) as f32 / (1u64 << 24) as f32;
    let mut window = || -> Vec<(UseBucket, f32)> {
        let buckets = (0..SAMPLES).filter_map(|_| UseBucket::of(share() * share()));
        buckets.map(|bucket| (bucket, 300.0 / SAMPLES as f32)).collect()
    };
    let windows: Vec<_> = (0..997).map(|_| window()).collect();

    let mut peaks = vec![[0.0f32; DAY]; VMS];
    let baseline_us = median(VMS, |vm, number| {
        let day = &mut peaks[vm];
        day[number as usize % DAY] = windows[(vm + number as usize) % windows.len()][0].0.edge();
        let mut sorted = *day;
        sorted.sort_unstable_by(f32::total_cmp);
        black_box(sorted[DAY * 98 / 100]);
    });
    println!("baseline, sort a day of peaks: {baseline_us:.3} us");

    let costs = Costs { over: 200.0, change: 0.0, switch: 0.02, newest: 0.002 };
    let mut experts = vec![Experts::new(costs); VMS];
    let tell = |name: &str, us: f64, bytes: usize| {
        println!("{name}: {us:.3} us a VM and step, {:.2} of the baseline; {bytes} bytes", us / baseline_us);
    };
    let us = median(VMS, |vm, number| {
        let samples = &windows[(vm * 31 + number as usize) % windows.len()];
        experts[vm].observe(&UseWindow { number, samples });
        black_box(experts[vm].limit());
    });
    tell("36 experts", us, size_of::<Experts>());

    for family in [Family::Experts, Family::Vpa] {
        let bounds = Bounds { margin: 0.0, min: 0.0, max: 1.0 };
        let job = || JobLimit::new(Settings::usual(family, Resource::Cpu), bounds);
        let mut jobs: Vec<JobLimit> = (0..VMS).map(|_| job()).collect();
        let us = median(VMS, |vm, number| {
            let samples = &windows[(vm * 31 + number as usize) % windows.len()];
            jobs[vm].observe(&UseWindow { number, samples });
            black_box(jobs[vm].limit());
        });
        tell(&format!("in service, {}", family.name()), us, size_of::<JobLimit>());
    }
}

/// The median over steps of what a step costs one VM, in microseconds.
fn median(vms: usize, mut step: impl FnMut(usize, u64)) -> f64 {
    let mut times: Vec<f64> = (0..STEPS)
        .map(|number| {
            let start = Clock::now();
            (0..vms).for_each(|vm| step(vm, number));
            start.elapsed().as_secs_f64() * 1e6 / vms as f64
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    times[times.len() / 2]
}
