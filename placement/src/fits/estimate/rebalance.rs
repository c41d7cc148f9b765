//! The last machine that was opened is mostly empty: VMs move there from the others, which so overflow less often.

use super::{Load, Machine, Promise};

/// The paper's: so many moves may fail.
const FAILURES_MAX: usize = 5;

/// Takes the first VM of each machine in turn, and moves it to the last machine if the promise is kept there with it; ends
/// at the fifth VM that does not fit (an empty machine counts as one). Returns how many moved.
///
/// Source: Janus and Rzadca, SoCC 2017, Section 4.
pub fn round_robin<L: Load>(machines: &mut [Machine<L>], vms: &[L::Usage], promise: &Promise) -> usize {
    let Some((last, others)) = machines.split_last_mut() else { return 0 };
    let (mut moved, mut failures, mut next) = (0, 0, 0);
    while failures < FAILURES_MAX && !others.is_empty() {
        let machine = &mut others[next % others.len()];
        next += 1;

        let first = machine.vms.first().copied().filter(|vm| last.load.fits(&vms[*vm], promise));
        let Some(vm) = first else {
            failures += 1;
            continue;
        };
        machine.load.remove(&vms[vm]);
        machine.vms.remove(0);
        last.put(vm, &vms[vm]);
        moved += 1;
    }
    moved
}

/// Takes from the machine with the highest risk the VM whose move to the last machine lowers the sum of all risks most, as
/// long as there is one and the promise is kept there. Returns how many moved, at most `limit`.
pub fn greedy<L: Load>(
    machines: &mut [Machine<L>],
    vms: &[L::Usage],
    promise: &Promise,
    limit: usize,
) -> usize {
    let Some((last, others)) = machines.split_last_mut() else { return 0 };
    for moved in 0..limit {
        let riskiest = others.iter_mut().max_by(|a, b| a.risk(promise).total_cmp(&b.risk(promise)));
        let Some(machine) = riskiest else { return moved };
        let before = machine.risk(promise) + last.risk(promise);

        let after = |place: usize| {
            let usage = &vms[machine.vms[place]];
            let there = last.load.risk(Some(usage), promise);
            if there > promise.target() {
                return f64::INFINITY;
            }
            let mut left = machine.load.clone();
            left.remove(usage);
            left.risk(None, promise) + there
        };
        let places = (0..machine.vms.len()).map(|place| (after(place), place));
        let Some((after, place)) = places.min_by(|a, b| a.0.total_cmp(&b.0)) else { return moved };
        if after >= before {
            return moved;
        }

        let vm = machine.vms.remove(place);
        machine.load.remove(&vms[vm]);
        last.put(vm, &vms[vm]);
    }
    limit
}
