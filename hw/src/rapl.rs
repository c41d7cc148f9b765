//! RAPL through the powercap class: energy counters, and the package cap of last resort.
//!
//! Zones are told by their `name`, never by their number. Packages (or their dies) and `dram` count;
//! `core` and `uncore` are inside a package, `psys` holds everything once more, and the zones of
//! `intel-rapl-mmio` repeat the same packages.
//!
//! Source: Documentation/power/powercap/powercap.rst; traps from `powercap_sys.c` and
//! `intel_rapl_common.c` of Linux 6.12.

mod cap;
mod meter;

use std::path::{Path, PathBuf};

pub use cap::{RaplCap, RaplCapOriginal};
pub use meter::{Energy, RaplMeter, RaplSensor};

use crate::Root;
use crate::error::{HwError, Operation};
use crate::root::read_text;

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

impl Zone {
    /// Whether the zone in `dir` is a part of this one: `intel-rapl:0:1` is one of `intel-rapl:0`.
    fn holds(&self, dir: &Path) -> bool {
        let name = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
        let parent = name(dir).and_then(|n| n.rsplit_once(':').map(|(up, _)| up.to_owned()));
        parent.is_some() && parent == name(&self.dir)
    }
}

/// Every package and memory zone, in order of folder names; empty where there is no RAPL.
fn zones(root: &Root) -> Result<Vec<Zone>, HwError> {
    let (zones, nameless) = look(root)?;
    nameless.into_iter().next().map_or(Ok(zones), Err)
}

/// The same, with what keeps others from telling their names.
fn look(root: &Root) -> Result<(Vec<Zone>, Vec<HwError>), HwError> {
    let class = root.path("sys/class/powercap");
    let failed = |e| HwError::io(&class, Operation::Read, "a folder with RAPL zones", e);
    let mut dirs = Vec::new();

    match std::fs::read_dir(&class) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok((vec![], vec![])),
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
    let (mut zones, mut nameless): (Vec<Zone>, _) = (vec![], vec![]);

    for dir in dirs {
        let name = match read_text(&dir.join("name")) {
            Ok(name) => name.trim().to_owned(),
            Err(error) => {
                nameless.push(error);
                continue;
            }
        };

        // A package counts once, though two drivers may show it; memory counts with its package.
        let counts = match kind(&name) {
            None => continue,
            Some(Kind::Package) => zones.iter().all(|zone| zone.name != name),
            Some(Kind::Dram) => zones.iter().any(|zone| zone.holds(&dir)),
        };

        if let (true, Some(kind)) = (counts, kind(&name)) {
            zones.push(Zone { dir, name, kind });
        }
    }

    Ok((zones, nameless))
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
