//! A user-facing VM: an open-loop queue with one server per core, first come first served.

use core::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Cursor, Latencies, Profile, stretch};
use crate::rng::Stream;

/// An open-loop queue: requests come whether or not the last ones were answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueueSpec {
    /// Offered load over time, as a share of the VM's cores at the highest frequency.
    pub utilisation: Profile,
    /// Mean service time at the highest frequency.
    pub service_mean: Duration,
    pub service: ServiceTime,
    /// The share of the service time that scales with the clock.
    pub frequency_bound: f64,
    /// A request that would wait longer goes away unanswered, and is counted.
    pub max_wait: Duration,
}

/// How service times are spread around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceTime {
    Exponential,
    /// Log-normal with this standard deviation of the logarithm.
    LogNormal(f64),
}

impl QueueSpec {
    /// Exponential service with a mean of 5 ms, bound to the clock as user-facing work is.
    pub fn new(utilisation: Profile) -> Self {
        Self {
            utilisation,
            service_mean: Duration::from_millis(5),
            service: ServiceTime::Exponential,
            frequency_bound: super::USER_FACING_BOUND,
            max_wait: Duration::from_secs(5),
        }
    }
}

/// The queue at work, after Kiefer and Wolfowitz: all that matters is when each core falls free.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    load: Cursor,
    mean_s: f64,
    law: ServiceTime,
    bound: f64,
    max_wait_s: f64,
    rng: Stream,
    /// Offered load still to pass before the next arrival, in units of one arrival.
    until_next: f64,
    /// When each core falls free, in seconds.
    free: Vec<f64>,
    /// The core after the one that was picked last.
    next: usize,
    /// Busy seconds of each core in the current step.
    busy: Vec<f64>,
    /// What a core that is busy gets of the time; the rest goes to others that share it.
    part: f64,
    /// The queue may be stopped: requests count when they are answered, not when they come.
    held: bool,
    /// It is stopped for the step that comes.
    stopped: bool,
    /// Requests then under way: when each came, and when it will be answered if nothing stops it.
    pending: Vec<(f64, f64)>,
}

impl Queue {
    pub(crate) fn new(spec: &QueueSpec, cores: usize, mut rng: Stream) -> Self {
        let until_next = rng.exponential();
        Self {
            load: Cursor::new(spec.utilisation.clone()),
            mean_s: spec.service_mean.as_secs_f64().max(1e-6),
            law: spec.service,
            bound: spec.frequency_bound,
            max_wait_s: spec.max_wait.as_secs_f64(),
            rng,
            until_next,
            free: vec![0.0; cores],
            next: 0,
            busy: vec![0.0; cores],
            part: 1.0,
            held: false,
            stopped: false,
            pending: Vec::new(),
        }
    }

    /// From now on it may be stopped, or not any more. Requests that are under way when that begins have
    /// been counted with the latency that they would have had.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Requests that come from now on are served in so much of the time, while others have the rest.
    pub(crate) fn set_part(&mut self, part: f64) {
        self.part = part;
    }

    /// Core-seconds of the next `span` seconds for which there is work already.
    pub(crate) fn waiting(&self, t: f64, span: f64) -> f64 {
        self.free.iter().map(|free| (free - t).clamp(0.0, span)).sum()
    }

    /// Stops all cores from `t` for `span` seconds: whatever is under way is answered that much later.
    pub(crate) fn stop(&mut self, t: f64, span: f64) {
        for free in &mut self.free {
            *free = free.max(t) + span;
        }
        for (_, done) in self.pending.iter_mut().filter(|(_, done)| *done > t) {
            *done += span;
        }
        self.stopped = true;
    }

    /// Moves the VM to `cores` cores; work that is queued stays, on the cores that remain.
    pub(crate) fn resize(&mut self, cores: usize, now: f64) {
        let lost: f64 = self.free.iter().skip(cores).map(|f| (f - now).max(0.0)).sum();
        self.free.resize(cores, now);
        self.busy.resize(cores, 0.0);
        for free in &mut self.free {
            *free = free.max(now) + lost / cores as f64;
        }
    }

    /// The core for a request that comes at `at`: an idle one, in turn, or else the first to fall free.
    fn pick(&mut self, at: f64) -> usize {
        let turn = self.next.min(self.free.len());
        let (before, after) = self.free.split_at(turn);
        let idle = |cores: &[f64]| cores.iter().position(|free| *free <= at);
        let core = match idle(after).map(|n| turn + n).or_else(|| idle(before)) {
            Some(core) => core,
            None => (1..self.free.len())
                .fold(0, |first, n| if self.free[n] < self.free[first] { n } else { first }),
        };
        self.next = core + 1;
        core
    }

    /// Runs from `t` for `span` seconds with the cores at `shares` of their highest frequency.
    ///
    /// Afterwards [`Queue::busy`] says for how long each core was busy.
    pub(crate) fn run(
        &mut self,
        t: f64,
        span: f64,
        shares: impl Fn(usize) -> f64,
        latencies: &mut Latencies,
        refused: &mut u64,
    ) {
        let end = t + span;
        let stopped = core::mem::take(&mut self.stopped);
        for (busy, free) in self.busy.iter_mut().zip(&self.free) {
            *busy = if stopped { 0.0 } else { (free - t).clamp(0.0, span) };
        }
        self.pending.retain(|(came, done)| {
            let under_way = self.held && *done > t;
            if !under_way {
                latencies.add(done - came);
            }
            under_way
        });

        if self.free.is_empty() {
            return;
        }
        let rate = self.load.at(t) * self.free.len() as f64 / self.mean_s;
        let mut at = t;

        while self.until_next < rate * (end - at) {
            at += self.until_next / rate;
            self.until_next = self.rng.exponential();
            let core = self.pick(at);
            let start = at.max(self.free[core]);
            let service = self.mean_s * self.draw() * stretch(self.bound, shares(core)) / self.part;

            if start - at > self.max_wait_s {
                *refused += 1;
                continue;
            }

            let done = start + service;
            self.busy[core] += (done.min(end) - start).max(0.0);
            self.free[core] = done;

            if self.held {
                self.pending.push((at, done));
            } else {
                latencies.add(done - at);
            }
        }

        self.until_next -= rate * (end - at);
    }

    /// How long each core was busy in the step that was run last, in seconds.
    pub(crate) fn busy(&self) -> &[f64] {
        &self.busy
    }

    /// A service time with mean 1.
    fn draw(&mut self) -> f64 {
        match self.law {
            ServiceTime::Exponential => self.rng.exponential(),
            ServiceTime::LogNormal(sigma) => libm::exp(sigma * self.rng.normal() - 0.5 * sigma * sigma),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Purpose;

    fn run(load: f64, cores: usize, share: f64, seconds: u32, law: ServiceTime) -> (Latencies, f64) {
        let spec = QueueSpec { service: law, ..QueueSpec::new(Profile::Constant(load)) };
        let mut queue = Queue::new(&spec, cores, Stream::new(5, Purpose::Arrivals, 0, 0));
        let (mut latencies, mut refused, mut busy) = (Latencies::default(), 0, 0.0);
        for step in 0..seconds * 100 {
            queue.run(f64::from(step) / 100.0, 0.01, |_| share, &mut latencies, &mut refused);
            busy += queue.busy().iter().sum::<f64>();
        }
        (latencies, busy / (f64::from(seconds) * cores as f64))
    }

    /// Erlang's C formula: the chance to wait, for `k` servers at load `rho` each.
    fn erlang_c(k: u32, rho: f64) -> f64 {
        let a = rho * f64::from(k);
        let mut term = 1.0;
        let mut sum = 1.0;
        for n in 1..k {
            term *= a / f64::from(n);
            sum += term;
        }
        let last = term * a / f64::from(k) / (1.0 - rho);
        last / (sum + last)
    }

    #[test]
    fn memoryless_queues_wait_as_erlang_says() {
        for (k, rho) in [(1, 0.5), (4, 0.7), (4, 0.85)] {
            let (latencies, busy) = run(rho, k as usize, 1.0, 900, ServiceTime::Exponential);
            let wait_ms = erlang_c(k, rho) * 5.0 / (f64::from(k) * (1.0 - rho));
            let got = latencies.mean_ms().unwrap();
            assert!((got / (5.0 + wait_ms) - 1.0).abs() < 0.05, "k {k} rho {rho}: {got} ms");
            assert!((busy - rho).abs() < 0.01, "utilisation comes out of the queue: {busy}");
        }
    }

    #[test]
    fn p95_and_utilisation_rise_as_the_frequency_falls() {
        let (full, busy_full) = run(0.5, 4, 1.0, 120, ServiceTime::LogNormal(0.8));
        let (half, busy_half) = run(0.5, 4, 0.5, 120, ServiceTime::LogNormal(0.8));
        assert!(half.p95_ms().unwrap() > 1.5 * full.p95_ms().unwrap());
        // The same work at 1 - 0.55 + 0.55 / 0.5 = 1.55 of the time.
        assert!((busy_half / busy_full - 1.55).abs() < 0.03, "{busy_half} {busy_full}");
    }

    #[test]
    fn overload_refuses_instead_of_growing_for_ever() {
        let spec =
            QueueSpec { max_wait: Duration::from_millis(100), ..QueueSpec::new(Profile::Constant(1.0)) };
        let mut queue = Queue::new(&spec, 2, Stream::new(5, Purpose::Arrivals, 0, 0));
        let (mut latencies, mut refused) = (Latencies::default(), 0);
        for step in 0..2000 {
            queue.run(f64::from(step) / 100.0, 0.01, |_| 0.5, &mut latencies, &mut refused);
        }
        assert!(refused > 100);
        assert!(latencies.quantile_ms(1.0).unwrap() < 250.0);
    }

    #[test]
    fn a_queue_that_is_stopped_half_of_the_time_answers_as_late() {
        // Far apart: a request of 5 ms in a run of 10 ms, stopped for 10 ms, and so on.
        let spec = QueueSpec::new(Profile::Constant(0.01));
        let play = |stops: bool| {
            let mut queue = Queue::new(&spec, 4, Stream::new(5, Purpose::Arrivals, 0, 0));
            let (mut latencies, mut refused, mut busy) = (Latencies::default(), 0, 0.0);
            queue.hold(stops);

            for step in 0..100_000u32 {
                let t = f64::from(step) / 100.0;
                if stops && step % 2 == 1 {
                    queue.stop(t, 0.01);
                }
                queue.run(t, 0.01, |_| 1.0, &mut latencies, &mut refused);
                busy += queue.busy().iter().sum::<f64>();
            }

            queue.hold(false);
            queue.run(1000.0, 0.01, |_| 1.0, &mut latencies, &mut refused);

            (latencies, busy)
        };

        let ((free, busy_free), (stopped, busy_stopped)) = (play(false), play(true));
        assert!((busy_free / busy_stopped - 1.0).abs() < 0.01, "stopping takes no CPU time");

        // Half of them come while it is stopped, wait 5 ms, and are stopped once per whole run of 10 ms;
        // the others, which begin within a run, once per 10 ms of service on average.
        let late = stopped.mean_ms().unwrap() - free.mean_ms().unwrap();
        let expected = 0.5 * (5.0 + 10.0 / (libm::exp(2.0) - 1.0)) + 0.5 * 5.0;
        assert!((late - expected).abs() < 0.2, "{late} ms");
        assert!((stopped.count() as f64 / free.count() as f64 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn queued_work_survives_a_move_to_fewer_cores() {
        let spec = QueueSpec::new(Profile::Constant(0.0));
        let mut queue = Queue::new(&spec, 4, Stream::new(5, Purpose::Arrivals, 0, 0));
        queue.free = vec![1.0, 2.0, 3.0, 4.0];
        queue.resize(2, 1.0);
        assert_eq!(queue.free.iter().sum::<f64>() - 2.0, 6.0);
        queue.resize(0, 1.0);
        queue.resize(3, 2.0);
        assert_eq!(queue.free.len(), 3);
    }
}
