//! Each number of the product's control loops, times 0.5 and times 2 in turn.

use ballast_agent_core as agent;
use ballast_chassis_core as chassis;
use ballast_sim::scenario::Scenario;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::LoopResult;

const FACTORS: [f64; 2] = [0.5, 2.0];

/// The loop whose number is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Chassis,
    Agent,
}

/// One number of a loop, and the factor that it is multiplied by.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    side: Side,
    field: String,
    factor: f64,
}

impl Change {
    pub(crate) fn name(&self) -> String {
        let side = if self.side == Side::Chassis { "chassis" } else { "agent" };
        format!("{side}.{} x {}", self.field, self.factor)
    }

    pub(crate) fn apply(&self, scenario: &mut Scenario) {
        match self.side {
            Side::Chassis => scenario.tuning = self.changed(&chassis::Tuning::default()),
            Side::Agent => scenario.agent_tuning = self.changed(&agent::Tuning::default()),
        }
    }

    /// The numbers with this one changed; `None` if the field is none of them.
    fn changed<T: Serialize + DeserializeOwned>(&self, tuning: &T) -> Option<T> {
        let mut value = serde_json::to_value(tuning).ok()?;
        let field = value.get_mut(&self.field)?;
        *field = scaled(field, self.factor)?;
        serde_json::from_value(value).ok()
    }
}

/// A number or a duration times the factor; integers are rounded.
fn scaled(value: &Value, factor: f64) -> Option<Value> {
    if let Some(whole) = value.as_u64() {
        return Some(json!((whole as f64 * factor).round() as u64));
    }
    if let Some(number) = value.as_f64() {
        return Some(json!(number * factor));
    }
    let nanos = value.get("secs")?.as_f64()? * 1e9 + value.get("nanos")?.as_f64()?;
    let nanos = (nanos * factor).round() as u64;
    Some(json!({ "secs": nanos / 1_000_000_000, "nanos": nanos % 1_000_000_000 }))
}

/// No change first, then every number with every factor; without `sweep` no change alone.
pub(crate) fn changes(sweep: bool) -> anyhow::Result<Vec<Option<Change>>> {
    let mut changes = vec![None];
    if sweep {
        let chassis = serde_json::to_value(chassis::Tuning::default())?;
        let agent = serde_json::to_value(agent::Tuning::default())?;
        for (side, value) in [(Side::Chassis, chassis), (Side::Agent, agent)] {
            for field in value.as_object().into_iter().flat_map(Map::keys) {
                let each = FACTORS.map(|factor| Some(Change { side, field: field.clone(), factor }));
                changes.extend(each);
            }
        }
    }
    Ok(changes)
}

/// Numbers of the loops that change no figure of any run with any factor, in the order of the rows.
pub fn without_effect(rows: &[LoopResult]) -> Vec<String> {
    let mut numbers: Vec<(String, bool)> = Vec::new();
    let mut unchanged = None;
    for row in rows {
        let Some(change) = &row.change else {
            unchanged = Some(row.figures);
            continue;
        };
        let name = change.split(' ').next().unwrap_or_default();
        let has_effect = unchanged != Some(row.figures);
        match numbers.iter_mut().find(|(known, _)| known == name) {
            Some((_, effect)) => *effect |= has_effect,
            None => numbers.push((name.to_owned(), has_effect)),
        }
    }
    numbers.into_iter().filter(|(_, effect)| !effect).map(|(name, _)| name).collect()
}
