//! How long an admission decision takes, and how near it is to a full evaluation.
//!
//! `cargo bench -p ballast-placement --bench admission` prints, for 2,000 live deployments: moments a second, the median and
//! the 99th percentile of a decision, and the share of decisions that agree with an evaluation at 3,000 points of every
//! belief as it is.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![expect(clippy::unwrap_used, reason = "a benchmark ends where something is wrong")]

use std::hint::black_box;
use std::time::Instant as Clock;

use ballast_placement::admission::demand::{Demand, DemandId, LOOK_AHEAD_H, Threshold, cantelli, horizons};
use ballast_placement::admission::{Belief, Form, Observed};
use ballast_types::{SplitMix64, median};

const LIVE: usize = 2_000;
const DECISIONS: usize = 20_000;
/// How long ago the last event was, in hours: what time alone has moved since then is worked off by the decision.
const SINCE_H: f64 = 0.01;
/// Decisions that are compared with a full evaluation: so many states, and newcomers for each.
const STATES: usize = 30;
const NEWCOMERS: usize = 100;

/// Deployments of all ages, with events as they have them.
struct Site {
    demand: Demand,
    live: Vec<DemandId>,
    now_h: f64,
    random: SplitMix64,
}

impl Site {
    fn new() -> Self {
        let (demand, random) = (Demand::default(), SplitMix64::new(1));
        let mut it = Self { demand, live: vec![], now_h: 0.0, random };
        while it.live.len() < LIVE {
            it.come();
            it.pass(0.5);
        }
        it
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.draw() % n
    }

    fn come(&mut self) {
        let cores = 1.0 + self.below(8) as f64;
        self.live.push(self.demand.insert(self.now_h, &Belief::SUB_B.into(), cores).unwrap());
    }

    /// Some hours, with events at a hundred an hour.
    fn pass(&mut self, hours: f64) {
        let events = (100.0 * hours) as u64;
        for _ in 0..events {
            self.now_h += hours / events as f64;
            let chosen = self.below(self.live.len() as u64) as usize;
            let id = self.live[chosen];
            if self.below(2) == 0 {
                self.demand.scale_out(self.now_h, id, 1.0, true).unwrap();
            } else if !self.demand.end_cores(self.now_h, id, 1.0).unwrap() {
                self.live[chosen] = self.demand.insert(self.now_h, &Belief::SUB_B.into(), 4.0).unwrap();
            }
            // As the daemon does with each change that it writes down.
            self.demand.refresh(self.now_h).unwrap();
        }
    }
}

fn moments() {
    let site = Site::new();
    let hours = horizons();
    let mut rates: Vec<f64> = (0..9)
        .map(|_| {
            let start = Clock::now();
            let all = black_box(&site.demand).forecast(site.now_h, black_box(&hours));
            black_box(all);
            (LIVE * hours.len()) as f64 / start.elapsed().as_secs_f64()
        })
        .collect();
    println!("moments: {:.1} M (deployment, horizon) a second", median(&mut rates) / 1e6);
}

fn decisions(site: &mut Site) {
    let threshold = Threshold::Second { capacity: 40_000.0, risk: 0.1 };
    let mut took: Vec<f64> = (0..DECISIONS)
        .map(|_| {
            site.pass(1.0);
            site.now_h += SINCE_H;
            let cores = 1.0 + site.below(8) as f64;
            let start = Clock::now();
            site.demand.refresh(site.now_h).unwrap();
            black_box(site.demand.decide(threshold, &Belief::SUB_B.into(), cores, false));
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    let middle = median(&mut took);
    let p99 = took[took.len() * 99 / 100];
    println!("decision: median {middle:.1} us, p99 {p99:.1} us, {} s after the last event", 3600.0 * SINCE_H);
}

/// The paper's grid: 600 steps each over three years, one year, a month, a week and a day.
fn fine() -> Vec<f64> {
    let spans = [LOOK_AHEAD_H, 8_760.0, 730.0, 168.0, 24.0];
    spans.iter().flat_map(|span| (1..=600).map(move |i| span * f64::from(i) / 600.0)).collect()
}

fn agreement(site: &mut Site) {
    let hours = fine();
    let (mut alike, mut off) = (0, 0.0_f64);
    for _ in 0..STATES {
        site.pass(24.0);
        site.demand.refresh(site.now_h).unwrap();
        let full = site.demand.forecast(site.now_h, &hours);

        // Half of the newcomers may come: the capacity is where it matters.
        let peak = full.iter().map(|it| it.mean).fold(0.0, f64::max);
        let capacity = 1.05 * peak;
        let risk_of = |cores: f64| {
            let belief = Belief::SUB_B.posterior(&Observed::first(cores));
            let risks = hours.iter().zip(&full).map(|(hours, all)| {
                let own = belief.moments(Form::Exact, cores, *hours);
                cantelli(all.mean + own.mean, all.variance + own.variance, capacity)
            });
            risks.fold(0.0, f64::max)
        };
        let risk = risk_of(50.0);
        for n in 0..NEWCOMERS {
            let cores = 1.0 + n as f64;
            let threshold = Threshold::Second { capacity, risk };
            let decision = site.demand.decide(threshold, &Belief::SUB_B.into(), cores, false);
            let full = risk_of(cores);
            if decision.admit == (full <= risk) {
                alike += 1;
            } else {
                off = off.max((full / risk - 1.0).abs());
            }
        }
    }
    let share = 100.0 * f64::from(alike) / (STATES * NEWCOMERS) as f64;
    println!("agreement with 3,000 points: {share:.2} %, the others within {:.2} % of the risk", 100.0 * off);
}

fn main() {
    moments();
    let mut site = Site::new();
    decisions(&mut site);
    agreement(&mut site);
}
