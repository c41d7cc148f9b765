//! What is known of a VM when it arrives, as a person writes it and as a row of numbers.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section III-B.

use serde::{Deserialize, Serialize};

use crate::vm::{VmError, size};

/// How many columns a row has.
pub const COLUMNS: usize = 13;
/// The columns, in order. The first nine tell of the subscription's past VMs, and are missing where it has
/// none.
pub const COLUMN_NAMES: [&str; COLUMNS] = [
    "uf_share",
    "lived_7d_share",
    "vms",
    "bucket_1_share",
    "bucket_2_share",
    "bucket_3_share",
    "bucket_4_share",
    "mean_avg_cpu",
    "mean_p95_cpu",
    "cores",
    "memory_gb",
    "vm_type",
    "seen",
];

/// One row: NaN is missing.
pub type FeatureRow = [f32; COLUMNS];

/// What is known of a VM before it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Features {
    pub cores: f64,
    pub memory_gb: f64,
    /// The name of its size or family; one that training has not seen is missing to the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_type: Option<String>,
    /// How its subscription's VMs were; `None` where it never had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub past: Option<Past>,
}

/// How the VMs of a subscription were: those that have ended, or are five weekdays old.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Past {
    pub vms: u64,
    /// Of those whose class is known, the share that is user-facing; 0 to 1.
    pub uf_share: Option<f64>,
    /// Of those of which that is known, the share that lived seven days; 0 to 1.
    pub lived_7d_share: Option<f64>,
    /// Of those with a P95, the share in each bucket, the least busy first; 0 to 1.
    pub bucket_shares: Option<[f64; 4]>,
    /// Mean of their mean utilisations, in percent.
    pub mean_avg_cpu: Option<f64>,
    /// Mean of their P95 utilisations, in percent.
    pub mean_p95_cpu: Option<f64>,
}

impl Features {
    /// Whether the values are possible. What comes over a network is checked before it is predicted on.
    pub fn check(&self) -> Result<(), VmError> {
        size(self.cores, self.memory_gb)?;
        let Some(past) = &self.past else { return Ok(()) };
        let within = |field, value: Option<f64>, top: f64| match value {
            Some(value) if !(0.0..=top).contains(&value) => {
                let (value, allowed) = (value.to_string(), format!("0 to {top}, or absent"));
                Err(VmError { field, value, allowed })
            }
            _ => Ok(()),
        };
        within("past.uf_share", past.uf_share, 1.0)?;
        within("past.lived_7d_share", past.lived_7d_share, 1.0)?;
        for share in past.bucket_shares.unwrap_or_default() {
            within("past.bucket_shares", Some(share), 1.0)?;
        }
        within("past.mean_avg_cpu", past.mean_avg_cpu, 100.0)?;
        within("past.mean_p95_cpu", past.mean_p95_cpu, 100.0)
    }

    /// The row of these features, with the VM type as `types` numbers it.
    pub fn row(&self, types: &Types) -> FeatureRow {
        let code = self.vm_type.as_deref().map_or(f32::NAN, |name| types.code(name));
        row(self.past.as_ref(), self.cores, self.memory_gb, code)
    }
}

/// The row of a VM of this past, size and type.
pub(crate) fn row(past: Option<&Past>, cores: f64, memory_gb: f64, vm_type: f32) -> FeatureRow {
    let of = |value: fn(&Past) -> Option<f64>| past.and_then(value).map_or(f32::NAN, |v| v as f32);
    let shares = past.and_then(|past| past.bucket_shares).unwrap_or([f64::NAN; 4]);
    [
        of(|past| past.uf_share),
        of(|past| past.lived_7d_share),
        past.map_or(f32::NAN, |past| past.vms as f32),
        shares[0] as f32,
        shares[1] as f32,
        shares[2] as f32,
        shares[3] as f32,
        of(|past| past.mean_avg_cpu),
        of(|past| past.mean_p95_cpu),
        cores as f32,
        memory_gb as f32,
        vm_type,
        f32::from(u8::from(past.is_some())),
    ]
}

/// The VM types that training has seen, numbered in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Types(Vec<String>);

impl Types {
    /// More types than this are not told apart: the rarest are missing to the model.
    const MOST: usize = 250;

    /// The types among these names, the 250 most frequent where there are more.
    pub fn among<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut counts = std::collections::BTreeMap::<&str, u64>::new();
        names.filter(|name| !name.is_empty()).for_each(|name| *counts.entry(name).or_default() += 1);
        let mut kept: Vec<_> = counts.into_iter().collect();
        kept.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        kept.truncate(Self::MOST);
        let mut names: Vec<_> = kept.into_iter().map(|(name, _)| name.to_owned()).collect();
        names.sort_unstable();
        Self(names)
    }

    /// The number of a type; NaN where it is none of them.
    pub fn code(&self, name: &str) -> f32 {
        let place = self.0.binary_search_by(|known| known.as_str().cmp(name));
        place.map_or(f32::NAN, |place| place as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features() -> Features {
        Features {
            cores: 4.0,
            memory_gb: 16.0,
            vm_type: Some("b".into()),
            past: Some(Past {
                vms: 7,
                uf_share: Some(0.5),
                lived_7d_share: Some(0.25),
                bucket_shares: Some([0.1, 0.2, 0.3, 0.4]),
                mean_avg_cpu: Some(20.0),
                mean_p95_cpu: None,
            }),
        }
    }

    #[test]
    fn a_row_has_every_feature_in_the_order_of_the_names() {
        let types = Types::among(["c", "b", "a", "b", ""].into_iter());
        let row = features().row(&types);
        let expected = [0.5, 0.25, 7.0, 0.1, 0.2, 0.3, 0.4, 20.0, f32::NAN, 4.0, 16.0, 1.0, 1.0];
        for ((name, found), expected) in COLUMN_NAMES.iter().zip(row).zip(expected) {
            assert!(found == expected || (found.is_nan() && expected.is_nan()), "{name}: {found}");
        }
    }

    #[test]
    fn an_unseen_subscription_and_an_unknown_type_are_missing() {
        let unseen = Features { past: None, vm_type: Some("new".into()), ..features() };
        let row = unseen.row(&Types::among(["a"].into_iter()));
        assert!(row[..9].iter().all(|v| v.is_nan()) && row[11].is_nan());
        assert_eq!((row[9], row[10], row[12]), (4.0, 16.0, 0.0));
    }

    #[test]
    fn impossible_features_are_named() {
        assert_eq!(features().check(), Ok(()));
        let with = |change: fn(&mut Past)| {
            let mut features = features();
            features.past.iter_mut().for_each(change);
            features.check().unwrap_err().field
        };
        assert_eq!(with(|p| p.uf_share = Some(1.1)), "past.uf_share");
        assert_eq!(with(|p| p.lived_7d_share = Some(f64::NAN)), "past.lived_7d_share");
        assert_eq!(with(|p| p.bucket_shares = Some([0.0, -0.1, 0.0, 0.0])), "past.bucket_shares");
        assert_eq!(with(|p| p.mean_avg_cpu = Some(101.0)), "past.mean_avg_cpu");
        assert_eq!(with(|p| p.mean_p95_cpu = Some(-1.0)), "past.mean_p95_cpu");
        assert_eq!(Features { cores: 0.0, ..features() }.check().unwrap_err().field, "cores");
    }

    #[test]
    fn only_the_most_frequent_types_are_told_apart() {
        let names: Vec<String> = (0..300).map(|n| format!("t{n:03}")).collect();
        let types = Types::among(names.iter().chain(&names[100..]).map(String::as_str));
        assert!(types.code("t299") >= 0.0 && types.code("t049") >= 0.0);
        assert!(types.code("t050").is_nan());
    }
}
