//! VMs by the time at which they leave.

use std::collections::BTreeMap;

use ballast_placement::VmKey;

/// VMs that leave within one period are kept together. It is shorter than the shortest life of a recorded VM, so that nearly
/// all come to periods that are not yet sorted.
const PERIOD_MS: u64 = 1 << 18;

/// A calendar: a VM costs 16 bytes and the slack of a list, and coming and leaving take constant time, whatever waits. A
/// heap would need a third word for the order of equal times, and the logarithm of what waits for each VM.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    /// VMs of the periods that have begun, the next one last.
    due: Vec<(u64, VmKey)>,
    /// The first period after these.
    next: u64,
    /// VMs of later periods, in the order in which they came.
    periods: BTreeMap<u64, Period>,
}

#[derive(Debug)]
struct Period {
    earliest_ms: u64,
    vms: Vec<(u64, VmKey)>,
}

impl Leaving {
    pub(super) fn push(&mut self, at_ms: u64, vm: VmKey) {
        let number = at_ms / PERIOD_MS;
        if number < self.next {
            let index = self.due.partition_point(|(due_ms, _)| *due_ms > at_ms);
            self.due.insert(index, (at_ms, vm));
            return;
        }
        let period = self.periods.entry(number).or_insert(Period { earliest_ms: at_ms, vms: Vec::new() });
        period.earliest_ms = period.earliest_ms.min(at_ms);
        period.vms.push((at_ms, vm));
    }

    pub(super) fn next_ms(&self) -> Option<u64> {
        let later = || self.periods.first_key_value().map(|(_, period)| period.earliest_ms);
        self.due.last().map(|(at_ms, _)| *at_ms).or_else(later)
    }

    /// Takes one out whose time has come. Of those that leave at the same time the first that came goes first.
    pub(super) fn pop(&mut self, now_ms: u64) -> Option<VmKey> {
        self.next_ms().filter(|at_ms| *at_ms <= now_ms)?;
        if self.due.is_empty()
            && let Some((number, Period { mut vms, .. })) = self.periods.pop_first()
        {
            vms.reverse();
            // This sort keeps equal times as they stand.
            vms.sort_by_key(|(at_ms, _)| core::cmp::Reverse(*at_ms));
            (self.due, self.next) = (vms, number + 1);
        }
        self.due.pop().map(|(_, vm)| vm)
    }
}

#[cfg(test)]
impl Leaving {
    pub(super) fn len(&self) -> usize {
        self.due.len() + self.periods.values().map(|period| period.vms.len()).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a list that is searched for the earliest, and among equals for the first.
        #[test]
        fn vms_leave_by_time_and_at_equal_times_as_they_came(
            steps in prop::collection::vec((0..3 * PERIOD_MS, 0..4u64, 1..6usize), 1..60),
        ) {
            let (mut leaving, mut list) = (Leaving::default(), Vec::new());
            let (mut now_ms, mut key) = (0, 0);
            for (pass_ms, far, count) in steps {
                now_ms += pass_ms;
                prop_assert_eq!(leaving.next_ms(), list.iter().map(|(at_ms, _)| *at_ms).min());
                while let Some(vm) = leaving.pop(now_ms) {
                    let first = (0..list.len()).min_by_key(|n| list[*n].0).unwrap();
                    let (at_ms, expected) = list.remove(first);
                    prop_assert!(at_ms <= now_ms);
                    prop_assert_eq!(vm, expected);
                }
                prop_assert!(list.iter().all(|(at_ms, _)| *at_ms > now_ms));

                for n in 0..count as u64 {
                    key += 1;
                    let at_ms = now_ms + 1 + (n % 2) * far * PERIOD_MS / 3;
                    leaving.push(at_ms, VmKey(key));
                    list.push((at_ms, VmKey(key)));
                }
            }
        }
    }
}
