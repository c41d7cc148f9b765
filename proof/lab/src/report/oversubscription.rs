//! How low a budget may be (Table IV).

mod figure;
pub mod fleet;
mod goals;

use ballast_sim::verify::BackTest;
use ballast_types::PowerModel;
use serde::Serialize;
use serde_json::json;

use self::fleet::{Fleet, Replayed, Scaling, Source};
use super::{Named, Part, Report, filled, number, percent, range, section};
use crate::oversubscription::Judged;
use ballast_cli::common::text_table::TextTable;

/// What the fleets were made and judged with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Chassis of each population of real VMs.
    pub chassis: u32,
    /// How often weeks are resampled.
    pub replicates: u32,
    pub replay_chassis: u32,
    pub seed: u64,
    pub server: PowerModel,
}

#[derive(Serialize)]
struct ApproachRow<'a> {
    source: Source,
    data: &'static str,
    scaling: Scaling,
    synthetic: bool,
    measured: &'static str,
    made: &'static str,
    #[serde(flatten)]
    judged: &'a Judged,
    /// Where 95 % of the resampled weeks' deltas lie.
    delta_percent_interval: Option<(f64, f64)>,
    /// What came of it, and of smaller buffers, with the real controllers.
    replayed: Vec<&'a Replayed>,
    /// What the trials inside the history came to.
    back_test: Option<&'a BackTest>,
}

/// The report on these fleets; `missing` is the data that is not there; `command` makes the report again.
pub fn report(
    settings: &Settings,
    fleets: &[Fleet],
    missing: &[&str],
    command: String,
) -> anyhow::Result<Report> {
    let mut parts = vec![Part::Words(words(settings))];

    for fleet in fleets {
        parts.push(Part::Heading(heading(fleet)));
        parts.push(Part::Words(about(fleet)));
        if fleet.about.source == Source::UtilisationTraces {
            parts.push(Part::TextTable(estimates(fleet)));
        }
        parts.push(Part::TextTable(plans(fleet)));

        if !fleet.replayed.is_empty() {
            parts.extend(section(
                format!("{}: replayed with the real controllers", fleet.name()),
                replayed(fleet),
            ));
        }
    }

    for data in missing {
        parts.push(Part::Heading(format!(
            "Not measured: there is no {data} in $BALLAST_DATA (default ../shared/data)"
        )));
    }

    let goals = goals::goals(fleets);
    let rows = fleets.iter().flat_map(rows).map(serde_json::to_value).collect::<Result<_, _>>()?;
    let options = json!({
        "chassis": settings.chassis,
        "replicates": settings.replicates,
        "replay_chassis": settings.replay_chassis,
        "seed": settings.seed,
        "server": settings.server,
        "fleets": fleets.iter().map(|fleet| &fleet.about).collect::<Vec<_>>(),
        "missing": missing,
    });

    parts.push(Part::Figure(figure::figure(fleets)));
    Ok(Report {
        name: "oversubscription",
        title: "How low a budget may be (Table IV)",
        command,
        parts,
        goals,
        options,
        rows: serde_json::Value::Array(rows),
    })
}

fn rows(fleet: &Fleet) -> impl Iterator<Item = ApproachRow<'_>> {
    let about = &fleet.about;
    fleet.judged.iter().zip(&fleet.intervals).map(move |(judged, interval)| ApproachRow {
        source: about.source,
        data: about.data,
        scaling: about.scaling,
        synthetic: about.synthetic,
        measured: about.measured,
        made: about.made,
        judged,
        delta_percent_interval: *interval,
        replayed: fleet.replayed.iter().filter(|r| r.approach == judged.approach).collect(),
        back_test: fleet.case.back_tests.iter().find(|tested| tested.approach == judged.approach),
    })
}

fn heading(fleet: &Fleet) -> String {
    match fleet.about.source {
        Source::UtilisationTraces => {
            format!("Chassis of real VMs: {}: CPU use measured, chassis made", fleet.name())
        }
        Source::DistributionUnits => {
            "Power of distribution units: measured, in shares of their capacity".to_owned()
        }
    }
}

fn about(fleet: &Fleet) -> String {
    let about = &fleet.about;
    let readings = fleet.judged.first().map_or((0, 0), |row| (row.readings, row.verified_readings));
    let later = about.held_out_mean_share.map_or_else(String::new, |share| {
        format!(" Later weeks: {} readings, mean {} %.", readings.1, percent(share, 1))
    });
    format!(
        "Measured: {}. Made: {}. {} chassis or units over {} weeks: {} readings, mean {} % of the \
         provisioned power.{later}",
        about.measured,
        about.made,
        about.chassis,
        about.weeks,
        readings.0,
        percent(about.mean_share, 1),
    )
}

/// What the planner is told of the chassis.
fn estimates(fleet: &Fleet) -> TextTable {
    let about = &fleet.about;
    let vms = about.vms.unwrap_or_default();
    TextTable::of(
        0,
        [()],
        &[
            ("VMs", &|()| vms.taken.to_string()),
            ("left out", &|()| vms.left_out.to_string()),
            ("user-facing VMs", &|()| vms.user_facing.to_string()),
            ("busier by", &|()| number(about.factor, 2)),
            ("alloc", &|()| number(about.model.alloc, 3)),
            ("beta", &|()| number(about.model.beta, 3)),
            ("P95 UF %", &|()| percent(about.model.util_user_facing, 1)),
            ("P95 others %", &|()| percent(about.model.util_non_user_facing, 1)),
            ("mean draw %", &|()| percent(about.mean_share, 1)),
            ("later %", &|()| about.held_out_mean_share.map_or_else(String::new, |share| percent(share, 1))),
        ],
    )
}

fn plans(fleet: &Fleet) -> TextTable {
    let head = [
        "approach",
        "limited by",
        "buffer %",
        "needed %",
        "delta %",
        "95 %",
        "rack servers",
        "savings M$",
        "budget W",
        "UF events %",
        "batch events %",
        "accepted",
    ];
    let mut table = TextTable::new(2, &head);

    for (row, interval) in fleet.judged.iter().zip(&fleet.intervals) {
        table.row(vec![
            row.approach.to_owned(),
            row.binding.words().to_owned(),
            number(row.buffer_percent, 1),
            row.needed_buffer_percent.map_or_else(String::new, |needed| number(needed, 1)),
            number(row.delta_percent, 2),
            interval.map_or_else(String::new, |(low, high)| range(low, high, 1)),
            format!("{} → {}", row.rack.servers_provisioned, row.rack.servers),
            number(row.savings_usd / 1e6, 1),
            number(row.budget.as_f64(), 1),
            percent(row.rates.user_facing, 3),
            percent(row.rates.batch, 3),
            yes(row.rates.kept),
        ]);
    }

    table
}

/// What replays of the later weeks came to.
fn replayed(fleet: &Fleet) -> TextTable {
    TextTable::of(
        1,
        &fleet.replayed,
        &[
            ("approach", &|row| row.approach.to_owned()),
            ("buffer %", &|row| number(row.buffer_percent, 1)),
            ("chassis", &|row| row.verdict.measured.chassis.to_string()),
            ("UF %", &|row| percent(row.verdict.events_user_facing_rate, 3)),
            ("batch %", &|row| percent(row.verdict.events_batch_rate, 3)),
            ("UF f", &|row| number(row.verdict.measured.lowest_user_facing_frequency, 2)),
            ("batch f", &|row| number(row.verdict.measured.lowest_batch_frequency, 2)),
            ("above s", &|row| number(row.verdict.measured.over_budget_s_max, 2)),
            ("kept", &|row| yes(row.verdict.kept)),
        ],
    )
}

fn yes(kept: bool) -> String {
    if kept { "yes" } else { "NO" }.to_owned()
}

fn words(choice: &Settings) -> String {
    let Settings { chassis, replicates, replay_chassis, .. } = choice;
    let values: [Named<'_>; 3] =
        [("chassis", chassis), ("replicates", replicates), ("replayed", replay_chassis)];
    filled(include_str!("words/oversubscription.md"), &values)
}
