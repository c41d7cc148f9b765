//! `ballast-lab experiment traces`: measured load on a chassis, under budgets around its own peak.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::bail;
use ballast_lab::report::{self, Detail, Report};
use ballast_lab::traces::{self, Case, Job, Options, TracePolicy};
use ballast_sim::replay::Sizes;
use clap::Args;

use super::args::{list, named, or, seeds};
use super::data;
use ballast_cli::common::columns::ColumnArgs;
use ballast_cli::common::numbers::{not_negative, within};
use ballast_cli::common::server::ServerArgs;
use ballast_cli::common::table::stem;
use ballast_cli::common::threads::{all_cores, run_all};

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// Telemetry of servers or VMs (CSV, also .zst, or Parquet); each file is one data set
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    telemetry: Vec<PathBuf>,
    /// Budgets in percent of the load's peak without a budget, with commas between
    /// [default: 102,100,95,90,85,80]
    #[arg(long, value_name = "P,…", value_delimiter = ',', allow_negative_numbers = true,
        value_parser = budget)]
    budgets: Vec<f64>,
    /// Which policies are compared, with commas between [default: all]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',',
        value_parser = named(TracePolicy::ALL, TracePolicy::name))]
    policies: Vec<TracePolicy>,
    /// Servers in the chassis
    #[arg(long, value_name = "N", default_value_t = 12,
        value_parser = clap::value_parser!(u16).range(1..=256))]
    servers: u16,
    /// Servers of 40, 20 and 60 cores by turns; VMs and watts scale with the cores
    #[arg(long)]
    unequal: bool,
    /// How many recorded hours to play; 0 for all
    #[arg(long, value_name = "H", default_value_t = 3.0, value_parser = not_negative)]
    hours: f64,
    /// Recorded hours to leave out at the start [default: such that the busiest instant of all series is in
    /// the middle of what is played]
    #[arg(long, value_name = "H", value_parser = not_negative)]
    skip_hours: Option<f64>,
    /// The first seed; the others follow it. Each deals the series anew to servers and VMs
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// How many seeds to run
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: u16,
    /// Runs at a time; it changes no result [default: one for every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    #[command(flatten)]
    columns: ColumnArgs,
    #[command(flatten)]
    server: ServerArgs,
}

fn budget(text: &str) -> Result<f64, String> {
    within(text, 10.0, 1000.0)
}

impl Choice {
    fn options(&self) -> anyhow::Result<Options> {
        let usual = Options::default();
        Ok(Options {
            budgets_percent: or(&self.budgets, &usual.budgets_percent),
            policies: or(&self.policies, &usual.policies),
            seeds: seeds(self.seed, u64::from(self.seeds))?,
            servers: usize::from(self.servers),
            sizes: if self.unequal { Sizes::Unequal } else { Sizes::Equal },
            skip_hours: self.skip_hours,
            hours: (self.hours > 0.0).then_some(self.hours),
            model: self.server.model(),
        })
    }

    fn command(&self, options: &Options, detail: Detail) -> String {
        let files: Vec<_> = self.telemetry.iter().map(|file| shown(file)).collect();
        let mut command = format!(
            "ballast-lab experiment traces --telemetry {} --budgets {} --policies {} --servers {} \
             --hours {} --seed {} --seeds {}{}",
            files.join(" "),
            list(&options.budgets_percent, f64::to_string),
            list(&options.policies, |policy| policy.name().to_owned()),
            options.servers,
            self.hours,
            self.seed,
            self.seeds,
            self.server.flags(),
        );

        if let Some(hours) = self.skip_hours {
            command.push_str(&format!(" --skip-hours {hours}"));
        }
        if self.unequal {
            command.push_str(" --unequal");
        }
        if detail.document {
            command.push_str(" --output proof/results");
        }
        command
    }
}

/// A file as a command names it: the folder of all data is not the same everywhere.
fn shown(file: &Path) -> String {
    match file.strip_prefix(data::folder()) {
        Ok(rest) => format!("$BALLAST_DATA/{}", rest.display()),
        Err(_) => file.display().to_string(),
    }
}

pub(super) fn report(choice: &Choice, detail: Detail) -> anyhow::Result<Report> {
    let options = choice.options()?;
    let mut data = Vec::new();
    for file in &choice.telemetry {
        let name = stem(file);
        if data.iter().any(|(other, _)| *other == name) {
            bail!("--telemetry {}: another file is called {name} too", file.display());
        }
        data.push((name, choice.columns.read(file)?));
    }

    let cases = traces::cases(&options, &data)?;

    let threads = choice.threads.unwrap_or_else(all_cores).get();
    let uncapped = run_all("traces, uncapped", &cases, threads, Case::uncapped)?;
    let jobs = traces::jobs(&options, cases, uncapped);
    let rows = run_all("traces", &jobs, threads, Job::run)?;

    let names: Vec<String> = data.into_iter().map(|(name, _)| name).collect();
    let command = choice.command(&options, detail);

    report::traces::report(&options, &names, &rows, command, detail.figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_set_is_called_as_its_file() {
        let name = |file: &str| stem(Path::new(file));
        assert_eq!(name("/a/b/microsoft_avg_100.csv.zst"), "microsoft_avg_100");
        assert_eq!((name("x.csv"), name("y.parquet")), ("x".to_owned(), "y".to_owned()));
    }
}
