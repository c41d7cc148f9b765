//! P-state changes with meters that are late, seldom or noisy.

use super::{Goal, Part, Report, number, percent};
use crate::Contender;
use crate::plot::figure::Figure;
use crate::plot::heat::Heat;
use crate::stability::{Options, StabilityResult};
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
            ("changes", &|r| number(r.pstate_changes_per_core_min, 1)),
            ("above %", &|r| percent(r.over_cap_fraction, 2)),
            ("above s", &|r| number(r.over_cap_s_max, 1)),
            ("run time", &|r| number(r.batch_runtime_norm, 3)),
        ],
    )
}

fn goals(rows: &[StabilityResult], policies: &[Contender]) -> Vec<Goal> {
    let goal = |policy: &Contender| {
        let of = rows.iter().filter(|row| row.policy == policy.name());
        let worst = of.max_by(|a, b| a.pstate_changes_per_core_min.total_cmp(&b.pstate_changes_per_core_min));
        Goal::new(
            format!("{}: no limit cycle, at most 60 p-state changes per core and minute", policy.name()),
            worst.map(|r| {
                let changes = r.pstate_changes_per_core_min;
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
    let Options { lags_s, refreshes_s, noises, .. } = options;
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

                    rows.iter().find(fits).map(|row| row.pstate_changes_per_core_min)
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
    format!(
        "The server's meter shows what was true `lag` ago, as a mean over `refresh`, with an error of \
         `noise` standard deviation. The load is steady, the cap is {} W. The agent's deadband is set to \
         twice the meter's noise, at least 4 W: the daemon does not do that by itself, somebody must know \
         the noise and configure it. `changes` are p-state changes per batch core and minute, `above %` is \
         time above the cap by 100 ms means; {} seeds of {} minutes.",
        server.caps_w.first().map_or(0.0, |cap| *cap),
        server.seeds.len(),
        server.minutes,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &'static str, lag_s: f64, noise: f64, changes: f64) -> StabilityResult {
        StabilityResult {
            policy,
            lag_s,
            refresh_s: 0.2,
            noise,
            pstate_changes_per_core_min: changes,
            over_cap_fraction: 0.01,
            over_cap_s_max: 0.4,
            batch_runtime_norm: 1.2,
            seeds: 1,
        }
    }

    #[test]
    fn the_busiest_meter_decides_and_a_missing_number_is_no_success() {
        let policies = [Contender::Stepwise, Contender::Predictive];
        let rows = [
            row("stepwise", 0.0, 0.0, 3.0),
            row("stepwise", 1.0, 0.02, 61.0),
            row("predictive", 0.0, 0.0, 59.0),
        ];
        let goals = goals(&rows, &policies);
        assert_eq!((goals[0].met, goals[1].met), (Some(false), Some(true)));
        assert!(goals[0].measured.contains("61.0 (lag 1 s"), "{goals:?}");
        let missing = super::goals(&[row("stepwise", 0.0, 0.0, f64::NAN)], &policies);
        assert_eq!((missing[0].met, missing[1].met), (Some(false), None));
    }

    #[test]
    fn the_map_has_a_cell_for_every_row() {
        let options = Options {
            lags_s: vec![0.0, 1.0],
            refreshes_s: vec![0.2],
            noises: vec![0.0, 0.02],
            ..Options::default()
        };
        let rows = [row("stepwise", 0.0, 0.0, 3.0), row("stepwise", 1.0, 0.02, 47.5)];
        let svg = maps(&rows, &options).svg().unwrap();
        assert!(svg.contains("3.0") && svg.contains("47.5") && svg.contains("noise 2.0 %"));
        assert_eq!(table(&rows).text().lines().count(), 3);
    }
}
