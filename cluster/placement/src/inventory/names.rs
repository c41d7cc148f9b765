//! Names and the numbers that stand for them.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::InventoryError;

/// No name is longer; Kubernetes' longest are a namespace of 63 bytes and a pod of 253.
const NAME_MAX: usize = 320;

/// Whether `text` can be the name of a `what`.
///
/// # Errors
/// Where it is empty, too long, or would not print in one line.
pub(super) fn check(what: &'static str, text: &str) -> Result<(), InventoryError> {
    let good = (1..=NAME_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    if good { Ok(()) } else { Err(InventoryError::Name { what, name: shown(text) }) }
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Names that are in use, each with its number and how often. A number is never given twice, unless these names are of
/// few things, which take each other's places.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    numbers: BTreeMap<Arc<str>, u64>,
    names: BTreeMap<u64, (Arc<str>, u32)>,
    /// Numbers to be given anew.
    vacant: Option<BTreeSet<u64>>,
    next: u64,
}

impl Names {
    /// Names whose numbers are given anew, so that they stay as small as there are names.
    pub(super) fn dense() -> Self {
        Self { vacant: Some(BTreeSet::new()), ..Self::default() }
    }

    /// The number that [`Names::take`] would give.
    pub(super) fn peek(&self, name: &str) -> u64 {
        self.number(name).unwrap_or_else(|| self.fresh())
    }

    /// A number that no name has.
    pub(super) fn fresh(&self) -> u64 {
        self.vacant.iter().flatten().next().copied().unwrap_or(self.next)
    }

    /// The numbers from here on are given anew: no name has one of them, and nobody has seen them.
    pub(super) fn reset(&mut self, next: u64) {
        self.next = next;
    }

    /// The name's number, for one more use of it.
    pub(super) fn take(&mut self, name: &str) -> u64 {
        if let Some(number) = self.numbers.get(name).copied() {
            if let Some((_, uses)) = self.names.get_mut(&number) {
                *uses += 1;
            }
            return number;
        }
        let (name, number) = (Arc::<str>::from(name), self.fresh());
        if number == self.next {
            self.next += 1;
        } else if let Some(vacant) = &mut self.vacant {
            vacant.remove(&number);
        }
        self.numbers.insert(Arc::clone(&name), number);
        self.names.insert(number, (name, 1));
        number
    }

    /// One use less.
    pub(super) fn give_back(&mut self, number: u64) {
        let Some((name, uses)) = self.names.get_mut(&number) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.numbers.remove(name);
            self.names.remove(&number);
            self.vacant.iter_mut().for_each(|vacant| {
                vacant.insert(number);
            });
        }
    }

    /// How often the name of a number is in use.
    pub(super) fn uses(&self, number: u64) -> u32 {
        self.names.get(&number).map_or(0, |(_, uses)| *uses)
    }

    /// The name behind a number that is in use.
    pub(super) fn name(&self, number: u64) -> &str {
        self.names.get(&number).map_or("", |(name, _)| name)
    }

    /// The number of a name that is in use.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.numbers.get(name).copied()
    }

    /// Those in use after this name, in the order of names; all without one.
    pub(super) fn after(&self, name: Option<&str>) -> impl Iterator<Item = (&str, u64)> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.numbers.range::<str, _>((from, Bound::Unbounded));
        names.map(|(name, number)| (&**name, *number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stays_while_its_name_is_used_and_is_never_given_again() {
        let mut names = Names::default();
        let a = names.take("a");
        assert_eq!((names.take("a"), names.peek("a")), (a, a));
        let b = names.peek("b");
        assert_eq!(names.take("b"), b);
        names.give_back(a);
        assert_eq!((names.name(a), names.after(None).count()), ("a", 2));
        names.give_back(a);
        assert_eq!((names.number("a"), names.after(None).count()), (None, 1));
        let again = names.take("a");
        assert!(again != a && again != b);
    }

    #[test]
    fn numbers_of_few_things_are_given_anew() {
        let mut names = Names::dense();
        assert_eq!(["a", "b", "c"].map(|name| names.take(name)), [0, 1, 2]);
        names.give_back(1);
        names.give_back(0);
        assert_eq!((names.peek("d"), names.take("d"), names.take("b"), names.take("e")), (0, 0, 1, 3));
    }

    #[test]
    fn names_that_do_not_print_are_refused() {
        for bad in ["", "a\nb", "\u{7f}", &"x".repeat(321)] {
            assert!(check("host", bad).is_err(), "{bad:?}");
        }
        for good in ["a", "kube-system/dns-1", "ü b", &"x".repeat(320)] {
            assert!(check("VM", good).is_ok(), "{good:?}");
        }
    }
}
