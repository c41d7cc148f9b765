//! Histograms that were counted elsewhere, each declaring what it counts: none may count a reading again.

use std::collections::BTreeMap;

use crate::histogram::Histogram;

/// What a histogram counts: the readings of these chassis in this time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub name: String,
    pub chassis: Vec<String>,
    /// The first second that is counted.
    pub from_s: i64,
    /// The second after the last one.
    pub until_s: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// Nothing is counted in no time.
    #[error("{part}: until_s = {until_s} is not after from_s = {from_s}")]
    Empty { part: String, from_s: i64, until_s: i64 },
    /// A unit of time that two parts share would be counted twice.
    #[error("{part}: {key} = {value} is no multiple of the period, {period_s} s")]
    Unit { part: String, key: &'static str, value: i64, period_s: u32 },
    /// Nothing is counted of no chassis.
    #[error("{0}: no chassis is named")]
    NoChassis(String),
    /// A chassis has one hardware generation, and stands in a list once.
    #[error("{part}: chassis {chassis} is named twice; is it of two generations?")]
    Twice { part: String, chassis: String },
    /// A reading would be counted twice.
    #[error("{one} and {other} both count chassis {chassis} from {from_s} to {until_s} s")]
    Overlap {
        one: String,
        other: String,
        chassis: String,
        /// Where the common time begins.
        from_s: i64,
        until_s: i64,
    },
    /// Something was counted twice, or the declaration is of something else.
    #[error("{part}: {readings} readings, where its chassis and time have room for {max}")]
    TooMany { part: String, readings: u64, max: u64 },
}

/// Parts that count nothing twice.
///
/// Levels above the chassis cannot be planned from them: a sum over chassis needs their draws at the same
/// time, and a histogram does not know which of its draws were.
#[derive(Clone, Debug)]
pub struct Parts {
    period_s: u32,
    names: Vec<String>,
    /// By chassis: begin and end, and by which part.
    counted: BTreeMap<String, Vec<(i64, i64, usize)>>,
}

impl Parts {
    /// None yet; one reading of a chassis counts in each `period_s` seconds.
    pub fn new(period_s: u32) -> Self {
        Self { period_s: period_s.max(1), names: vec![], counted: BTreeMap::new() }
    }

    /// Adds a part, with its draws by hardware generation. This fails when it shares a chassis and a unit of
    /// time with a part that is there, holds more readings than it can, or declares nothing.
    pub fn add<'a>(
        &mut self,
        part: Part,
        draws: impl IntoIterator<Item = &'a Histogram>,
    ) -> Result<(), PartError> {
        let Part { name, chassis, from_s, until_s } = part;
        if until_s <= from_s {
            return Err(PartError::Empty { part: name, from_s, until_s });
        }
        for (key, value) in [("from_s", from_s), ("until_s", until_s)] {
            if value.rem_euclid(self.period_s.into()) != 0 {
                return Err(PartError::Unit { part: name, key, value, period_s: self.period_s });
            }
        }

        if chassis.is_empty() {
            return Err(PartError::NoChassis(name));
        }
        let units = until_s.abs_diff(from_s) / u64::from(self.period_s);
        let max = units.saturating_mul(chassis.len() as u64);
        let readings = draws.into_iter().map(Histogram::readings).fold(0, u64::saturating_add);

        if readings > max {
            return Err(PartError::TooMany { part: name, readings, max });
        }
        self.names.push(name);
        let index = self.names.len() - 1;

        for chassis in chassis {
            let times = self.counted.entry(chassis.clone()).or_default();
            let shared = |&&(from, until, _): &&(i64, i64, usize)| from < until_s && from_s < until;
            if let Some(&(from, until, part)) = times.iter().find(shared) {
                if part == index {
                    return Err(PartError::Twice { part: self.names[part].clone(), chassis });
                }
                let (one, other) = (self.names[part].clone(), self.names[index].clone());
                let (from_s, until_s) = (from.max(from_s), until.min(until_s));
                return Err(PartError::Overlap { one, other, chassis, from_s, until_s });
            }

            times.push((from_s, until_s, index));
        }

        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_types::Watts;

    fn part(name: &str, chassis: &[&str], from_s: i64, until_s: i64) -> Part {
        let chassis = chassis.iter().map(|&name| name.to_owned()).collect();
        Part { name: name.to_owned(), chassis, from_s, until_s }
    }

    fn draws(readings: u64) -> [Histogram; 1] {
        let mut draws = Histogram::new(Watts::from_whole(1)).unwrap();
        draws.add(Watts::from_whole(100), readings);
        [draws]
    }

    #[test]
    fn parts_of_other_chassis_or_times_add_up() {
        let mut parts = Parts::new(60);
        for (part, readings) in [
            (part("a", &["c1", "c2"], 0, 600), 20),
            (part("b", &["c1"], 600, 1200), 10),
            (part("c", &["c3"], -600, 1200), 0),
            (part("d", &["c1", "c2"], -600, 0), 1),
        ] {
            parts.add(part, &draws(readings)).unwrap();
        }
        assert_eq!(parts.counted.len(), 3);
    }

    #[test]
    fn what_is_counted_twice_is_named() {
        let mut parts = Parts::new(60);
        parts.add(part("a", &["c1", "c2"], 0, 600), &draws(20)).unwrap();
        for (odd, readings, said) in [
            (part("b", &["c3", "c2"], 540, 900), 1, "a and b both count chassis c2 from 540 to 600 s"),
            (part("b", &["c4", "c4"], 0, 60), 1, "b: chassis c4 is named twice; is it of two generations?"),
            (part("b", &["c5"], 0, 600), 11, "b: 11 readings, where its chassis and time have room for 10"),
            (part("b", &["c5"], 0, 90), 1, "b: until_s = 90 is no multiple of the period, 60 s"),
            (part("b", &["c5"], 60, 60), 0, "b: until_s = 60 is not after from_s = 60"),
            (part("b", &[], 0, 60), 0, "b: no chassis is named"),
        ] {
            assert_eq!(parts.clone().add(odd, &draws(readings)).unwrap_err().to_string(), said);
        }
    }
}
