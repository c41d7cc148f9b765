//! A question about how long a VM will live, as the command line and the network put it.

use serde::{Deserialize, Serialize};

use super::feature::LifetimeFeatures;
use super::model::{LifetimeAnswer, LifetimeModel};
use crate::vm::VmError;

/// No VM has run for longer: 100 years.
const UPTIME_MAX_S: f64 = 3.2e9;
/// No time is further from 1970, in seconds.
const FAR_S: i64 = 100_000_000_000;
/// No batch has more VMs.
const BATCH_MAX: u32 = 1_000_000_000;

/// How long will this VM live, or live on?
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LifetimeQuestion {
    /// When it starts, in Unix seconds. If nobody tells, it has just reached its uptime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_s: Option<i64>,
    #[serde(default)]
    pub uptime_s: f64,
    #[serde(flatten)]
    pub features: LifetimeFeatures,
}

impl LifetimeQuestion {
    /// Whether its values are possible. A category that no model knows is: its VM has the curve of the wider one.
    pub fn check(&self) -> Result<(), VmError> {
        let Self { start_s, uptime_s, features } = self;
        let positive = |field, value: Option<f64>, most: f64| match value {
            Some(value) if !(value > 0.0 && value <= most) => {
                Err(VmError::new(field, &value, format!("above 0, at most {most}")))
            }
            _ => Ok(()),
        };
        positive("cores", features.cores, 65_536.0)?;
        positive("memory_gb", features.memory_gb, 1e6)?;

        if let Some(vms) = features.batch_vms.filter(|vms| !(1..=BATCH_MAX).contains(vms)) {
            return Err(VmError::new("batch_vms", &vms, format!("1 to {BATCH_MAX}")));
        }
        if !(0.0..=UPTIME_MAX_S).contains(uptime_s) {
            return Err(VmError::new("uptime_s", uptime_s, format!("0 to {UPTIME_MAX_S}")));
        }
        if let Some(start_s) = start_s.filter(|start_s| !(-FAR_S..=FAR_S).contains(start_s)) {
            return Err(VmError::new(
                "start_s",
                &start_s,
                format!("Unix seconds, at most {FAR_S} from 1970"),
            ));
        }
        Ok(())
    }
}

impl LifetimeModel {
    /// What to reckon with. This fails where a value is impossible.
    pub fn reply(&self, question: &LifetimeQuestion, now_s: i64) -> Result<LifetimeAnswer, VmError> {
        question.check()?;
        let LifetimeQuestion { start_s, uptime_s, features } = question;
        let start_s = start_s.unwrap_or(now_s - *uptime_s as i64);
        Ok(self.answer(features, start_s, *uptime_s as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_are_refused_by_field_and_rare_ones_are_not() {
        let read = |json: &str| serde_json::from_str::<LifetimeQuestion>(json).unwrap().check();
        for json in [
            "{}",
            r#"{"cores":0.25,"memory_gb":0.5,"tenant":"nobody's","vm_type":"?","labels":{"zone":""}}"#,
            r#"{"uptime_s":3.2e9,"start_s":-5,"batch_vms":1000000000}"#,
        ] {
            assert_eq!(read(json), Ok(()), "{json}");
        }
        for (json, says) in [
            (r#"{"cores":0}"#, "cores = 0: above 0, at most 65536"),
            (r#"{"memory_gb":-1}"#, "memory_gb = -1: above 0, at most 1000000"),
            (r#"{"batch_vms":0}"#, "batch_vms = 0: 1 to 1000000000"),
            (r#"{"uptime_s":-0.5}"#, "uptime_s = -0.5: 0 to 3200000000"),
            (r#"{"uptime_s":1e300}"#, "uptime_s = 1000"),
            (r#"{"start_s":9000000000000000000}"#, "start_s = 9000000000000000000: Unix seconds"),
        ] {
            let why = read(json).unwrap_err().to_string();
            assert!(why.starts_with(says), "{why}");
        }
    }
}
