//! `ballast-lab experiment models`: predictions of class and P95 beside simple rules (Table III).

mod months;

use std::num::NonZeroUsize;

use ballast_lab::report::models::{ArmRow, Fleets};
use ballast_lab::report::{self, Detail, Report};
use ballast_predict::compare::compare;
use ballast_predict::fleet;
use clap::Args;

use ballast_cli::common::threads::{self, all_cores};

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
    /// Fleets whose habits never change, and whose VMs have nothing in common with their deployment's
    #[arg(long)]
    steady: bool,
    /// The first fleet's seed; the others follow it
    #[arg(long, value_name = "S", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(..=u64::MAX - 1000))]
    seed: u64,
    /// How many fleets to learn from
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=100))]
    seeds: u16,
    /// Threads; they change no result [default: one for every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
}

impl Default for Choice {
    fn default() -> Self {
        Self { vms: 300_000, days: 75, steady: false, seed: 1, seeds: 1, threads: None }
    }
}

pub(super) fn report(choice: &Choice, detail: Detail) -> anyhow::Result<Report> {
    let threads = choice.threads.unwrap_or_else(all_cores).get();
    let seeds: Vec<u64> = (choice.seed..choice.seed + u64::from(choice.seeds)).collect();
    let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);

    // One fleet after the other: each of them keeps all threads busy.
    let done = threads::run("models", &seeds, 1, |seed| {
        let (vms, days) = (choice.vms as usize, choice.days);
        let drift = (!choice.steady).then(fleet::Drift::default);
        compare(&fleet::make(&fleet::Options { seed: *seed, vms, days, drift }), *seed, threads)
    });

    let mut rows = Vec::new();

    for (seed, arms) in seeds.iter().zip(done) {
        rows.extend(arms?.into_iter().map(|arm| ArmRow::new(Some(*seed), arm)));
    }
    let months = months::arms(threads)?;
    rows.extend(months.into_iter().flatten().map(|arm| ArmRow::new(None, arm)));
    let fleets = Fleets { vms: choice.vms, days: choice.days, steady: choice.steady, seeds };

    report::models::report(&fleets, &rows, command(choice, detail), detail.figures)
}

fn command(choice: &Choice, detail: Detail) -> String {
    let Choice { vms, days, steady, seed, seeds, .. } = choice;
    let steady = if *steady { " --steady" } else { "" };
    let document = if detail.document { " --output proof/results" } else { "" };
    format!(
        "ballast-lab experiment models --vms {vms} --days {days} --seed {seed} \
         --seeds {seeds}{steady}{document}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report_of_a_small_fleet() -> Report {
        let choice = Choice { vms: 10_000, threads: NonZeroUsize::new(1), ..Choice::default() };
        report(&choice, Detail { figures: true, document: true }).unwrap()
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
