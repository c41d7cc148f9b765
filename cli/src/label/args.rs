//! The command line, and the calendar it describes.

use std::path::PathBuf;

use anyhow::Context;
use ballast_predict::label::{FirstDay, PatternOptions, THRESHOLD};
use ballast_usage::week::{Calendar, Choice};
use clap::{Args, ValueEnum};
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::days::{Days, day_number};
use super::read::ReadArgs;
use crate::common::labelled::{ACF, FFT};

#[derive(Args, Debug)]
pub(crate) struct LabelArgs {
    /// CPU use of VMs in percent: CSV, plain or compressed with zstd, and .parquet
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub(super) input: Vec<PathBuf>,
    /// Where the labels go; - is stdout
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(super) output: PathBuf,
    /// How VMs are labelled
    #[arg(long, value_enum, default_value_t = Method::Pattern)]
    pub(super) method: Method,
    /// Labelled weeks (`id,label,u0…u239`) that the ensemble learns from
    #[arg(long, value_name = "FILE")]
    pub(super) fit_on: Option<PathBuf>,
    /// Where the VMs' people live, as in the IANA database
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    timezone: String,
    /// Which five working days of a longer series: last, first, or those from YYYY-MM-DD on
    #[arg(long, value_name = "WEEK", default_value = "last")]
    week: String,
    /// Days off besides weekends: YYYY-MM-DD, with commas between
    #[arg(long, value_name = "DAYS", value_delimiter = ',')]
    holidays: Vec<Date>,
    /// What the first day is divided by, having no day before it
    #[arg(long, value_enum, default_value_t = First::WarmUp)]
    first_day: First,
    /// Whether a VM that 12 hours explain as well as a day is not user-facing (pattern)
    #[arg(long, value_name = "BOOL", default_value_t = true, default_missing_value = "true",
        num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    guard12: bool,
    /// User-facing is a score below this; of the ensemble one from this on [default: pattern 0.72,
    /// acf 1.4358, fft 0.3565, ensemble: as learnt for 99 % recall]
    #[arg(long, value_name = "X", value_parser = threshold)]
    pub(super) threshold: Option<f64>,
    /// A VM whose use never changes counts as user-facing
    #[arg(long)]
    flat_user_facing: bool,
    /// Draw Compare8 x Compare12 into this file
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(super) read: ReadArgs,
}

/// How a week becomes a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Method {
    /// The paper's: does a typical day fit better than typical 8 hours?
    Pattern,
    /// Autocorrelation at 24 hours against that at 8
    Acf,
    /// Fourier power at 8 hours over that at 24
    Fft,
    /// Learnt from labelled weeks
    Ensemble,
}

/// The first day's divisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum First {
    /// The working day before it where there is one, else its own mean
    #[value(name = "warmup")]
    WarmUp,
    /// Its own mean
    Own,
    /// Nothing: four days are looked at
    Drop,
}

impl LabelArgs {
    pub(super) fn options(&self) -> PatternOptions {
        let usual = match self.method {
            Method::Acf => ACF,
            Method::Fft => FFT,
            Method::Pattern | Method::Ensemble => THRESHOLD,
        };
        PatternOptions {
            threshold: self.threshold.unwrap_or(usual),
            first_day: match self.first_day {
                First::WarmUp => FirstDay::WarmUp,
                First::Own => FirstDay::Own,
                First::Drop => FirstDay::Drop,
            },
            guard12: self.guard12,
            flat_user_facing: self.flat_user_facing,
        }
    }

    pub(super) fn days(&self) -> anyhow::Result<Days> {
        // UTC needs no database.
        let zone = match self.timezone.as_str() {
            "UTC" => TimeZone::UTC,
            name => TimeZone::get(name).with_context(|| {
                format!("--timezone {name:?}: allowed are UTC and names as Europe/Berlin")
            })?,
        };
        let choice = match self.week.as_str() {
            "last" => Choice::Last,
            "first" => Choice::First,
            date => Choice::From(day_number(date.parse().with_context(|| {
                format!("--week {date:?}: allowed are last, first, or a day as YYYY-MM-DD")
            })?)),
        };
        let holidays = self.holidays.iter().map(|date| day_number(*date)).collect();
        Ok(Days { zone, choice, calendar: Calendar { holidays, dateless: false } })
    }
}

fn threshold(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0);
    number.ok_or_else(|| "allowed is a number above 0".to_owned())
}
