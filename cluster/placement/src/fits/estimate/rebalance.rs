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

/// Takes from the machine with the highest risk the VM whose move to the last machine lowers the sum of all risks most, for the
/// room that the VM takes there (`room`, by VM: its mean), as long as there is one and the promise is kept. Returns how many
/// moved, at most `limit`.
///
/// Without the room large VMs would go first: each mends one machine and fills the last one.
pub fn greedy<L: Load>(
    machines: &mut [Machine<L>],
    vms: &[L::Usage],
    room: impl Fn(usize) -> f64,
    promise: &Promise,
    limit: usize,
) -> usize {
    let Some((last, others)) = machines.split_last_mut() else { return 0 };
    for moved in 0..limit {
        let riskiest = others.iter_mut().max_by(|a, b| a.risk(promise).total_cmp(&b.risk(promise)));
        let Some(machine) = riskiest else { return moved };
        let before = machine.risk(promise) + last.risk(promise);

        let gain = |place: usize| {
            let vm = machine.vms[place];
            let there = last.load.risk(Some(&vms[vm]), promise);
            if there > promise.target() {
                return 0.0;
            }
            let mut left = machine.load.clone();
            left.remove(&vms[vm]);
            (before - left.risk(None, promise) - there) / room(vm).max(f64::MIN_POSITIVE)
        };
        let places = (0..machine.vms.len()).map(|place| (gain(place), place));
        let Some((gain, place)) = places.max_by(|a, b| a.0.total_cmp(&b.0)) else { return moved };
        if gain <= 0.0 {
            return moved;
        }

        let vm = machine.vms.remove(place);
        machine.load.remove(&vms[vm]);
        last.put(vm, &vms[vm]);
    }
    limit
}
