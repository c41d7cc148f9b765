//! Follows the daemons' events, and finds out how long alerts took to reach the floor.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ballast_runtime::lock;
use ballast_types::wire::{AgentState, Event, EventKind, Level};
use ballast_types::{Epoch, Instant, Seq, ServerId};
use serde::Serialize;

/// Alerts closer together than this are one round: half of a poll period.
const SAME_ROUND: Duration = Duration::from_millis(100);
/// Between two tries to reach a daemon's events.
const RETRY: Duration = Duration::from_millis(200);

/// An event and whose it is; `None` is the chassis manager.
pub type Said = (Option<ServerId>, Event);

#[derive(Clone, Default)]
pub struct Heard(Arc<Mutex<HashSet<Said>>>);

impl Heard {
    fn add(&self, from: Option<&ServerId>, event: Event) {
        lock(&self.0).insert((from.cloned(), event));
    }

    /// What was heard since the last call.
    pub fn take(&self) -> HashSet<Said> {
        std::mem::take(&mut lock(&self.0))
    }

    /// Every event, oldest first.
    pub fn in_order(&self) -> Vec<Said> {
        let mut all: Vec<_> = self.take().into_iter().collect();
        all.sort_by_key(|(_, event)| event.at_ns);
        all
    }
}

/// Follows one daemon until it is dropped. A lost connection is made again; the daemon then repeats
/// its newest events, and [`Heard`] keeps each once.
pub async fn follow(client: reqwest::Client, base: String, from: Option<ServerId>, heard: Heard) {
    loop {
        if let Ok(mut answer) = client.get(format!("{base}/v1/events")).send().await {
            let mut lines = Lines::default();
            while let Ok(Some(chunk)) = answer.chunk().await {
                for event in lines.take(&chunk) {
                    heard.add(from.as_ref(), event);
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Cuts a stream of server-sent events into events; what is no event of ours is passed over.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    fn take(&mut self, chunk: &[u8]) -> Vec<Event> {
        self.rest.extend_from_slice(chunk);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return vec![] };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        whole
            .split(|byte| *byte == b'\n')
            .filter_map(|line| line.strip_prefix(b"data:"))
            .filter_map(|data| serde_json::from_slice(data).ok())
            .collect()
    }
}

/// How alerts became floors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reaction {
    /// For each round of alerts: from the sender's hand-over to the slowest server's floor, in ms.
    pub rounds_ms: Vec<f64>,
    /// Servers that throttled at least once: on an alert, or by their own meter while capped.
    pub acted: usize,
}

/// Pairs the chassis's `alert_sent` with the agents' `floor_reached` of the same message.
///
/// An agent under its cap need not act on an alert; it is then no part of the round, though its own
/// meter may make it act later.
pub fn reaction(events: &[Said]) -> Reaction {
    let mut floors: BTreeMap<(&ServerId, Epoch, Seq), Instant> = BTreeMap::new();
    let mut acted = HashSet::new();
    for (from, event) in events {
        let Some(server) = from else { continue };
        match event.kind {
            EventKind::FloorReached { epoch, seq, .. } => {
                floors.entry((server, epoch, seq)).or_insert(event.at_ns);
                acted.insert(server);
            }
            EventKind::AgentState { to: AgentState::Throttled | AgentState::Shedding, .. } => {
                acted.insert(server);
            }
            _ => {}
        }
    }

    let mut rounds: Vec<(Instant, Option<Duration>)> = vec![];

    for (_, event) in events {
        let EventKind::AlertSent { server, epoch, seq, level } = &event.kind else { continue };
        if *level == Level::Watch {
            continue;
        }
        if rounds.last().is_none_or(|(start, _)| event.at_ns - *start > SAME_ROUND) {
            rounds.push((event.at_ns, None));
        }
        let took = floors.get(&(server, *epoch, *seq)).map(|floor| *floor - event.at_ns);

        if let Some((_, slowest)) = rounds.last_mut() {
            *slowest = (*slowest).max(took);
        }
    }

    let rounds_ms =
        rounds.iter().filter_map(|(_, slowest)| *slowest).map(|t| t.as_secs_f64() * 1e3).collect();
    Reaction { rounds_ms, acted: acted.len() }
}

/// Quantiles of a set of latencies, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50: Option<f64>,
    /// 99 of 100 are at most this.
    pub p99: Option<f64>,
    pub max: Option<f64>,
    pub count: usize,
}

impl Quantiles {
    /// By the nearest rank: always a value that was measured.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let rank = |q: f64| {
            let rank = (q * values.len() as f64).ceil() as usize;
            values.get(rank.saturating_sub(1)).map(|ms| (ms * 1e3).round() / 1e3)
        };
        Self { p50: rank(0.5), p99: rank(0.99), max: rank(1.0), count: values.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> ServerId {
        ServerId::new(name).unwrap()
    }
    fn sent(at_us: u64, server: &str, seq: u64, level: Level) -> Said {
        let kind = EventKind::AlertSent { server: id(server), epoch: Epoch(1), seq: Seq(seq), level };
        (None, Event { at_ns: Instant::from_nanos(at_us * 1000), kind })
    }
    fn floor(at_us: u64, server: &str, seq: u64) -> Said {
        let kind = EventKind::FloorReached { epoch: Epoch(1), seq: Seq(seq), cores: 24 };
        (Some(id(server)), Event { at_ns: Instant::from_nanos(at_us * 1000), kind })
    }

    fn throttled(at_us: u64, server: &str) -> Said {
        let (from, to, cause) = (AgentState::Uncapped, AgentState::Throttled, "above the cap".into());
        let kind = EventKind::AgentState { from, to, cause };
        (Some(id(server)), Event { at_ns: Instant::from_nanos(at_us * 1000), kind })
    }

    #[test]
    fn a_round_is_as_slow_as_its_slowest_server() {
        let events = [
            sent(1000, "a", 5, Level::Cap),
            sent(1100, "b", 7, Level::Cap),
            floor(2500, "a", 5),
            floor(4100, "b", 7),
            // Nobody acts on this one, and this floor answers no alert that was raised.
            sent(900_000, "a", 9, Level::Emergency),
            floor(950_000, "b", 8),
            sent(2_000_000, "a", 11, Level::Cap),
            floor(2_001_250, "a", 11),
            sent(3_000_000, "a", 12, Level::Watch),
            throttled(3_100_000, "c"),
        ];
        let reaction = reaction(&events);
        assert_eq!(reaction, Reaction { rounds_ms: vec![3.0, 1.25], acted: 3 });
    }

    #[test]
    fn streams_are_cut_at_line_ends_wherever_chunks_end() {
        let event = Event { at_ns: Instant::ZERO, kind: EventKind::Alarm { message: "x\ny".into() } };
        let text = format!(":\n\ndata: {}\n\ndata: junk\n\n", serde_json::to_string(&event).unwrap());
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let mut got = lines.take(&text.as_bytes()[..cut]);
            got.extend(lines.take(&text.as_bytes()[cut..]));
            assert_eq!(got, std::slice::from_ref(&event), "cut at {cut}");
        }
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let all = Quantiles::of((1..=200).rev().map(f64::from).collect());
        assert_eq!(all, Quantiles { p50: Some(100.0), p99: Some(198.0), max: Some(200.0), count: 200 });
        let one = Quantiles::of(vec![3.25]);
        assert_eq!((one.p50, one.p99, one.max), (Some(3.25), Some(3.25), Some(3.25)));
        assert_eq!(Quantiles::of(vec![]), Quantiles { p50: None, p99: None, max: None, count: 0 });
    }
}
