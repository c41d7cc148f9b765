//! The audit log: every order, with who gave it, what was there before, and what came of it.
//!
//! An order becomes an event and a line in the log, and is appended to `orders.jsonl` in the state folder
//! before it is answered. That file is followed by another when it has grown; one old file is kept.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use ballast_types::wire::{Event, EventKind};
use serde::Serialize;

use crate::events::Events;
use crate::state::DiskFaults;
use crate::{clock, lock};

/// What cannot be written, in alarms and metrics.
const WHAT: &str = "the audit log of orders";
/// Some ten thousand orders.
const BYTES_MAX: u64 = 4 << 20;

/// What there was before an order, as its handler tells.
#[derive(Clone)]
pub struct Before(pub String);

/// One order, as it is answered.
pub(crate) struct Order {
    pub(crate) who: String,
    pub(crate) what: String,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
    pub(crate) outcome: String,
}

/// Where orders are written down.
#[derive(Clone)]
pub struct AuditLog {
    /// `None` where nothing may be written, as in a dry run.
    path: Option<PathBuf>,
    one: Arc<Mutex<()>>,
    events: Events,
    faults: DiskFaults,
}

#[derive(Serialize)]
struct Entry<'a> {
    unix_ms: u64,
    #[serde(flatten)]
    order: &'a EventKind,
}

impl AuditLog {
    /// Writes to `orders.jsonl` in this folder.
    pub fn new(folder: &Path, events: Events, faults: DiskFaults) -> Self {
        Self { path: Some(folder.join("orders.jsonl")), one: Arc::default(), events, faults }
    }

    pub fn without_file(self) -> Self {
        Self { path: None, ..self }
    }

    pub(crate) fn faults(&self) -> &DiskFaults {
        &self.faults
    }

    /// Takes one order. A disk that refuses it is an alarm: the order has been done, or refused, already.
    pub(crate) fn note(&self, order: Order) {
        let Order { who, what, before, after, outcome } = order;
        let kind = EventKind::Order { who, what, before, after, outcome };
        if let Some(path) = &self.path {
            let _one = lock(&self.one);
            self.faults.note(WHAT, append(path, &kind).err().map(|error| error.to_string()));
        }
        self.events.push(Event { at_ns: clock::now(), kind });
    }
}

fn append(path: &Path, order: &EventKind) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let mut line = serde_json::to_vec(&Entry { unix_ms: since.as_millis() as u64, order })?;
    line.push(b'\n');

    let open = || OpenOptions::new().create(true).append(true).read(true).open(path);
    let mut file = open().map_err(named)?;
    let mut long = file.metadata().map_err(named)?.len();
    if long >= BYTES_MAX {
        fs::rename(path, path.with_extension("old.jsonl")).map_err(named)?;
        (file, long) = (open().map_err(named)?, 0);
    }

    // A crash may have left half a line: nothing is joined to it.
    let mut last = [b'\n'];
    if long > 0 {
        file.read_exact_at(&mut last, long - 1).map_err(named)?;
    }
    if last != [b'\n'] {
        line.insert(0, b'\n');
    }

    let written = file.write_all(&line).and_then(|()| file.sync_data());
    if written.is_err() {
        // What a full disk has taken of it. Where that stays, the next one begins a line.
        let _ = file.set_len(long);
    }
    written.map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(n: usize) -> Order {
        Order {
            who: "uid 0".into(),
            what: "PUT /v1/budget".into(),
            before: None,
            after: Some(format!("{{\"budget_w\":{n}}}")),
            outcome: "200".into(),
        }
    }

    #[test]
    fn orders_are_appended_and_an_old_file_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("orders.jsonl");
        let (events, faults) = (Events::default(), DiskFaults::default());
        let audit = AuditLog::new(folder.path(), events.clone(), faults.clone());
        audit.note(order(1));
        audit.note(order(2));
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[1]["event"], &lines[1]["after"]), (&"order".into(), &"{\"budget_w\":2}".into()));
        assert!(lines[0]["unix_ms"].as_u64().unwrap() > 1_700_000_000_000);
        assert_eq!(events.counts()["order"], 2);

        // A full disk took half a line.
        fs::write(&path, "{\"unix_ms\":17000").unwrap();
        audit.note(order(5));
        let text = fs::read_to_string(&path).unwrap();
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(last["after"], "{\"budget_w\":5}", "nothing is joined to it");

        fs::write(&path, vec![b'\n'; BYTES_MAX as usize]).unwrap();
        audit.note(order(3));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
        assert_eq!(fs::metadata(folder.path().join("orders.old.jsonl")).unwrap().len(), BYTES_MAX);

        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        audit.note(order(4));
        assert_eq!((events.counts()["order"], faults.unwritten()), (5, vec![WHAT]));
    }
}
