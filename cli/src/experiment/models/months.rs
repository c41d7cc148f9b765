//! Real VMs: August from July (Bitbrains), where the data is there.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use ballast_predict::compare::Arm;
use ballast_predict::month::{Measured, compare_months};
use ballast_sim::trace::Trace;

use crate::experiment::data::Bitbrains;

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
    let Some(Bitbrains { first, second, sizes }) = Bitbrains::read()? else { return Ok(None) };
    let (first, second) = (by_name(first), by_name(second));
    let vm = |(name, first): (String, Vec<f32>)| {
        let second = second.get(&name)?.clone();
        let (cores, memory_gb) = *sizes.get(&name)?;
        Some(Measured { cores, memory_gb, first, second })
    };
    let vms: Vec<Measured> = first.into_iter().filter_map(vm).collect();
    Ok(Some(compare_months(&vms, PER_DAY, 1, threads)?))
}

/// The series of a month by the VM's name.
fn by_name(trace: Trace) -> BTreeMap<String, Vec<f32>> {
    trace.series.into_iter().map(|series| (series.name, series.values)).collect()
}
