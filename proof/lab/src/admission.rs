//! How full a cluster can be while scale-outs seldom fail: the laws, the policies and the sizes that are compared.
//!
//! Source: Dierks, Kash, Seuken, arXiv 1804.07571v8, Sections 5 to 7.

use ballast_placement::admission::{Belief, Gamma};
use ballast_sim::admission::tuning::{Options, Set};
use ballast_sim::admission::{Arm, Labels, Moment, Site};

/// Three years, in hours.
const HOURS: f64 = 26_280.0;

/// Between `SUB_A` and `SUB_B`: a random walk of 250 steps from their geometric mean, at kappa .8, towards the paper's four
/// numbers and a deployment that shrinks to .55 of its size from a week to three years. Of 60,000 deployments: 140.5
/// activated cores each (paper 145.1), 97.4 % of them dead after the month (97.5), 74.1 % of deployments died (74.7), 26.9 %
/// of these by shutdown (26.9).
pub const BETWEEN: Belief = Belief {
    kappa: 0.8,
    delta: 0.0256,
    mu: Gamma::new(0.3076, 0.2220),
    lambda: Gamma::new(1.4536, 0.6046),
    sigma: Gamma::new(0.4854, 0.2459),
};

const fn arm(moment: Moment, n: u32, marginal: bool) -> Arm {
    Arm::new(moment, n, marginal)
}

const ZEROTH: Arm = arm(Moment::Zeroth, 0, false);
const UNLABELLED: Arm = Arm { labels: Labels::Mixed, ..arm(Moment::Second, 1, false) };

/// The whole experiment: 500 runs of a tenth of the paper's cluster, and `full_runs` of the paper's.
pub fn whole(seed: u64, runs: u64, full_runs: u64) -> Options {
    use Moment::{First, Second};
    let tenth = |law| Site { law, capacity: 2_000.0, arrivals_per_h: 0.1, hours: HOURS };
    let full = |law| Site { law, capacity: 20_000.0, arrivals_per_h: 1.0, hours: HOURS };
    let first = [0, 1, 50].map(|n| arm(First, n, n > 0));
    let plain = [0, 1, 5, 50].map(|n| arm(Second, n, false));
    let marginal = [1, 5, 50].map(|n| arm(Second, n, true));
    let few = vec![ZEROTH, arm(Second, 0, false), arm(Second, 1, true), arm(Second, 50, true)];

    let all: Vec<Arm> =
        [ZEROTH].into_iter().chain(first).chain(plain).chain([UNLABELLED]).chain(marginal).collect();
    let with_first = [few.clone(), vec![arm(First, 0, false)]].concat();
    let sets = vec![
        Set { name: "SUB-B, a tenth", site: tenth(Belief::SUB_B), arms: all, runs },
        Set { name: "between, a tenth", site: tenth(BETWEEN), arms: few.clone(), runs },
        Set { name: "SUB-B", site: full(Belief::SUB_B), arms: with_first, runs: full_runs },
        Set { name: "SUB-A", site: full(Belief::SUB_A), arms: few, runs: full_runs },
    ];
    Options { seed, slas: vec![1e-4, 1e-3], sets, pilot_runs: (runs / 8).clamp(8, 60), pool: 4_000, grid: 6 }
}

/// Five arms, 60 runs of a tenth of the cluster.
pub fn quick(seed: u64) -> Options {
    use Moment::{First, Second};
    let arms = vec![
        ZEROTH,
        arm(First, 0, false),
        arm(Second, 0, false),
        arm(Second, 1, true),
        arm(Second, 50, true),
    ];
    let site = Site { law: Belief::SUB_B, capacity: 2_000.0, arrivals_per_h: 0.1, hours: HOURS };
    let sets = vec![Set { name: "SUB-B, a tenth", site, arms, runs: 60 }];
    Options { seed, slas: vec![1e-4], sets, pilot_runs: 6, pool: 400, grid: 2 }
}
