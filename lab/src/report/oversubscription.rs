//! How low a budget may be (Table IV).

mod figure;
pub mod fleet;
mod goals;

use ballast_sim::verify::Verdict;
use ballast_types::PowerModel;
use serde::Serialize;
use serde_json::json;

use self::fleet::{Fleet, Replayed, Scaling, Source, promised};
use super::table::TextTable;
use super::{Part, Report, number, paper, percent, range};
use crate::oversubscription::Judged;

/// What the fleets were made and judged with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Chassis of the synthetic fleet.
    pub synthetic_chassis: u32,
    /// Weeks of the synthetic fleet.
    pub synthetic_weeks: u32,
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
    /// What the paper's Table IV says.
    paper_delta_percent: Option<f64>,
    paper_savings_usd: Option<f64>,
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

        if fleet.case.held_out.is_some() {
            parts.push(Part::Heading(format!("{}: what smaller buffers would do", fleet.name())));
            parts.push(Part::TextTable(buffers(fleet)));
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
        "synthetic_chassis": settings.synthetic_chassis,
        "synthetic_weeks": settings.synthetic_weeks,
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
    fleet.judged.iter().zip(&fleet.intervals).map(move |(judged, interval)| {
        let stated = paper::oversubscription(judged.approach);
        ApproachRow {
            source: about.source,
            data: about.data,
            scaling: about.scaling,
            synthetic: about.synthetic,
            measured: about.measured,
            made: about.made,
            judged,
            delta_percent_interval: *interval,
            replayed: fleet.replayed.iter().filter(|r| r.approach == judged.approach).collect(),
            paper_delta_percent: stated.map(|stated| stated.delta_percent),
            paper_savings_usd: stated.map(|stated| stated.savings_usd),
        }
    })
}

fn heading(fleet: &Fleet) -> String {
    match fleet.about.source {
        Source::PaperQuantiles => "(a) Draws with the paper's quantiles: synthetic".to_owned(),
        Source::UtilisationTraces => {
            format!("(b) Chassis of real VMs: {}: CPU use measured, chassis made", fleet.name())
        }
        Source::DistributionUnits => {
            "(c) Power of distribution units: measured, in shares of their capacity".to_owned()
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
    let published = fleet.about.source == Source::PaperQuantiles;
    let mut head = vec!["approach", "limited by", "delta %"];
    head.push(if published { "paper" } else { "95 %" });
    head.push("savings M$");

    if published {
        head.push("paper");
    }
    head.extend(["budget W", "UF events %", "batch events %", "accepted"]);
    let mut table = TextTable::new(2, &head);

    for (row, interval) in fleet.judged.iter().zip(&fleet.intervals) {
        let stated = paper::oversubscription(row.approach).filter(|_| published);
        let beside = match stated {
            Some(stated) => number(stated.delta_percent, 1),
            None => interval.map_or_else(String::new, |(low, high)| range(low, high, 1)),
        };

        let mut cells = vec![
            row.approach.to_owned(),
            row.binding.words().to_owned(),
            number(row.delta_percent, 2),
            beside,
            number(row.savings_usd / 1e6, 1),
        ];

        cells.extend(stated.map(|stated| number(stated.savings_usd / 1e6, 1)));
        cells.extend([
            number(row.budget.as_f64(), 1),
            percent(row.rates.user_facing, 3),
            percent(row.rates.batch, 3),
            yes(row.rates.kept),
        ]);

        table.row(cells);
    }

    table
}

/// The table of what smaller buffers would do.
fn buffers(fleet: &Fleet) -> TextTable {
    let mut head = vec!["approach", "buffer %", "delta %"];
    head.extend(["UF events %", "batch events %", "beyond floors %", "accepted"]);
    let replayed = !fleet.replayed.is_empty();

    if replayed {
        head.extend(["replayed chassis", "UF %", "batch %", "UF f", "batch f", "above s", "kept"]);
    }
    let mut table = TextTable::new(1, &head);

    for approach in promised() {
        let rows = fleet.row(approach.name).map_or(&[][..], |row| &row.buffers);
        for row in rows {
            let mut cells = vec![
                approach.name.to_owned(),
                number(row.buffer_percent, 1),
                number(row.delta_percent, 1),
                percent(row.rates.user_facing, 3),
                percent(row.rates.batch, 3),
                percent(row.rates.unmet, 3),
                yes(row.rates.kept),
            ];

            if replayed {
                cells.extend(replay_cells(fleet.replay(approach.name, row.buffer_percent)));
            }
            table.row(cells);
        }
    }

    table
}

/// What a replay came to.
fn replay_cells(verdict: Option<&Verdict>) -> [String; 7] {
    let Some(verdict) = verdict else { return Default::default() };
    let measured = &verdict.measured;
    [
        measured.chassis.to_string(),
        percent(verdict.events_user_facing_rate, 3),
        percent(verdict.events_batch_rate, 3),
        number(measured.lowest_user_facing_frequency, 2),
        number(measured.lowest_batch_frequency, 2),
        number(measured.over_budget_s_max, 2),
        yes(verdict.kept),
    ]
}

fn yes(kept: bool) -> String {
    if kept { "yes" } else { "NO" }.to_owned()
}

fn words(choice: &Settings) -> String {
    format!(
        "The planner's eight approaches on draws of three origins. No chassis's power over days is public, \
         so every fleet says what of it was measured and what was made. **(a)** Seeded loads (a level of \
         every chassis, days, weekends, noise that fades in two hours) of {} chassis over {} weeks, a \
         reading every 5 minutes, are mapped by one monotone function onto the upper quantiles that the \
         paper's results imply: .7991 of the provisioned power is exceeded by 1 %, .8527 by 0.1 %, .8700 by \
         none. Six numbers that fit six published ones prove little; that the eight rows come out with an \
         allocation of 0.51 and the paper's own power curves does more. The paper had about 190 million \
         readings; only their quantiles count. **(b)** VMs of Bitbrains (Shen, van Beek, Iosup, CCGrid 2015) \
         and Azure (Cortez et al., SOSP 2017) are dealt to 12 servers of 40 cores until 51 % of the cores \
         are allocated, {} chassis of each. When all VMs are dealt they are shuffled and dealt again, each \
         shifted by whole weeks. Weeks of the history follow each other in a circle. Chassis therefore share \
         VMs, and what happens to all VMs in one week only is spread over several: real sums swing more. A \
         VM of which more than a fifth of a month is missing is left out; a chassis has no reading where a \
         tenth of its cores has none (Bitbrains: 36 hours of July), and below that a VM counts with its own \
         mean. Who is user-facing is the paper's labeller's word on the last whole week of the history; beta \
         and P95 utilisations are those of the history, weighted by cores. A server draws on a straight line \
         from idle to full load. Real VMs are too idle to need planning, so every fleet is planned a second \
         time with each VM busier by one factor, so that the mean draw is 0.55 of the provisioned power; a \
         server is never busier than all of its cores, and what can be shed counts no VM above its own \
         cores. Planned on 4 weeks of July, verified on 4 weeks of August (Azure: 2 and 2). **(c)** Google's \
         power data of 2019: three distribution units, planned on 3 weeks, verified on the last 10 days. Its \
         power may have been capped already.\n\n\
         `95 %` is where the delta lies when whole weeks are resampled ({} times, chassis built anew, VMs \
         and packing as they are): with 2 to 4 weeks that is a coarse answer, and it knows nothing of a \
         month unlike the others. Events are readings above the budget, in later weeks where there are any: \
         `UF` ones would hit user-facing VMs too or could not be mended at all (`beyond floors`). `replayed` \
         is the same with the real chassis manager and agents in virtual time on the same draws: they act at \
         98 % of the budget and for 30 s after, so they cap more often than arithmetic counts. `UF f` and \
         `batch f` are the lowest frequencies of such cores, `above s` the longest stretch above the budget; \
         kept means rates, floors and the trip time of 5 s. The first {} chassis were replayed, under \
         budgets that arithmetic says are kept: the others cannot be.",
        choice.synthetic_chassis,
        choice.synthetic_weeks,
        choice.chassis,
        choice.replicates,
        choice.replay_chassis,
    )
}
