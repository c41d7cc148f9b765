//! The recorded data that experiments read, where it is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ballast_sim::trace::Trace;
use indicatif::ProgressBar;

use crate::common::columns::ColumnArgs;
use crate::common::table;

/// The folder of all data: `$BALLAST_DATA`, or what stands beside the project.
pub(super) fn folder() -> PathBuf {
    std::env::var_os("BALLAST_DATA").map_or_else(|| "../shared/data".into(), PathBuf::from)
}

pub(super) fn trace(path: &Path) -> anyhow::Result<Trace> {
    ColumnArgs::default().read(path)
}

/// VMs that were measured for two months.
pub(super) struct Bitbrains {
    /// The first month, in percent.
    pub(super) first: Trace,
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
    let mut table = table::named(path, table::open(path, &ProgressBar::hidden()))?;
    let [vm, cores, memory] = ["vm", "cores", "mem_mb"].map(|name| table.column(name));
    let (vm, cores, memory) = (vm?, cores?, memory?);
    let mut sizes = BTreeMap::new();
    while table.advance()? {
        let size = (table.number(cores, "cores")?, table.number(memory, "MB")? / 1024.0);
        sizes.entry(table.text(vm).into_owned()).or_insert(size);
    }
    Ok(sizes)
}
