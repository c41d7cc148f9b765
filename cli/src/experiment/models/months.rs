//! Real VMs: August from July (Bitbrains), where the data is there.

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ballast_predict::compare::Arm;
use ballast_predict::month::{Measured, compare_months};
use ballast_sim::trace::{ReadOptions, Trace};

use crate::train::text::Table;

/// What is said where the data is not there.
pub(super) const MISSING: &str =
    "Not measured: there is no bitbrains_rnd in $BALLAST_DATA (default ../shared/data)";
/// Both months have a value every 300 s.
const PER_DAY: NonZeroUsize = NonZeroUsize::new(288).expect("not zero");

/// What is done, for the document.
pub(super) fn words() -> String {
    "500 VMs of the Bitbrains trace (Shen, van Beek, Iosup, CCGrid 2015). Learnt from July alone: how a VM's \
     later days followed from its earlier ones. Predicted: the bucket of its P95 in August, from July. \
     `same-as-last-month` is the naive rule. Nobody knows a ceiling here."
        .to_owned()
}

/// All arms; `None` where the data is not there.
pub(super) fn arms(threads: NonZeroUsize) -> anyhow::Result<Option<Vec<Arm>>> {
    let data =
        std::env::var_os("BALLAST_DATA").map_or_else(|| "../shared/data".into(), PathBuf::from);
    let folder = data.join("bitbrains_rnd");
    if !folder.is_dir() {
        return Ok(None);
    }
    let [first, second] = ["cpu_pct_2013-7.csv.zst", "cpu_pct_2013-8.csv.zst"];
    let (first, second) = (month(&folder.join(first))?, month(&folder.join(second))?);
    let sizes = sizes(&folder.join("vm_meta.csv"))?;
    let vm = |(name, first): (String, Vec<f32>)| {
        let second = second.get(&name)?.clone();
        let (cores, memory_gb) = *sizes.get(&name)?;
        Some(Measured { cores, memory_gb, first, second })
    };
    let vms: Vec<Measured> = first.into_iter().filter_map(vm).collect();
    Ok(Some(compare_months(&vms, PER_DAY, 1, threads)?))
}

/// The series of a month by the VM's name.
fn month(path: &Path) -> anyhow::Result<BTreeMap<String, Vec<f32>>> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| name.clone())?;
    let trace = Trace::read(file, &name, &ReadOptions::default())?;
    Ok(trace.series.into_iter().map(|series| (series.name, series.values)).collect())
}

/// CPUs and GB of every VM, as July has them.
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
