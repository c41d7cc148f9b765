//! A synthetic fleet, drawn from a seed, where public data has no subscriptions.
//!
//! # What is made
//! * **Subscriptions** have activity of a heavy tail; a seventh of them appears while the fleet is watched, so
//!   that some arrivals have no past. Each has one to three **workloads**.
//! * A **workload** is a habit: a class, a usual P95 bucket and how strictly it is kept, a usual VM type and
//!   size, and a share of lasting VMs.
//! * A **deployment** belongs to one workload and brings as many VMs as the paper's Table I says
//!   (papers-spec A7); sizes and lifetimes are those of the table as well, drawn for every VM.
//! * What a **VM** turns out to be is drawn from its workload: its bucket, its use within it, and its label,
//!   which the labeller gets wrong now and then.
//!
//! * Under a [`Drift`] workloads change their usual bucket now and then, and the VMs of a deployment turn out
//!   alike: what a subscription was is no longer what it will be, and sixty VMs are not sixty witnesses.
//!
//! What a VM does half hour by half hour, and the week that a label is told from, is a [`Use`].
//!
//! # The ceiling
//! Nobody can predict what is drawn after the arrival. [`SyntheticFleet::odds`] are the probabilities of class and
//! bucket given the subscription's true habits and all that is visible of the VM, computed from the very laws
//! that it is drawn from; whoever answers with the likeliest is right as often as anybody can be. A model sees
//! less: how the subscription's past VMs turned out.

mod used;

use ballast_types::VmClass;
use ballast_types::table_one::{CORES, DEPLOYMENT_VMS, P95_QUARTERS};

use crate::label::generate::Kind;
use crate::rng::Stream;
use crate::vm::{Bucket, DAY_S, VmHistory};

pub use used::{HALF_HOUR_S, Use, Uses};

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub seed: u64,
    pub vms: usize,
    /// Over how many days, 10 at least; what runs then runs on.
    pub days: u32,
    /// How habits change; `None` where they do not, and every VM is drawn by itself.
    pub drift: Option<Drift>,
}

/// A fleet that does not stand still.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// A workload keeps its usual bucket and level so many days in the mean (exponential).
    pub habit_days: f64,
    /// How often a VM turns out as its deployment does, and not by itself.
    pub shared: f64,
}

impl Default for Drift {
    fn default() -> Self {
        Self { habit_days: 40.0, shared: 0.7 }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, vms: 300_000, days: 75, drift: None }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticFleet {
    /// Its VMs, in the order of arrival.
    pub vms: Vec<VmHistory>,
    /// What could be known of each at its arrival.
    pub odds: Vec<Odds>,
    /// What each is for, whatever its label says.
    pub purposes: Vec<Purpose>,
}

/// What a VM's workload is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Purpose {
    pub class: VmClass,
    /// What its use looks like.
    pub kind: Kind,
}

/// The true probabilities of one VM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Odds {
    /// Of its label being user-facing, if it lives long enough to be labelled.
    pub user_facing: f64,
    /// Of its P95 lying in each bucket.
    pub buckets: [f64; 4],
}

impl Odds {
    /// How often the likeliest class is the right one.
    pub fn class_ceiling(&self) -> f64 {
        self.user_facing.max(1.0 - self.user_facing)
    }

    /// How often the likeliest bucket is the right one.
    pub fn bucket_ceiling(&self) -> f64 {
        self.buckets.iter().copied().fold(0.0, f64::max)
    }
}

/// The first stream of drifts, behind those of all subscriptions.
const DRIFTS: u64 = 1 << 40;
/// The first stream of what workloads' use looks like, behind those of all drifts.
const KINDS: u64 = 1 << 41;
/// The day on which it begins: Monday, 1 April 2019, midnight UTC. The paper's data is of that month.
pub const START_S: i64 = 17_987 * DAY_S;
/// VMs per subscription, in the mean.
const VMS_PER_SUBSCRIPTION: usize = 200;
/// The share of subscriptions that appears while the fleet is watched.
const LATE: f64 = 0.15;
/// Share of workloads that are user-facing. The paper's 4:6 of cores.
const USER_FACING: f64 = 0.4;
/// How often the second and third workload of a subscription are of the same class as the first.
const SAME_CLASS: f64 = 0.93;
/// And how often they are as busy.
const SAME_BUCKET: f64 = 0.6;
/// How often a batch VM is labelled user-facing, and the other way round.
const MISLABELLED: (f64, f64) = (0.005, 0.002);
/// Hours that a passing VM lives, from and to, and how often (Table I).
const PASSING: [(f64, f64, f64); 5] =
    [(0.1, 1.0, 0.52), (1.0, 2.0, 0.05), (2.0, 5.0, 0.10), (5.0, 10.0, 0.09), (10.0, 25.0, 0.07)];
/// The same of a lasting one; the last is open in the paper.
const LASTING: [(f64, f64, f64); 2] = [(25.0, 720.0, 0.08), (720.0, 2160.0, 0.09)];
/// Shares of lasting VMs that a workload may have, and how often by class: 17 % of all VMs, as in Table I.
const LASTING_SHARES: [f64; 3] = [0.03, 0.35, 0.95];
const LASTING_KINDS: [[f64; 3]; 2] = [[0.55, 0.22, 0.23], [0.88, 0.10, 0.02]];
/// VM types: name, GB per CPU, how often a workload of each class prefers it, and how much likelier each
/// usual bucket is among those that do.
const TYPES: [(&str, f64, [f64; 2], [f64; 4]); 6] = [
    ("burst", 4.0, [0.10, 0.10], [4.0, 1.5, 0.3, 0.1]),
    ("compute", 2.0, [0.06, 0.42], [0.3, 0.6, 1.2, 2.5]),
    ("general", 4.0, [0.44, 0.06], [0.6, 1.0, 1.2, 1.0]),
    ("memory", 8.0, [0.30, 0.04], [0.5, 1.2, 1.2, 0.8]),
    ("spot", 3.5, [0.01, 0.33], [1.5, 1.5, 0.6, 0.3]),
    ("storage", 7.5, [0.09, 0.05], [2.5, 1.2, 0.4, 0.2]),
];
/// How often a VM has its workload's usual type, and size; otherwise any.
const USUAL: f64 = 0.9;
/// How strictly a workload keeps to its bucket, at least and at most.
const STRICT: (f64, f64) = (0.81, 0.97);
/// How often what leaves the bucket goes to a neighbour and no further.
const NEIGHBOUR: f64 = 0.8;

/// A habit of a subscription.
#[derive(Clone, Debug)]
struct Workload {
    weight: f64,
    class: VmClass,
    kind: Kind,
    /// How strictly it keeps to its bucket.
    strict: f64,
    /// What it does from when on, in seconds since the begin; the first from the begin on.
    habits: Vec<Habit>,
    vm_type: usize,
    size: usize,
    lasting: f64,
}

/// What a workload does for a while.
#[derive(Clone, Copy, Debug)]
struct Habit {
    from_s: f64,
    buckets: [f64; 4],
    /// Mean utilisation as a share of the P95.
    level: f64,
}

fn column(class: VmClass) -> usize {
    usize::from(class == VmClass::NonUserFacing)
}

impl Workload {
    /// One of this class; `shared` is the bucket that the subscription's workloads may have in common.
    fn draw(random: &mut Stream, class: VmClass, shared: &mut Option<usize>) -> Self {
        let vm_type = random.pick(&TYPES.map(|(_, _, shares, _)| shares[column(class)]));
        let tilt = TYPES[vm_type].3;
        let own = random.pick(&std::array::from_fn::<_, 4, _>(|n| P95_QUARTERS[column(class)][n] * tilt[n]));
        let same = random.chance(SAME_BUCKET);
        let first = *shared.get_or_insert(own);
        let usual = if same { first } else { own };
        let strict = random.between(STRICT.0, STRICT.1);
        let sizes = CORES.map(|(share, _)| share);

        Self {
            weight: random.between(0.2, 1.0),
            class,
            kind: Kind::first(class),
            strict,
            vm_type,
            size: random.pick(&sizes),
            lasting: LASTING_SHARES[random.pick(&LASTING_KINDS[column(class)])],
            habits: vec![Habit {
                from_s: 0.0,
                buckets: distribution(usual, strict),
                level: level(random, class),
            }],
        }
    }

    /// Changes its habits until the end.
    fn drift(&mut self, random: &mut Stream, drift: Drift, days: f64) {
        let tilt = TYPES[self.vm_type].3;
        let weights: [f64; 4] = std::array::from_fn(|n| P95_QUARTERS[column(self.class)][n] * tilt[n]);
        let mut day = 0.0;
        loop {
            day -= drift.habit_days * libm::log(1.0 - random.uniform());
            if day >= days {
                return;
            }
            let buckets = distribution(random.pick(&weights), self.strict);
            let level = level(random, self.class);
            self.habits.push(Habit { from_s: day * DAY_S as f64, buckets, level });
        }
    }

    /// What it does at this second since the begin.
    fn habit(&self, at_s: f64) -> Habit {
        self.habits[self.habits.partition_point(|habit| habit.from_s <= at_s).max(1) - 1]
    }

    /// How often a VM of it has this type and size.
    fn shows(&self, vm_type: usize, size: usize) -> f64 {
        let kept = |usual: bool| if usual { USUAL } else { 0.0 };
        let any_type = (1.0 - USUAL) / TYPES.len() as f64;
        (kept(vm_type == self.vm_type) + any_type) * (kept(size == self.size) + (1.0 - USUAL) * CORES[size].0)
    }

    /// How often one of its VMs is labelled user-facing.
    fn labelled_user_facing(&self) -> f64 {
        match self.class {
            VmClass::UserFacing => 1.0 - MISLABELLED.1,
            VmClass::NonUserFacing => MISLABELLED.0,
        }
    }
}

fn level(random: &mut Stream, class: VmClass) -> f64 {
    match class {
        VmClass::UserFacing => random.between(0.3, 0.6),
        VmClass::NonUserFacing => random.between(0.5, 0.9),
    }
}

/// The bucket's own share, and what of the rest goes where.
fn distribution(usual: usize, strict: f64) -> [f64; 4] {
    let near = |bucket: usize| bucket.abs_diff(usual) == 1;
    let neighbours = (0..4).filter(|bucket| near(*bucket)).count() as f64;
    let far = 3.0 - neighbours;
    std::array::from_fn(|bucket| {
        let rest = 1.0 - strict;
        match bucket {
            _ if bucket == usual => strict,
            _ if near(bucket) => rest * NEIGHBOUR / neighbours,
            _ => rest * (1.0 - NEIGHBOUR) / far,
        }
    })
}

struct Subscription {
    from_s: f64,
    activity: f64,
    workloads: Vec<Workload>,
}

impl Subscription {
    fn draw(seed: u64, number: u64, days: f64, drift: Option<Drift>) -> Self {
        let mut random = Stream::new(seed, number + 1);
        let late = random.chance(LATE);
        let from_s = if late { random.uniform() * days * DAY_S as f64 } else { 0.0 };
        // Pareto, cut off so that nobody is most of the fleet.
        let activity = libm::pow(random.between(0.01, 1.0), -0.6);
        let user_facing = random.chance(USER_FACING);
        let mut shared = None;
        let mut workloads: Vec<Workload> = (0..=random.pick(&[0.65, 0.25, 0.10]))
            .map(|n| {
                let same = n == 0 || random.chance(SAME_CLASS);
                let class = if user_facing == same { VmClass::UserFacing } else { VmClass::NonUserFacing };
                Workload::draw(&mut random, class, &mut shared)
            })
            .collect();

        let mut kinds = Stream::new(seed, KINDS + number);
        workloads.iter_mut().for_each(|workload| workload.kind = Kind::draw(&mut kinds, workload.class));

        // Chance of its own: what a workload begins with is the same without drift.
        if let Some(drift) = drift {
            let mut random = Stream::new(seed, DRIFTS + number);
            workloads.iter_mut().for_each(|workload| workload.drift(&mut random, drift, days));
        }
        Self { from_s, activity, workloads }
    }

    /// What could be known of a VM that arrives at this second since the begin, and looks like this.
    fn odds(&self, at_s: f64, vm_type: usize, size: usize) -> Odds {
        let mut odds = Odds { user_facing: 0.0, buckets: [0.0; 4] };
        let shown = |w: &Workload| w.weight * w.shows(vm_type, size);
        let total: f64 = self.workloads.iter().map(shown).sum();
        // Who is labelled lasts: workloads of passing VMs have little part in the classes.
        let lasting: f64 = self.workloads.iter().map(|w| shown(w) * w.lasting).sum();
        for workload in &self.workloads {
            let share = shown(workload) / total;
            odds.user_facing +=
                shown(workload) * workload.lasting / lasting * workload.labelled_user_facing();
            for (sum, part) in odds.buckets.iter_mut().zip(workload.habit(at_s).buckets) {
                *sum += share * part;
            }
        }
        odds
    }
}

/// Makes a fleet. The same options make the same fleet, on every machine.
pub fn make(options: &Options) -> SyntheticFleet {
    let days = f64::from(options.days.max(10));
    let horizon_s = START_S + i64::from(options.days.max(10)) * DAY_S;
    let count = (options.vms / VMS_PER_SUBSCRIPTION).max(1);
    let subscriptions: Vec<_> =
        (0..count).map(|n| Subscription::draw(options.seed, n as u64, days, options.drift)).collect();
    // Cumulated activity: a deployment's subscription is found by bisection.
    let mut sum = 0.0;
    let cumulated: Vec<f64> = subscriptions
        .iter()
        .map(|s| {
            sum += s.activity * (1.0 - s.from_s / (days * DAY_S as f64));
            sum
        })
        .collect();
    let mut random = Stream::new(options.seed, 0);
    let mut deployments = 0;
    let mut made: Vec<(VmHistory, (Odds, Purpose))> = Vec::with_capacity(options.vms);

    while made.len() < options.vms {
        let at = random.uniform() * sum;
        let number = cumulated.partition_point(|end| *end <= at).min(count - 1);
        let subscription = &subscriptions[number];
        let arrival = random.between(subscription.from_s, days * DAY_S as f64) as i64;
        deployments += 1;
        let weights: Vec<f64> = subscription.workloads.iter().map(|w| w.weight).collect();
        let workload = &subscription.workloads[random.pick(&weights)];
        let sizes = DEPLOYMENT_VMS.map(|(share, from, to)| (f64::from(from), f64::from(to), share));
        let vms = ranged(&mut random, &sizes, false) as usize;
        let habit = workload.habit(arrival as f64);
        let together = options.drift.map(|drift| (drift.shared, random.pick(&habit.buckets)));

        for _ in 0..vms.min(options.vms - made.len()) {
            let (vm_type, size) = looks(&mut random, workload);
            let alike = together.filter(|(shared, _)| random.chance(*shared)).map(|(_, bucket)| bucket);
            let vm = VmHistory {
                subscription: format!("sub-{number:05}"),
                deployment: format!("dep-{deployments:07}"),
                ..born(&mut random, workload, START_S + arrival, horizon_s, (vm_type, size), alike)
            };

            let purpose = Purpose { class: workload.class, kind: workload.kind };
            made.push((vm, (subscription.odds(arrival as f64, vm_type, size), purpose)));
        }
    }

    made.sort_by_key(|(vm, _)| vm.arrival_s);
    let (mut vms, (odds, purposes)): (Vec<_>, (Vec<_>, Vec<_>)) = made.into_iter().unzip();

    for (number, vm) in vms.iter_mut().enumerate() {
        vm.id = format!("vm-{number:07}");
    }
    SyntheticFleet { vms, odds, purposes }
}

fn looks(random: &mut Stream, workload: &Workload) -> (usize, usize) {
    let any_type = |random: &mut Stream| random.pick(&[1.0; TYPES.len()]);
    let vm_type = if random.chance(USUAL) { workload.vm_type } else { any_type(random) };
    let sizes = CORES.map(|(share, _)| share);
    let size = if random.chance(USUAL) { workload.size } else { random.pick(&sizes) };
    (vm_type, size)
}

/// What a VM turns out to be; without names. Its bucket may be that of its deployment.
fn born(
    random: &mut Stream,
    workload: &Workload,
    arrival_s: i64,
    horizon_s: i64,
    (vm_type, size): (usize, usize),
    bucket: Option<usize>,
) -> VmHistory {
    let habit = workload.habit((arrival_s - START_S) as f64);
    let lasting = random.chance(workload.lasting);
    let hours = ranged(random, if lasting { &LASTING } else { &PASSING }, true);
    let end_s = arrival_s + (hours * 3600.0) as i64;
    let bucket = Bucket::ALL[bucket.unwrap_or_else(|| random.pick(&habit.buckets))];
    let p95 = f64::from(bucket.upper_percent()) - 25.0 * random.uniform();
    let avg = p95 * (habit.level * random.between(0.8, 1.2)).min(1.0);
    let user_facing = random.chance(workload.labelled_user_facing());
    let label = if user_facing { VmClass::UserFacing } else { VmClass::NonUserFacing };
    let (name, gb_per_core, ..) = TYPES[vm_type];
    let cores = u32::from(CORES[size].1);
    let vm = VmHistory {
        id: String::new(),
        subscription: String::new(),
        deployment: String::new(),
        arrival_s,
        end_s: (end_s < horizon_s).then_some(end_s),
        cores,
        memory_gb: gb_per_core * f64::from(cores),
        vm_type: name.to_owned(),
        class: Some(label),
        avg_cpu: Some(avg),
        p95_cpu: Some(p95),
    };

    // Who has not lived five weekdays yet cannot be labelled.
    let class = vm.class.filter(|_| vm.aged_s().is_some_and(|aged| aged <= horizon_s));

    VmHistory { class, ..vm }
}

/// A number from one of these ranges: log-uniform inside, or a whole number, uniform, ends included.
fn ranged(random: &mut Stream, ranges: &[(f64, f64, f64)], logarithmic: bool) -> f64 {
    let shares: Vec<f64> = ranges.iter().map(|(_, _, share)| *share).collect();
    let (low, high, _) = ranges[random.pick(&shares)];
    if logarithmic {
        low * libm::exp(random.uniform() * libm::log(high / low))
    } else {
        libm::floor(random.between(low, high + 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(values: impl Iterator<Item = f64>) -> f64 {
        let (sum, n) = values.fold((0.0, 0.0), |(sum, n), v| (sum + v, n + 1.0));
        sum / n
    }

    #[test]
    fn a_seed_makes_one_fleet_and_another_seed_another() {
        let options = Options { vms: 500, ..Options::default() };
        assert_eq!(make(&options), make(&options));
        assert_ne!(make(&options), make(&Options { seed: 2, ..options }));
    }

    #[test]
    fn its_vms_are_possible_and_in_order() {
        let vms = make(&Options { vms: 3000, ..Options::default() }).vms;
        assert_eq!(vms.len(), 3000);
        assert!(vms.iter().all(|vm| vm.check().is_ok()));
        assert!(vms.is_sorted_by_key(|vm| vm.arrival_s));
        assert_eq!(crate::vm::overlap(&vms), None);
        let horizon = START_S + 75 * DAY_S;
        assert!(vms.iter().all(|vm| vm.arrival_s < horizon && vm.end_s.is_none_or(|e| e < horizon)));
    }

    #[test]
    fn the_mix_is_that_of_the_paper() {
        let vms = make(&Options { vms: 60_000, ..Options::default() }).vms;
        let share = |test: &dyn Fn(&VmHistory) -> bool| mean(vms.iter().map(|vm| f64::from(test(vm))));
        assert!((share(&|vm| vm.cores == 1) - 0.33).abs() < 0.08);
        let short = share(&|vm| vm.end_s.is_some_and(|end| end - vm.arrival_s <= 3600));
        assert!((short - 0.52).abs() < 0.06, "{short}");
        let labelled = share(&|vm| vm.class.is_some());
        assert!((0.07..0.18).contains(&labelled), "{labelled}");
    }

    #[test]
    fn four_of_ten_cores_are_user_facing() {
        // Of what a subscription begins with; single fleets of a few hundred subscriptions differ much.
        let (mut all, mut user_facing) = (0.0, 0.0);
        for number in 0..4000 {
            for workload in Subscription::draw(1, number, 75.0, None).workloads {
                let cores = f64::from(CORES[workload.size].1) * workload.weight;
                all += cores;
                user_facing += if workload.class == VmClass::UserFacing { cores } else { 0.0 };
            }
        }
        assert!((user_facing / all - 0.4f64).abs() < 0.05, "{}", user_facing / all);
    }

    #[test]
    fn the_ceiling_is_where_it_was_meant_to_be_and_the_likeliest_reaches_it() {
        for seed in [1, 2, 3] {
            let synthetic = make(&Options { seed, vms: 60_000, ..Options::default() });
            let ceiling = mean(synthetic.odds.iter().map(Odds::bucket_ceiling));
            assert!((0.86..=0.90).contains(&ceiling), "seed {seed}: {ceiling}");
            let likeliest = |o: &Odds| {
                let best = (0..4).max_by(|a, b| o.buckets[*a].total_cmp(&o.buckets[*b]));
                Bucket::ALL[best.unwrap()]
            };
            let right = |(vm, o): (&VmHistory, &Odds)| f64::from(vm.bucket() == Some(likeliest(o)));
            let reached = mean(synthetic.vms.iter().zip(&synthetic.odds).map(right));
            assert!((reached - ceiling).abs() < 0.01, "seed {seed}: {reached} of {ceiling}");
        }
    }

    #[test]
    fn odds_are_the_shares_that_are_drawn() {
        // Many VMs of one mixed subscription, told apart by their looks alone.
        let subscription = (0..)
            .map(|n| Subscription::draw(5, n, 75.0, None))
            .find(|s| s.workloads.len() == 3 && s.workloads[0].class != s.workloads[1].class)
            .unwrap();
        let weights: Vec<f64> = subscription.workloads.iter().map(|w| w.weight).collect();
        let mut random = Stream::new(9, 9);
        let mut seen = std::collections::BTreeMap::<_, ([f64; 2], [f64; 4])>::new();

        for _ in 0..200_000 {
            let workload = &subscription.workloads[random.pick(&weights)];
            let (vm_type, size) = looks(&mut random, workload);
            let (from, to) = (START_S, START_S + 5000 * DAY_S);
            let vm = born(&mut random, workload, from, to, (vm_type, size), None);
            let (classes, buckets) = seen.entry((vm_type, size)).or_default();

            if let Some(class) = vm.class {
                classes[column(class)] += 1.0;
            }
            buckets[vm.bucket().unwrap().index()] += 1.0;
        }

        for ((vm_type, size), (classes, buckets)) in seen {
            let odds = subscription.odds(0.0, vm_type, size);
            let close = |count: f64, counts: &[f64], p: f64| {
                let n = counts.iter().sum::<f64>();
                n < 100.0 || (count / n - p).abs() < 5.0 * (0.25 / n).sqrt()
            };

            assert!(close(classes[0], &classes, odds.user_facing), "{classes:?} {odds:?}");

            for (count, p) in buckets.iter().zip(odds.buckets) {
                assert!(close(*count, &buckets, p), "{buckets:?} {odds:?}");
            }
        }
    }

    #[test]
    fn a_drifting_fleet_changes_its_habits_and_its_deployments_share_their_fate() {
        let drift = Some(Drift::default());
        let fleet = make(&Options { vms: 60_000, drift, ..Options::default() });
        let steady = make(&Options { vms: 60_000, ..Options::default() });

        // Two VMs of one deployment: the same bucket more often than two of the same odds.
        let pairs = |fleet: &SyntheticFleet| {
            let pairs = fleet.vms.windows(2).filter(|pair| pair[0].deployment == pair[1].deployment);
            mean(pairs.map(|pair| f64::from(pair[0].bucket() == pair[1].bucket())))
        };
        assert!(pairs(&fleet) > pairs(&steady) + 0.03, "{} {}", pairs(&fleet), pairs(&steady));

        // The first and the last VMs of a subscription: alike without drift, less so with it.
        let ends = |fleet: &SyntheticFleet| {
            let mut by: std::collections::BTreeMap<&str, Vec<f64>> = std::collections::BTreeMap::new();
            for vm in &fleet.vms {
                by.entry(&vm.subscription).or_default().push(vm.p95_cpu.unwrap());
            }
            let apart = |p95s: &Vec<f64>| {
                let tenth = p95s.len() / 10;
                let of = |part: &[f64]| mean(part.iter().copied());
                (of(&p95s[..tenth]) - of(&p95s[p95s.len() - tenth..])).abs()
            };
            mean(by.values().filter(|p95s| p95s.len() > 100).map(apart))
        };
        assert!(ends(&fleet) > 2.0 * ends(&steady), "{} {}", ends(&fleet), ends(&steady));

        // The odds are of the habit of the day.
        let likeliest = |o: &Odds| (0..4).max_by(|a, b| o.buckets[*a].total_cmp(&o.buckets[*b]));
        let right = |(vm, o): (&VmHistory, &Odds)| f64::from(vm.bucket().map(Bucket::index) == likeliest(o));
        let reached = mean(fleet.vms.iter().zip(&fleet.odds).map(right));
        let ceiling = mean(fleet.odds.iter().map(Odds::bucket_ceiling));
        assert!((reached - ceiling).abs() < 0.02, "{reached} of {ceiling}");
    }
}
