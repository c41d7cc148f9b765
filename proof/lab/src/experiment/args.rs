//! What the experiments' command lines have in common.

use std::path::PathBuf;

use anyhow::{Context, bail};
use ballast_lab::report::Detail;
use ballast_lab::{Arrivals, Contender, Shape};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use ballast_cli::common::numbers::positive;

/// Longer batch work than this is a slip.
const MINUTES_MAX: f64 = 1440.0;

#[derive(Args, Clone, Debug)]
pub(super) struct Runs {
    /// The first seed; the others follow it
    #[arg(long, value_name = "S", default_value_t = 1, allow_negative_numbers = true)]
    pub(super) seed: u64,
    /// How many seeds [default: server 10, chassis 3, tradeoff and scheduler 5, stability 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) seeds: Option<u16>,
    /// How long the batch work takes when nobody is in its way [default: server and tradeoff 10,
    /// chassis 26, stability 5]
    #[arg(long, value_name = "MIN", allow_negative_numbers = true, value_parser = minutes)]
    pub(super) minutes: Option<f64>,
    /// What a server draws while idle, in watts
    #[arg(long, value_name = "W", default_value_t = Shape::default().idle_w, allow_negative_numbers = true,
        value_parser = positive)]
    pub(super) idle_w: f64,
    /// What a server draws at full load, in watts
    #[arg(long, value_name = "W", default_value_t = Shape::default().full_w, allow_negative_numbers = true,
        value_parser = positive)]
    pub(super) full_w: f64,
    /// The same at half frequency
    #[arg(long, value_name = "W", default_value_t = Shape::default().half_frequency_full_w,
        allow_negative_numbers = true, value_parser = positive)]
    pub(super) half_frequency_full_w: f64,
    /// Runs at a time; it changes no result [default: one for every core]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: Option<u16>,
}

#[derive(Args, Clone, Debug)]
pub(super) struct Results {
    /// Print one JSON object {experiment, options, rows, goals}, alone on stdout
    #[arg(long)]
    pub(super) json: bool,
    /// Draw the figures into this file, one below the other
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    /// Write this experiment's page, DIR/NAME.md, and its plots beside it
    #[arg(long, value_name = "DIR")]
    pub(super) output: Option<PathBuf>,
}

impl Runs {
    pub(super) fn shape(&self) -> anyhow::Result<Shape> {
        let Self { idle_w, full_w, half_frequency_full_w, .. } = *self;
        let shape = Shape { idle_w, full_w, half_frequency_full_w };
        match shape.model() {
            Ok(_) => Ok(shape),
            Err(error) => bail!(
                "--idle-w {idle_w}, --full-w {full_w}, --half-frequency-full-w \
                 {half_frequency_full_w}: {}; allowed is idle < half frequency full < full",
                error.allowed
            ),
        }
    }

    /// The seeds, of which there are `usual` where nobody says.
    /// This fails when they do not fit above the first.
    pub(super) fn seeds(&self, usual: usize) -> anyhow::Result<Vec<u64>> {
        seeds(self.seed, self.seeds.map_or(usual as u64, u64::from))
    }

    /// The command that makes a report again, with everything that shapes it spelled out.
    pub(super) fn command(
        &self,
        experiment: &str,
        seeds: &[u64],
        minutes: f64,
        detail: Detail,
        others: &[(&str, String)],
    ) -> String {
        let mut command = format!(
            "ballast-lab experiment {experiment} --seed {} --seeds {} --minutes {minutes}",
            self.seed,
            seeds.len()
        );

        command.push_str(&self.watts());
        for (flag, value) in others {
            command.push_str(&format!(" --{flag} {value}"));
        }
        if detail.document {
            command.push_str(" --output proof/results");
        }
        command
    }

    /// The server's watts as flags, where they are not the usual ones.
    pub(super) fn watts(&self) -> String {
        let usual = Shape::default();
        let shape = [
            ("idle-w", self.idle_w, usual.idle_w),
            ("full-w", self.full_w, usual.full_w),
            ("half-frequency-full-w", self.half_frequency_full_w, usual.half_frequency_full_w),
        ];
        let unusual = shape.iter().filter(|(_, value, usual)| value != usual);
        unusual.map(|(flag, value, _)| format!(" --{flag} {value}")).collect()
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.map_or_else(|| ballast_cli::common::threads::all_cores().get(), usize::from)
    }
}

/// So many seeds, from the first on. This fails when they do not fit above the first.
pub(super) fn seeds(first: u64, count: u64) -> anyhow::Result<Vec<u64>> {
    let end = first.checked_add(count).with_context(|| {
        format!("--seed {first}: allowed is at most {} with {count} seeds", u64::MAX - count)
    })?;
    Ok((first..end).collect())
}

/// The values given, each once, or what is usual.
pub(super) fn or<T: Clone + PartialEq>(given: &[T], usual: &[T]) -> Vec<T> {
    let mut values: Vec<T> = Vec::new();
    for value in if given.is_empty() { usual } else { given } {
        if !values.contains(value) {
            values.push(value.clone());
        }
    }
    values
}

/// The names of a list, as the command line has them.
pub(super) fn list<T>(values: &[T], name: impl Fn(&T) -> String) -> String {
    values.iter().map(name).collect::<Vec<_>>().join(",")
}

/// Parses one of these, by its name.
pub(super) fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [T; N],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(name)).try_map(move |text| {
        let found = all.into_iter().find(|value| name(*value) == text);
        found.ok_or_else(|| format!("{text} is none of the names"))
    })
}

pub(super) fn policy() -> impl TypedValueParser<Value = Contender> {
    named(Contender::ALL, Contender::name)
}

pub(super) fn arrivals() -> impl TypedValueParser<Value = Arrivals> {
    named(Arrivals::ALL, Arrivals::name)
}

fn minutes(text: &str) -> Result<f64, String> {
    match positive(text) {
        Ok(value) if value <= MINUTES_MAX => Ok(value),
        _ => Err(format!("a number above 0 and at most {MINUTES_MAX} is needed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> Runs {
        Runs {
            seed: 3,
            seeds: Some(2),
            minutes: None,
            idle_w: 112.0,
            full_w: 310.0,
            half_frequency_full_w: 169.0,
            threads: None,
        }
    }

    #[test]
    fn seeds_follow_the_first() {
        assert_eq!(runs().seeds(10).unwrap(), [3, 4]);
        assert_eq!(Runs { seeds: None, ..runs() }.seeds(3).unwrap(), [3, 4, 5]);
        let error = Runs { seed: u64::MAX, ..runs() }.seeds(1).unwrap_err().to_string();
        assert!(error.contains("allowed is at most"), "{error}");
    }

    #[test]
    fn the_command_spells_out_what_shapes_the_report() {
        let others = [("caps-w", "230".to_owned())];
        let document = Detail { figures: true, document: true };
        assert_eq!(
            Runs { idle_w: 90.5, threads: Some(7), ..runs() }.command(
                "server",
                &[3, 4],
                0.2,
                document,
                &others
            ),
            "ballast-lab experiment server --seed 3 --seeds 2 --minutes 0.2 --idle-w 90.5 --caps-w 230 \
             --output proof/results"
        );
    }

    #[test]
    fn an_impossible_server_is_refused_with_what_is_allowed() {
        assert!(runs().shape().is_ok());
        let error = Runs { full_w: 100.0, ..runs() }.shape().unwrap_err().to_string();
        assert!(error.contains("--full-w 100") && error.contains("allowed"), "{error}");
    }

    #[test]
    fn lists_hold_every_value_once() {
        assert_eq!(or(&[2, 1, 2], &[9]), [2, 1]);
        assert_eq!(or(&[], &[9]), [9]);
    }

    #[test]
    fn minutes_out_of_range_are_refused() {
        for wrong in ["0", "1441", "inf", "-1"] {
            assert!(minutes(wrong).is_err(), "{wrong}");
        }
    }
}
