//! The control thread: one machine, one inbox, one [`Effects`].
//!
//! ```text
//!   sampler ───┐
//!   HTTP ──────┼──▶ inbox ──▶ turn(machine) ──▶ Effects ──▶ files, sender, answers
//!   actuators ─┘                    │
//!                                   └──▶ snapshot (status)
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use ballast_types::recording::Step;
use ballast_types::{Cause, Instant, Machine, Shell, Turn, turn};

use crate::lock;
use crate::recorder::Recorder;
use crate::watchdog::Watchdog;
use crate::{clock, realtime};

/// What does a machine's outputs.
pub trait Effects<M: Machine>: Send + 'static {
    /// What arrives in the inbox: an input, perhaps with somebody who waits for the answer.
    type Message: Send + 'static;
    /// What everybody may see of the machine.
    type Status: Send + Sync + 'static;

    /// Opens a message; `None` is the order to stop.
    fn open(&mut self, message: Self::Message) -> Option<M::Input>;
    /// Does one thing; answers that are known at once go to `answers`.
    fn perform(&mut self, now: Instant, output: M::Output, answers: &mut VecDeque<M::Input>);
    /// The machine as everybody may see it.
    fn status(&self, machine: &M, now: Instant) -> Self::Status;
    /// Whether the machine has fresh data, or knows that it has none and acts on that.
    fn is_attended(status: &Self::Status) -> bool;
}

/// Sensors wake the control thread several times a second; this long without a turn and it is dead.
const STALLED_MS: u64 = 5_000;

/// The newest status, and when the control thread last moved.
pub struct Snapshot<T> {
    status: Mutex<Option<Arc<T>>>,
    moved_ms: AtomicU64,
}

impl<T> Default for Snapshot<T> {
    fn default() -> Self {
        Self { status: Mutex::new(None), moved_ms: AtomicU64::new(0) }
    }
}

impl<T> Snapshot<T> {
    /// The newest status; `None` before the first turn.
    pub fn get(&self) -> Option<Arc<T>> {
        lock(&self.status).clone()
    }

    pub fn set(&self, status: T, now: Instant) {
        *lock(&self.status) = Some(Arc::new(status));
        self.moved_ms.store(now.as_millis(), Ordering::Relaxed);
    }

    /// Why the control thread must be taken for dead, if it must.
    pub fn stalled(&self) -> Option<String> {
        let idle = clock::now().as_millis().saturating_sub(self.moved_ms.load(Ordering::Relaxed));
        (idle > STALLED_MS).then(|| format!("the control thread has not moved for {idle} ms"))
    }
}

/// The shell of one control thread.
struct Control<M: Machine, H: Effects<M>> {
    inbox: Receiver<H::Message>,
    answers: VecDeque<M::Input>,
    effects: H,
    watchdog: Watchdog,
    recorder: Option<Recorder<M>>,
    step: Option<Step<M::Input, M::Output>>,
}

impl<M, H> Shell<M> for Control<M, H>
where
    M: Machine<Input: Clone, Output: Clone>,
    H: Effects<M>,
{
    fn now(&mut self) -> Instant {
        clock::now()
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Turn<M::Input> {
        if let Some(answer) = self.answers.pop_front() {
            return Turn::Input(answer);
        }
        let message = match self.watchdog.wake(clock::now(), deadline) {
            Some(at) => self.inbox.recv_timeout(at - clock::now()),
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match message {
            Ok(message) => self.effects.open(message).map_or(Turn::Stop, Turn::Input),
            Err(RecvTimeoutError::Timeout) => Turn::Deadline,
            Err(RecvTimeoutError::Disconnected) => Turn::Stop,
        }
    }

    fn moved(&mut self, now: Instant, cause: &Cause<M::Input>) {
        if self.recorder.is_some() {
            self.step = Some(Step { at: now, cause: cause.clone(), outputs: vec![] });
        }
    }

    fn perform(&mut self, now: Instant, output: M::Output) {
        if let Some(step) = &mut self.step {
            step.outputs.push(output.clone());
        }
        self.effects.perform(now, output, &mut self.answers);
    }
}

/// Runs `machine` on a thread of its own, before all others if `realtime`, until `effects` gets the order to
/// stop; gives `effects` back.
pub fn start<M, H>(
    realtime: bool,
    mut machine: M,
    inbox: Receiver<H::Message>,
    effects: H,
    recorder: Option<Recorder<M>>,
    snapshot: Arc<Snapshot<H::Status>>,
) -> io::Result<JoinHandle<H>>
where
    M: Machine + Clone + serde::Serialize + Send + 'static,
    M::Input: Clone + serde::Serialize + Send + 'static,
    M::Output: Clone + serde::Serialize + Send + 'static,
    H: Effects<M>,
{
    thread::Builder::new().name("control".into()).spawn(move || {
        if realtime {
            realtime::enter();
        }
        let (watchdog, answers) = (Watchdog::of_systemd(), VecDeque::new());
        let mut control = Control { inbox, answers, effects, watchdog, recorder, step: None };

        while turn(&mut machine, &mut control) {
            if let (Some(recorder), Some(step)) = (&mut control.recorder, control.step.take()) {
                recorder.record(step, &machine);
            }
            if control.answers.is_empty() {
                let now = clock::now();
                let status = control.effects.status(&machine, now);
                control.watchdog.turned(now, H::is_attended(&status));
                snapshot.set(status, now);
            }
        }

        control.effects
    })
}
