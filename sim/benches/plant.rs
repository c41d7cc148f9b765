//! How fast the plant and the trace readers are.
//!
//! `cargo bench -p ballast-sim` prints simulated seconds per second, for twelve servers of forty cores, and
//! the time to read a table of the size of the largest public trace.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::fmt::Write as _;
use std::time::Instant as Clock;

use ballast_sim::demo::{DemoOptions, demo};
use ballast_sim::plant::{Load, Plant, PlantSpec};
use ballast_sim::trace::{ReadOptions, Trace};
use ballast_types::{Instant, KiloHertz, VmClass};

const SECONDS: u64 = 600;

fn main() {
    let lines = DemoOptions { queues: false, ..DemoOptions::default() };
    // As a replay has it: every VM follows a line.
    let mut all_lines = demo(&lines);
    for vm in all_lines.servers.iter_mut().flat_map(|s| &mut s.vms) {
        if let Load::Batch(batch) = &vm.load {
            vm.load = Load::Profile(batch.demand.clone());
        }
    }
    run("lines, uncapped", &all_lines, false);
    run("lines, half of the batch cores capped", &all_lines, true);
    run("lines and batch work", &demo(&lines), false);
    run("queues and batch work", &demo(&DemoOptions::default()), false);
    read();
}

fn run(name: &str, spec: &PlantSpec, capped: bool) {
    let mut plant = Plant::new(spec.clone(), 1);
    if capped {
        for (n, server) in spec.servers.iter().enumerate() {
            for vm in server.vms.iter().filter(|vm| vm.class == VmClass::NonUserFacing) {
                for core in vm.cores.iter().step_by(2) {
                    plant.set_core_cap(n, *core, KiloHertz::from_mhz(1200));
                }
            }
        }
    }

    let start = Clock::now();

    // As the controllers do: a call every few milliseconds.
    for ms in (0..SECONDS * 1000).step_by(7) {
        plant.advance(Instant::from_millis(ms));
    }
    let took = start.elapsed().as_secs_f64();
    println!(
        "{name:40} {:8.1} us per simulated second, {:8.0} x real time, mean {}",
        took * 1e6 / SECONDS as f64,
        SECONDS as f64 / took,
        plant.truth().mean_power_w,
    );
}

fn read() {
    let mut text = String::from("t");
    for vm in 0..500 {
        let _ = write!(text, ",{vm}");
    }
    for row in 0..8640u64 {
        let _ = write!(text, "\n{}", 1_375_308_000 + row * 300);
        for vm in 0..500 {
            let _ = write!(text, ",{}.{}", (row * 7 + vm * 13) % 100, vm % 10);
        }
    }
    let start = Clock::now();
    let trace = Trace::read(text.as_bytes(), "made", &ReadOptions::default());
    let took = start.elapsed().as_secs_f64();
    let series = trace.map_or(0, |t| t.series.len());
    println!("{:40} {took:8.3} s for {series} series of 8640 values", "reading a wide trace");
}
