//! Tiers of rules, and what their scores come to.

use std::collections::BTreeMap;

use ballast_types::Instant;

use crate::rule::{Ask, Event, Rule, Search};
use crate::{Cluster, HostId, Ties, walk};

/// Rules that are weighed against each other.
///
/// A rule's rank of a host is 1 more than the number of candidates that it likes better; equal scores share the
/// best rank. The tier prefers the least sum of weight × rank, which is the paper's greatest sum of
/// weight × (candidates − rank).
#[derive(Debug)]
pub struct Tier {
    rules: Vec<(u32, Box<dyn Rule>)>,
}

impl Tier {
    /// One rule alone: its scores decide.
    pub fn one(rule: impl Rule + 'static) -> Self {
        Self::weighted(vec![(1, Box::new(rule))])
    }

    /// Several rules, each with its weight.
    pub fn weighted(rules: Vec<(u32, Box<dyn Rule>)>) -> Self {
        Self { rules }
    }

    /// The rules with their weights.
    pub fn rules(&self) -> impl Iterator<Item = (u32, &dyn Rule)> {
        self.rules.iter().map(|(weight, rule)| (*weight, &**rule))
    }

    /// The rules that have something to say of this VM.
    fn speaking(&self, ask: &Ask<'_>) -> impl Iterator<Item = (u32, &dyn Rule)> {
        self.rules().filter(|(_, rule)| !rule.is_silent(ask))
    }

    /// The sum of weight × rank of every host: lower is better.
    fn values(&self, ask: &Ask<'_>, hosts: &[HostId]) -> Vec<u64> {
        let mut sums = vec![0; hosts.len()];
        let mut scores = Vec::with_capacity(hosts.len());
        for (weight, rule) in self.speaking(ask) {
            scores.clear();
            rule.scores(ask, hosts, &mut scores);
            add_ranks(&scores, u64::from(weight), &mut sums);
        }
        sums
    }
}

fn add_ranks(scores: &[i64], weight: u64, sums: &mut [u64]) {
    let (Some(best), Some(worst)) = (scores.iter().max(), scores.iter().min()) else { return };
    let span = best.abs_diff(*worst);
    // Scores and places fit one word nearly always, and words sort twice as fast as pairs.
    if span < 1 << 48 && scores.len() <= 1 << 16 {
        let word = |(place, score): (usize, &i64)| best.abs_diff(*score) << 16 | place as u64;
        let mut words: Vec<u64> = scores.iter().enumerate().map(word).collect();
        words.sort_unstable();
        add_sorted(words.iter().map(|word| (word >> 16, (word & 0xFFFF) as usize)), weight, sums);
    } else {
        let pair = |(place, score): (usize, &i64)| (best.abs_diff(*score), place);
        let mut pairs: Vec<(u64, usize)> = scores.iter().enumerate().map(pair).collect();
        pairs.sort_unstable();
        add_sorted(pairs.into_iter(), weight, sums);
    }
}

fn add_sorted(sorted: impl Iterator<Item = (u64, usize)>, weight: u64, sums: &mut [u64]) {
    let (mut rank, mut last) = (1, 0);
    for (nth, (behind, place)) in (1..).zip(sorted) {
        if behind != last {
            (rank, last) = (nth, behind);
        }
        sums[place] += weight * rank;
    }
}

/// Tiers, compared one after the other: a later one decides only among hosts that tie on all before it,
/// and ranks these alone. What ties on all goes by [`Ties`].
#[derive(Debug)]
pub struct Ranking {
    tiers: Vec<Tier>,
    ties: Ties,
}

impl Ranking {
    /// The first tier decides first. Without any the ties decide: first fit.
    pub fn new(tiers: Vec<Tier>, ties: Ties) -> Self {
        Self { tiers, ties }
    }

    /// The tiers in their order.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// The best host without scoring all, where the rules keep their hosts in order: one rule or two of the last tier that
    /// speaks, and one of each tier before it, whose best class bounds all that follow.
    pub(crate) fn search(&self, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Search {
        search(&self.tiers, self.ties, ask, admits)
    }

    /// The best of these hosts.
    pub(crate) fn best(&self, ask: &Ask<'_>, mut hosts: Vec<HostId>) -> Option<HostId> {
        for tier in &self.tiers {
            if hosts.len() < 2 {
                break;
            }
            let values = tier.values(ask, &hosts);
            let least = values.iter().min().copied();
            let mut values = values.into_iter();
            hosts.retain(|_| values.next() == least);
        }
        hosts.into_iter().min_by_key(|host| self.ties.key(ask.cluster, *host))
    }

    /// Brings the best `top` of these hosts to the front, in order; the rest has none.
    pub(crate) fn order(&self, ask: &Ask<'_>, hosts: &mut [HostId], top: usize) {
        order(&self.tiers, self.ties, ask, hosts, top);
    }

    /// Where each of these hosts stands among them; those that no tier tells apart stand alike.
    pub(crate) fn standings(&self, ask: &Ask<'_>, hosts: &[HostId]) -> Vec<usize> {
        let mut standing = vec![0; hosts.len()];
        for tier in &self.tiers {
            // What an earlier tier tells apart, the next ranks apart.
            let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for (place, stands) in standing.iter().enumerate() {
                groups.entry(*stands).or_default().push(place);
            }
            let mut next = 0;

            for places in groups.into_values() {
                let these: Vec<HostId> = places.iter().map(|place| hosts[*place]).collect();
                let mut keyed: Vec<_> = tier.values(ask, &these).into_iter().zip(places).collect();
                keyed.sort_unstable();

                for alike in keyed.chunk_by(|a, b| a.0 == b.0) {
                    alike.iter().for_each(|(_, place)| standing[*place] = next);
                    next += 1;
                }
            }
        }

        standing
    }

    pub(crate) fn handle_event(&mut self, now: Instant, cluster: &Cluster, event: &Event<'_>) {
        for (_, rule) in self.tiers.iter_mut().flat_map(|tier| &mut tier.rules) {
            rule.handle_event(now, cluster, event);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let rules = self.tiers.iter().flat_map(Tier::rules);
        rules.filter_map(|(_, rule)| rule.poll_timeout()).min()
    }
}

/// Of an earlier tier only the best class counts that a host has which is admitted. The search of the last tier then sees hosts of these classes alone, so it ends at the first that it would take.
fn search(tiers: &[Tier], ties: Ties, ask: &Ask<'_>, admits: &mut dyn FnMut(HostId) -> bool) -> Search {
    let speaks = |tier: &Tier| tier.speaking(ask).next().is_some();
    let Some(first) = tiers.iter().position(speaks) else { return Search::Unordered };
    let later = &tiers[first + 1..];
    let is_last = !later.iter().any(speaks);

    let mut speaking = tiers[first].speaking(ask);
    match [speaking.next(), speaking.next(), speaking.next()] {
        [Some((_, rule)), None, None] if is_last => rule.search(ask, admits),
        [Some((_, rule)), None, None] => {
            let Some(best) = rule.best_class(ask, admits) else { return Search::Unordered };
            let Some(best) = best else { return Search::Best(None) };
            search(later, ties, ask, &mut |host| rule.score(ask, host) == best && admits(host))
        }
        [Some((w, one)), Some((v, other)), None] if is_last => {
            let (Some(a), Some(b)) = (one.walk(ask), other.walk(ask)) else { return Search::Unordered };
            let scores: [&dyn Fn(HostId) -> i64; 2] =
                [&|host| one.score(ask, host), &|host| other.score(ask, host)];
            Search::Best(walk::best(ask.cluster, ties, [(w, a), (v, b)], scores, admits))
        }
        _ => Search::Unordered,
    }
}

fn order(tiers: &[Tier], ties: Ties, ask: &Ask<'_>, hosts: &mut [HostId], top: usize) {
    let Some((tier, later)) = tiers.split_first() else {
        hosts.sort_unstable_by_key(|host| ties.key(ask.cluster, *host));
        return;
    };

    if hosts.len() < 2 || top == 0 {
        return;
    }
    let mut keyed: Vec<_> = tier.values(ask, hosts).into_iter().zip(hosts.iter().copied()).collect();
    // Only the best `top` are sorted, and what ties with the last of them.
    let mut end = keyed.len();

    if top < end {
        let worst = keyed.select_nth_unstable(top - 1).1.0;
        end = top;
        for n in top..keyed.len() {
            if keyed[n].0 == worst {
                keyed.swap(n, end);
                end += 1;
            }
        }
    }

    let (best, rest) = keyed.split_at_mut(end);
    best.sort_unstable_by_key(|(value, _)| *value);
    let mut done = 0;

    for group in best.chunk_by(|a, b| a.0 == b.0) {
        let alike = &mut hosts[done..done + group.len()];
        alike.iter_mut().zip(group).for_each(|(host, (_, tied))| *host = *tied);
        order(later, ties, ask, alike, top.saturating_sub(done));
        done += group.len();
    }

    hosts[done..].iter_mut().zip(rest).for_each(|(host, (_, other))| *host = *other);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChassisId, Host, Resources, VmKey, VmRequest};

    fn ranks(scores: &[i64]) -> Vec<u64> {
        let mut sums = vec![0; scores.len()];
        add_ranks(scores, 1, &mut sums);
        sums
    }

    #[test]
    fn ties_share_the_best_rank() {
        assert_eq!(ranks(&[5, 9, 5, 1, 9, 0]), [3, 1, 3, 5, 1, 6]);
        assert_eq!(ranks(&[7]), [1]);
        assert_eq!(ranks(&[]), [0; 0]);
    }

    #[test]
    fn any_scores_rank_as_counting_ranks_them() {
        let mut word = 1u64;
        let mut next = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word >> 33
        };
        for count in [2, 3, 50, 700] {
            for span in [1, 40, 1 << 30, u64::MAX] {
                let scores: Vec<i64> =
                    (0..count).map(|_| (next().wrapping_mul(next()) % span) as i64).collect();
                let better = |score: &i64| scores.iter().filter(|other| *other > score).count();
                let counted: Vec<u64> = scores.iter().map(|score| better(score) as u64 + 1).collect();
                assert_eq!(ranks(&scores), counted, "{count} {span}");
            }
        }
    }

    #[test]
    fn scores_that_fill_the_word_rank_alike() {
        assert_eq!(ranks(&[i64::MAX, i64::MIN, 0, i64::MAX]), [1, 4, 3, 1]);
        assert_eq!(ranks(&[i64::MAX, i64::MAX - 2, i64::MAX - 1]), [1, 3, 2]);
    }

    #[derive(Debug)]
    struct Fixed(fn(u32) -> i64);
    impl Rule for Fixed {
        fn name(&self) -> &'static str {
            "fixed"
        }
        fn score(&self, _: &Ask<'_>, host: HostId) -> i64 {
            (self.0)(host.0)
        }
        fn explain(&self, _: &Ask<'_>, _: HostId) -> String {
            String::new()
        }
    }

    #[test]
    fn the_best_few_are_the_first_of_all_and_the_rest_is_still_there() {
        let host = Host::new(ChassisId(0), Resources::ZERO);
        let cluster = Cluster::new(&[host; 40]);
        let vm = VmRequest::new(VmKey(0), Resources::ZERO);
        let ask = Ask { now: Instant::ZERO, vm: &vm, cluster: &cluster };
        let one: fn(u32) -> i64 = |id| i64::from(id * 7 % 5);
        let two: fn(u32) -> i64 = |id| i64::from(id * 11 % 3);

        for tiers in [vec![one], vec![one, two]] {
            let key = |id: &u32| {
                let scores: Vec<i64> = tiers.iter().map(|score| -score(*id)).collect();
                (scores, *id)
            };

            let mut expected: Vec<u32> = (0..40).collect();
            expected.sort_by_key(key);
            let tiers = tiers.iter().map(|score| Tier::one(Fixed(*score))).collect();
            let ranking = Ranking::new(tiers, Ties::Id);
            for top in 0..=41 {
                let mut hosts: Vec<HostId> = cluster.ids().collect();
                ranking.order(&ask, &mut hosts, top);
                let few = top.min(40);
                let best: Vec<u32> = hosts[..few].iter().map(|host| host.0).collect();
                assert_eq!(best, expected[..few], "{top}");
                hosts.sort_unstable();
                assert!(hosts.into_iter().eq(cluster.ids()), "{top}");
            }
        }
    }
}
