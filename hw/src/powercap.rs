//! RAPL through the powercap class: energy counters, and the package limit of last resort.
//!
//! Zones are told by their `name`, never by their number. Packages (or their dies) and `dram` count;
//! `core` and `uncore` are inside a package, `psys` holds everything once more, and the zones of
//! `intel-rapl-mmio` repeat the same packages.
//!
//! Source: Documentation/power/powercap/powercap.rst; traps from `powercap_sys.c` and
//! `intel_rapl_common.c` of Linux 6.12.

mod limit;
mod meter;

use std::path::PathBuf;

pub use limit::{LimitOriginal, ServerLimit};
pub use meter::{Energy, RaplMeter};

use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::read_text;

/// What a zone measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Package,
    Dram,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Zone {
    dir: PathBuf,
    name: String,
    kind: Kind,
}

/// Every package and memory zone, in order of folder names; empty where there is no RAPL.
fn zones(root: &Root) -> Result<Vec<Zone>, HwError> {
    let class = root.path("sys/class/powercap");
    let failed = |e| HwError::io(&class, Operation::Read, "a folder with RAPL zones", e);
    let mut dirs = Vec::new();
    match std::fs::read_dir(&class) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
        Ok(entries) => {
            for entry in entries {
                let entry = entry.map_err(failed)?;
                // `intel-rapl` itself is the control type; `intel-rapl-mmio:0` counts twice.
                if entry.file_name().to_str().is_some_and(|n| n.starts_with("intel-rapl:")) {
                    dirs.push(entry.path());
                }
            }
        }
    }
    dirs.sort_unstable();
    let mut zones = Vec::new();
    for dir in dirs {
        let name = read_text(&dir.join("name"))?.trim().to_owned();
        if let Some(kind) = kind(&name) {
            zones.push(Zone { dir, name, kind });
        }
    }
    Ok(zones)
}

fn kind(name: &str) -> Option<Kind> {
    if name == "dram" {
        return Some(Kind::Dram);
    }
    let rest = name.strip_prefix("package-")?;
    let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let package = match rest.split_once("-die-") {
        None => number(rest),
        Some((package, die)) => number(package) && number(die),
    };
    package.then_some(Kind::Package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_dies_and_memory_count() {
        for (name, expected) in [
            ("package-0", Some(Kind::Package)),
            ("package-1-die-1", Some(Kind::Package)),
            ("dram", Some(Kind::Dram)),
            ("core", None),
            ("uncore", None),
            ("psys", None),
            ("package-", None),
            ("package-x", None),
            ("package-0-die-", None),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
    }
}
