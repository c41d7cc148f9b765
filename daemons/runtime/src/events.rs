//! What happened: logged, kept for late readers, streamed to whoever listens.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use crate::{clock, lock};
use ballast_types::wire::{Event, EventKind, SentEvent};
use serde_json::Value;
use tokio::sync::broadcast;

/// How many events a late reader still gets.
const KEPT: usize = 1000;

#[derive(Clone)]
pub struct Events {
    /// This start of the daemon, in milliseconds since 1970: the first part of every id.
    instance: u64,
    kept: Arc<Mutex<Kept>>,
    /// How many there were since start, by their name in JSON.
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
    stream: broadcast::Sender<NumberedEvent>,
    /// Events that readers have lost, as they fell behind.
    lost: Arc<AtomicU64>,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<NumberedEvent>,
    /// The number of the newest one; the first has 1.
    newest: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedEvent {
    /// The start of the daemon and the number since then: `1764000000000.17`.
    pub id: String,
    pub name: String,
    pub event: SentEvent,
}

impl Default for Events {
    fn default() -> Self {
        let (kept, counts, lost) = (Arc::default(), Arc::default(), Arc::default());
        Self { instance: clock::unix_ms(), kept, counts, stream: broadcast::channel(KEPT).0, lost }
    }
}

impl Events {
    pub fn push(&self, event: Event) {
        let (name, words) = in_words(&event.kind);
        match &event.kind {
            EventKind::Alarm { message } => tracing::warn!(alarm = message),
            EventKind::AlertSent { .. }
            | EventKind::FloorReached { .. }
            | EventKind::VmsPlaced { .. }
            | EventKind::VmRemoved { .. } => tracing::debug!("{words}"),
            _ => tracing::info!("{words}"),
        }
        *lock(&self.counts).entry(name.clone()).or_default() += 1;

        let mut kept = lock(&self.kept);
        kept.newest += 1;
        let id = format!("{}.{}", self.instance, kept.newest);
        let event = NumberedEvent { id, name, event: SentEvent { at_unix_ms: clock::unix_ms(), event } };
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        kept.events.push_back(event.clone());
        // Nobody may be listening.
        let _ = self.stream.send(event);
    }

    /// How many there were since start, by name.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        lock(&self.counts).clone()
    }

    /// How many events readers of the stream have lost since start, as they fell behind.
    pub fn lost(&self) -> &AtomicU64 {
        &self.lost
    }

    /// The newest events, oldest first, and a stream of those to come. Who has had the event with the id
    /// `last` gets what came after it; all that is kept where that is no id of this start.
    pub fn subscribe(&self, last: Option<&str>) -> (Vec<NumberedEvent>, broadcast::Receiver<NumberedEvent>) {
        let kept = lock(&self.kept);
        let last: Option<u64> =
            last.and_then(|id| id.strip_prefix(&format!("{}.", self.instance))?.parse().ok());
        let missed = match last {
            Some(last) if last <= kept.newest => kept.newest - last,
            _ => kept.newest,
        };
        let had = kept.events.len().saturating_sub(usize::try_from(missed).unwrap_or(usize::MAX));
        (kept.events.iter().skip(had).cloned().collect(), self.stream.subscribe())
    }
}

/// An event's name, and a line for the log: `state from=normal to=alerting cause="…"`.
fn in_words(kind: &EventKind) -> (String, String) {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(kind) else { return Default::default() };
    let name = fields.remove("event").and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default();
    let mut words = if name.ends_with("_state") { "state".to_owned() } else { name.clone() };
    let mut fields: Vec<_> = fields.into_iter().collect();

    // First whom it is about, last why.
    fields.sort_by_key(|(key, _)| match key.as_str() {
        "server" | "vm" | "pod" | "file" | "who" => 0,
        "cause" | "why" | "outcome" => 2,
        _ => 1,
    });
    for (key, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
        let is_plain = |it: char| it.is_ascii_alphanumeric() || "._-:/@".contains(it);
        let _ = match value.as_str() {
            Some(text) if !text.is_empty() && text.chars().all(is_plain) => write!(words, " {key}={text}"),
            _ => write!(words, " {key}={value}"),
        };
    }
    (name, words)
}

#[cfg(test)]
mod tests {
    use ballast_types::wire::{AgentState, Slot};
    use ballast_types::{Instant, ServerId};

    use super::*;

    fn push(events: &Events, n: usize) {
        for _ in 0..n {
            events.push(Event { at_ns: Instant::ZERO, kind: EventKind::HostChanged { host: "h".into() } });
        }
    }

    #[test]
    fn who_comes_back_gets_what_was_missed_and_nothing_twice() {
        let events = Events::default();
        push(&events, 3);
        let ids =
            |last: Option<&str>| events.subscribe(last).0.into_iter().map(|it| it.id).collect::<Vec<_>>();
        let all = ids(None);
        assert_eq!(all.len(), 3);
        assert_eq!(ids(Some(&all[0])), all[1..]);
        assert!(ids(Some(&all[2])).is_empty());
        for unknown in ["", "1", "1.2", "x.y", &all[0].replace(".1", ".99"), &format!("9{}", all[0])] {
            assert_eq!(ids(Some(unknown)), all, "{unknown}");
        }

        // What is no longer kept is lost; all that is comes.
        push(&events, KEPT);
        let kept = ids(Some(&all[1]));
        assert_eq!((kept.len(), &kept[0]), (KEPT, &all[0].replace(".1", ".4")));
        assert_eq!(ids(Some(&kept[0])), kept[1..]);
    }

    #[test]
    fn the_log_has_plain_words() {
        let kind = EventKind::AgentState {
            from: AgentState::Uncapped,
            to: AgentState::Throttled,
            cause: "above \"the\" cap".into(),
        };
        let (name, words) = in_words(&kind);
        assert_eq!(name, "agent_state");
        assert_eq!(words, r#"state from=uncapped to=throttled cause="above \"the\" cap""#);
        let kind = EventKind::SlotChanged {
            server: ServerId::new("s01").unwrap(),
            from: Slot::Managed,
            to: Slot::Silent,
            cause: "leaving".into(),
        };
        assert_eq!(in_words(&kind).1, "slot_changed server=s01 from=managed to=silent cause=leaving");
    }
}
