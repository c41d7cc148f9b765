//! What a scheduler is told of a VM: nothing, the truth, or a model's guess.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section III-B and Table III (Random Forest).

use ballast_placement::VmRequest;
use ballast_types::{Utilisation, VmClass};
use serde::{Deserialize, Serialize};

use super::generate::{Vm, pick_by};

/// Share of predictions of the class that are confident.
const CLASS_CONFIDENT: f64 = 0.99;
/// Of confident predictions: how many VMs of a class are told as such, user-facing ones and others (recall).
const CLASS_RECALL: [f64; 2] = [0.99, 0.69];
/// Share of predictions of the P95 that are confident.
const P95_CONFIDENT: f64 = 0.73;
/// Of confident predictions of a quarter (row): which quarter is told. The diagonal is the table's recall; the rest was
/// filled so that precision (87, 76, 81, 83 %) and accuracy (84 %) come out as well, nearer quarters more often.
const P95_TOLD: [[f64; 4]; 4] = [
    [0.93, 0.0397, 0.0126, 0.0177],
    [0.3067, 0.61, 0.0466, 0.0367],
    [0.1033, 0.0494, 0.65, 0.1973],
    [0.0303, 0.0082, 0.0415, 0.92],
];

/// Who predicts, and whether the power rule is used at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// The packing rule alone: the scheduler as it was.
    None,
    /// Class and P95 as the paper's models get them right and wrong.
    Model,
    /// Class and quarter of the P95 are always right.
    Oracle,
    /// The model's class; the P95 counts as 100 %.
    CriticalityOnly,
}

impl Arm {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 4] = [Self::None, Self::Model, Self::Oracle, Self::CriticalityOnly];

    /// Its name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Model => "model",
            Self::Oracle => "oracle",
            Self::CriticalityOnly => "criticality-only",
        }
    }

    /// What the scheduler is told of the VM. A class that is not confident counts as user-facing, a P95 as 100 %.
    /// A quarter counts as its upper end.
    #[must_use]
    pub fn request(self, vm: &Vm) -> VmRequest {
        let unknown = VmRequest::new(vm.id, vm.resources());
        let class = || if self == Self::Oracle { vm.class } else { told_class(vm) };
        match self {
            Self::None => unknown,
            Self::CriticalityOnly => VmRequest { class: class(), ..unknown },
            Self::Oracle => VmRequest { class: class(), p95: upper(quarter(vm.p95)), ..unknown },
            Self::Model => VmRequest { class: class(), p95: told_p95(vm), ..unknown },
        }
    }
}

fn told_class(vm: &Vm) -> VmClass {
    let [confident, right, ..] = vm.luck;
    let recall = CLASS_RECALL[usize::from(vm.class == VmClass::NonUserFacing)];
    match (confident < CLASS_CONFIDENT, right < recall, vm.class) {
        (false, ..) | (true, true, VmClass::UserFacing) => VmClass::UserFacing,
        (true, false, VmClass::NonUserFacing) => VmClass::UserFacing,
        _ => VmClass::NonUserFacing,
    }
}

fn told_p95(vm: &Vm) -> Utilisation {
    let [.., confident, told] = vm.luck;
    if confident < P95_CONFIDENT {
        upper(pick_by(told, &P95_TOLD[quarter(vm.p95)]))
    } else {
        Utilisation::FULL
    }
}

/// Which quarter: 0–25 % is the first.
fn quarter(p95: Utilisation) -> usize {
    usize::from(p95.ten_thousandths().saturating_sub(1) / 2500)
}

/// The upper end of a quarter.
fn upper(quarter: usize) -> Utilisation {
    Utilisation::from_ratio((quarter + 1) as f64 / 4.0).unwrap_or(Utilisation::FULL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Workload;

    #[test]
    fn the_matrix_has_the_tables_recall_precision_and_accuracy() {
        // Shares of the quarters for which these fit together; the middle two alike.
        let shares = [0.4809, 0.1462, 0.1462, 0.2267];
        let (recall, precision) = ([0.93, 0.61, 0.65, 0.92], [0.87, 0.76, 0.81, 0.83]);
        let mut accuracy = 0.0;
        for quarter in 0..4 {
            let row = P95_TOLD[quarter];
            assert!((row.iter().sum::<f64>() - 1.0).abs() < 2e-4, "{row:?}");
            assert_eq!(row[quarter], recall[quarter]);
            let told: f64 = (0..4).map(|b| shares[b] * P95_TOLD[b][quarter]).sum();
            assert!((shares[quarter] * row[quarter] / told - precision[quarter]).abs() < 2e-3);
            accuracy += shares[quarter] * row[quarter];
        }
        assert!((accuracy - 0.84).abs() < 1e-3, "{accuracy}");
    }

    #[test]
    fn arms_are_told_as_much_as_they_should_be() {
        let load = Workload::generate(3, 28_800, 0.65, 60);
        let vms: Vec<&Vm> = load.deployments.iter().flat_map(|d| &d.vms).collect();
        let share = |of: &dyn Fn(&Vm) -> Option<bool>| {
            let told: Vec<bool> = vms.iter().filter_map(|vm| of(vm)).collect();
            told.iter().filter(|t| **t).count() as f64 / told.len() as f64
        };
        let right = |class| {
            share(&|vm: &Vm| (vm.class == class).then(|| Arm::Model.request(vm).class == class))
        };
        // Who is not confident says user-facing.
        assert!((right(VmClass::UserFacing) - 0.99).abs() < 0.005);
        assert!((right(VmClass::NonUserFacing) - 0.69 * 0.99).abs() < 0.015);
        let first = share(&|vm: &Vm| {
            let told = Arm::Model.request(vm).p95.ten_thousandths();
            (vm.p95.ten_thousandths() < 2500).then_some(told == 2500)
        });
        assert!((first - 0.73 * 0.93).abs() < 0.015, "{first}");
        for vm in vms.iter().take(500) {
            let oracle = Arm::Oracle.request(vm);
            let above = oracle.p95.ratio() - vm.p95.ratio();
            assert!(oracle.class == vm.class && (0.0..0.2501).contains(&above), "{vm:?}");
            assert_eq!(Arm::CriticalityOnly.request(vm).p95, Utilisation::FULL);
            assert_eq!(Arm::CriticalityOnly.request(vm).class, Arm::Model.request(vm).class);
            assert_eq!(Arm::None.request(vm), VmRequest::new(vm.id, vm.resources()));
        }
    }
}
