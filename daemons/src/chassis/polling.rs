//! Polls the power supplies, each on a thread of its own: a slow bus holds up neither the control thread
//! nor the other supplies.
//!
//! ```text
//!   supply threads ──answers──▶ supplies ──Poll──▶ control
//! ```
//! Every period all supplies are asked that are not still busy, and half a period later at the latest
//! there is a poll. A supply that has not answered by then is missing in it: its answer counts in a later
//! poll, with the time at which it was asked.

use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use ballast_chassis_core::{Input, Poll, Supply, SupplyState};
use ballast_hw::{SupplyMeter, SupplyRead};
use ballast_types::Instant;

use super::Letter;
use crate::clock;

/// What a supply's thread says.
struct Answer {
    index: usize,
    asked_at: Instant,
    read: SupplyRead,
    /// Whether its value or state has moved since the one before.
    moved: bool,
}

/// A supply's thread, as the polling thread knows it.
struct Worker {
    orders: Sender<Instant>,
    busy: bool,
    /// What it said in the poll under way.
    read: Option<SupplyRead>,
}

/// The polling thread.
struct Polling {
    workers: Vec<Worker>,
    answers: Receiver<Answer>,
    period: Duration,
    /// When the newest value was produced.
    taken_at: Instant,
}

/// Starts polling; ends when the control thread does.
///
/// # Errors
/// When a thread cannot be started.
pub(super) fn start(
    supplies: Vec<SupplyMeter>,
    period: Duration,
    letters: Sender<Letter>,
) -> io::Result<()> {
    let (answer, answers) = mpsc::channel();
    let workers = (supplies.into_iter().enumerate())
        .map(|(index, supply)| Worker::start(index, supply, answer.clone()))
        .collect::<io::Result<_>>()?;
    let mut polling = Polling { workers, answers, period, taken_at: Instant::ZERO };
    clock::every("supplies", period, move || {
        let poll = polling.poll(clock::now());
        letters.send(Letter::Input(Input::Psu(poll))).is_ok()
    })
}

impl Worker {
    fn start(index: usize, mut supply: SupplyMeter, answers: Sender<Answer>) -> io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        thread::Builder::new().name(format!("supply {index}")).spawn(move || {
            for asked_at in inbox {
                let (read, moved) = supply.poll(asked_at);
                if answers.send(Answer { index, asked_at, read, moved }).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders, busy: false, read: None })
    }
}

impl Polling {
    /// Asks every supply, and waits for the answers for half a period at most.
    fn poll(&mut self, now: Instant) -> Poll {
        for worker in &mut self.workers {
            worker.read = None;
            if !worker.busy {
                // Fails only when the supply's thread has panicked: it stays missing.
                worker.busy = worker.orders.send(now).is_ok();
            }
        }
        let until = now + self.period / 2;
        while self.workers.iter().any(|worker| worker.read.is_none() && worker.busy) {
            let Ok(answer) = self.answers.recv_timeout(until - clock::now()) else { break };
            self.take(&answer);
        }
        // Where nothing could be read there is no value with a time of its own.
        if self.workers.iter().all(|worker| worker.read.is_none()) {
            self.taken_at = now;
        }
        let supplies = self.workers.iter().map(|worker| supply(worker.read)).collect();
        Poll { supplies, taken_at: self.taken_at }
    }

    fn take(&mut self, answer: &Answer) {
        let worker = &mut self.workers[answer.index];
        worker.busy = false;
        worker.read = Some(answer.read);
        if answer.moved {
            self.taken_at = self.taken_at.max(answer.asked_at);
        }
    }
}

/// A supply's reading as the controller takes it; one that did not answer cannot be told.
fn supply(read: Option<SupplyRead>) -> Supply {
    use ballast_hw::SupplyState as Seen;
    let state = match read.map_or(Seen::Unknown, |read| read.state) {
        Seen::Active => SupplyState::Active,
        Seen::Standby => SupplyState::Standby,
        Seen::Failed => SupplyState::Failed,
        Seen::Absent => SupplyState::Absent,
        Seen::Unknown => SupplyState::Unknown,
    };
    Supply { state, input: read.and_then(|read| read.input) }
}
