//! How long it takes to learn lifetimes of a million VMs, to predict one, and to predict again.
//!
//! `cargo bench -p ballast-predict --bench lifetimes` prints medians. A number behind `--` is another number of VMs.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::time::Instant as Clock;

use ballast_predict::lifetime::data::TooFewLifetimes;
use ballast_predict::lifetime::{LifetimeFeatures, LifetimeTrial, Lifetimes, VmEnd, VmLifetime};
use ballast_types::SplitMix64;
use ballast_types::survival::CurveId;

const VMS: usize = 1_000_000;
/// Over so many seconds.
const SPAN_S: f64 = 60.0 * 86_400.0;
/// Calls of which one time is taken: the clock is slower than one of them.
const CALLS: usize = 1_000;

fn main() -> Result<(), TooFewLifetimes> {
    let count = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(VMS);
    let vms = generated(count);
    let asked: Vec<VmLifetime> = vms.iter().step_by((count / 20_000).max(1)).cloned().collect();

    let start = Clock::now();
    let lifetimes = Lifetimes::new(vms);
    let cleaned_s = start.elapsed().as_secs_f64();
    let start = Clock::now();
    let trial = LifetimeTrial::new(&lifetimes)?;
    let trial_s = start.elapsed().as_secs_f64();
    let start = Clock::now();
    let file = trial.learn_all();
    let all_s = start.elapsed().as_secs_f64();
    println!("{count} VMs: cleaned {cleaned_s:.1} s, trial with scores {trial_s:.1} s, learnt {all_s:.1} s");
    println!("{} curves by {:?}", file.about.curves, file.about.columns);

    let (model, curves) = (&file.model, file.model.curves());
    let ids: Vec<(CurveId, f32)> = asked
        .iter()
        .zip(1_u16..)
        .map(|(vm, n)| (model.curve(&vm.features, vm.start_s), f32::from(n) * 37.0))
        .collect();
    let exact =
        |(id, uptime_s): &(CurveId, f32)| curves.get(*id).map_or(0.0, |curve| curve.remaining_s(*uptime_s));
    median("baseline: integrate the curve anew", &ids, exact);
    median("predict again: expected remaining lifetime", &ids, |(id, uptime_s)| {
        curves.remaining_s(*id, *uptime_s)
    });
    median("predict again: the row of horizons", &ids, |(id, uptime_s)| curves.survival(*id, *uptime_s)[29]);
    median("predict with new features: the curve", &asked, |vm| model.curve(&vm.features, vm.start_s));
    median("predict with new features: all of an answer", &asked, |vm| {
        model.answer(&vm.features, vm.start_s, 0.0)
    });
    Ok(())
}

/// Batches of 2,000 tenants, whose habits are a mean lifetime from a minute to a month, and a size of VM.
fn generated(count: usize) -> Vec<VmLifetime> {
    let mut chance = SplitMix64::new(1);
    let mut uniform = move || ((chance.draw() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let mut vms = Vec::with_capacity(count);
    while vms.len() < count {
        let tenant = (uniform() * uniform() * 2_000.0) as u32;
        let batch_vms = libm::pow(uniform(), -0.7).min(200.0) as u32;
        let start_s = (uniform() * SPAN_S) as i64;
        let mean_s =
            60.0 * libm::pow(43_200.0, f64::from(tenant.wrapping_mul(2_654_435_761) >> 16) / 65_536.0);
        let size = libm::pow(2.0, f64::from(tenant % 5));
        for _ in 0..batch_vms.min((count - vms.len()) as u32) {
            let end_s = start_s + (-mean_s * libm::log(uniform())) as i64;
            let end = if end_s < SPAN_S as i64 { VmEnd::At(end_s) } else { VmEnd::Running { seen_s: 0 } };
            let features = LifetimeFeatures {
                cores: Some(size),
                memory_gb: Some(size * 4.0),
                tenant: Some(format!("tenant-{tenant:05}")),
                vm_type: Some(if tenant.is_multiple_of(2) { "general" } else { "compute" }.into()),
                batch_vms: Some(batch_vms),
                ..LifetimeFeatures::default()
            };
            vms.push(VmLifetime { start_s, end, deployment: String::new(), features });
        }
    }
    vms
}

/// The median over all of the time of one call, of a thousand calls each.
fn median<A, T>(what: &str, arguments: &[A], call: impl Fn(&A) -> T) {
    let mut times: Vec<f64> = arguments
        .chunks(CALLS)
        .map(|arguments| {
            let start = Clock::now();
            for argument in arguments {
                black_box(call(black_box(argument)));
            }
            start.elapsed().as_nanos() as f64 / arguments.len() as f64
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    println!("{what:46} {:9.1} ns, median", times[times.len() / 2]);
}
