//! What the options of all experiments have in common: they are declared once, as flags with their usual values.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Command};
use serde::Serialize;

use ballast_cli::common::numbers::positive;

/// Longer batch work than this is a slip.
const MINUTES_MAX: f64 = 1440.0;

/// Consecutive seeds.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "Vec<u64>")]
pub struct Seeds {
    /// The first of the consecutive seeds
    #[arg(long, value_name = "S", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(..=u64::MAX - 1000))]
    pub seed: u64,
    /// The number of consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub seeds: u16,
}

impl Seeds {
    /// So many, from 1 on.
    pub const fn first(seeds: u16) -> Self {
        Self { seed: 1, seeds }
    }

    pub fn all(self) -> Vec<u64> {
        (self.seed..).take(self.seeds.into()).collect()
    }
}

impl From<Seeds> for Vec<u64> {
    fn from(seeds: Seeds) -> Self {
        seeds.all()
    }
}

/// The options where no flag is given.
pub fn usual<O: Args>() -> O {
    let command = O::augment_args(Command::new("").no_binary_name(true));
    let matches = command.try_get_matches_from([""; 0]);
    matches.and_then(|matches| O::from_arg_matches(&matches)).expect("every option has a usual value")
}

/// A parser for the names of these values.
pub fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |text| {
        let value = all.into_iter().find(|value| name(*value) == text);
        value.ok_or_else(|| format!("{text} is none of the names"))
    })
}

/// How long batch work takes when nothing hinders it.
pub fn minutes(text: &str) -> Result<f64, String> {
    match positive(text) {
        Ok(value) if value <= MINUTES_MAX => Ok(value),
        _ => Err(format!("a number above 0 and at most {MINUTES_MAX} is needed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_follow_the_first() {
        assert_eq!(Seeds { seed: 3, seeds: 2 }.all(), [3, 4]);
        assert_eq!(usual::<Seeds>(), Seeds::first(1));
        let command = Seeds::augment_args(Command::new("").no_binary_name(true));
        let wrong = command.try_get_matches_from(["--seed", &u64::MAX.to_string()]).unwrap_err();
        assert!(wrong.to_string().contains("is not in 0..="), "{wrong}");
    }

    #[test]
    fn minutes_out_of_range_are_refused() {
        for wrong in ["0", "1441", "inf", "-1"] {
            assert!(minutes(wrong).is_err(), "{wrong}");
        }
    }
}
