//! Real VMs: August from July (Bitbrains), where the data is there.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use ballast_predict::compare::Arm;
use ballast_predict::month::{Measured, compare_months};
use ballast_sim::trace::Trace;

use crate::experiment::data::Bitbrains;

/// Both months have a value every 300 s.
const PER_DAY: NonZeroUsize = NonZeroUsize::new(288).expect("not zero");

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
