//! `ballast-lab experiment traces`: measured load on a chassis, under budgets around its own peak.

use std::path::PathBuf;

use anyhow::bail;
use ballast_lab::options::{Seeds, named};
use ballast_lab::report::{self, Report};
use ballast_lab::traces::{self, Case, Job, Options, TracePolicy};
use ballast_sim::replay::Sizes;
use clap::Args;

use super::Setting;
use ballast_cli::common::columns::ColumnArgs;
use ballast_cli::common::numbers::{not_negative, within};
use ballast_cli::common::server::ServerArgs;
use ballast_cli::common::table::stem;
use ballast_cli::common::threads::run_all;

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// Telemetry of servers or VMs (CSV, also .zst, or Parquet); each file is one data set
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    telemetry: Vec<PathBuf>,
    /// Budgets in percent of the load's peak without a budget, with commas between
    #[arg(long, value_name = "P,…", value_delimiter = ',', default_value = "102,100,95,90,85,80",
        value_parser = |text: &str| within(text, 10.0, 1000.0))]
    budgets: Vec<f64>,
    /// Which policies are compared, with commas between
    #[arg(long, value_name = "NAME,…", value_delimiter = ',',
        default_value = "none,full-server,paper,stepwise,oracle,oracle-at-set-point",
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
    /// Each deals the series anew to servers and VMs.
    #[command(flatten)]
    seeds: Seeds,
    #[command(flatten)]
    columns: ColumnArgs,
    #[command(flatten)]
    server: ServerArgs,
}

impl Choice {
    fn options(&self) -> Options {
        Options {
            budgets_percent: self.budgets.clone(),
            policies: self.policies.clone(),
            seeds: self.seeds.all(),
            servers: usize::from(self.servers),
            sizes: if self.unequal { Sizes::Unequal } else { Sizes::Equal },
            skip_hours: self.skip_hours,
            hours: (self.hours > 0.0).then_some(self.hours),
            model: self.server.model(),
        }
    }
}

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    let options = choice.options();
    let mut data = Vec::new();
    for file in &choice.telemetry {
        let name = stem(file);
        if data.iter().any(|(other, _)| *other == name) {
            bail!("--telemetry {}: another file is called {name} too", file.display());
        }
        data.push((name, choice.columns.read(file)?));
    }

    let cases = traces::cases(&options, &data)?;

    let threads = setting.threads();
    let uncapped = run_all("traces, uncapped", &cases, threads, Case::uncapped)?;
    let jobs = traces::jobs(&options, cases, uncapped);
    let rows = run_all("traces", &jobs, threads, Job::run)?;

    let names: Vec<String> = data.into_iter().map(|(name, _)| name).collect();
    report::traces::report(&options, &names, &rows, setting.command("traces"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_data_set_is_called_as_its_file() {
        let name = |file: &str| stem(Path::new(file));
        assert_eq!(name("/a/b/microsoft_avg_100.csv.zst"), "microsoft_avg_100");
        assert_eq!((name("x.csv"), name("y.parquet")), ("x".to_owned(), "y".to_owned()));
    }
}
