//! The metrics of `[admission]`; without the section there are none but counts of 0.

use ballast_runtime::metrics::{Metric, each, one};

use super::{Shown, counted};

pub(super) fn metrics<'a>() -> [Metric<Shown<'a>>; 5] {
    [
        each(
            "admissions_total",
            &["outcome"],
            "New deployments by what was decided; each try counts",
            |it| counted(["admitted", "refused", "would-refuse"], &it.counters.admissions),
        ),
        each(
            "scale_outs_total",
            &["outcome"],
            "Deployments that wanted more than is kept for them, by whether there was room; each try counts",
            |it| counted(["placed", "failed"], &it.counters.scale_outs),
        ),
        one("admission_deployments", "Deployments that are counted; a VM without one is its own", |it| {
            Some(it.status.admission.as_ref()?.deployments as f64)
        }),
        one("admission_capacity_cores", "Cores that the deployments may come to need", |it| {
            Some(it.status.admission.as_ref()?.capacity_cores)
        }),
        one("admission_committed_cores", "Cores that are admitted, and that no VM has taken yet", |it| {
            Some(it.status.admission.as_ref()?.committed_cores)
        }),
    ]
}
