//! What the alarms of every daemon have in common: those of disk, threads and certificates, when each began, and their
//! order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ballast_types::wire::{Alarm, AlarmId};

use crate::state::DiskFaults;
use crate::tls::Tls;
use crate::{clock, lock, threads};

/// When the alarms that are on began, in milliseconds since 1970.
type Begun = BTreeMap<(AlarmId, Option<String>), u64>;

/// A recording that cannot be written for so long is none.
const RECORDING_WITHIN: Duration = Duration::from_secs(60);

/// A daemon's alarms, over time; clones are the same book.
#[derive(Clone, Default)]
pub struct AlarmBook {
    faults: DiskFaults,
    tls: Option<Arc<Tls>>,
    begun: Arc<Mutex<Begun>>,
    held: Arc<Mutex<BTreeMap<AlarmId, String>>>,
}

impl AlarmBook {
    pub fn new(faults: DiskFaults, tls: Option<Arc<Tls>>) -> Self {
        Self { faults, tls, begun: Arc::default(), held: Arc::default() }
    }

    /// Holds the one alarm with this id, in these words, until it is let go (`None`).
    pub fn hold(&self, id: AlarmId, message: Option<String>) {
        let mut held = lock(&self.held);
        match message {
            Some(message) => held.insert(id, message),
            None => held.remove(&id),
        };
    }

    /// Adds the alarms of disk, threads and certificates, says of each since when it is on, and puts the most severe
    /// ones first. Whoever has alarms calls this at every turn: an alarm that is left out once has ended.
    pub fn complete(&self, alarms: &mut Vec<Alarm>) {
        alarms.extend(self.faults.alarms());
        alarms.extend(threads::alarms());
        alarms.extend(lock(&self.held).iter().map(|(id, message)| Alarm::new(*id, message)));
        alarms.extend(self.tls.iter().flat_map(|tls| tls.alarms()));
        date(&mut lock(&self.begun), alarms, clock::unix_ms());
        alarms.sort_by_key(|alarm| alarm.severity);
    }
}

fn date(begun: &mut Begun, alarms: &mut [Alarm], now: u64) {
    let mut before = std::mem::take(begun);
    for alarm in alarms {
        let key = (alarm.id, alarm.subject.clone());
        let since = before.remove(&key).unwrap_or(now);
        alarm.since_unix_ms = *begun.entry(key).or_insert(since);
    }
}

/// The alarms among `alarms` for which a daemon is not ready, in words.
pub fn reasons(alarms: &[Alarm], unready: &[AlarmId]) -> Vec<String> {
    let now = clock::unix_ms();
    let counts = |it: &&Alarm| unready.contains(&it.id) || has_no_recording(it, now);
    alarms.iter().filter(counts).map(|it| it.message.clone()).collect()
}

/// A disk that is full for a moment is no dead recorder.
fn has_no_recording(alarm: &Alarm, now_unix_ms: u64) -> bool {
    let age = Duration::from_millis(now_unix_ms.saturating_sub(alarm.since_unix_ms));
    alarm.id == AlarmId::RecordingNotWritten && age >= RECORDING_WITHIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_that_is_not_written_for_a_minute_is_a_reason() {
        let now = clock::unix_ms();
        let mut alarm = Alarm::new(AlarmId::RecordingNotWritten, "no folder");
        for (seconds, expected) in [(0, &[][..]), (30, &[]), (61, &["no folder"])] {
            alarm.since_unix_ms = now - 1000 * seconds;
            assert_eq!(reasons(&[alarm.clone()], &[]), expected, "{seconds} s");
        }
    }

    #[test]
    fn an_alarm_keeps_its_beginning_until_it_ends() {
        let mut begun = Begun::new();
        let mut since = |now, alarms: &[(AlarmId, &str)]| {
            let mut alarms: Vec<_> =
                alarms.iter().map(|(id, what)| Alarm::about(*id, what, "in other words each time")).collect();
            date(&mut begun, &mut alarms, now);
            alarms.iter().map(|alarm| alarm.since_unix_ms).collect::<Vec<_>>()
        };
        let (silent, cap) = (AlarmId::ServerSilent, AlarmId::HardwareCapOn);
        assert_eq!(since(10, &[(silent, "s01")]), [10]);
        assert_eq!(since(20, &[(silent, "s02"), (silent, "s01"), (cap, "s01")]), [20, 10, 20]);
        assert_eq!(since(30, &[(silent, "s01"), (silent, "s01")]), [10, 10], "two of one are one");
        assert!(since(40, &[]).is_empty());
        assert_eq!(since(50, &[(silent, "s01")]), [50], "it had ended");
    }

    #[test]
    fn the_most_severe_come_first() {
        let mut alarms: Vec<_> =
            [AlarmId::DryRun, AlarmId::ServerSilent, AlarmId::Fenced].map(|id| Alarm::new(id, "")).to_vec();
        AlarmBook::default().complete(&mut alarms);
        // Another test of this process breaks a thread.
        alarms.retain(|alarm| alarm.id != AlarmId::ThreadEnded);
        let ids: Vec<_> = alarms.iter().map(|alarm| alarm.id).collect();
        assert_eq!(ids, [AlarmId::Fenced, AlarmId::ServerSilent, AlarmId::DryRun]);
        assert!(alarms.iter().all(|alarm| alarm.since_unix_ms > 1_600_000_000_000));
    }
}
