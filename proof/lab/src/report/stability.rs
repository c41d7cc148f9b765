//! P-state changes with meters that are late, seldom or noisy.

use super::{Goal, Named, Part, Report, filled, number, percent};
use crate::Contender;
use crate::plot::figure::Figure;
use crate::plot::heat::Heat;
use crate::stability::{Meters, Options, StabilityResult};
use ballast_cli::common::text_table::TextTable;

/// More p-state changes of a core than this in a minute are a limit cycle: one a second, where the
/// load is steady.
const CHANGES_MAX: f64 = 60.0;
/// Height of one policy's map, in pixels.
const MAP: u32 = 300;

/// The report on these rows; `command` makes it again.
pub fn report(
    options: &Options,
    rows: &[StabilityResult],
    command: String,
    figures: bool,
) -> anyhow::Result<Report> {
    let mut parts = vec![Part::Words(words(options)), Part::TextTable(table(rows))];
    if figures {
        parts.push(Part::Figure(maps(rows, options)));
    }

    Ok(Report {
        name: "stability",
        title: "P-state changes with late, seldom and noisy meters",
        command,
        parts,
        goals: goals(rows, &options.server.contenders),
        options: serde_json::to_value(options)?,
        rows: serde_json::to_value(rows)?,
    })
}

fn table(rows: &[StabilityResult]) -> TextTable {
    TextTable::of(
        1,
        rows,
        &[
            ("policy", &|r| r.policy.to_owned()),
            ("lag s", &|r| number(r.lag_s, 1)),
            ("refresh s", &|r| number(r.refresh_s, 1)),
            ("noise %", &|r| percent(r.noise, 1)),
            ("changes", &|r| number(r.figures.pstate_changes_per_core_min, 1)),
            ("above %", &|r| percent(r.figures.over_fraction.median, 2)),
            ("above s", &|r| number(r.figures.over_s_max.median, 1)),
            ("run time", &|r| number(r.figures.batch_runtime_norm.median, 3)),
        ],
    )
}

fn changes(row: &StabilityResult) -> f64 {
    row.figures.pstate_changes_per_core_min
}

fn goals(rows: &[StabilityResult], policies: &[Contender]) -> Vec<Goal> {
    let goal = |policy: &Contender| {
        let of = rows.iter().filter(|row| row.policy == policy.name());
        let worst = of.max_by(|a, b| changes(a).total_cmp(&changes(b)));
        Goal::new(
            format!("{}: no limit cycle, at most 60 p-state changes per core and minute", policy.name()),
            worst.map(|r| {
                let changes = changes(r);
                let words = format!(
                    "at most {} (lag {} s, refresh {} s, noise {} %)",
                    number(changes, 1),
                    r.lag_s,
                    r.refresh_s,
                    percent(r.noise, 1)
                );

                (words, changes <= CHANGES_MAX)
            }),
        )
    };

    policies.iter().map(goal).collect()
}

/// One heat map per policy: lag and refresh across, noise down.
fn maps(rows: &[StabilityResult], options: &Options) -> Figure {
    let Meters { lags_s, refreshes_s, noises } = &options.meters;
    let meters = || lags_s.iter().flat_map(|lag| refreshes_s.iter().map(move |r| (*lag, *r)));
    let map = |policy: &'static str| Heat {
        caption: format!("{policy}: p-state changes per batch core and minute"),
        corner: "lag\nrefresh",
        columns: meters().map(|(lag, refresh)| format!("{lag} s\n{refresh} s")).collect(),
        rows: noises.iter().map(|noise| format!("noise {} %", percent(*noise, 1))).collect(),
        values: noises
            .iter()
            .map(|noise| {
                let cell = |(lag, refresh)| {
                    let fits = |r: &&StabilityResult| {
                        r.policy == policy && r.lag_s == lag && r.refresh_s == refresh && r.noise == *noise
                    };

                    rows.iter().find(fits).map(changes)
                };

                meters().map(cell).collect()
            })
            .collect(),
        strongest: CHANGES_MAX,
    };

    let maps: Vec<Heat> = options.server.contenders.iter().map(|c| map(c.name())).collect();

    Figure {
        name: "stability".to_owned(),
        caption: "P-state changes per batch core and minute, by the meter's lag, refresh and noise"
            .to_owned(),
        height: MAP * maps.len().max(1) as u32,
        draw: Box::new(move |area| {
            let areas = area.split_evenly((maps.len().max(1), 1));
            maps.iter().zip(&areas).try_for_each(|(map, area)| map.draw(area))
        }),
    }
}

fn words(options: &Options) -> String {
    let server = &options.server;
    let cap_w = server.caps_w.first().map_or(0.0, |cap| *cap);
    let values: [Named<'_>; 3] =
        [("cap_w", &cap_w), ("seeds", &server.seeds.len()), ("minutes", &server.minutes)];
    filled(include_str!("words/stability.md"), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::medians::{Limit, Medians};
    use crate::server;

    fn row(policy: &'static str, lag_s: f64, noise: f64, changes: f64) -> StabilityResult {
        let figures =
            Medians { pstate_changes_per_core_min: changes, ..Medians::sample(Limit::Cap, 1.0, 1.2) };
        StabilityResult { policy, lag_s, refresh_s: 0.2, noise, figures }
    }

    #[test]
    fn the_busiest_meter_decides_and_a_missing_number_is_no_success() {
        let policies = [Contender::Stepwise, Contender::Manager];
        let rows = [
            row("stepwise", 0.0, 0.0, 3.0),
            row("stepwise", 1.0, 0.02, 61.0),
            row("manager", 0.0, 0.0, 59.0),
        ];
        let goals = goals(&rows, &policies);
        assert_eq!((goals[0].met, goals[1].met), (Some(false), Some(true)));
        assert!(goals[0].measured.contains("61.0 (lag 1 s"), "{goals:?}");
        let missing = super::goals(&[row("stepwise", 0.0, 0.0, f64::NAN)], &policies);
        assert_eq!((missing[0].met, missing[1].met), (Some(false), None));
    }

    #[test]
    fn the_map_has_a_cell_for_every_row() {
        let contenders = vec![Contender::Stepwise, Contender::Manager];
        let options = Options {
            server: server::Options { contenders, ..server::Options::default() },
            meters: Meters { lags_s: vec![0.0, 1.0], refreshes_s: vec![0.2], noises: vec![0.0, 0.02] },
        };
        let rows = [row("stepwise", 0.0, 0.0, 3.0), row("stepwise", 1.0, 0.02, 47.5)];
        let svg = maps(&rows, &options).svg().unwrap();
        assert!(svg.contains("3.0") && svg.contains("47.5") && svg.contains("noise 2.0 %"));
        assert_eq!(table(&rows).text().lines().count(), 3);
    }
}
