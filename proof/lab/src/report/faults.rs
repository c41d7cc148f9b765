//! What a campaign of runs with faults came to.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ballast_sim::campaign::{Case, Size, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Goal;

/// Broken runs that the text names; JSON names all of them.
const SHOWN: usize = 20;
/// At most this share of the runs may be excused.
const EXCUSED_MAX: f64 = 0.01;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Campaign {
    pub first: u64,
    /// The one kind of fault; all kinds where there is none.
    pub kind: Option<String>,
    pub runs: u64,
    /// Runs that broke a promise, of those of usual size.
    broken: u64,
    /// Runs that broke a promise that nobody could have kept, by reason, of those of usual size.
    excused: BTreeMap<String, u64>,
    broken_by: BTreeMap<String, u64>,
    /// Runs that were larger or longer than usual.
    large: Large,
    /// Server-seconds that were not judged, because no chassis manager reached the server.
    unjudged_server_s: u64,
    /// Runs in which user-facing cores were slowed while low-priority cores ran above their floor, beyond a reaction time.
    inverted_runs: u64,
    /// CPU seconds that a run took, in the mean.
    core_s_mean: f64,
    seeds: Vec<Broken>,
}

/// Runs of another size, counted apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Large {
    runs: u64,
    broken: u64,
    excused: BTreeMap<String, u64>,
}

/// A run that broke a promise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Broken {
    seed: u64,
    promise: String,
    at_s: f64,
    what: String,
    kinds: Vec<String>,
    command: String,
}

/// What goes wrong in a run, and when.
pub fn timeline(case: &Case) -> String {
    let scenario = case.scenario();
    let mut lines = vec![format!(
        "{} servers, {} W, {}, {}",
        scenario.plant.servers.len(),
        scenario.plant.budget.as_f64(),
        scenario.agents.first().map_or("", |agent| agent.policy.name()),
        scenario.chassis.shares.name(),
    )];
    for window in &scenario.faults.windows {
        let (from, to) = (window.from.as_secs_f64(), window.to.as_secs_f64());
        let until = if to > 1e6 { "the end".to_owned() } else { format!("{to:.3} s") };
        lines.push(format!("  from {from:.3} s to {until}: {:?}", window.fault));
    }

    for (at, budget) in &scenario.budgets {
        let watts = budget.map_or("as configured".to_owned(), |w| format!("{} W", w.as_f64()));
        lines.push(format!("  at {:.3} s: the budget is {watts}", at.as_secs_f64()));
    }

    lines.join("\n")
}

impl Campaign {
    /// A campaign without a run yet, from this seed on, of this kind of fault or of all.
    pub fn new(first: u64, kind: Option<String>) -> Self {
        Self { first, kind, ..Self::default() }
    }

    pub fn add(&mut self, verdict: Verdict, core_s: f64) {
        self.core_s_mean += (core_s - self.core_s_mean) / (self.runs + 1) as f64;
        self.runs += 1;
        self.unjudged_server_s += verdict.unjudged_server_s;
        self.inverted_runs += u64::from(verdict.inversion_s > 0.0);
        let usual = verdict.size == Size::Usual;
        let (broken, excused) = if usual {
            (&mut self.broken, &mut self.excused)
        } else {
            self.large.runs += 1;
            (&mut self.large.broken, &mut self.large.excused)
        };

        let Some(violation) = verdict.violation else { return };

        if let Some(excuse) = violation.excuse {
            *excused.entry(excuse.name().to_owned()).or_default() += 1;
            return;
        }

        *broken += 1;
        let promise = violation.promise.name().to_owned();
        *self.broken_by.entry(promise.clone()).or_default() += 1;
        let kind = self.kind.as_ref().map(|kind| format!(" --kind {kind}"));
        self.seeds.push(Broken {
            seed: verdict.seed,
            promise,
            at_s: violation.at.as_secs_f64(),
            what: violation.what,
            kinds: verdict.kinds.iter().map(|kind| kind.name().to_owned()).collect(),
            command: format!(
                "ballast-lab experiment faults --seed {} --seeds 1{}",
                verdict.seed,
                kind.unwrap_or_default()
            ),
        });
    }

    /// For programs: the broken runs are the rows.
    pub fn json(&self) -> anyhow::Result<Value> {
        let mut all = serde_json::to_value(self)?;
        all["experiment"] = "faults".into();
        all["rows"] = all["seeds"].clone();
        all["goals"] = serde_json::to_value(self.goals())?;
        Ok(all)
    }

    pub fn goals(&self) -> [Goal; 2] {
        let usual = self.runs - self.large.runs;
        let excused: u64 = self.excused.values().sum();
        let share = excused as f64 / usual.max(1) as f64;
        let broken = (format!("{} of {usual}", self.broken), self.broken == 0);
        let excused = (format!("{:.1} %", 100.0 * share), share <= EXCUSED_MAX);
        [
            Goal::new("no run of usual size breaks a promise", Some(broken)),
            Goal::new("at most 1 % of them are excused", Some(excused)),
        ]
    }

    pub fn text(&self) -> String {
        let counts = |map: &BTreeMap<String, u64>| {
            let each = map.iter().map(|(name, count)| format!("{name} {count}"));
            each.collect::<Vec<_>>().join(", ")
        };

        let usual = self.runs - self.large.runs;
        let excused: u64 = self.excused.values().sum();
        let mut text = format!(
            "{} runs from seed {}, {}: {:.3} CPU seconds each\n\
             of usual size: {usual}; {} broke a promise, {excused} are excused ({:.1} %, allowed {:.0} %)\n\
             larger or longer: {}; {} broke a promise, {} are excused\n",
            self.runs,
            self.first,
            self.kind.as_deref().unwrap_or("all kinds of faults"),
            self.core_s_mean,
            self.broken,
            100.0 * excused as f64 / usual.max(1) as f64,
            100.0 * EXCUSED_MAX,
            self.large.runs,
            self.large.broken,
            self.large.excused.values().sum::<u64>(),
        );

        // Writing to a String cannot fail.
        if !self.broken_by.is_empty() {
            let _ = writeln!(text, "broken: {}", counts(&self.broken_by));
        }
        if excused > 0 {
            let _ = writeln!(text, "excused: {}", counts(&self.excused));
        }
        for broken in self.seeds.iter().take(SHOWN) {
            let _ = write!(
                text,
                "\n{} at {:.2} s: {}\n    {}\n    {}\n",
                broken.promise,
                broken.at_s,
                broken.what,
                broken.kinds.join(", "),
                broken.command
            );
        }

        if self.seeds.len() > SHOWN {
            let _ = write!(text, "\nand {} more: --json names them", self.seeds.len() - SHOWN);
        }
        text.trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use ballast_sim::campaign::Kind;
    use ballast_sim::world::{Excuse, Promise, Violation};
    use ballast_types::Instant;

    use super::*;

    fn verdict(seed: u64, size: Size, broken: Option<Option<Excuse>>) -> Verdict {
        let violation = broken.map(|excuse| Violation {
            seed,
            at: Instant::from_millis(1500),
            promise: Promise::Breaker,
            what: "it trips".into(),
            excuse,
        });
        let kinds = vec![Kind::FeedLoss, Kind::Partition];
        Verdict { seed, size, kinds, violation, unjudged_server_s: 2, inversion_s: 0.5 }
    }

    #[test]
    fn usual_runs_and_larger_ones_are_counted_apart() {
        let mut campaign = Campaign { first: 1, ..Campaign::default() };
        campaign.add(verdict(1, Size::Usual, None), 0.1);
        campaign.add(verdict(2, Size::Usual, Some(None)), 0.3);
        campaign.add(verdict(3, Size::Usual, Some(Some(Excuse::TooFast))), 0.2);
        campaign.add(verdict(50, Size::Larger, Some(None)), 0.2);
        assert_eq!((campaign.runs, campaign.broken, campaign.large.broken), (4, 1, 1));
        assert_eq!(campaign.excused, BTreeMap::from([("too_fast".to_owned(), 1)]));
        assert_eq!(campaign.broken_by, BTreeMap::from([("breaker".to_owned(), 2)]));
        assert_eq!(campaign.seeds.len(), 2);
        assert_eq!(campaign.seeds[0].command, "ballast-lab experiment faults --seed 2 --seeds 1");
        assert_eq!((campaign.unjudged_server_s, campaign.inverted_runs), (8, 4));
        assert!((campaign.core_s_mean - 0.2).abs() < 1e-9, "{}", campaign.core_s_mean);
    }
}
