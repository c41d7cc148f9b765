//! The week of CPU use from which a synthetic VM's label could have been told.

use crate::rng::Stream;
use crate::vm::VmHistory;
use crate::week::{DAY, HALF_HOURS, Week};
use ballast_types::VmClass;

/// The busiest half-hour of who works for people: 14:00.
const PEAK: f64 = 28.0;
/// 95 % of a normal distribution lie below so many standard deviations.
const P95: f64 = 1.645;

/// Half-hour averages of five weekdays, about its mean and P95: a day that repeats where the VM is labelled
/// user-facing, noise without a pattern where it is not. `None` where it has no label, or no use.
pub fn week(vm: &VmHistory, seed: u64) -> Option<Week> {
    let (class, avg, p95) = (vm.class?, vm.avg_cpu?, vm.p95_cpu?);
    let above = (p95 - avg).max(0.5);
    // No two VMs have one P95; subscriptions' streams have small numbers.
    let mut random = Stream::new(seed, p95.to_bits());
    let mut values = [0.0; HALF_HOURS];
    for (slot, value) in values.iter_mut().enumerate() {
        let noise = random.normal();
        let turn = 2.0 * core::f64::consts::PI * ((slot % DAY) as f64 - PEAK) / DAY as f64;
        let moved = match class {
            VmClass::UserFacing => above * (libm::cos(turn) + 0.15 * noise),
            VmClass::NonUserFacing => above / P95 * noise,
        };
        *value = (avg + moved).clamp(0.0, 100.0);
    }
    Some(Week::new(values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Options, make};
    use crate::label::{Pattern, PatternOptions};

    #[test]
    fn the_labeller_finds_the_label_again() {
        let vms = make(&Options { vms: 10_000, ..Options::default() }).vms;
        let pattern = Pattern::new(PatternOptions::default());
        let (mut right, mut all, mut missed) = (0, 0, 0);
        for vm in &vms {
            let Some(week) = week(vm, 1) else { continue };
            let says = pattern.label(&week).user_facing;
            let is = vm.class == Some(VmClass::UserFacing);
            all += 1;
            right += u32::from(says == is);
            missed += u32::from(is && !says);
        }
        assert!(all > 500, "{all}");
        // Noise looks like a day in 6 % of all cases (papers-spec A1): batch is called user-facing then.
        assert!(f64::from(right) > 0.93 * f64::from(all), "{right} of {all}");
        assert_eq!(missed, 0);
    }
}
