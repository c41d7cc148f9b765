//! The best host under two rules without looking at all hosts: both walk theirs in order, a step at a time.
//!
//! Source: the threshold algorithm (Fagin, Lotem and Naor, PODS 2001), with ranks in place of grades.
//!
//! A rank is known when the walk comes to it. So a host that one rule has named waits until the other comes to its score;
//! its rank is then 1 more than the hosts that were named before that score. A host that nobody has named yet ranks no
//! better than the next of each walk. When neither such a host nor one that waits can be as good as the best, that one
//! is it. Where the rules are not of one mind, both walks together see about as many hosts as the root of all.

use std::collections::BinaryHeap;

use crate::rule::Walk;
use crate::ties::TieKey;
use crate::{Cluster, HostId, Ties};

/// The walk of one rule.
struct Side<'a> {
    weight: u64,
    walk: Walk<'a>,
    /// The next one that fits, and its rank.
    next: Option<(i64, TieKey)>,
    rank: u64,
    /// How many were named.
    named: u64,
    /// Whom this one named first, in order: what its rank comes to, and whether the other has come to it.
    first: Vec<(u64, bool)>,
    /// The first of these that the other has not come to.
    waits: usize,
    /// Whom the other named first, by this one's score of them: the number in the other's list.
    wanted: BinaryHeap<(i64, TieKey, usize)>,
}

impl<'a> Side<'a> {
    fn new((weight, walk): (u32, Walk<'a>)) -> Self {
        Self {
            weight: u64::from(weight),
            walk,
            next: None,
            rank: 1,
            named: 0,
            first: Vec::new(),
            waits: 0,
            wanted: BinaryHeap::new(),
        }
    }

    /// Goes on to the next host that fits.
    fn step(&mut self, tie: &dyn Fn(HostId) -> TieKey, admits: &mut dyn FnMut(HostId) -> bool) {
        let before = self.next.map(|(score, _)| score);
        self.named += u64::from(before.is_some());
        self.next = self.walk.find(|(_, host)| admits(*host)).map(|(score, host)| (score, tie(host)));
        if self.next.map(|(score, _)| score) != before {
            self.rank = self.named + 1;
        }
    }

    /// One of whom the other named first, and whose score this one has come to.
    fn pop_wanted(&mut self, score: i64) -> Option<(i64, TieKey, usize)> {
        self.wanted.peek().filter(|(wanted, ..)| *wanted >= score)?;
        self.wanted.pop()
    }

    /// What the next one's rank comes to.
    fn value(&self) -> u64 {
        self.weight * self.rank
    }

    /// Whether this one has named a host of this score already.
    fn has_named(&self, score: i64, tie: TieKey) -> bool {
        self.next.is_none_or(|(next, first)| score > next || score == next && tie < first)
    }

    /// The least that whoever waits for `other` can come to; `None` where nobody waits.
    fn least(&mut self, other: &Self) -> Option<u64> {
        while self.first.get(self.waits).is_some_and(|(_, met)| *met) {
            self.waits += 1;
        }
        // The other's next one is better than whoever it has not come to.
        self.first.get(self.waits).map(|(value, _)| value + other.weight * (other.rank + 1))
    }
}

/// The host with the least sum of weight × rank among those that are admitted, the first by its tie. Each rule comes with
/// its weight, its walk, and its score of any host.
pub(crate) fn best(
    cluster: &Cluster,
    ties: Ties,
    rules: [(u32, Walk<'_>); 2],
    score: [&dyn Fn(HostId) -> i64; 2],
    admits: &mut dyn FnMut(HostId) -> bool,
) -> Option<HostId> {
    let key = |host| ties.key(cluster, host);
    let mut sides = rules.map(Side::new);
    sides.iter_mut().for_each(|side| side.step(&key, admits));
    let mut best: Option<(u64, TieKey)> = None;

    loop {
        meet(&mut sides, &mut best);
        if let Some((value, tie)) = best
            && is_settled(&mut sides, value, tie)
        {
            break;
        }
        let of = |side: &Side<'_>| if side.next.is_some() { side.value() } else { u64::MAX };
        let this = usize::from(of(&sides[1]) < of(&sides[0]));
        let Some((_, tie)) = sides[this].next else { break };

        // Whom the other has named already waits for this one, and is met when its score comes. Who can no longer be as good
        // as the best waits for nobody.
        let value = sides[this].value();
        let other = 1 - this;
        let wanted = (score[other])(tie.host());
        let least = value + sides[other].weight * (sides[other].rank + 1);
        let may_win = best.is_none_or(|(known, _)| least <= known);
        if may_win && !sides[other].has_named(wanted, tie) {
            let number = sides[this].first.len();
            sides[this].first.push((value, false));
            sides[other].wanted.push((wanted, tie, number));
        }
        sides[this].step(&key, admits);
    }

    best.map(|(_, tie)| tie.host())
}

/// Those whose score a walk has come to have both ranks.
fn meet(sides: &mut [Side<'_>; 2], best: &mut Option<(u64, TieKey)>) {
    for this in 0..2 {
        let Some((score, _)) = sides[this].next else { continue };
        let value = sides[this].value();
        while let Some((_, tie, number)) = sides[this].pop_wanted(score) {
            let (known, met) = &mut sides[1 - this].first[number];
            *met = true;
            let found = (*known + value, tie);
            if best.is_none_or(|best| found < best) {
                *best = Some(found);
            }
        }
    }
}

/// Whether nobody else can be as good: neither who waits, nor who has not been named.
fn is_settled([one, other]: &mut [Side<'_>; 2], value: u64, tie: TieKey) -> bool {
    let unnamed_is_worse = match (one.next, other.next) {
        (Some((_, a)), Some((_, b))) => {
            let least = one.value() + other.value();
            least > value || least == value && tie < a.max(b)
        }
        // Whoever has named all has named everybody.
        _ => true,
    };
    unnamed_is_worse
        && one.least(other).is_none_or(|least| least > value)
        && other.least(one).is_none_or(|least| least > value)
}
