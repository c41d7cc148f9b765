//! A fleet to pack, from telemetry.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail};
use ballast_sim::packing::{Fleet, FleetVm};
use ballast_sim::trace::{Trace, Unit};
use indicatif::ProgressBar;

use crate::common::table;

/// The VMs of a trace; how many cores each has stands in the file of `--cores`, without one all are alike.
pub fn fleet_of(trace: &Trace, sizes: Option<&Path>) -> anyhow::Result<Fleet> {
    let Some(file) = sizes else { return fleet(trace, |_| Some(1.0)) };
    let sizes = cores(file)?;
    fleet(trace, |vm| sizes.get(vm).copied()).with_context(|| format!("--cores {}", file.display()))
}

/// The cores of every VM in a file with the columns `vm` and `cores`; of several rows of a VM the first counts.
fn cores(path: &Path) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut table = table::named(path, table::open(path, &ProgressBar::hidden()))?;
    let (vm, cores) = (table.column("vm")?, table.column("cores")?);
    let mut sizes = BTreeMap::new();
    while table.advance()? {
        let (name, cores) = (table.text(vm).into_owned(), table.number(cores, "cores")?);
        if !(cores > 0.0 && cores <= 65_536.0) {
            bail!("{}: vm {name}: cores = {cores}: more than 0 and at most 65536 are needed", path.display());
        }
        sizes.entry(name).or_insert(cores);
    }
    Ok(sizes)
}

/// The VMs of a trace; `size` says how many cores each has when it is fully busy, and `None` refuses a VM by name.
pub fn fleet(trace: &Trace, size: impl Fn(&str) -> Option<f64>) -> anyhow::Result<Fleet> {
    let vm = |series: &ballast_sim::trace::Series| {
        let cores =
            size(&series.name).with_context(|| format!("vm {}: no size is known", series.name))? as f32;
        let full = match series.unit {
            Unit::Percent => 100.0,
            Unit::Share => 1.0,
            Unit::Watts => bail!("{}: these are watts: CPU use in percent or shares is needed", trace.name),
        };
        // The reader has taken care of what is far above the size.
        let used = series.values.iter().map(|value| match value.is_nan() {
            true => f32::NAN,
            false => (value / full * cores).clamp(0.0, cores),
        });
        Ok(FleetVm { name: series.name.clone(), cores, used: used.collect() })
    };
    let vms = trace.series.iter().map(vm).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(Fleet::new(vms, trace.start_s, trace.period_s)?)
}
