//! The recorded data that experiments read, where it is there.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ballast_sim::trace::{ReadOptions, Trace};

use crate::train::text::Table;

/// The folder of all data: `$BALLAST_DATA`, or what stands beside the project.
pub(super) fn folder() -> PathBuf {
    std::env::var_os("BALLAST_DATA").map_or_else(|| "../shared/data".into(), PathBuf::from)
}

/// Reads a trace.
pub(super) fn trace(path: &Path) -> anyhow::Result<Trace> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| name.clone())?;
    Ok(Trace::read(file, &name, &ReadOptions::default())?)
}

/// VMs that were measured for two months.
pub(super) struct Bitbrains {
    /// The first month, in percent.
    pub(super) first: Trace,
    /// The second one.
    pub(super) second: Trace,
    /// CPUs and GB of every VM, as the first month has them.
    pub(super) sizes: BTreeMap<String, (f64, f64)>,
}

impl Bitbrains {
    /// Reads them; `None` where they are not there.
    pub(super) fn read() -> anyhow::Result<Option<Self>> {
        let folder = folder().join("bitbrains_rnd");
        if !folder.is_dir() {
            return Ok(None);
        }
        Ok(Some(Self {
            first: trace(&folder.join("cpu_pct_2013-7.csv.zst"))?,
            second: trace(&folder.join("cpu_pct_2013-8.csv.zst"))?,
            sizes: sizes(&folder.join("vm_meta.csv"))?,
        }))
    }
}

fn sizes(path: &Path) -> anyhow::Result<BTreeMap<String, (f64, f64)>> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let mut table = Table::open(file, &path.display().to_string())?;
    let columns = table.columns(&["vm", "cores", "mem_mb"])?;
    let mut sizes = BTreeMap::new();
    while let Some(record) = table.next()? {
        let cell = |column: usize| record.get(columns[column]).unwrap_or_default();
        let number = |column: usize| cell(column).parse::<f64>().with_context(|| table.place());
        sizes.entry(cell(0).to_owned()).or_insert((number(1)?, number(2)? / 1024.0));
    }
    Ok(sizes)
}
