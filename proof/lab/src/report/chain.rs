//! The whole chain beside its fair baseline, with an oracle for every stage.

use super::{Goal, Named, Part, Report, filled, number, percent, range};
use crate::Spread;
use crate::chain::{ChainRow, Options, Stage};
use ballast_cli::common::text_table::TextTable;

/// The share of the oracle chain's gain that the chain is to reach.
const SHARE: f64 = 0.7;
/// Of user-facing cores' time, so much is to be told so.
const RECALL: f64 = 0.99;

/// The report on these rows; `command` makes it again.
pub fn report(options: &Options, rows: &[ChainRow], command: String) -> anyhow::Result<Report> {
    Ok(Report {
        name: "chain",
        title: "The whole chain, from use to budget",
        command,
        parts: vec![
            Part::Words(words(options)),
            Part::Heading("Watts".to_owned()),
            Part::TextTable(watts(rows)),
            Part::Heading("Labels, and what is told".to_owned()),
            Part::TextTable(labels(rows)),
        ],
        goals: goals(rows),
        options: serde_json::to_value(options)?,
        rows: serde_json::to_value(rows)?,
    })
}

fn of(rows: &[ChainRow], stage: Stage) -> Option<&ChainRow> {
    rows.iter().find(|row| row.stage == stage && row.seeds > 0)
}

fn watts(rows: &[ChainRow]) -> TextTable {
    TextTable::of(
        1,
        rows,
        &[
            ("oracle", &|row| row.stage.name().to_owned()),
            ("budget W", &|row| number(row.budget_w, 0)),
            ("gained W", &|row| number(row.watts, 0)),
            ("seeds", &|row| range(row.watts_range.0, row.watts_range.1, 0)),
            ("more than the chain W", &|row| number(row.lost_w, 0)),
            ("seeds", &|row| range(row.lost_w_range.0, row.lost_w_range.1, 0)),
            ("planned W", &|row| number(row.planned_w, 0)),
            ("buffer %", &|row| percent(row.buffer, 1)),
            ("held as planned", &|row| format!("{} of {}", row.kept, row.seeds)),
            ("capped %", &|row| percent(row.capped_rate, 2)),
            ("UF slowed %", &|row| percent(row.user_facing_slowed, 4)),
            ("over s", &|row| number(row.over_budget_s_max, 1)),
            ("refused %", &|row| percent(row.refused, 2)),
        ],
    )
}

fn labels(rows: &[ChainRow]) -> TextTable {
    TextTable::of(
        1,
        rows,
        &[
            ("oracle", &|row| row.stage.name().to_owned()),
            ("labels: UF recall %", &|row| percent(row.label_user_facing_recall, 1)),
            ("batch recall %", &|row| percent(row.label_batch_recall, 1)),
            ("batch precision %", &|row| percent(row.label_batch_precision, 1)),
            ("told: UF recall %", &|row| percent(row.user_facing_recall, 1)),
            ("batch recall %", &|row| percent(row.batch_recall, 1)),
            ("batch precision %", &|row| percent(row.batch_precision, 1)),
            ("models kept out", &|row| row.models_kept_out.to_string()),
        ],
    )
}

fn goals(rows: &[ChainRow]) -> Vec<Goal> {
    let (chain, all) = (of(rows, Stage::Chain), of(rows, Stage::All));
    let worst = Stage::ONE
        .iter()
        .filter_map(|stage| of(rows, *stage))
        .max_by(|a, b| a.lost_w.total_cmp(&b.lost_w))
        .map(|row| format!("; most is lost at {}: {} W", row.stage.name(), number(row.lost_w, 0)));

    vec![
        Goal::new(
            "the chain gains at least 70 % of the watts that the oracle chain gains over the baseline",
            chain.zip(all).map(|(chain, all)| {
                // Where the oracle gains nothing there is nothing to have a share of.
                let share = |(own, all): (&f64, &f64)| if *all > 0.0 { own / all } else { f64::NEG_INFINITY };
                let share = Spread::of(chain.watts_by_seed.iter().zip(&all.watts_by_seed).map(share));
                let words = format!(
                    "{} % of {} W (seeds: {} %){}",
                    percent(share.median, 0),
                    number(all.watts, 0),
                    range(100.0 * share.min, 100.0 * share.max, 0),
                    worst.unwrap_or_default(),
                );
                (words, share.median >= SHARE)
            }),
        ),
        Goal::new(
            "the chain gains on every seed",
            chain.map(|chain| {
                let (low, high) = chain.watts_range;
                (format!("{} W", range(low, high, 0)), low > 0.0)
            }),
        ),
        Goal::new(
            "what the chain plans holds in later weeks as it was planned, on every seed",
            chain.map(|chain| (format!("{} of {}", chain.kept, chain.seeds), chain.kept == chain.seeds)),
        ),
        Goal::new(
            "99 % of user-facing cores' time is told so, and most batch time too",
            chain.map(|chain| {
                let (users, batch) = (chain.user_facing_recall, chain.batch_recall);
                let words = format!("{} %, {} %", percent(users, 1), percent(batch, 1));
                (words, users >= RECALL && batch > 0.5)
            }),
        ),
    ]
}

fn words(options: &Options) -> String {
    let Options { vms, learn_days, settle_days, plan_days, held_out_days, retrain_days, load, seeds } =
        options;
    let values: [Named<'_>; 8] = [
        ("vms", vms),
        ("learn_days", learn_days),
        ("settle_days", settle_days),
        ("plan_days", plan_days),
        ("held_out_days", held_out_days),
        ("retrain_days", retrain_days),
        ("load", &percent(*load, 0)),
        ("seeds", &seeds.seeds),
    ];
    filled(include_str!("words/chain.md"), &values)
}
