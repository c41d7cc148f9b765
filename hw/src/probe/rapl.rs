use std::path::Path;

use serde::Serialize;

use super::files::{told, writable};
use crate::Root;
use crate::root::{read_text, read_value};

/// Constraints that a zone may have.
const CONSTRAINTS: u32 = 8;

#[derive(Clone, Debug, Serialize)]
pub struct RaplZone {
    /// Its folder: `intel-rapl:0:1`. Numbers are no names: they change.
    pub folder: String,
    /// `package-0`, `dram`, `core`, `psys`.
    pub name: String,
    /// Why its energy counter cannot be read; `None` if it can.
    pub energy_error: Option<String>,
    /// `enabled`; the kernel shows 0 as well where the firmware has locked the limit.
    pub enabled: Option<bool>,
    /// Its limits; AMD has none.
    pub constraints: Vec<Constraint>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Constraint {
    pub name: String,
    pub limit_uw: Option<u64>,
    /// The highest that makes sense, in microwatts; missing or 0 where the firmware does not say.
    pub max_uw: Option<u64>,
    /// Over which time it is held.
    pub window_us: Option<u64>,
    /// Whether this process may write it. What is locked by the firmware shows at a write only.
    pub writable: bool,
}

pub(super) fn zones(root: &Root) -> Vec<RaplZone> {
    let class = root.path("sys/class/powercap");
    let entries = std::fs::read_dir(&class).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // `intel-rapl` alone is the control type.
    let mut names: Vec<_> =
        names.filter(|name| name.starts_with("intel-rapl") && name.contains(':')).collect();
    names.sort_unstable();
    names.into_iter().filter_map(|folder| zone(root, &class, folder)).collect()
}

fn zone(root: &Root, class: &Path, folder: String) -> Option<RaplZone> {
    let dir = class.join(&folder);
    let energy = read_value::<u64>(&dir.join("energy_uj"), "a whole number of microjoules");
    let number = |file: String| read_value::<u64>(&dir.join(file), "a whole number").ok();
    let constraint = |n: u32| {
        let name = read_text(&dir.join(format!("constraint_{n}_name"))).ok()?;
        Some(Constraint {
            name: name.trim().to_owned(),
            limit_uw: number(format!("constraint_{n}_power_limit_uw")),
            max_uw: number(format!("constraint_{n}_max_power_uw")),
            window_us: number(format!("constraint_{n}_time_window_us")),
            writable: writable(&dir.join(format!("constraint_{n}_power_limit_uw"))),
        })
    };

    Some(RaplZone {
        name: read_text(&dir.join("name")).ok()?.trim().to_owned(),
        energy_error: energy.err().map(|error| told(root, &error)),
        enabled: read_text(&dir.join("enabled")).ok().map(|text| text.trim() == "1"),
        constraints: (0..CONSTRAINTS).filter_map(constraint).collect(),
        folder,
    })
}
