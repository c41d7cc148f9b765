//! The VMs of a fleet as jobs whose limits are looked for.

use anyhow::bail;
use ballast_sim::packing::Fleet;
use ballast_usage::limits::WINDOW_S;
use ballast_usage::limits::family::Resource;
use ballast_usage::limits::jobs::{JobSet, LimitedJob};

/// Each VM is a job. Several readings in a window of five minutes are averaged.
pub fn job_set(resource: Resource, fleet: &Fleet) -> anyhow::Result<JobSet> {
    let (window_s, period_s) = (WINDOW_S as f64, fleet.period_s());
    let each = (window_s / period_s).round();
    if each < 1.0 || (each * period_s - window_s).abs() > 1e-6 * window_s {
        bail!("a reading every {period_s} s: 5 minutes must be a whole number of readings");
    }
    let jobs = fleet.vms().iter().map(|vm| {
        let used = vm.used.chunks_exact(each as usize).map(|readings| mean(readings) / vm.cores);
        LimitedJob { name: vm.name.clone(), most: f64::from(vm.cores), used: used.collect() }
    });
    Ok(JobSet::new(resource, jobs.collect(), (fleet.start_s() / window_s) as u64)?)
}

/// The mean of the readings that are not missing.
fn mean(readings: &[f32]) -> f32 {
    let present = readings.iter().filter(|used| !used.is_nan());
    let (sum, count) = present.fold((0.0, 0.0), |(sum, count), used| (sum + used, count + 1.0));
    sum / count
}
