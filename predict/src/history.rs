//! How the VMs of every subscription were, as it was known at any moment.
//!
//! A VM is learnt from once it has ended or is five weekdays old, and only for arrivals after that: what an
//! arrival is predicted from never holds what came later.

use std::collections::BTreeMap;

use ballast_types::VmClass;
use serde::{Deserialize, Serialize};

use crate::features::{self, FeatureRow, Features, Past, Types};
use crate::vm::{Bucket, LONG_LIVED_S, VmHistory};

/// What became known of one VM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observed {
    /// It has ended, or is five weekdays old.
    Use {
        /// What it was; `None` where it ended before five weekdays, or nobody could tell.
        class: Option<VmClass>,
        /// Its mean utilisation, in percent.
        avg_cpu: Option<f64>,
        /// Its P95 utilisation, in percent.
        p95_cpu: Option<f64>,
    },
    /// It has lived seven days (`true`), or ended before (`false`).
    Lived(bool),
}

/// Sums over the known VMs of one subscription.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Sums {
    vms: u64,
    classes: u64,
    user_facing: u64,
    spans: u64,
    long_lived: u64,
    buckets: [u64; 4],
    p95_cpu: f64,
    avgs: u64,
    avg_cpu: f64,
}

impl Sums {
    fn learn(&mut self, observed: Observed) {
        match observed {
            Observed::Use { class, avg_cpu, p95_cpu } => {
                self.vms += 1;
                if let Some(class) = class {
                    self.classes += 1;
                    self.user_facing += u64::from(class == VmClass::UserFacing);
                }

                if let Some(p95) = p95_cpu {
                    self.buckets[Bucket::of(p95).index()] += 1;
                    self.p95_cpu += p95;
                }

                if let Some(avg) = avg_cpu {
                    self.avgs += 1;
                    self.avg_cpu += avg;
                }
            }
            Observed::Lived(long) => {
                self.spans += 1;
                self.long_lived += u64::from(long);
            }
        }
    }

    fn past(&self) -> Past {
        let share = |part: f64, of: u64| (of > 0).then(|| part / of as f64);
        let p95s = self.buckets.iter().sum::<u64>();
        Past {
            vms: self.vms,
            uf_share: share(self.user_facing as f64, self.classes),
            lived_7d_share: share(self.long_lived as f64, self.spans),
            bucket_shares: (p95s > 0).then(|| self.buckets.map(|n| n as f64 / p95s as f64)),
            mean_avg_cpu: share(self.avg_cpu, self.avgs),
            mean_p95_cpu: share(self.p95_cpu, p95s),
        }
    }
}

/// What is known of all subscriptions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History(BTreeMap<String, Sums>);

impl History {
    /// Learns what became known of a VM of this subscription. Must be told in the order of time only where
    /// the history is asked in between.
    pub fn learn(&mut self, subscription: &str, observed: Observed) {
        match self.0.get_mut(subscription) {
            Some(sums) => sums.learn(observed),
            None => self.0.entry(subscription.to_owned()).or_default().learn(observed),
        }
    }

    /// How the subscription's VMs were; `None` where none of them is known yet.
    pub fn past(&self, subscription: &str) -> Option<Past> {
        self.0.get(subscription).map(Sums::past)
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
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What was known of these VMs just before `at_s`.
    pub fn of(vms: &[VmHistory], at_s: i64) -> Self {
        let mut history = Self::default();
        for event in events(vms).iter().take_while(|event| event.at_s < at_s) {
            history.learn(&vms[event.vm].subscription, event.observed);
        }
        history
    }
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
pub fn arrivals(vms: &[VmHistory], types: &Types) -> Vec<Arrival> {
    let mut order: Vec<usize> = (0..vms.len()).collect();
    order.sort_by_key(|place| vms[*place].arrival_s);
    let events = events(vms);
    let mut events = events.iter().peekable();
    let mut history = History::default();
    let arrive = |place: usize| {
        let vm = &vms[place];
        while let Some(event) = events.next_if(|event| event.at_s < vm.arrival_s) {
            history.learn(&vms[event.vm].subscription, event.observed);
        }
        let past = history.past(&vm.subscription);
        let code = types.code(&vm.vm_type);
        let row = features::row(past.as_ref(), f64::from(vm.cores), vm.memory_gb, code);
        Arrival { vm: place, row }
    };
    order.into_iter().map(arrive).collect()
}

/// Something that became known.
struct Event {
    at_s: i64,
    vm: usize,
    observed: Observed,
}

/// All that ever becomes known of these VMs, in the order of time.
fn events(vms: &[VmHistory]) -> Vec<Event> {
    let mut events = Vec::with_capacity(2 * vms.len());
    for (place, vm) in vms.iter().enumerate() {
        let class = vm.class.filter(|_| vm.aged_s().is_some());
        let observed = Observed::Use { class, avg_cpu: vm.avg_cpu, p95_cpu: vm.p95_cpu };
        events.push(Event { at_s: vm.observed_s(), vm: place, observed });
        let week = vm.arrival_s + LONG_LIVED_S;
        let ended = vm.end_s.filter(|end| *end < week);
        let observed = Observed::Lived(ended.is_none());
        events.push(Event { at_s: ended.unwrap_or(week), vm: place, observed });
    }
    // Stable: what happens in the same second stays in the order of the VMs.
    events.sort_by_key(|event| event.at_s);
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::tests::vm;
    use crate::vm::{DAY_S, aged_s};
    use proptest::prelude::*;

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
        assert_eq!((past.mean_avg_cpu, past.mean_p95_cpu), (Some(10.0), Some(30.0)));
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
        assert_eq!((past.vms, past.mean_avg_cpu), (2, Some(10.0)));
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
            let types = Types::default();
            let rows = |vms: &[VmHistory]| -> Vec<(usize, Vec<u32>)> {
                let all = arrivals(vms, &types).into_iter();
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
            let types = Types::among(vms.iter().map(|vm| vm.vm_type.as_str()));
            for arrival in arrivals(&vms, &types) {
                let vm = &vms[arrival.vm];
                let history = History::of(&vms, vm.arrival_s);
                let (cores, name) = (f64::from(vm.cores), Some(vm.vm_type.as_str()));
                let features = history.features(&vm.subscription, cores, vm.memory_gb, name);
                prop_assert_eq!(
                    features.row(&types).map(f32::to_bits), arrival.row.map(f32::to_bits));
            }
        }
    }
}
