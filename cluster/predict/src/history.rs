//! How the VMs of every subscription were, as it was known at any moment.
//!
//! A VM is learnt from once it has ended or is five weekdays old, and only for arrivals after that: what an
//! arrival is predicted from never holds what came later. What was seen [`HALF_LIFE_S`] ago counts half, and
//! who was not seen for long is forgotten.

use std::collections::BTreeMap;

use ballast_types::VmClass;
use serde::{Deserialize, Serialize};

use crate::features::{self, Alike, Evidence, FeatureRow, Features, OfType, Past};
use crate::vm::{self, Bucket, DAY_S, LONG_LIVED_S, VmHistory};

/// What is so old counts half: three weeks, so that two weeks hardly fade and a quarter of a year is gone.
pub const HALF_LIFE_S: i64 = 21 * DAY_S;
/// The same of what tells the latest habit.
const RECENT_HALF_LIFE_S: i64 = 2 * DAY_S;
/// Who counts less than this part of a VM is forgotten: 140 days after the last one.
const FORGOTTEN: f64 = 0.01;

/// What became known of one VM.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Observed {
    /// It has ended, or is five weekdays old.
    Use,
    /// It has lived seven days (`true`), or ended before (`false`).
    Lived(bool),
}

/// Sums over known VMs, each weighed by its age.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Sums {
    /// The second that the weights are of.
    at_s: i64,
    vms: f64,
    classes: f64,
    user_facing: f64,
    spans: f64,
    long_lived: f64,
    buckets: [f64; 4],
    p95_cpu: f64,
    avgs: f64,
    avg_cpu: f64,
    /// Buckets again, but fading fast.
    recent: [f64; 4],
}

impl Sums {
    fn each(&mut self, other: &Self, change: impl Fn(&mut f64, f64)) {
        let slow = |sums: &Self| {
            let Self { vms, classes, user_facing, spans, long_lived, p95_cpu, avgs, avg_cpu, .. } = *sums;
            [vms, classes, user_facing, spans, long_lived, p95_cpu, avgs, avg_cpu]
        };
        let Self { vms, classes, user_facing, spans, long_lived, p95_cpu, avgs, avg_cpu, .. } = self;
        let own = [vms, classes, user_facing, spans, long_lived, p95_cpu, avgs, avg_cpu];
        own.into_iter().zip(slow(other)).for_each(|(own, other)| change(own, other));
        self.buckets.iter_mut().zip(other.buckets).for_each(|(own, other)| change(own, other));
    }

    /// Lets what it knows grow old.
    fn age(&mut self, at_s: i64) {
        let passed = (at_s - self.at_s) as f64;
        if passed > 0.0 {
            let slow = libm::exp2(-passed / HALF_LIFE_S as f64);
            self.each(&Self::default(), |own, _| *own *= slow);
            let fast = libm::exp2(-passed / RECENT_HALF_LIFE_S as f64);
            self.recent.iter_mut().for_each(|own| *own *= fast);
            self.at_s = at_s;
        }
    }

    fn learn(&mut self, at_s: i64, vm: &VmHistory, observed: Observed, weight: f64) {
        if self.vms + self.spans == 0.0 {
            self.at_s = at_s;
        }
        self.age(at_s);
        match observed {
            Observed::Use => {
                self.vms += 1.0;
                // Who ended before five weekdays had no week to tell its class from.
                if let Some(class) = vm.class.filter(|_| vm.aged_s().is_some()) {
                    self.classes += 1.0;
                    self.user_facing += f64::from(u8::from(class == VmClass::UserFacing));
                }

                if let Some(p95) = vm.p95_cpu {
                    self.buckets[Bucket::of(p95).index()] += weight;
                    self.recent[Bucket::of(p95).index()] += weight;
                    self.p95_cpu += p95 * weight;
                }

                if let Some(avg) = vm.avg_cpu {
                    self.avgs += 1.0;
                    self.avg_cpu += avg;
                }
            }
            Observed::Lived(long) => {
                self.spans += 1.0;
                self.long_lived += f64::from(u8::from(long));
            }
        }
    }

    /// What is left without these, which are part of it and of the same second.
    fn less(&self, part: &Self) -> Self {
        let mut left = self.clone();
        // What is left of a difference by rounding is nothing.
        let minus = |own: &mut f64, part: f64| *own = if *own - part < 1e-6 { 0.0 } else { *own - part };
        left.each(part, minus);
        left.recent.iter_mut().zip(part.recent).for_each(|(own, part)| minus(own, part));
        left
    }

    fn past(&self) -> Option<Past> {
        let p95s: f64 = self.buckets.iter().sum();
        (self.vms + self.spans > 0.0).then(|| Past {
            vms: libm::round(self.vms) as u64,
            uf_share: share(self.user_facing, self.classes),
            lived_7d_share: share(self.long_lived, self.spans),
            bucket_shares: shares(self.buckets),
            mean_avg_cpu: mean(self.avg_cpu, self.avgs),
            mean_p95_cpu: mean(self.p95_cpu, p95s),
        })
    }

    fn alike(&self) -> Alike {
        Alike {
            vms: self.vms,
            uf_share: share(self.user_facing, self.classes),
            bucket_shares: shares(self.buckets),
            recent_vms: self.recent.iter().sum(),
            recent_shares: shares(self.recent),
            mean_p95_cpu: mean(self.p95_cpu, self.buckets.iter().sum()),
        }
    }

    fn of_type(&self) -> OfType {
        OfType {
            uf_share: share(self.user_facing, self.classes),
            mean_avg_cpu: mean(self.avg_cpu, self.avgs),
            mean_p95_cpu: mean(self.p95_cpu, self.buckets.iter().sum()),
        }
    }
}

/// A share; `None` of nothing. Its parts fade alike, so it stays what it was, but for rounding.
fn share(part: f64, of: f64) -> Option<f64> {
    (of > f64::MIN_POSITIVE).then(|| part / of)
}

fn mean(sum: f64, of: f64) -> Option<f64> {
    share(sum, of).map(|mean| mean.min(100.0))
}

fn shares(counts: [f64; 4]) -> Option<[f64; 4]> {
    let all: f64 = counts.iter().sum();
    (all > f64::MIN_POSITIVE).then(|| counts.map(|count| count / all))
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Subscription {
    all: Sums,
    /// By VM type and cores.
    alike: BTreeMap<(String, u32), Sums>,
}

/// What is known of all subscriptions, and of all VM types.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    subscriptions: BTreeMap<String, Subscription>,
    types: BTreeMap<String, Sums>,
}

impl History {
    /// What is told of busyness counts by `weight`.
    fn learn(&mut self, at_s: i64, vm: &VmHistory, observed: Observed, weight: f64) {
        let subscription = self.subscriptions.entry(vm.subscription.clone()).or_default();
        subscription.all.learn(at_s, vm, observed, weight);
        let key = (vm.vm_type.clone(), vm.cores);
        subscription.alike.entry(key).or_default().learn(at_s, vm, observed, weight);
        self.types.entry(vm.vm_type.clone()).or_default().learn(at_s, vm, observed, weight);
    }

    /// How the subscription's VMs were; `None` where none of them is known yet.
    pub fn past(&self, subscription: &str) -> Option<Past> {
        self.subscriptions.get(subscription).and_then(|known| known.all.past())
    }

    /// All that is known of a VM before it runs. What is unknown of it is left out.
    pub fn known(&self, subscription: Option<&str>, vm_type: Option<&str>, cores: f64) -> Evidence {
        self.viewed(subscription, vm_type, cores as u32, Sums::clone)
    }

    fn viewed(
        &self,
        subscription: Option<&str>,
        vm_type: Option<&str>,
        cores: u32,
        view: impl Fn(&Sums) -> Sums,
    ) -> Evidence {
        let of = subscription.and_then(|name| self.subscriptions.get(name));
        let alike = vm_type.and_then(|name| of?.alike.get(&(name.to_owned(), cores)));
        let all = of.map(|known| view(&known.all));
        Evidence {
            past: all.as_ref().and_then(Sums::past),
            recent_shares: all.and_then(|sums| shares(sums.recent)),
            alike: alike.map(|sums| view(sums).alike()),
            of_type: vm_type.and_then(|name| self.types.get(name)).map(|sums| view(sums).of_type()),
        }
    }

    /// The same of a VM of the past, as others than `own` tell it: those of its deployment.
    fn known_without(&self, own: &Self, vm: &VmHistory) -> Evidence {
        let less = |all: Option<&Sums>, own: Option<&Sums>| match (all, own) {
            (Some(all), Some(own)) => Some(all.less(own)),
            (all, _) => all.cloned(),
        };
        let key = (vm.vm_type.clone(), vm.cores);
        let of = |history: &Self| history.subscriptions.get(&vm.subscription).cloned().unwrap_or_default();
        let (all, part) = (of(self), of(own));
        let alike = less(all.alike.get(&key), part.alike.get(&key)).filter(|sums| sums.vms > 0.0);
        let others = all.all.less(&part.all);
        Evidence {
            past: others.past(),
            recent_shares: shares(others.recent),
            alike: alike.as_ref().map(Sums::alike),
            of_type: less(self.types.get(&vm.vm_type), own.types.get(&vm.vm_type))
                .as_ref()
                .map(Sums::of_type),
        }
    }

    pub fn features(
        &self,
        subscription: &str,
        cores: f64,
        memory_gb: f64,
        vm_type: Option<&str>,
    ) -> Features {
        let vm_type = vm_type.map(str::to_owned);
        Features { cores, memory_gb, vm_type, past: self.past(subscription) }
    }

    pub fn len(&self) -> usize {
        self.subscriptions.len()
    }

    pub fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }

    /// What was known of these VMs just before `at_s`, as it counts then.
    pub fn of(vms: &[VmHistory], at_s: i64) -> Self {
        Self::of_some(vms, &vm::deployments(vms), &in_order(vms), at_s)
    }

    /// The same of some of them, in their order of arrival.
    fn of_some(vms: &[VmHistory], deployments: &[u32], places: &[usize], at_s: i64) -> Self {
        let mut stream = Stream::default();
        for place in places.iter().take_while(|place| vms[**place].arrival_s < at_s) {
            stream.arrive(&vms[*place], deployments[*place]);
        }
        stream.until(at_s);
        stream.history.forget(at_s);
        stream.history
    }

    /// Brings all weights to this second, and leaves out who hardly counts any more.
    fn forget(&mut self, at_s: i64) {
        let counts = |sums: &mut Sums| {
            sums.age(at_s);
            sums.vms.max(sums.spans) > FORGOTTEN
        };
        self.types.retain(|_, sums| counts(sums));
        self.subscriptions.retain(|_, known| {
            known.alike.retain(|_, sums| counts(sums));
            counts(&mut known.all)
        });
    }
}

/// A history that grows by one arrival after the other. What it has to remember beside its sums is what still
/// runs.
#[derive(Default)]
struct Stream<'a> {
    history: History,
    arrivals: usize,
    /// What will be known when, of which arrival, and whether it is about its use. What happens in the same
    /// second stays in the order of arrival.
    ahead: BTreeMap<(i64, usize, bool), (&'a VmHistory, u32)>,
    /// How many VMs each deployment has had so far.
    sizes: BTreeMap<u32, u32>,
}

impl<'a> Stream<'a> {
    /// Learns all that became known before this second.
    fn until(&mut self, at_s: i64) {
        while let Some(next) = self.ahead.first_entry().filter(|next| next.key().0 < at_s) {
            let ((at_s, _, of_use), (vm, deployment)) = next.remove_entry();
            let observed = match of_use {
                true => Observed::Use,
                false => Observed::Lived(at_s == vm.arrival_s + LONG_LIVED_S),
            };
            // Sixty VMs that share their fate are not sixty witnesses, and more than one.
            let weight = 1.0 / f64::from(self.sizes[&deployment]).sqrt();
            self.history.learn(at_s, vm, observed, weight);
        }
    }

    /// Takes an arrival; they come in the order of time. What is known of it just then.
    fn arrive(&mut self, vm: &'a VmHistory, deployment: u32) -> Evidence {
        self.until(vm.arrival_s);
        *self.sizes.entry(deployment).or_default() += 1;
        self.ahead.insert((vm.observed_s(), self.arrivals, true), (vm, deployment));
        self.ahead.insert((lived_s(vm), self.arrivals, false), (vm, deployment));
        self.arrivals += 1;
        self.history.viewed(Some(&vm.subscription), Some(&vm.vm_type), vm.cores, |sums| {
            let mut sums = sums.clone();
            sums.age(vm.arrival_s);
            sums
        })
    }
}

/// When it is known whether a VM lived seven days.
fn lived_s(vm: &VmHistory) -> i64 {
    let week = vm.arrival_s + LONG_LIVED_S;
    vm.end_s.filter(|end| *end < week).unwrap_or(week)
}

/// Places of VMs in the order of their arrival.
fn in_order(vms: &[VmHistory]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..vms.len()).collect();
    order.sort_by_key(|place| vms[*place].arrival_s);
    order
}

/// One arrival, with what was known of its subscription just then.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// Its place among the VMs.
    pub vm: usize,
    pub row: FeatureRow,
}

/// All arrivals in the order of time, each with its features. What is known from the very second of an
/// arrival on does not count for it.
pub fn arrivals(vms: &[VmHistory], deployments: &[u32]) -> Vec<Arrival> {
    let mut stream = Stream::default();
    let arrive = |place: usize| {
        let known = stream.arrive(&vms[place], deployments[place]);
        Arrival { vm: place, row: row_of(&known, &vms[place]) }
    };
    in_order(vms).into_iter().map(arrive).collect()
}

/// Those of these VMs that `picked` names, each with what the *other* deployments of its subscription had told
/// by `at_s`: for a history too short to be split by time. `deployments` numbers those of all VMs.
pub fn beside_others(vms: &[VmHistory], deployments: &[u32], picked: &[usize], at_s: i64) -> Vec<Arrival> {
    let all = History::of_some(vms, deployments, &in_order(vms), at_s);
    let mut members: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for place in in_order(vms) {
        members.entry(deployments[place]).or_default().push(place);
    }
    let mut own: BTreeMap<u32, History> = BTreeMap::new();
    let beside = |place: &usize| {
        let deployment = deployments[*place];
        let tell = || History::of_some(vms, deployments, &members[&deployment], at_s);
        let known = own.entry(deployment).or_insert_with(tell);
        Arrival { vm: *place, row: row_of(&all.known_without(known, &vms[*place]), &vms[*place]) }
    };
    picked.iter().map(beside).collect()
}

fn row_of(known: &Evidence, vm: &VmHistory) -> FeatureRow {
    features::row(known, f64::from(vm.cores), vm.memory_gb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::tests::vm;
    use crate::vm::{DAY_S, aged_s};
    use proptest::prelude::*;

    fn near(found: Option<f64>, value: f64) -> bool {
        found.is_some_and(|found| (found - value).abs() < 1e-9)
    }

    fn past_at(vms: &[VmHistory], at_s: i64) -> Option<Past> {
        History::of(vms, at_s).past("s")
    }

    #[test]
    fn a_vm_counts_after_it_ended_and_not_in_that_second() {
        let short = VmHistory { end_s: Some(100), class: Some(VmClass::UserFacing), ..vm() };
        assert_eq!(past_at(std::slice::from_ref(&short), 100), None);
        let past = past_at(&[short], 101).unwrap();
        assert_eq!((past.vms, past.uf_share, past.lived_7d_share), (1, None, Some(0.0)));
        assert_eq!(past.bucket_shares, Some([0.0, 1.0, 0.0, 0.0]));
        assert!(near(past.mean_avg_cpu, 10.0) && near(past.mean_p95_cpu, 30.0), "{past:?}");
    }

    #[test]
    fn a_running_vm_counts_when_it_is_five_weekdays_and_seven_days_old() {
        let running = [VmHistory { class: Some(VmClass::UserFacing), ..vm() }];
        let aged = aged_s(0);
        assert_eq!(past_at(&running, aged.min(7 * DAY_S)), None);
        let past = past_at(&running, aged.max(7 * DAY_S) + 1).unwrap();
        assert_eq!((past.vms, past.uf_share, past.lived_7d_share), (1, Some(1.0), Some(1.0)));
    }

    #[test]
    fn what_was_not_measured_is_no_zero() {
        let dark = VmHistory { end_s: Some(1), avg_cpu: None, p95_cpu: None, ..vm() };
        let lit = VmHistory { end_s: Some(1), ..vm() };
        let past = past_at(std::slice::from_ref(&dark), 9).unwrap();
        assert_eq!((past.vms, past.mean_p95_cpu, past.bucket_shares), (1, None, None));
        let past = past_at(&[dark, lit], 9).unwrap();
        assert!(past.vms == 2 && near(past.mean_avg_cpu, 10.0), "{past:?}");
    }

    fn any_vm() -> impl Strategy<Value = VmHistory> {
        let day = 20 * DAY_S;
        (0..3u8, 0..day, proptest::option::of(0..day), 1..9u32, any::<bool>(), 0.0..100.0f64).prop_map(
            |(s, arrival_s, life, cores, uf, p95)| VmHistory {
                subscription: format!("s{s}"),
                arrival_s,
                end_s: life.map(|life| arrival_s + life),
                cores,
                class: Some(if uf { VmClass::UserFacing } else { VmClass::NonUserFacing }),
                avg_cpu: Some(p95 / 2.0),
                p95_cpu: Some(p95),
                ..vm()
            },
        )
    }

    proptest! {
        /// Whatever happens at an arrival or later may change without changing its features.
        #[test]
        fn no_arrival_knows_what_comes_after_it(
            vms in prop::collection::vec(any_vm(), 1..40),
            other in prop::collection::vec(any_vm(), 40),
            at in 0..40 * DAY_S,
        ) {
            let rows = |vms: &[VmHistory]| -> Vec<(usize, Vec<u32>)> {
                let all = arrivals(vms, &vm::deployments(vms)).into_iter();
                all.filter(|a| vms[a.vm].arrival_s <= at)
                    .map(|a| (a.vm, a.row.map(f32::to_bits).to_vec()))
                    .collect()
            };

            // Another future: VMs that arrive later are others, and VMs that run on at `at` end
            // otherwise and turn out to be something else.
            let mut changed = vms.clone();

            for (vm, other) in changed.iter_mut().zip(other) {
                if vm.arrival_s > at {
                    let later = at + 1 + other.arrival_s;
                    *vm = VmHistory { arrival_s: later, end_s: None, ..other };
                } else if vm.observed_s() >= at {
                    let end = other.end_s.map(|end| at.max(aged_s(vm.arrival_s)) + end);
                    *vm = VmHistory { end_s: end, class: other.class, avg_cpu: other.avg_cpu,
                        p95_cpu: other.p95_cpu, ..vm.clone() };
                }
            }

            prop_assert_eq!(rows(&vms), rows(&changed));
        }

        /// Asking in between gives what telling all at once up to then gives.
        #[test]
        fn a_service_that_learns_by_and_by_knows_the_same(
            vms in prop::collection::vec(any_vm(), 1..40),
        ) {
            for arrival in arrivals(&vms, &vm::deployments(&vms)) {
                let vm = &vms[arrival.vm];
                let history = History::of(&vms, vm.arrival_s);
                let cores = f64::from(vm.cores);
                let known = history.known(Some(&vm.subscription), Some(&vm.vm_type), cores);
                let row = features::row(&known, cores, vm.memory_gb);
                prop_assert_eq!(row.map(f32::to_bits), arrival.row.map(f32::to_bits));
            }
        }
    }

    #[test]
    fn a_history_forgets() {
        let ended = |end_s, p95_cpu| VmHistory {
            arrival_s: end_s - 1,
            end_s: Some(end_s),
            p95_cpu: Some(p95_cpu),
            ..vm()
        };
        let vms = [ended(1, 10.0), ended(HALF_LIFE_S + 1, 90.0)];

        // What is a half-life older counts half.
        let past = past_at(&vms, HALF_LIFE_S + 2).unwrap();
        let shares = past.bucket_shares.unwrap();
        assert!((shares[0] - 1.0 / 3.0).abs() < 1e-6 && (shares[3] - 2.0 / 3.0).abs() < 1e-6, "{shares:?}");
        let history = History::of(&vms, HALF_LIFE_S + 2);
        let recent = history.known(Some("s"), Some("general"), 2.0).alike.unwrap().recent_shares.unwrap();
        assert!(recent[3] > 0.999, "{recent:?}");

        // And is gone at last, subscription, type and all.
        assert_eq!(History::of(&vms, 9 * HALF_LIFE_S), History::default());
    }

    #[test]
    fn what_others_tell_leaves_out_the_own_deployment() {
        let one = |deployment: &str, p95_cpu| VmHistory {
            end_s: Some(100),
            deployment: deployment.into(),
            p95_cpu: Some(p95_cpu),
            ..vm()
        };
        let vms = [one("a", 90.0), one("a", 90.0), one("b", 10.0)];
        let rows = beside_others(&vms, &crate::vm::deployments(&vms), &[0, 2], 101);
        // The share in bucket 1: of the subscription, and of its like; then the mean P95 of the type.
        let told = |row: &FeatureRow| [row[3], row[15], row[27]];
        assert_eq!(told(&rows[0].row), [1.0, 1.0, 10.0]);
        assert_eq!(told(&rows[1].row), [0.0, 0.0, 90.0]);
        // With nobody else there is nothing.
        let alone = beside_others(&vms[..2], &[0, 0], &[0], 101);
        assert!(alone[0].row[..28].iter().all(|value| value.is_nan()), "{alone:?}");
    }
}
