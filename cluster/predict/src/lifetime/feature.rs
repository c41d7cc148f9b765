//! What is known of a VM at its arrival, as categories.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::vm::DAY_S;

/// Batches above this size are told apart by doublings alone.
const EXACT_VMS: u32 = 64;

/// What is known of a VM when it arrives. What is absent is a category of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LifetimeFeatures {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gb: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The name of its size or family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_type: Option<String>,
    /// How many VMs were asked for together, this one with them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_vms: Option<u32>,
    /// Whatever else the user knows: zone, priority, a category.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A category that the tables may ask for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Column {
    /// Cores and memory together.
    Shape,
    Cores,
    Tenant,
    VmType,
    /// The size of the batch: each by itself up to 64.
    BatchVms,
    /// The same by doublings: 1, 2, 3–4, 5–8 and so on.
    BatchDoublings,
    /// The hour of the day, UTC.
    Hour,
    /// Saturday or Sunday, UTC, or neither.
    Weekend,
    Label(String),
}

impl Column {
    pub fn name(&self) -> &str {
        match self {
            Self::Shape => "shape",
            Self::Cores => "cores",
            Self::Tenant => "tenant",
            Self::VmType => "vm_type",
            Self::BatchVms => "batch_vms",
            Self::BatchDoublings => "batch_doublings",
            Self::Hour => "hour",
            Self::Weekend => "weekend",
            Self::Label(name) => name,
        }
    }

    /// The shortest record in which every category has come twice, as far as the calendar goes.
    pub(crate) fn recurs_s(&self) -> i64 {
        match self {
            Self::Hour => 2 * DAY_S,
            Self::Weekend => 14 * DAY_S,
            _ => 0,
        }
    }

    /// The category of a VM that starts at this Unix second; `None` if it is not known.
    pub(crate) fn value<'a>(&self, of: &'a LifetimeFeatures, start_s: i64) -> Option<Cow<'a, str>> {
        match self {
            Self::Shape => Some(format!("{}x{}", of.cores?, of.memory_gb?).into()),
            Self::Cores => Some(of.cores?.to_string().into()),
            Self::Tenant => of.tenant.as_deref().map(Cow::from),
            Self::VmType => of.vm_type.as_deref().map(Cow::from),
            Self::BatchVms => Some(match of.batch_vms? {
                vms @ ..=EXACT_VMS => vms.to_string().into(),
                vms => format!("{}+", 1_u32 << vms.ilog2()).into(),
            }),
            Self::BatchDoublings => Some(doublings(of.batch_vms?).to_string().into()),
            Self::Hour => Some(start_s.rem_euclid(86_400).div_euclid(3_600).to_string().into()),
            Self::Weekend => {
                // 1 January 1970 was a Thursday.
                let weekend = (start_s.div_euclid(86_400) + 3).rem_euclid(7) >= 5;
                Some(if weekend { "yes" } else { "no" }.into())
            }
            Self::Label(name) => of.labels.get(name).map(|value| Cow::from(value.as_str())),
        }
    }
}

/// 0 for one VM, 1 for two, 2 for three and four, and so on.
fn doublings(vms: u32) -> u32 {
    vms.max(1).next_power_of_two().ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_has_the_categories_that_a_person_would_name() {
        let of = |batch_vms, labels: &[(&str, &str)]| LifetimeFeatures {
            cores: Some(2.0),
            memory_gb: Some(3.5),
            tenant: Some("t".into()),
            vm_type: None,
            batch_vms,
            labels: labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        };
        let zone = Column::Label("zone".into());
        // Friday, 2 January 1970, 23:59:59.
        let friday = 2 * 86_400 - 1;
        for (column, features, start_s, value) in [
            (Column::Shape, of(None, &[]), 0, Some("2x3.5")),
            (Column::Tenant, of(None, &[]), 0, Some("t")),
            (Column::VmType, of(None, &[]), 0, None),
            (Column::BatchVms, of(Some(64), &[]), 0, Some("64")),
            (Column::BatchVms, of(Some(200), &[]), 0, Some("128+")),
            (Column::BatchVms, of(None, &[]), 0, None),
            (Column::BatchDoublings, of(Some(0), &[]), 0, Some("0")),
            (Column::BatchDoublings, of(Some(5), &[]), 0, Some("3")),
            (Column::Hour, of(None, &[]), friday, Some("23")),
            (Column::Hour, of(None, &[]), -1, Some("23")),
            (Column::Weekend, of(None, &[]), friday, Some("no")),
            (Column::Weekend, of(None, &[]), friday + 1, Some("yes")),
            (zone.clone(), of(None, &[("zone", "a")]), 0, Some("a")),
            (zone, of(None, &[]), 0, None),
        ] {
            assert_eq!(column.value(&features, start_s).as_deref(), value, "{column:?}");
        }
    }
}
