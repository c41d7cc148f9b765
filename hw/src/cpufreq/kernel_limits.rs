//! Limits that the kernel sets by itself: for the firmware, and for heat.
//!
//! `scaling_max_freq` shows the least of all limits. One that the kernel has set is not the user's: written
//! back as such it would stay after its reason has gone.
//!
//! Source: `drivers/cpufreq/cpufreq.c` (`bios_limit`), `drivers/acpi/processor_thermal.c` (20 % a state),
//! `drivers/thermal/cpufreq_cooling.c` (a state is a step of the table), Linux 6.12.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::path::Path;

use ballast_types::KiloHertz;

use super::frequency::read_khz;
use super::hold::above;
use crate::Root;
use crate::root::{numbered, read_text, read_value};

const THERMAL: &str = "sys/class/thermal";

/// What the kernel limits, by firmware and heat. Heat is read when it is first asked for.
#[derive(Debug)]
pub(super) struct KernelLimits<'a> {
    root: &'a Root,
    heat: OnceCell<Heat>,
}

/// States of cooling devices that are at work.
#[derive(Debug, Default)]
struct Heat {
    acpi: BTreeSet<u32>,
    table: BTreeSet<u32>,
}

impl<'a> KernelLimits<'a> {
    pub(super) fn new(root: &'a Root) -> Self {
        Self { root, heat: OnceCell::new() }
    }

    /// Whether the policy in `dir`, which could do `max`, shows a limit of the kernel's own.
    pub(super) fn explain(&self, dir: &Path, max: KiloHertz, shown: KiloHertz) -> bool {
        let is_shown = |khz: KiloHertz| !above(khz, shown) && !above(shown, khz);
        if shown >= max {
            return false;
        }
        if read_khz(&dir.join("bios_limit")).is_ok_and(is_shown) {
            return true;
        }

        let heat = self.heat.get_or_init(|| Heat::read(self.root));
        let percent = |state: &u32| u64::from(100_u32.saturating_sub(state.saturating_mul(20)));
        let mut acpi = heat.acpi.iter().map(|state| u64::from(max.get()) * percent(state) / 100);
        if acpi.any(|khz| is_shown(KiloHertz::new(khz as u32))) {
            return true;
        }

        let table = read_text(&dir.join("scaling_available_frequencies")).unwrap_or_default();
        let mut table: Vec<u32> = table.split_whitespace().filter_map(|khz| khz.parse().ok()).collect();
        table.sort_unstable_by(|a, b| b.cmp(a));
        heat.table
            .iter()
            .filter_map(|state| table.get(*state as usize))
            .any(|khz| is_shown(KiloHertz::new(*khz)))
    }
}

impl Heat {
    /// What cannot be read does not cool.
    fn read(root: &Root) -> Self {
        let mut heat = Self::default();
        for (_, dir) in numbered(&root.path(THERMAL), "cooling_device").unwrap_or_default() {
            let state = read_value(&dir.join("cur_state"), "a state").unwrap_or(0);
            let kind = read_text(&dir.join("type")).unwrap_or_default();
            match kind.trim() {
                _ if state == 0 => {}
                "Processor" => drop(heat.acpi.insert(state)),
                kind if kind.starts_with("cpufreq-") => drop(heat.table.insert(state)),
                _ => {}
            }
        }
        heat
    }
}
