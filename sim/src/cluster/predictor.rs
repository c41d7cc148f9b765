//! What a scheduler is told of a VM: nothing, the truth, or a model's guess.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section III-B and Table III (Random Forest).

use ballast_placement::VmRequest;
use ballast_types::{Utilisation, VmClass};
use serde::{Deserialize, Serialize};

use super::generate::{ClusterVm, pick_by};

/// Share of predictions of the class that are confident.
const CLASS_CONFIDENT: f64 = 0.99;
/// Of confident predictions: how many VMs of a class are told as such, user-facing ones and others (recall).
const CLASS_RECALL: [f64; 2] = [0.99, 0.69];
/// Of confident predictions of the class: how many are right, over the VMs that the paper has (accuracy).
const CLASS_ACCURACY: f64 = 0.98;
/// Share of predictions of the P95 that are confident.
const P95_CONFIDENT: f64 = 0.73;
/// Of confident predictions of a quarter (row): which quarter is told. The diagonal is the table's recall;
/// the rest was filled so that precision (87, 76, 81, 83 %) and accuracy (84 %) come out as well, nearer
/// quarters more often.
const P95_GUESSED: [[f64; 4]; 4] = [
    [0.93, 0.0397, 0.0126, 0.0177],
    [0.3067, 0.61, 0.0466, 0.0367],
    [0.1033, 0.0494, 0.65, 0.1973],
    [0.0303, 0.0082, 0.0415, 0.92],
];

/// Who predicts, and whether the power rule is used at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// The packing rule alone.
    None,
    /// Packing, and chassis balanced by the cores that are allocated: what needs no prediction.
    Spread,
    /// The power rule, of which nothing is known of any VM.
    Unknown,
    /// The model's class; the P95 counts as 100 %.
    CriticalityOnly,
    /// Class and P95 as the paper's models get them right and wrong.
    Model,
    /// Class and quarter of the P95 are always right.
    Oracle,
}

impl Arm {
    pub const ALL: [Self; 6] =
        [Self::None, Self::Spread, Self::Unknown, Self::CriticalityOnly, Self::Model, Self::Oracle];

    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Spread => "spread",
            Self::Unknown => "unknown",
            Self::Model => "model",
            Self::Oracle => "oracle",
            Self::CriticalityOnly => "criticality-only",
        }
    }

    pub const fn prediction(self) -> Prediction {
        let (class, p95) = match self {
            Self::None | Self::Unknown => (Class::Unknown, P95::Unknown),
            Self::Spread => (Class::Unknown, P95::Full),
            Self::Model => (Class::Model, P95::Model),
            Self::Oracle => (Class::Right, P95::Right),
            Self::CriticalityOnly => (Class::Model, P95::Unknown),
        };
        Prediction { class, p95, quarter: Quarter::UpperEnd }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing is known: every VM counts as user-facing.
    Unknown,
    /// As right as the paper's model is of each class (recall); one that is not confident counts as
    /// user-facing.
    Model,
    /// As right as the paper's model is of all VMs together (accuracy), of either class alike.
    Accuracy,
    /// Always.
    Right,
}

/// How right the P95 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum P95 {
    /// Nothing is known: it counts as 100 %.
    Unknown,
    /// It is taken for 100 %, as if that were known.
    Full,
    /// The quarter as the paper's model gets it; one that is not confident counts as 100 %.
    Model,
    Right,
    /// The P95 itself.
    Exact,
}

/// What a quarter of the P95 counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quarter {
    UpperEnd,
    Middle,
}

/// What a scheduler is told of VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    pub class: Class,
    pub p95: P95,
    pub quarter: Quarter,
}

impl Prediction {
    pub fn request(self, vm: &ClusterVm) -> VmRequest {
        let class = match self.class {
            Class::Unknown => None,
            Class::Right => Some(vm.class),
            Class::Model => predicted_class(vm, CLASS_RECALL[usize::from(!user_facing(vm))]),
            Class::Accuracy => predicted_class(vm, CLASS_ACCURACY),
        };
        let p95 = match self.p95 {
            P95::Unknown => None,
            P95::Full => Some(Utilisation::FULL),
            P95::Exact => Some(vm.p95),
            P95::Right => Some(self.quarter.of(quarter(vm.p95))),
            P95::Model => predicted_quarter(vm).map(|told| self.quarter.of(told)),
        };
        VmRequest::new(vm.id, vm.resources()).known(class, p95)
    }
}

impl Quarter {
    fn of(self, quarter: usize) -> Utilisation {
        let within = match self {
            Self::UpperEnd => 1.0,
            Self::Middle => 0.5,
        };
        Utilisation::from_ratio((quarter as f64 + within) / 4.0).unwrap_or(Utilisation::FULL)
    }
}

fn user_facing(vm: &ClusterVm) -> bool {
    vm.class == VmClass::UserFacing
}

/// The class where the model is confident, and right in so many cases.
fn predicted_class(vm: &ClusterVm, right: f64) -> Option<VmClass> {
    let [confident, luck, ..] = vm.luck;
    let is = user_facing(vm) == (luck < right);
    let class = if is { VmClass::UserFacing } else { VmClass::NonUserFacing };
    (confident < CLASS_CONFIDENT).then_some(class)
}

/// The quarter that the model says, where it is confident.
fn predicted_quarter(vm: &ClusterVm) -> Option<usize> {
    let [.., confident, told] = vm.luck;
    (confident < P95_CONFIDENT).then(|| pick_by(told, &P95_GUESSED[quarter(vm.p95)]))
}

/// Which quarter: 0–25 % is the first.
fn quarter(p95: Utilisation) -> usize {
    usize::from(p95.ten_thousandths().saturating_sub(1) / 2500)
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
            let row = P95_GUESSED[quarter];
            assert!((row.iter().sum::<f64>() - 1.0).abs() < 2e-4, "{row:?}");
            assert_eq!(row[quarter], recall[quarter]);
            let counted: f64 = (0..4).map(|b| shares[b] * P95_GUESSED[b][quarter]).sum();
            assert!((shares[quarter] * row[quarter] / counted - precision[quarter]).abs() < 2e-3);
            accuracy += shares[quarter] * row[quarter];
        }
        assert!((accuracy - 0.84).abs() < 1e-3, "{accuracy}");
    }

    #[test]
    fn each_part_of_what_is_told_can_be_right_by_itself() {
        let load = Workload::generate(3, 28_800, 0.65, 30);
        let told = |class, p95, quarter| Prediction { class, p95, quarter };
        let upper = Quarter::UpperEnd;
        let (mut right, mut all) = (0.0, 0.0);
        for vm in load.deployments.iter().flat_map(|d| &d.vms) {
            let exact = told(Class::Right, P95::Exact, upper).request(vm);
            assert_eq!((exact.class, exact.p95), (vm.class, vm.p95));
            let middle = told(Class::Unknown, P95::Right, Quarter::Middle).request(vm);
            assert!((middle.p95.ratio() - vm.p95.ratio()).abs() <= 0.1251, "{vm:?}");
            let model = told(Class::Right, P95::Model, upper).request(vm);
            assert_eq!(model.p95, Arm::Model.prediction().request(vm).p95);
            all += 1.0;
            let same = told(Class::Accuracy, P95::Unknown, upper).request(vm).class == vm.class;
            right += f64::from(u8::from(same));
        }
        // 2 % wrong, and of the 60 % others 1 % not confident.
        assert!((right / all - 0.975_f64).abs() < 0.01, "{}", right / all);
    }

    #[test]
    fn arms_are_told_as_much_as_they_should_be() {
        let load = Workload::generate(3, 28_800, 0.65, 60);
        let vms: Vec<&ClusterVm> = load.deployments.iter().flat_map(|d| &d.vms).collect();
        let share = |of: &dyn Fn(&ClusterVm) -> Option<bool>| {
            let right: Vec<bool> = vms.iter().filter_map(|vm| of(vm)).collect();
            right.iter().filter(|t| **t).count() as f64 / right.len() as f64
        };

        let right = |class| {
            share(&|vm: &ClusterVm| {
                (vm.class == class).then(|| Arm::Model.prediction().request(vm).class == class)
            })
        };

        // Who is not confident says user-facing.
        assert!((right(VmClass::UserFacing) - 0.99).abs() < 0.005);
        assert!((right(VmClass::NonUserFacing) - 0.69 * 0.99).abs() < 0.015);
        let first = share(&|vm: &ClusterVm| {
            let told = Arm::Model.prediction().request(vm).p95.ten_thousandths();
            (vm.p95.ten_thousandths() < 2500).then_some(told == 2500)
        });

        assert!((first - 0.73 * 0.93).abs() < 0.015, "{first}");

        for vm in vms.iter().take(500) {
            let oracle = Arm::Oracle.prediction().request(vm);
            let above = oracle.p95.ratio() - vm.p95.ratio();
            assert!(oracle.class == vm.class && (0.0..0.2501).contains(&above), "{vm:?}");
            assert_eq!(Arm::CriticalityOnly.prediction().request(vm).p95, Utilisation::FULL);
            assert_eq!(
                Arm::CriticalityOnly.prediction().request(vm).class,
                Arm::Model.prediction().request(vm).class
            );

            assert_eq!(Arm::None.prediction().request(vm), VmRequest::new(vm.id, vm.resources()));
        }
    }
}
