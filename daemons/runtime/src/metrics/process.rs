//! This process as Prometheus knows every process: the `process_*` metrics.

use sysinfo::{Process, ProcessRefreshKind, ProcessesToUpdate, System};

use super::{Metric, MetricLine, Scrape, lines, one};

const PREFIX: &str = "process";

fn metrics() -> [Metric<Process>; 5] {
    [
        one("cpu_seconds_total", "User and system CPU time of this daemon", |it| {
            Some(it.accumulated_cpu_time() as f64 / 1000.0)
        }),
        one("resident_memory_bytes", "Memory of this daemon that is in RAM", |it| Some(it.memory() as f64)),
        one("virtual_memory_bytes", "Memory that this daemon has mapped", |it| {
            Some(it.virtual_memory() as f64)
        }),
        one("start_time_seconds", "When this daemon started, since 1970", |it| Some(it.start_time() as f64)),
        one("open_fds", "Files and sockets that this daemon has open", |it| Some(it.open_files()? as f64)),
    ]
}

/// What the reference says of them.
pub fn reference() -> Vec<MetricLine> {
    lines(PREFIX, &metrics())
}

/// Read at every scrape, so never in the control thread; nothing where `/proc` cannot be read.
pub(super) fn add_to(scrape: &mut Scrape) {
    let Ok(pid) = sysinfo::get_current_pid() else { return };
    let Ok(mut system) = System::new() else { return };
    let what = ProcessRefreshKind::nothing().without_tasks().with_cpu().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
    let Some(process) = system.process(pid) else { return };
    scrape.add(PREFIX, &metrics(), process);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_as_prometheus_knows_it() {
        let text = Scrape::default().text();
        for metric in [
            "process_cpu_seconds_total ",
            "process_resident_memory_bytes ",
            "process_virtual_memory_bytes ",
            "process_start_time_seconds ",
            "process_open_fds ",
        ] {
            let line = text.lines().find_map(|line| line.strip_prefix(metric));
            let value = line.and_then(|value| value.parse::<f64>().ok());
            assert!(value.is_some_and(|value| value >= 0.0), "{metric}: {text}");
        }
    }
}
