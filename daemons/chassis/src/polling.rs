//! Polls the power supplies, each on a thread of its own: a slow bus holds up neither the control thread
//! nor the other supplies.
//!
//! ```text
//!   supply threads ──answers──▶ supplies ──Poll──▶ control
//!   POST /v1/power ──readings─────▲
//! ```
//! Every period all supplies are asked that are not still busy. There is a poll when all have answered,
//! or when the period ends: a supply that has not answered by then is missing in it. Its late answer
//! counts in a later poll, and is as old as the question. A reading from outside is one more supply, and
//! makes a poll when it comes.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ballast_chassis_core::{Input, Params, Poll};
use ballast_hw::{PmbusSupply, Root, SupplyMeter};
use ballast_types::{Instant, Supply, SupplyState};

use super::message::Message;
use super::power_input::PowerInput;
use crate::config::{SupplyConfig, SupplySource};
use ballast_runtime::redfish::Bmcs;
use ballast_runtime::sensors::Gauge;
use ballast_runtime::threads::supervise;
use ballast_runtime::{clock, lock};

/// What reaches the polling thread.
pub(super) enum PollEvent {
    Answer(Answer),
    /// A reading from outside was accepted.
    Outside,
    /// Other supplies from now on.
    Swap(Swap),
}

/// Other supplies. What was polled before the parameters are sent was of those before.
pub(super) struct Swap {
    pub(super) supplies: SupplyThreads,
    pub(super) params: Box<Params>,
}

/// What a supply's thread says.
pub(super) struct Answer {
    /// Which thread it is.
    number: u64,
    asked_at: Instant,
    read: Supply,
    /// Whether its value or state has moved since the one before.
    moved: bool,
}

/// What the rest of the daemon gets of it.
pub(super) struct Polling {
    /// To the polling thread.
    pub(super) events: Sender<PollEvent>,
    pub(super) supplies: SupplyThreads,
    /// How the outside source is, if there is one.
    pub(super) outside: Option<Gauge>,
}

/// Every supply's thread, in configured order. A thread ends when nobody has its supply any more.
pub(super) type SupplyThreads = Vec<SupplyThread>;

/// A supply's thread.
#[derive(Clone)]
pub(super) struct SupplyThread {
    number: u64,
    orders: Sender<Instant>,
    pub(super) gauge: Gauge,
}

/// A supply's thread, as the polling thread knows it.
struct Worker {
    thread: SupplyThread,
    busy: bool,
    /// What it said in the poll under way.
    read: Option<Supply>,
}

struct Poller {
    workers: Vec<Worker>,
    outside: Option<Arc<Mutex<PowerInput>>>,
    events: Receiver<PollEvent>,
    period: Duration,
    messages: Sender<Message>,
    /// When the newest value was produced.
    taken_at: Instant,
}

impl Polling {
    /// Starts polling every `period`; ends when the control thread does. A supply that makes a value less
    /// often than every `refresh` is told of.
    pub(super) fn start(
        supplies: Vec<SupplyMeter>,
        outside: Option<Arc<Mutex<PowerInput>>>,
        period: Duration,
        refresh: Duration,
        messages: Sender<Message>,
    ) -> io::Result<Self> {
        let (events, inbox) = mpsc::channel();
        let threads: SupplyThreads = supplies
            .into_iter()
            .map(|supply| SupplyThread::start(supply, period, refresh, events.clone()))
            .collect::<io::Result<_>>()?;

        let gauge = outside.as_ref().map(|outside| lock(outside).gauge());
        let workers = threads.iter().cloned().map(Worker::new).collect();
        let taken_at = Instant::ZERO;
        let poller = Poller { workers, outside, events: inbox, period, messages, taken_at };
        supervise("supplies", poller, |poller| while poller.poll() {})?;

        Ok(Self { events, supplies: threads, outside: gauge })
    }
}

impl Worker {
    const fn new(thread: SupplyThread) -> Self {
        Self { thread, busy: false, read: None }
    }
}

impl SupplyThread {
    /// Starts the thread of a supply that is polled every `period`, and should make a value every `configured`.
    pub(super) fn start(
        mut supply: SupplyMeter,
        period: Duration,
        configured: Duration,
        events: Sender<PollEvent>,
    ) -> io::Result<Self> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let gauge = Gauge::new(supply.name().to_owned(), period);
        let told = gauge.clone();
        // At most one order waits: the next is given once this one is answered.
        let (orders, inbox) = mpsc::channel();
        supervise(format!("supply {number}"), None, move |unanswered| {
            // After a panic: an order that is not answered would be the last.
            let missing = |asked_at| Answer { number, asked_at, read: Supply::UNKNOWN, moved: false };
            if unanswered.take().is_some_and(|at| events.send(PollEvent::Answer(missing(at))).is_err()) {
                return;
            }

            for asked_at in &inbox {
                *unanswered = Some(asked_at);
                gauge.read_begins(asked_at);
                let (read, moved) = supply.poll(asked_at);
                let refresh = supply.refresh();

                match supply.problem() {
                    Some(problem) => gauge.answered(Err(&problem), refresh),
                    None if moved => gauge.answered(Ok(asked_at), refresh),
                    None => gauge.unmoved(),
                }

                gauge.advise(clock::now(), refresh.and_then(|refresh| too_slow(refresh, configured)));
                let answer = Answer { number, asked_at, read, moved };
                *unanswered = None;

                if events.send(PollEvent::Answer(answer)).is_err() {
                    return;
                }
            }
        })?;

        Ok(Self { number, orders, gauge: told })
    }
}

/// The meter of one supply.
pub(crate) fn meter(supply: &SupplyConfig, root: &Root, bmcs: &mut Bmcs) -> anyhow::Result<SupplyMeter> {
    let name = supply.name();
    Ok(match &supply.source {
        SupplySource::Hwmon(device) => SupplyMeter::new(&name, PmbusSupply::new(root, device)),
        SupplySource::Redfish(bmc, id) => SupplyMeter::new(&name, bmcs.supply(bmc, id)?),
    })
}

/// What is wrong with `poll.refresh_ms`, given the measured one. A tenth is not worth a word.
fn too_slow(refresh: Duration, configured: Duration) -> Option<String> {
    let (told, found) = (configured.as_millis(), refresh.as_millis());
    (refresh > configured + configured / 10).then(|| {
        format!(
            "poll.refresh_ms = {told}, but it refreshes every {found} ms: say so, and the time that an \
             overload may last is checked against it"
        )
    })
}

impl Poller {
    /// One period; `false` when nobody wants polls any more.
    fn poll(&mut self) -> bool {
        let began = clock::now();
        for worker in &mut self.workers {
            worker.read = None;

            // Cannot fail: its thread goes on until this ends.
            worker.busy = worker.busy || worker.thread.orders.send(began).is_ok();
        }

        let until = began + self.period;
        let mut polled = false;

        loop {
            if !polled && self.workers.iter().all(|worker| worker.read.is_some()) {
                polled = true;
                if !self.send() {
                    return false;
                }
            }

            match self.events.recv_timeout(until - clock::now()) {
                Ok(PollEvent::Answer(answer)) => self.take(&answer),
                Ok(PollEvent::Outside) if polled && !self.send() => return false,
                Ok(PollEvent::Outside) => {}
                Ok(PollEvent::Swap(swap)) => return self.swap(swap),
                Err(_) => return polled || self.send(),
            }
        }
    }

    /// A thread that stays may have been asked already; its answer counts.
    fn swap(&mut self, Swap { supplies, params }: Swap) -> bool {
        let before = std::mem::take(&mut self.workers);
        let busy =
            |thread: &SupplyThread| before.iter().any(|it| it.busy && it.thread.number == thread.number);
        self.workers = supplies
            .into_iter()
            .map(|thread| Worker { busy: busy(&thread), ..Worker::new(thread) })
            .collect();
        self.period = params.poll_period;
        self.messages.send(Message::Input(Input::Params(params))).is_ok()
    }

    fn take(&mut self, answer: &Answer) {
        let Some(worker) = self.workers.iter_mut().find(|it| it.thread.number == answer.number) else {
            return;
        };
        worker.busy = false;
        worker.read = Some(answer.read);
        if answer.moved {
            self.taken_at = self.taken_at.max(answer.asked_at);
        }
    }

    fn send(&mut self) -> bool {
        let now = clock::now();
        // One that did not answer cannot be told.
        let mut supplies: Vec<_> =
            self.workers.iter().map(|worker| worker.read.unwrap_or(Supply::UNKNOWN)).collect();
        if let Some(outside) = &self.outside {
            let outside = lock(outside).newest(now);
            let input = outside.map(|(watts, _)| watts);
            let state = if input.is_some() { SupplyState::Active } else { SupplyState::Unknown };
            supplies.push(Supply { state, input });
            self.taken_at = outside.map_or(self.taken_at, |(_, at)| at.max(self.taken_at));
        }
        // Where nothing could be read there is no value with a time of its own.
        let nothing = supplies.iter().all(|supply| supply.state == SupplyState::Unknown);
        let poll = Poll { supplies, taken_at: if nothing { now } else { self.taken_at } };
        self.messages.send(Message::Input(Input::Psu(poll))).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use ballast_hw::{SensorError, SupplySensor};
    use ballast_types::Watts;

    use super::*;

    /// A supply that answers when it is let: its draw is what it is let with.
    struct Held(Receiver<i64>);

    impl SupplySensor for Held {
        fn read(&mut self, _: Instant) -> Result<(Supply, Option<u64>), SensorError> {
            let watts = self.0.recv().map_err(|e| SensorError::Device(e.to_string()))?;
            let input = Some(Watts::from_whole(watts));
            Ok((Supply { state: SupplyState::Active, input }, None))
        }
    }

    /// A supply that answers at once, each time another draw.
    struct Prompt(i64);

    impl SupplySensor for Prompt {
        fn read(&mut self, _: Instant) -> Result<(Supply, Option<u64>), SensorError> {
            self.0 += 1;
            let input = Some(Watts::from_whole(self.0));
            Ok((Supply { state: SupplyState::Active, input }, None))
        }
    }

    /// A supply whose first reading breaks its thread.
    struct Breaks(bool);

    impl SupplySensor for Breaks {
        fn read(&mut self, _: Instant) -> Result<(Supply, Option<u64>), SensorError> {
            assert!(std::mem::replace(&mut self.0, true), "the first");
            let input = Some(Watts::from_whole(250));
            Ok((Supply { state: SupplyState::Active, input }, None))
        }
    }

    #[test]
    fn a_supply_whose_thread_breaks_is_missing_and_read_again() {
        let (messages, inbox) = mpsc::channel();
        let supplies = vec![SupplyMeter::new("breaks", Breaks(false))];
        let period = Duration::from_millis(50);
        let _polling = Polling::start(supplies, None, period, period, messages).unwrap();
        assert_eq!(next(&inbox).supplies[0].state, SupplyState::Unknown);
        while next(&inbox).supplies[0].input != Some(Watts::from_whole(250)) {}
    }

    fn next(messages: &Receiver<Message>) -> Poll {
        match messages.recv_timeout(Duration::from_secs(30)) {
            Ok(Message::Input(Input::Psu(poll))) => poll,
            _ => panic!("no poll"),
        }
    }

    #[test]
    fn a_supply_that_hangs_is_missing_and_delays_no_other() {
        let (free, held) = mpsc::channel();
        let (messages, inbox) = mpsc::channel();
        let supplies = vec![SupplyMeter::new("held", Held(held)), SupplyMeter::new("prompt", Prompt(500))];
        let period = Duration::from_millis(50);
        let polling = Polling::start(supplies, None, period, period, messages).unwrap();
        let mut newest = Watts::ZERO;

        // A busy machine may let it answer too late for some polls.
        let mut seen = 0;

        while seen < 3 {
            let poll = next(&inbox);
            assert_eq!(poll.supplies[0], Supply { state: SupplyState::Unknown, input: None });
            if let Some(prompt) = poll.supplies[1].input {
                assert!(prompt > newest, "the other one is read anew for every poll");
                newest = prompt;
                seen += 1;
            }
        }

        let alarms = polling.supplies[0].gauge.alarms(clock::now());
        assert!(alarms.iter().any(|alarm| alarm.message.starts_with("held: no answer for")), "{alarms:?}");

        // Its late answer counts once, in a later poll, and the poll is as young as its youngest value.
        free.send(250).unwrap();
        let answered = loop {
            let poll = next(&inbox);
            if poll.supplies[0].state == SupplyState::Active {
                break poll;
            }
        };

        assert_eq!(answered.supplies[0].input, Some(Watts::from_whole(250)));
        let later = next(&inbox);
        assert_eq!(later.supplies[0].state, SupplyState::Unknown, "it hangs again");
    }

    #[test]
    fn a_late_answer_alone_is_as_old_as_the_question() {
        let (free, held) = mpsc::channel();
        let (messages, inbox) = mpsc::channel();
        let supplies = vec![SupplyMeter::new("held", Held(held))];
        let period = Duration::from_millis(50);
        let _polling = Polling::start(supplies, None, period, period, messages).unwrap();
        (0..2).for_each(|_| drop(next(&inbox)));
        let before = clock::now();
        free.send(250).unwrap();
        let poll = loop {
            let poll = next(&inbox);
            if poll.supplies[0].state == SupplyState::Active {
                break poll;
            }
        };
        assert!(poll.taken_at < before, "{:?}", poll.taken_at);
    }
}
