//! What happened: logged, kept for late readers, streamed to whoever listens.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use crate::lock;
use ballast_types::wire::{Event, EventKind};
use serde_json::Value;
use tokio::sync::broadcast;

/// How many events a late reader still gets.
const KEPT: usize = 1000;

/// The events of one daemon.
#[derive(Clone)]
pub struct Events {
    kept: Arc<Mutex<VecDeque<Event>>>,
    /// How many there were since start, by their name in JSON.
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
    stream: broadcast::Sender<Event>,
}

impl Default for Events {
    fn default() -> Self {
        Self { kept: Arc::default(), counts: Arc::default(), stream: broadcast::channel(KEPT).0 }
    }
}

impl Events {
    pub fn push(&self, event: Event) {
        match &event.kind {
            EventKind::Alarm { message } => tracing::warn!(alarm = message),
            EventKind::AlertSent { .. }
            | EventKind::FloorReached { .. }
            | EventKind::VmsPlaced { .. }
            | EventKind::VmRemoved { .. } => {
                tracing::debug!(event = ?event.kind);
            }
            kind => tracing::info!(event = ?kind),
        }
        if let Ok(Value::Object(fields)) = serde_json::to_value(&event.kind)
            && let Some(Value::String(name)) = fields.get("event")
        {
            *lock(&self.counts).entry(name.clone()).or_default() += 1;
        }
        let mut kept = lock(&self.kept);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(event.clone());
        // Nobody may be listening.
        let _ = self.stream.send(event);
    }

    /// How many there were since start, by name.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        lock(&self.counts).clone()
    }

    /// The newest events, oldest first, and a stream of those to come.
    pub fn subscribe(&self) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let kept = lock(&self.kept);
        (kept.iter().cloned().collect(), self.stream.subscribe())
    }
}
