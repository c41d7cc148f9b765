//! This process as Prometheus knows every process: the `process_*` metrics.

use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

/// Read at every scrape, so never in the control thread; empty where `/proc` cannot be read.
pub(super) fn registry() -> Registry {
    let mut registry = Registry::with_prefix("process");
    let Ok(pid) = sysinfo::get_current_pid() else { return registry };
    let Ok(mut system) = System::new() else { return registry };
    let what = ProcessRefreshKind::nothing().without_tasks().with_cpu().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
    let Some(process) = system.process(pid) else { return registry };

    let cpu_s = process.accumulated_cpu_time() as f64 / 1000.0;
    let help = "User and system CPU time of this daemon";
    registry.register_with_unit("cpu", help, Unit::Seconds, ConstCounter::new(cpu_s));

    for (name, help, bytes) in [
        ("resident_memory", "Memory of this daemon that is in RAM", process.memory()),
        ("virtual_memory", "Memory that this daemon has mapped", process.virtual_memory()),
    ] {
        registry.register_with_unit(name, help, Unit::Bytes, ConstGauge::new(bytes as i64));
    }

    let started = ConstGauge::new(process.start_time() as i64);
    registry.register_with_unit("start_time", "When this daemon started, since 1970", Unit::Seconds, started);

    if let Some(files) = process.open_files() {
        registry.register(
            "open_fds",
            "Files and sockets that this daemon has open",
            ConstGauge::new(files as i64),
        );
    }

    registry
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    #[test]
    fn a_process_is_told_as_prometheus_knows_it() {
        let mut text = String::new();
        encode(&mut text, &super::registry()).unwrap();
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
