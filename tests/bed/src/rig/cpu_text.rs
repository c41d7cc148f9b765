//! CPU time as the kernel writes it.

use ballast_sim::plant::CpuStops;

/// A `proc/stat` as far as the plant knows it, from microseconds busy and in all: ticks of 10 ms.
pub(crate) fn cpu_time((busy, all): (u64, u64)) -> String {
    format!("cpu  {} 0 0 {} 0 0 0 0 0 0\nctxt 0\nbtime 0\nprocesses 0", busy / 10_000, (all - busy) / 10_000)
}

/// A `cpu.stat`, as far as the plant knows it.
pub(crate) fn cpu_stat(usage: u64, stops: &CpuStops) -> String {
    let CpuStops { periods, stopped_periods, stopped_core_s } = stops;
    let stopped = (stopped_core_s * 1e6) as u64;
    format!(
        "usage_usec {usage}\nuser_usec {usage}\nsystem_usec 0\nnr_periods {periods}\n\
         nr_throttled {stopped_periods}\nthrottled_usec {stopped}\n"
    )
}
