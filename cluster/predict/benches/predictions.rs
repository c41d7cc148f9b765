//! How long one prediction takes in process, by each model, beside the simplest answer there is.
//!
//! `cargo bench -p ballast-predict --bench predictions` prints medians; so does training and the history.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::Instant as Clock;

use ballast_predict::model::Algorithm;
use ballast_predict::train::{Options, TrainError, train};
use ballast_predict::{Features, ModelFile, Request, VmHistory, fleet, history, vm};

/// Arrivals that are predicted, one after the other.
const ARRIVALS: usize = 20_000;

fn main() -> Result<(), TrainError> {
    let vms = fleet::make(&fleet::Options::default()).vms;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    for algorithm in Algorithm::ALL {
        let start = Clock::now();
        let file = train(&vms, &Options { algorithm, threads, ..Options::default() })?;
        let name = algorithm.name();
        let seconds = start.elapsed().as_secs_f64();
        println!("{name:18} training on {} VMs, both models      {seconds:8.1} s", vms.len());
        predictions(name, &file, &vms);
    }
    let start = Clock::now();
    let arrivals = history::arrivals(&vms, &vm::deployments(&vms)).len();
    let each = start.elapsed().as_secs_f64() * 1e6 / arrivals as f64;
    println!("features of an arrival, history and all            {each:8.2} us");
    Ok(())
}

fn predictions(name: &str, file: &ModelFile, vms: &[VmHistory]) {
    let request = |vm: &VmHistory| Request {
        vm_id: None,
        subscription: Some(vm.subscription.clone()),
        features: Features {
            cores: f64::from(vm.cores),
            memory_gb: vm.memory_gb,
            vm_type: Some(vm.vm_type.clone()),
            past: None,
        },
    };
    // Spread over the fleet, so that neighbours do not share a subscription.
    let arrivals: Vec<Request> = vms.iter().step_by((vms.len() / ARRIVALS).max(1)).map(request).collect();
    let by_share = |request: &Request| file.history.past(request.subscription.as_deref()?)?.uf_share;
    median(name, "baseline: the subscription's share alone", &arrivals, by_share);
    median(name, "class and P95, with what is known", &arrivals, |request| file.answer(request));
}

/// The median over all arrivals of the time of one call. Reading the clock twice is in it.
fn median<T>(name: &str, what: &str, arrivals: &[Request], call: impl Fn(&Request) -> T) {
    let mut times: Vec<u128> = arrivals
        .iter()
        .map(|request| {
            let start = Clock::now();
            black_box(call(black_box(request)));
            start.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    println!("{name:18} {what:42} {:8.2} us, median", times[times.len() / 2] as f64 / 1000.0);
}
