//! `ballast-lab experiment models`: predictions of class and P95 beside simple rules (Table III).

mod months;

use ballast_cli::common::threads;
use ballast_lab::options::Seeds;
use ballast_lab::report::models::{ArmRow, Fleets};
use ballast_lab::report::{self, Report};
use ballast_predict::compare::compare;
use ballast_predict::fleet;
use clap::Args;

use super::Setting;

#[derive(Args, Clone, Debug)]
pub(crate) struct Choice {
    /// How many VMs arrive in the synthetic fleet
    #[arg(long, value_name = "N", default_value_t = 300_000,
        value_parser = clap::value_parser!(u32).range(10_000..=10_000_000))]
    vms: u32,
    /// Over how many days
    #[arg(long, value_name = "N", default_value_t = 75,
        value_parser = clap::value_parser!(u32).range(14..=1000))]
    days: u32,
    #[command(flatten)]
    seeds: Seeds,
    /// Fleets whose habits never change, and whose VMs have nothing in common with their deployment's
    #[arg(long)]
    steady: bool,
}

pub(super) fn report(choice: &Choice, setting: &Setting) -> anyhow::Result<Report> {
    let Choice { vms, days, seeds, steady } = *choice;
    let seeds = seeds.all();

    // One fleet after the other: each of them keeps all threads busy.
    let done = threads::run("models", &seeds, 1, |seed| {
        let drift = (!steady).then(fleet::Drift::default);
        let options = fleet::Options { seed: *seed, vms: vms as usize, days, drift };
        compare(&fleet::make(&options), *seed, setting.threads)
    });

    let mut rows = Vec::new();

    for (seed, arms) in seeds.iter().zip(done) {
        rows.extend(arms?.into_iter().map(|arm| ArmRow::new(Some(*seed), arm)));
    }
    let months = months::arms(setting.threads)?;
    rows.extend(months.into_iter().flatten().map(|arm| ArmRow::new(None, arm)));
    let fleets = Fleets { vms, days, steady, seeds };

    report::models::report(&fleets, &rows, setting.command("models"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_of_a_small_fleet() -> Report {
        let one =
            crate::experiment::parse::<Choice>(&["--vms", "10000", "--threads", "1", "--plot", "x"]).unwrap();
        report(&one.options, &one.setting()).unwrap()
    }

    #[test]
    fn every_arm_has_its_row_beside_the_paper_and_a_plot() {
        let report = report_of_a_small_fleet();
        let rows = report.rows.as_array().unwrap();
        let of = |model: &str| rows.iter().filter(|row| row["model"] == model).count();
        assert_eq!((of("criticality"), of("p95")), (6, 7));
        let random_forest = &rows[0];
        assert_eq!(random_forest["arm"], "random-forest");
        assert_eq!(random_forest["buckets"][0]["name"], "user-facing");
        assert!(random_forest["importance"]["uf_share"].as_f64().unwrap() > 0.0);
        let text = report.text();
        for part in
            ["paper: random-forest", "group-by-subscription-type-size", "best-possible", "mean_p95_cpu"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let svg = report.figures().next().unwrap().svg().unwrap();
        assert!(svg.contains("as it should be") && svg.contains("Criticality, random-forest"));
    }
}
