//! CPU lists in the kernel's text form: `0-3,8`.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeSet;

/// More CPUs than Linux supports; a higher number is garbage, not a machine.
const MAX_CPU: u32 = 8191;

/// A set of CPU numbers.
///
/// Source: Documentation/admin-guide/kernel-parameters.rst, "cpu lists".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(BTreeSet<u32>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a CPU list: numbers and rising ranges up to {MAX_CPU}, such as 0-3,8")]
pub struct CpuListError {
    text: String,
}

impl CpuList {
    /// The CPU numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }
    pub fn len(&self) -> usize {
        self.0.len()
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl CpuList {
    /// As a bit mask, CPU `n` in bit `n % 8` of byte `n / 8`: systemd's `AllowedCPUs`.
    pub fn to_mask(&self) -> Vec<u8> {
        let bytes = self.0.last().map_or(0, |last| *last as usize / 8 + 1);
        let mut mask = vec![0; bytes];
        for cpu in &self.0 {
            mask[*cpu as usize / 8] |= 1 << (cpu % 8);
        }
        mask
    }

    /// What such a mask says; `None` if it has CPUs beyond what Linux supports.
    pub fn from_mask(mask: &[u8]) -> Option<Self> {
        let bit = |(byte, bits): (usize, &u8)| {
            let bits = *bits;
            (0..8u32).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| byte as u32 * 8 + bit)
        };
        let cpus: BTreeSet<_> = mask.iter().enumerate().flat_map(bit).collect();
        cpus.last().is_none_or(|last| *last <= MAX_CPU).then_some(Self(cpus))
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl Extend<u32> for CpuList {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        self.0.extend(cpus);
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;
    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let bad = || CpuListError { text: text.chars().take(80).collect() };
        let cpu = |s: &str| {
            let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
            s.parse::<u32>().ok().filter(|n| digits && *n <= MAX_CPU).ok_or_else(bad)
        };

        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::default());
        }

        // Thousands of parts may each name every CPU: to mark one twice costs next to nothing.
        let mut marked = vec![];
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (cpu(first)? as usize, cpu(last)? as usize);
            if first > last {
                return Err(bad());
            }
            marked.resize(marked.len().max(last + 1), false);
            marked[first..=last].fill(true);
        }

        Ok((0..).zip(marked).filter_map(|(cpu, is)| is.then_some(cpu)).collect())
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for (text, shown) in
            [("", ""), ("0\n", "0"), ("1-4,7", "1-4,7"), ("7,1-2,3,4", "1-4,7"), ("5-5", "5")]
        {
            assert_eq!(text.parse::<CpuList>().unwrap().to_string(), shown, "{text:?}");
        }
    }

    #[test]
    fn garbage_is_refused() {
        for bad in ["a", "1-", "-1", "3-1", "1,,2", "1;2", "0-4294967295", "99999", "+1", "1 2", "1-2-3", ","]
        {
            assert!(bad.parse::<CpuList>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_list_that_names_every_cpu_again_and_again_is_read_at_once() {
        let list = vec!["0-8191"; 9_000].join(",");
        let start = std::time::Instant::now();
        assert_eq!(list.parse::<CpuList>().unwrap().len(), 8192);
        // By sets it takes ten seconds and more.
        let took = start.elapsed();
        assert!(took.as_millis() < 4_000, "{took:?}");
    }

    #[test]
    fn a_mask_has_the_lowest_cpu_in_the_lowest_bit() {
        for (list, mask) in [("", &[][..]), ("0", &[1]), ("1,9", &[2, 2]), ("0-8", &[255, 1])] {
            let list: CpuList = list.parse().unwrap();
            assert_eq!(list.to_mask(), mask);
            assert_eq!(CpuList::from_mask(mask), Some(list));
        }
        assert_eq!(CpuList::from_mask(&[1, 0, 0]).unwrap().to_string(), "0");
        assert_eq!(CpuList::from_mask(&[1; 1025]), None);
    }

    proptest! {
        #[test]
        fn a_list_survives_its_mask(cpus in proptest::collection::btree_set(0u32..=MAX_CPU, 0..200)) {
            let list: CpuList = cpus.into_iter().collect();
            prop_assert_eq!(CpuList::from_mask(&list.to_mask()), Some(list));
        }

        #[test]
        fn a_list_survives_its_text(cpus in proptest::collection::btree_set(0u32..=MAX_CPU, 0..200)) {
            let list: CpuList = cpus.into_iter().collect();
            prop_assert_eq!(list.to_string().parse::<CpuList>().unwrap(), list);
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}|[0-9,-]{0,40}") {
            if let Ok(list) = text.parse::<CpuList>() {
                prop_assert_eq!(list.to_string().parse::<CpuList>().unwrap(), list);
            }
        }
    }
}
