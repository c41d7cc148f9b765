//! What is known of a VM when it arrives, as a person writes it and as a row of numbers.
//!
//! Source: Kumbhare et al., arXiv 2010.15388, Section III-B.

use serde::{Deserialize, Serialize};

use crate::vm::{VmError, size};

pub const COLUMNS: usize = 31;
/// The columns, in order: the subscription's past VMs, those of them of this type and size, all VMs of this
/// type, and the VM itself. What has no past is missing.
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
    "recent_bucket_1_share",
    "recent_bucket_2_share",
    "recent_bucket_3_share",
    "recent_bucket_4_share",
    "alike_uf_share",
    "alike_vms",
    "alike_bucket_1_share",
    "alike_bucket_2_share",
    "alike_bucket_3_share",
    "alike_bucket_4_share",
    "alike_recent_vms",
    "alike_recent_1_share",
    "alike_recent_2_share",
    "alike_recent_3_share",
    "alike_recent_4_share",
    "alike_mean_p95_cpu",
    "type_uf_share",
    "type_mean_avg_cpu",
    "type_mean_p95_cpu",
    "cores",
    "memory_gb",
    "seen",
];

/// One row: NaN is missing.
pub type FeatureRow = [f32; COLUMNS];

/// What is known of a VM before it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Features {
    pub cores: f64,
    pub memory_gb: f64,
    /// The name of its size or family: a category, told by what its VMs were. One that was never seen is
    /// missing to the model.
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
}

/// All that is known of a VM before it runs, beside its size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    pub past: Option<Past>,
    /// The subscription's bucket shares of the last few days above all.
    pub recent_shares: Option<[f64; 4]>,
    pub alike: Option<Alike>,
    pub of_type: Option<OfType>,
}

/// How the subscription's VMs of the same type and size were.
#[derive(Clone, Debug, PartialEq)]
pub struct Alike {
    /// How many, weighed by their age.
    pub vms: f64,
    pub uf_share: Option<f64>,
    pub bucket_shares: Option<[f64; 4]>,
    /// The same, but of the last few days above all.
    pub recent_vms: f64,
    pub recent_shares: Option<[f64; 4]>,
    pub mean_p95_cpu: Option<f64>,
}

/// How all VMs of a type were, whoever's.
#[derive(Clone, Debug, PartialEq)]
pub struct OfType {
    pub uf_share: Option<f64>,
    pub mean_avg_cpu: Option<f64>,
    pub mean_p95_cpu: Option<f64>,
}

/// The row of a VM of which this is known.
pub(crate) fn row(known: &Evidence, cores: f64, memory_gb: f64) -> FeatureRow {
    let Evidence { past, recent_shares, alike, of_type } = known;
    let number = |value: Option<f64>| value.map_or(f32::NAN, |v| v as f32);
    let past_of = |value: fn(&Past) -> Option<f64>| number(past.as_ref().and_then(value));
    let alike_of = |value: fn(&Alike) -> Option<f64>| number(alike.as_ref().and_then(value));
    let type_of = |value: fn(&OfType) -> Option<f64>| number(of_type.as_ref().and_then(value));
    let four = |shares: Option<[f64; 4]>| shares.unwrap_or([f64::NAN; 4]).map(|share| share as f32);
    let [p1, p2, p3, p4] = four(past.as_ref().and_then(|past| past.bucket_shares));
    let [a1, a2, a3, a4] = four(alike.as_ref().and_then(|alike| alike.bucket_shares));
    let [l1, l2, l3, l4] = four(*recent_shares);
    let [r1, r2, r3, r4] = four(alike.as_ref().and_then(|alike| alike.recent_shares));
    [
        past_of(|past| past.uf_share),
        past_of(|past| past.lived_7d_share),
        past_of(|past| Some(past.vms as f64)),
        p1,
        p2,
        p3,
        p4,
        past_of(|past| past.mean_avg_cpu),
        past_of(|past| past.mean_p95_cpu),
        l1,
        l2,
        l3,
        l4,
        alike_of(|alike| alike.uf_share),
        alike_of(|alike| Some(alike.vms)),
        a1,
        a2,
        a3,
        a4,
        alike_of(|alike| Some(alike.recent_vms)),
        r1,
        r2,
        r3,
        r4,
        alike_of(|alike| alike.mean_p95_cpu),
        type_of(|of| of.uf_share),
        type_of(|of| of.mean_avg_cpu),
        type_of(|of| of.mean_p95_cpu),
        cores as f32,
        memory_gb as f32,
        f32::from(u8::from(past.is_some())),
    ]
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
        let alike = Alike {
            vms: 3.5,
            uf_share: Some(0.6),
            bucket_shares: Some([0.5, 0.0, 0.5, 0.0]),
            recent_vms: 2.5,
            recent_shares: Some([0.0, 0.0, 1.0, 0.0]),
            mean_p95_cpu: Some(55.0),
        };
        let of_type = OfType { uf_share: Some(0.7), mean_avg_cpu: None, mean_p95_cpu: Some(44.0) };
        let known = Evidence {
            past: features().past,
            recent_shares: Some([0.0, 0.0, 0.25, 0.75]),
            alike: Some(alike),
            of_type: Some(of_type),
        };
        let row = row(&known, 4.0, 16.0);
        let n = f32::NAN;
        let expected = [
            0.5, 0.25, 7.0, 0.1, 0.2, 0.3, 0.4, 20.0, n, 0.0, 0.0, 0.25, 0.75, 0.6, 3.5, 0.5, 0.0, 0.5, 0.0,
            2.5, 0.0, 0.0, 1.0, 0.0, 55.0, 0.7, n, 44.0, 4.0, 16.0, 1.0,
        ];
        for ((name, found), expected) in COLUMN_NAMES.iter().zip(row).zip(expected) {
            assert!(found == expected || (found.is_nan() && expected.is_nan()), "{name}: {found}");
        }
    }

    #[test]
    fn of_whom_nothing_is_known_has_its_size_alone() {
        let row = row(&Evidence::default(), 4.0, 16.0);
        assert!(row[..28].iter().all(|v| v.is_nan()));
        assert_eq!(row[28..], [4.0, 16.0, 0.0]);
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
}
