//! Whose turn it is to be told: an agent that has not the newest, and every agent once in a while.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ballast_types::Instant;

/// An agent that has the newest is told it again after this: it may have been started anew.
const RENEW: Duration = Duration::from_secs(10);
/// Where there are many, this for each: a hundred a second.
const RENEW_EACH: Duration = Duration::from_millis(10);
/// After a message that was not taken, until the next: the first time, and at most.
const WAIT_FIRST: Duration = Duration::from_millis(200);
const WAIT_MAX: Duration = RENEW;

/// Every host with an agent.
#[derive(Default)]
pub(super) struct Rounds {
    agents: BTreeMap<String, AgentState>,
    /// Those that wait for their turn, the first one first.
    queue: BTreeSet<(Instant, String)>,
    next_key: u64,
}

struct AgentState {
    url: String,
    /// Another one after the agent has moved: an answer from before counts for nothing.
    key: u64,
    turn: Turn,
    /// Since when the agent has not the newest, but for what is under way.
    changed: Option<Instant>,
    /// After the next message that is not taken.
    wait: Duration,
    /// Since when no message was taken, and why the last was not.
    failing: Option<(Instant, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    At(Instant),
    /// A message is under way, with what had changed at this time, if anything had.
    Now(Option<Instant>),
}

/// A message to one agent, to be sent now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) host: String,
    pub(super) url: String,
    pub(super) key: u64,
    /// Whether its VMs are others than in the last message, or otherwise.
    pub(super) is_new: bool,
}

impl Rounds {
    /// Those hosts have agents, there; all other agents are nobody's concern any more.
    pub(super) fn follow(&mut self, now: Instant, agents: BTreeMap<String, String>) {
        self.agents.retain(|host, state| agents.get(host) == Some(&state.url));
        self.queue.retain(|(_, host)| self.agents.contains_key(host));
        for (host, url) in agents {
            if self.agents.contains_key(&host) {
                continue;
            }
            self.next_key += 1;
            let state = AgentState {
                url,
                key: self.next_key,
                turn: Turn::At(now),
                changed: Some(now),
                wait: WAIT_FIRST,
                failing: None,
            };
            self.queue.insert((now, host.clone()));
            self.agents.insert(host, state);
        }
    }

    pub(super) fn urls(&self) -> Vec<(String, String)> {
        self.agents.iter().map(|(host, state)| (host.clone(), state.url.clone())).collect()
    }

    /// The VMs of this host are others now. Whose agent does not answer waits for its turn.
    pub(super) fn changed(&mut self, now: Instant, host: &str) {
        let Some(state) = self.agents.get_mut(host) else { return };
        state.changed.get_or_insert(now);
        if let Turn::At(at) = state.turn
            && state.failing.is_none()
        {
            self.queue.remove(&(at, host.to_owned()));
            self.queue.insert((now, host.to_owned()));
            state.turn = Turn::At(now);
        }
    }

    /// Whose turn it is, at most so many of them.
    pub(super) fn begin(&mut self, now: Instant, max: usize) -> Vec<Delivery> {
        let mut due = vec![];
        while due.len() < max
            && let Some((at, host)) = self.queue.first().cloned()
            && at <= now
        {
            self.queue.pop_first();
            let Some(state) = self.agents.get_mut(&host) else { continue };
            let changed = state.changed.take();
            state.turn = Turn::Now(changed);
            due.push(Delivery { host, url: state.url.clone(), key: state.key, is_new: changed.is_some() });
        }
        due
    }

    /// What has become of a message; gives how long the agent had to wait for what had changed, if it has it now.
    pub(super) fn end(
        &mut self,
        now: Instant,
        Delivery { host, key, .. }: &Delivery,
        answer: Result<(), String>,
    ) -> Option<Duration> {
        let renew = self.renew();
        let state = self.agents.get_mut(host).filter(|state| state.key == *key)?;
        let Turn::Now(sent) = state.turn else { return None };
        let at = match &answer {
            Ok(()) => {
                (state.wait, state.failing) = (WAIT_FIRST, None);
                if state.changed.is_some() { now } else { now + renew }
            }
            Err(why) => {
                let since = state.failing.as_ref().map_or(now, |(since, _)| *since);
                state.failing = Some((since, why.clone()));
                state.changed = sent.or(state.changed);
                let wait = state.wait;
                state.wait = (wait * 2).min(WAIT_MAX);
                now + wait
            }
        };
        state.turn = Turn::At(at);
        self.queue.insert((at, host.clone()));
        answer.ok().and(sent).map(|since| now - since.min(now))
    }

    /// Messages that were under way are lost, with the one who sent them.
    pub(super) fn restart(&mut self, now: Instant) {
        for (host, state) in &mut self.agents {
            if let Turn::Now(sent) = state.turn {
                state.changed = sent.or(state.changed);
                state.turn = Turn::At(now);
                self.queue.insert((now, host.clone()));
            }
        }
    }

    /// An agent that has the newest is told it again after this.
    pub(super) fn renew(&self) -> Duration {
        RENEW.max(RENEW_EACH * u32::try_from(self.agents.len()).unwrap_or(u32::MAX))
    }

    pub(super) fn len(&self) -> usize {
        self.agents.len()
    }

    pub(super) fn has(&self, host: &str) -> bool {
        self.agents.contains_key(host)
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.queue.first().map(|(at, _)| *at)
    }

    /// Agents that have the newest, and those that have not.
    pub(super) fn counts(&self) -> (u64, u64) {
        let is_behind = |state: &&AgentState| {
            state.changed.is_some() || state.failing.is_some() || matches!(state.turn, Turn::Now(Some(_)))
        };
        let behind = self.agents.values().filter(is_behind).count();
        ((self.agents.len() - behind) as u64, behind as u64)
    }

    /// Hosts whose agents have taken no message for `long`, and why.
    pub(super) fn failing(&self, now: Instant, long: Duration) -> impl Iterator<Item = (&str, &str)> {
        self.agents.iter().filter_map(move |(host, state)| {
            let (_, why) = state.failing.as_ref().filter(|(since, _)| now - (*since).min(now) >= long)?;
            Some((host.as_str(), why.as_str()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }
    fn agents(hosts: &[(&str, &str)]) -> BTreeMap<String, String> {
        hosts.iter().map(|(host, url)| ((*host).to_owned(), (*url).to_owned())).collect()
    }
    /// Whose turn it is, with a `*` for what is new.
    fn due(rounds: &mut Rounds, ms: u64) -> (String, Vec<Delivery>) {
        let due = rounds.begin(at(ms), 9);
        let shown: Vec<_> =
            due.iter().map(|it| format!("{}{}", it.host, if it.is_new { "*" } else { "" })).collect();
        (shown.join(" "), due)
    }
    /// Has all of them taken at once.
    fn told(rounds: &mut Rounds, ms: u64) -> String {
        let (shown, due) = due(rounds, ms);
        for delivery in due {
            rounds.end(at(ms), &delivery, Ok(()));
        }
        shown
    }

    #[test]
    fn who_has_not_the_newest_is_told_at_once_and_all_others_once_in_a_while() {
        let mut rounds = Rounds::default();
        rounds.follow(at(0), agents(&[("a", "1"), ("b", "2")]));
        assert_eq!(rounds.counts(), (0, 2));
        for (ms, changes, shown) in [
            (0, &[][..], "a* b*"),
            (1, &[], ""),
            (500, &["b", "b", "unknown"], "b*"),
            (9_999, &[], ""),
            (10_000, &[], "a"),
            (10_499, &[], ""),
            (10_500, &["a"], "a* b"),
            (20_500, &[], "a b"),
        ] {
            changes.iter().for_each(|host| rounds.changed(at(ms), host));
            assert_eq!(told(&mut rounds, ms), shown, "{ms} ms");
            assert_eq!(rounds.counts(), (2, 0), "{ms} ms");
        }
        assert_eq!(rounds.next(), Some(at(30_500)));
    }

    #[test]
    fn many_agents_are_told_more_seldom() {
        let mut rounds = Rounds::default();
        let hosts = (0..5_000).map(|n| (format!("s{n}"), "1".to_owned())).collect();
        rounds.follow(at(0), hosts);
        assert_eq!(rounds.renew(), Duration::from_secs(50));
        let all = rounds.begin(at(0), 9_999);
        assert_eq!(all.len(), 5_000);
        rounds.end(at(1), &all[0], Ok(()));
        assert_eq!(rounds.next(), Some(at(50_001)));
    }

    #[test]
    fn what_changes_while_a_message_is_under_way_is_sent_after_it() {
        let mut rounds = Rounds::default();
        rounds.follow(at(0), agents(&[("a", "1")]));
        let (_, first) = due(&mut rounds, 0);
        rounds.changed(at(5), "a");
        assert_eq!(due(&mut rounds, 6).0, "", "one at a time");
        assert_eq!(rounds.end(at(7), &first[0], Ok(())), Some(Duration::from_millis(7)));
        assert_eq!(rounds.counts(), (0, 1));
        let (shown, second) = due(&mut rounds, 7);
        assert_eq!(shown, "a*");
        assert_eq!(rounds.end(at(9), &second[0], Ok(())), Some(Duration::from_millis(4)));
        // A renewal has no latency.
        let (_, third) = due(&mut rounds, 10_009);
        assert_eq!(rounds.end(at(10_010), &third[0], Ok(())), None);
    }

    #[test]
    fn an_agent_that_does_not_answer_is_tried_ever_more_seldom_and_has_all_once_it_is_back() {
        let mut rounds = Rounds::default();
        rounds.follow(at(0), agents(&[("a", "1")]));
        for (ms, next) in
            [(0, 200), (200, 600), (600, 1_400), (1_400, 3_000), (3_000, 6_200), (6_200, 12_600)]
        {
            let (shown, due) = due(&mut rounds, ms);
            assert_eq!(shown, "a*", "{ms} ms");
            assert_eq!(rounds.end(at(ms), &due[0], Err("refused".into())), None);
            // A change does not make it be asked more often.
            rounds.changed(at(ms), "a");
            assert_eq!(rounds.next(), Some(at(next)), "{ms} ms");
        }
        let long = Duration::from_secs(12);
        assert_eq!(rounds.failing(at(11_999), long).count(), 0);
        assert_eq!(rounds.failing(at(12_000), long).collect::<Vec<_>>(), [("a", "refused")]);
        let (_, last) = due(&mut rounds, 12_600);
        rounds.end(at(12_700), &last[0], Err("refused".into()));
        assert_eq!(rounds.next(), Some(at(22_700)), "never more seldom than a renewal");
        let (_, last) = due(&mut rounds, 22_700);
        assert_eq!(rounds.end(at(22_701), &last[0], Ok(())), Some(Duration::from_millis(22_701)));
        assert_eq!((rounds.counts(), rounds.failing(at(99_999), long).count()), ((1, 0), 0));
    }

    #[test]
    fn an_agent_that_has_moved_or_gone_counts_no_answer_of_before() {
        let mut rounds = Rounds::default();
        rounds.follow(at(0), agents(&[("a", "1"), ("b", "2")]));
        let (_, before) = due(&mut rounds, 0);
        rounds.follow(at(1), agents(&[("a", "3")]));
        assert_eq!(rounds.end(at(2), &before[0], Ok(())), None);
        assert_eq!(rounds.end(at(2), &before[1], Ok(())), None);
        assert_eq!((rounds.counts(), told(&mut rounds, 2)), ((0, 1), "a*".into()));
        // The same list again changes nothing.
        rounds.follow(at(3), agents(&[("a", "3")]));
        assert_eq!((rounds.counts(), told(&mut rounds, 3)), ((1, 0), String::new()));
    }

    #[test]
    fn a_sender_that_begins_again_sends_what_was_under_way() {
        let mut rounds = Rounds::default();
        rounds.follow(at(0), agents(&[("a", "1")]));
        assert_eq!((due(&mut rounds, 0).0, due(&mut rounds, 1).0), ("a*".into(), String::new()));
        rounds.restart(at(2));
        assert_eq!(told(&mut rounds, 2), "a*");
    }
}
