//! The network between managers and agents: messages on their way, and what becomes of them.

use core::time::Duration;

use ballast_chassis_core as chassis;
use ballast_types::Instant;
use ballast_types::wire::Alert;

use super::chance::Chance;
use super::event::{Envelope, Event};
use super::faults::{Active, Disorder, Fault};
use super::queue::Queue;
use super::timing::Timing;

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) chance: Chance,
    pub(crate) alerts_sent: u64,
    latency: Duration,
    jitter: Duration,
    request_timeout: Duration,
}

pub(crate) struct Post<'a> {
    pub(crate) now: Instant,
    pub(crate) active: &'a Active,
    pub(crate) queue: &'a mut Queue<Event>,
}

impl Network {
    pub(crate) fn new(chance: Chance, timing: &Timing) -> Self {
        let Timing { latency, jitter, request_timeout, .. } = *timing;
        Self { chance, alerts_sent: 0, latency, jitter, request_timeout }
    }

    fn latency(&mut self, disorder: Disorder) -> Duration {
        let usual = self.latency + self.chance.span(self.jitter);
        if self.chance.happens(disorder.late_ppm) {
            usual + self.chance.span(disorder.late_by)
        } else {
            usual
        }
    }

    pub(crate) fn send(&mut self, post: Post<'_>, message: Envelope, alert: Alert) {
        self.alerts_sent += 1;
        let disorder = post.active.disorder;
        let cut = post.active.has(Fault::Partition(message.server));
        if cut || self.chance.happens(disorder.lost_ppm) {
            return self.unanswered(post, message);
        }
        if self.chance.happens(disorder.duplicated_ppm) {
            let at = post.now + self.latency(disorder);
            let duplicate = Envelope { is_duplicate: true, ..message };
            post.queue.put(at, Event::Alert(duplicate, Box::new(alert.clone())));
        }

        let at = post.now + self.latency(disorder);
        post.queue.put(at, Event::Alert(message, Box::new(alert)));
    }

    /// The sender will wait in vain.
    pub(crate) fn unanswered(&mut self, mut post: Post<'_>, message: Envelope) {
        let at = (message.sent + self.request_timeout).max(post.now);
        post.reply(message, at, chassis::Answer::Nothing("no answer in time".into()));
    }

    /// Nobody listens at the other end.
    pub(crate) fn refused(&mut self, mut post: Post<'_>, message: Envelope) {
        let at = post.now + self.latency(post.active.disorder);
        post.reply(message, at, chassis::Answer::Nothing("connection refused".into()));
    }

    pub(crate) fn answer(&mut self, mut post: Post<'_>, message: Envelope, answer: chassis::Answer) {
        let disorder = post.active.disorder;
        let lost = self.chance.happens(disorder.lost_ppm);
        let at = post.now + self.latency(disorder);
        let late = at.since(message.sent) > self.request_timeout;
        if lost || late || post.active.has(Fault::Partition(message.server)) {
            return self.unanswered(post, message);
        }
        post.reply(message, at, answer);
    }
}

impl Post<'_> {
    fn reply(&mut self, message: Envelope, at: Instant, answer: chassis::Answer) {
        if !message.is_duplicate {
            let Envelope { from, server, seq, .. } = message;
            self.queue.put(at, Event::Answer { to: from, server, seq, answer: Box::new(answer) });
        }
    }
}
