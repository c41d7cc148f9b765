//! Threads that nobody waits for: one that ends before it is told to is an alarm, and begins again.
//!
//! What a thread works on outlives its panic, and goes on from there: mutexes are handed on ([`crate::lock`]), and
//! whoever leaves something half done says how it is taken up again. The control thread is no such thread: its
//! machine cannot be trusted any more, so the daemon ends, and systemd starts it anew.

use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ballast_hw::panics::{said, tell_panics};
use ballast_types::Instant;
use ballast_types::wire::{Alarm, AlarmId};

use crate::{clock, lock};

/// Before a thread begins again: the first time, and at most. An ending daemon may have to wait for it.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(2);
/// One that has run for so long since is well again.
const WELL_AFTER: Duration = Duration::from_secs(600);

/// Those of this process that have ended, by name.
static ENDED: Register = Register::new();

/// Which threads have ended before they were told to.
struct Register(Mutex<BTreeMap<String, Ended>>);

struct Ended {
    count: u64,
    at: Instant,
    why: String,
}

impl Register {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn note(&self, name: &str, now: Instant, why: String) {
        tracing::error!(thread = name, why, "a thread has ended before it was told to: it begins again");
        let mut all = lock(&self.0);
        let count = all.get(name).map_or(0, |before| before.count) + 1;
        all.insert(name.to_owned(), Ended { count, at: now, why });
    }

    fn alarms(&self, now: Instant) -> Vec<Alarm> {
        let all = lock(&self.0);
        let recent = all.iter().filter(|(_, it)| now.since(it.at) < WELL_AFTER);
        let alarm = |(name, it): (&String, &Ended)| {
            let message =
                format!("the thread {name} has ended {} times, and began again: {}", it.count, it.why);
            Alarm::about(AlarmId::ThreadEnded, name, message)
        };
        recent.map(alarm).collect()
    }
}

/// The alarms of all threads that have ended lately.
pub(crate) fn alarms() -> Vec<Alarm> {
    ENDED.alarms(clock::now())
}

/// How often each thread has ended before it was told to; only those that have.
pub(crate) fn ended() -> Vec<(String, u64)> {
    lock(&ENDED.0).iter().map(|(name, it)| (name.clone(), it.count)).collect()
}

/// The threads of the crates below are supervised too: their panics count as those of threads here.
pub(crate) fn watch_hardware() {
    tell_panics(|name, why| note(name, &why));
}

/// A thread's work has failed, and goes on.
pub fn note(name: &str, why: &impl ToString) {
    ENDED.note(name, clock::now(), why.to_string());
}

/// Does `work` on a thread of its own. It returns once it was told to, and `state` goes with it; after a panic it begins
/// again with the same.
pub fn supervise<S: Send + 'static>(
    name: impl Into<String>,
    state: S,
    work: impl FnMut(&mut S) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    supervise_in(&ENDED, name.into(), state, work, drop)
}

/// The same; at its end the thread gives `state` back.
pub fn supervise_and_return<S: Send + 'static>(
    name: impl Into<String>,
    state: S,
    work: impl FnMut(&mut S) + Send + 'static,
) -> io::Result<JoinHandle<S>> {
    supervise_in(&ENDED, name.into(), state, work, |state| state)
}

fn supervise_in<S: Send + 'static, T: Send + 'static>(
    register: &'static Register,
    name: String,
    mut state: S,
    mut work: impl FnMut(&mut S) + Send + 'static,
    end: fn(S) -> T,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.clone()).spawn(move || {
        let mut wait = AGAIN_AFTER;
        loop {
            let began = clock::now();
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(&mut state))) else { return end(state) };
            register.note(&name, clock::now(), said(panic.as_ref()));
            wait = next(wait, clock::since(began));
            thread::sleep(wait);
        }
    })
}

/// Calls `turn` once a `period` on a thread of its own, until it gives `false`; after a panic it is called again. Turns
/// that a slow one left no time for are not made up for.
pub fn every(
    name: &str,
    period: Duration,
    mut turn: impl FnMut() -> bool + Send + 'static,
) -> io::Result<()> {
    let work = move |next: &mut Instant| {
        while turn() {
            let now = clock::now();
            *next = (*next + period).max(now);
            thread::sleep(*next - now);
        }
    };
    supervise(name, clock::now(), work).map(drop)
}

/// Does what `make` makes as a task of this runtime, and makes it anew after a panic. Ends once a task returns.
pub async fn supervise_task<F>(name: String, make: impl FnMut() -> F + Send)
where
    F: Future<Output = ()> + Send + 'static,
{
    supervise_task_in(&ENDED, name, make).await;
}

async fn supervise_task_in<F>(register: &Register, name: String, mut make: impl FnMut() -> F + Send)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut wait = AGAIN_AFTER;
    loop {
        let began = clock::now();
        let Err(error) = tokio::spawn(make()).await else { return };
        // Cancelled: the runtime ends.
        let Ok(panic) = error.try_into_panic() else { return };
        register.note(&name, clock::now(), said(panic.as_ref()));
        wait = next(wait, clock::since(began));
        tokio::time::sleep(wait).await;
    }
}

/// What to wait after one that ran for so long, when the last wait was `wait`.
fn next(wait: Duration, ran: Duration) -> Duration {
    if ran >= WELL_AFTER { AGAIN_AFTER } else { (wait * 2).min(AGAIN_AFTER_MAX) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_ends_without_being_told_to_is_an_alarm_and_goes_on_with_what_it_had() {
        static REGISTER: Register = Register::new();
        let (orders, inbox) = mpsc::channel::<u32>();
        let (done, seen) = mpsc::channel();
        let work = move |sum: &mut u32| {
            for order in &inbox {
                assert!(order != 13, "no {order}");
                *sum += order;
                done.send(*sum).unwrap();
            }
        };
        let thread = supervise_in(&REGISTER, "adder".into(), 0, work, |sum| sum).unwrap();
        for order in [1, 13, 2] {
            orders.send(order).unwrap();
        }
        assert_eq!((seen.recv().unwrap(), seen.recv().unwrap()), (1, 3), "the order after the panic is done");

        let alarms = REGISTER.alarms(clock::now());
        assert_eq!((alarms.len(), alarms[0].id), (1, AlarmId::ThreadEnded));
        assert_eq!(alarms[0].subject.as_deref(), Some("adder"));
        assert!(alarms[0].message.contains("it has panicked: no 13"), "{alarms:?}");
        assert!(REGISTER.alarms(clock::now() + WELL_AFTER).is_empty(), "it is well again");

        drop(orders);
        assert_eq!(thread.join().unwrap(), 3);
        assert_eq!(lock(&REGISTER.0)["adder"].count, 1, "one that was told to end is no alarm");
    }

    #[test]
    fn waits_grow_up_to_a_limit_and_begin_anew_after_a_long_run() {
        let mut wait = AGAIN_AFTER;
        for _ in 0..20 {
            wait = next(wait, Duration::from_secs(1));
        }
        assert_eq!(wait, AGAIN_AFTER_MAX);
        assert_eq!(next(wait, WELL_AFTER), AGAIN_AFTER);
    }

    #[tokio::test]
    async fn a_task_that_panics_is_made_anew() {
        static REGISTER: Register = Register::new();
        let mut made = 0;
        let task = supervise_task_in(&REGISTER, "made anew".into(), || {
            made += 1;
            let fails = made == 1;
            async move { assert!(!fails, "the first") }
        });
        task.await;
        assert_eq!(made, 2);
        assert_eq!(lock(&REGISTER.0)["made anew"].count, 1);
    }
}
