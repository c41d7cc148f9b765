//! Harrell's C: of two VMs, is the one that is said to live longer the one that does?
//!
//! F. Harrell et al., *Evaluating the yield of medical tests*, JAMA 247, 1982.

/// The share of comparable pairs that are told in the right order; equal predictions count half, and NaN means that
/// there is no pair. A pair is comparable if the shorter lifetime has ended. Each VM is (said, lifetime, ended).
pub fn concordance(vms: &[(f32, f32, bool)]) -> f64 {
    let mut said: Vec<f32> = vms.iter().map(|vm| vm.0).collect();
    said.sort_unstable_by(f32::total_cmp);
    said.dedup_by(|a, b| a.total_cmp(b).is_eq());
    let rank = |said_s: f32| said.partition_point(|other| other.total_cmp(&said_s).is_lt());

    let mut order: Vec<&(f32, f32, bool)> = vms.iter().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut longer = Fenwick(vec![0; said.len() + 1]);
    let (mut right, mut pairs) = (0.0, 0.0);

    // From the longest: those that are counted already live longer than each of these. Of equal times, one that
    // was last seen then lives longer than one that ended then.
    for same in order.chunk_by(|a, b| a.1 == b.1) {
        same.iter().filter(|vm| !vm.2).for_each(|vm| longer.add(rank(vm.0)));
        for vm in same.iter().filter(|vm| vm.2) {
            let (all, at) = (longer.below(said.len()), rank(vm.0));
            let (less, not_more) = (longer.below(at), longer.below(at + 1));
            right += (all - not_more) as f64 + 0.5 * (not_more - less) as f64;
            pairs += all as f64;
        }
        same.iter().filter(|vm| vm.2).for_each(|vm| longer.add(rank(vm.0)));
    }

    right / pairs
}

/// Counts below a rank, in logarithmic time.
struct Fenwick(Vec<u64>);

impl Fenwick {
    fn add(&mut self, rank: usize) {
        let mut at = rank + 1;
        while at < self.0.len() {
            self.0[at] += 1;
            at += at & at.wrapping_neg();
        }
    }

    fn below(&self, rank: usize) -> u64 {
        let (mut sum, mut at) = (0, rank);
        while at > 0 {
            sum += self.0[at];
            at &= at - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_orders() {
        let right = [(1.0, 1.0, true), (2.0, 2.0, true), (3.0, 3.0, false)];
        assert_eq!(concordance(&right), 1.0);
        assert_eq!(concordance(&right.map(|(said, time, ended)| (-said, time, ended))), 0.0);
        assert_eq!(concordance(&right.map(|(_, time, ended)| (7.0, time, ended))), 0.5);
        // Comparable are 1–2, 1–3 and 1–4, not 2–3 nor 2–4, because nobody saw the second end; and 3–4. Of these 1–2
        // is wrong.
        let partly = [(2.0, 1.0, true), (1.0, 2.0, false), (3.0, 3.0, true), (4.0, 4.0, true)];
        assert_eq!(concordance(&partly), 0.75);
        assert!(concordance(&[(1.0, 1.0, false), (2.0, 2.0, false)]).is_nan());
    }

    proptest! {
        #[test]
        fn it_is_the_count_over_all_pairs(
            vms in proptest::collection::vec((0_u8..9, 0_u8..9, any::<bool>()), 0..40),
        ) {
            let one = |(said, time, ended): &(u8, u8, bool)| ((*said).into(), (*time).into(), *ended);
            let vms: Vec<(f32, f32, bool)> = vms.iter().map(one).collect();
            let (mut right, mut pairs) = (0.0, 0.0);
            for short in vms.iter().filter(|vm| vm.2) {
                for long in vms.iter().filter(|vm| vm.1 > short.1 || (vm.1 == short.1 && !vm.2)) {
                    pairs += 1.0;
                    right += if long.0 == short.0 { 0.5 } else { f64::from(u8::from(long.0 > short.0)) };
                }
            }
            let found = concordance(&vms);
            prop_assert!(found == right / pairs || (found.is_nan() && pairs == 0.0));
        }
    }
}
