//! Figures to reach: L1 to L8; L11 and L12 are with the drains.

use super::super::Goal;
use super::drains::{self as rounds, DrainSum};
use crate::lifetimes::{
    Contestant, LEARNT, ORACLE, Options, Paired, PairedTable, SHUFFLED, empty_percent,
    half_host_unusable_percent, noisy,
};

use Contestant::{BestFit, ExpectedExit, FirstFit, LaBinary, Lava, Nilas};

/// Of twelve pools this many are to be won.
const WON: f64 = 10.0 / 12.0;
/// No policy with a useless model may be further from best fit, in points.
const USELESS_PP: f64 = 0.3;
const SYN: [(&str, &str); 3] = [("syn", "60 %"), ("syn", "70 %"), ("syn", "80 %")];
const SYN_70: (&str, &str) = SYN[1];
const SYNP_70: (&str, &str) = ("synp", "70 %");

type PoolScenario = (&'static str, &'static str);

/// All goals, each with the figure where it was measured.
pub(super) fn goals(table: &PairedTable<'_>, options: &Options, drains: &[DrainSum]) -> Vec<Goal> {
    let mut goals = vec![
        gap_closed(table),
        ahead(table),
        learnt(
            table,
            "L3: syn 70 %, learnt: expected-exit − best fit at least +0.65 points, interval above 0",
            (SYN_70, BestFit, 0.65, true),
        ),
        learnt(
            table,
            "L3: syn 70 %, learnt: expected-exit − NILAS at least +0.4 points",
            (SYN_70, Nilas, 0.4, false),
        ),
        learnt(
            table,
            "L4: synp 70 %, learnt: expected-exit − best fit at least +1.5 points",
            (SYNP_70, BestFit, 1.5, false),
        ),
    ];
    goals.extend(recorded(table));
    goals.push(noise(table, options));
    goals.extend(nilas(table));
    goals.push(stranding(table, ORACLE, -3.5));
    goals.push(stranding(table, LEARNT, -1.0));
    goals.push(useless(table));
    goals.extend(rounds::goals(drains));
    goals
}

fn less(
    table: &PairedTable<'_>,
    (pool, scenario): (&str, &str),
    prediction: &str,
    policy: Contestant,
    than: Contestant,
) -> Option<Paired> {
    table.difference((pool, scenario, prediction), policy, than, empty_percent)
}

fn words(paired: &Paired) -> String {
    let interval = paired.interval.map(|half| format!(" ±{half:.2}")).unwrap_or_default();
    format!("{:+.2}{interval} [{}/{}]", paired.mean, paired.wins, paired.pools)
}

fn gap_closed(table: &PairedTable<'_>) -> Goal {
    let closed = |place: &PoolScenario| {
        less(table, *place, ORACLE, ExpectedExit, BestFit)?;
        let key = (place.0, place.1, ORACLE);
        Some((table.gap_percent(key, ExpectedExit, |run| &run.score.whole), *place))
    };
    let least = SYN.iter().filter_map(closed).min_by(|a, b| a.0.total_cmp(&b.0));
    Goal::new(
        "L1: syn 60–80 %, oracle: expected-exit closes at least 50 % of the gap (stretch: 60 %)",
        least.map(|(gap, (pool, scenario))| (format!("{gap:.0} % at {pool} {scenario}"), gap >= 50.0)),
    )
}

fn ahead(table: &PairedTable<'_>) -> Goal {
    let compared = SYN.iter().chain([&SYNP_70]).flat_map(|place| {
        [Nilas, Lava].map(|than| Some((less(table, *place, ORACLE, ExpectedExit, than)?, *place, than)))
    });
    let compared: Vec<_> = compared.flatten().collect();
    let is_met = |paired: &Paired| paired.mean >= 0.7 && paired.wins as f64 >= WON * paired.pools as f64;
    let least = compared.iter().min_by(|a, b| a.0.mean.total_cmp(&b.0.mean));
    Goal::new(
        "L2: syn and synp, oracle: expected-exit at least +0.7 points before NILAS and LAVA, in 10 of 12 \
         pools",
        least.map(|(paired, (pool, scenario), than)| {
            let met = compared.iter().all(|(paired, ..)| is_met(paired));
            (format!("{} before {than} at {pool} {scenario}", words(paired)), met)
        }),
    )
}

fn learnt(
    table: &PairedTable<'_>,
    goal: &str,
    (place, than, least, surely): (PoolScenario, Contestant, f64, bool),
) -> Goal {
    let paired = less(table, place, LEARNT, ExpectedExit, than);
    Goal::new(
        goal,
        paired.map(|paired| (words(&paired), paired.mean >= least && (!surely || paired.is_positive()))),
    )
}

/// One goal for each scenario of recorded arrivals in which a model has seen none of them.
fn recorded(table: &PairedTable<'_>) -> Vec<Goal> {
    let mut goals = Vec::new();
    for row in table.rows().iter().filter(|row| row.policy == ExpectedExit && row.prediction == LEARNT) {
        if [SYN_70.0, SYNP_70.0].contains(&row.pool.as_str()) {
            continue;
        }
        let place = (row.pool.as_str(), row.scenario.as_str());
        let first_fit = less(table, place, LEARNT, FirstFit, BestFit);
        let than = if first_fit.is_some_and(|paired| paired.mean > 0.0) { FirstFit } else { BestFit };
        let paired = less(table, place, LEARNT, ExpectedExit, than);
        goals.push(Goal::new(
            format!(
                "L5: {} {}, learnt: expected-exit − the better of best and first fit above 0 with its \
                 interval",
                place.0, place.1
            ),
            paired.map(|paired| (format!("{} against {than}", words(&paired)), paired.is_positive())),
        ));
    }
    if goals.is_empty() {
        goals.push(Goal::new(
            "L5: recorded arrivals, learnt: expected-exit ahead of best and first fit",
            None,
        ));
    }
    goals
}

fn noise(table: &PairedTable<'_>, options: &Options) -> Goal {
    let mut measured = Vec::new();
    let mut met = true;
    for accuracy in &options.accuracies {
        let Some(paired) = less(table, SYN_70, &noisy(*accuracy), ExpectedExit, BestFit) else { continue };
        let least = match accuracy {
            a if (a - 0.6).abs() < 1e-9 => 0.8,
            a if (a - 0.8).abs() < 1e-9 => 1.4,
            a if (a - 0.95).abs() < 1e-9 => 2.0,
            _ => 0.0,
        };
        met &= paired.mean >= least;
        measured.push(format!("{:+.2} at {accuracy}", paired.mean));
    }
    Goal::new(
        "L6: syn 70 %, noise: expected-exit never below best fit, and at least +0.8, +1.4, +2.0 points at \
         accuracies of 0.6, 0.8, 0.95",
        (!measured.is_empty()).then(|| (measured.join(", "), met)),
    )
}

fn nilas(table: &PairedTable<'_>) -> [Goal; 2] {
    let of = |prediction| less(table, SYN_70, prediction, Nilas, LaBinary);
    [
        Goal::new(
            "L7: syn 70 %, oracle: NILAS − LA-Binary at least +1.5 points",
            of(ORACLE).map(|paired| (words(&paired), paired.mean >= 1.5)),
        ),
        Goal::new(
            "L7: syn 70 %, learnt: NILAS − LA-Binary above 0 with its interval",
            of(LEARNT).map(|paired| (words(&paired), paired.is_positive())),
        ),
    ]
}

fn stranding(table: &PairedTable<'_>, prediction: &str, most: f64) -> Goal {
    let key = (SYN_70.0, SYN_70.1, prediction);
    let paired = table.difference(key, ExpectedExit, BestFit, half_host_unusable_percent);
    Goal::new(
        format!(
            "L8: syn 70 %, {prediction}: free cores that half-host VMs cannot use, expected-exit at most \
             {most} points against best fit"
        ),
        paired.map(|paired| (words(&paired), paired.mean <= most)),
    )
}

fn useless(table: &PairedTable<'_>) -> Goal {
    let each = Contestant::FORESEEING.iter().filter_map(|policy| {
        let paired = less(table, SYN_70, SHUFFLED, *policy, BestFit)?;
        Some((paired, *policy))
    });
    let worst = each.max_by(|a, b| a.0.mean.abs().total_cmp(&b.0.mean.abs()));
    Goal::new(
        format!("syn 70 %, a useless model: every policy within {USELESS_PP} points of best fit"),
        worst.map(|(paired, policy)| {
            (format!("{} by {policy}", words(&paired)), paired.mean.abs() <= USELESS_PP)
        }),
    )
}
