//! systemd's watchdog (`WatchdogSec=`), fed by the control thread alone.
//!
//! It is fed after a finished turn of the control loop, when the machine has fresh data or knows that it
//! has none and acts on that. No timer feeds it, and no other thread: a control thread that hangs, or that
//! works on a picture that is stale and does not know, is killed and started anew.
//!
//! A silent sensor alone is no reason: a blind agent still obeys alerts, and a thread that waits in the
//! kernel for a broken bus cannot be killed, so that no new instance could begin.

use std::time::Duration;

use ballast_types::Instant;
use sd_notify::NotifyState;

use crate::systemd::notify;

/// Feeds systemd's watchdog, if one was asked for.
pub struct Watchdog {
    /// A quarter of systemd's patience.
    every: Option<Duration>,
    fed: Option<Instant>,
}

impl Watchdog {
    /// As systemd wants it: `WATCHDOG_USEC`.
    pub fn of_systemd() -> Self {
        Self { every: sd_notify::watchdog_enabled().map(|patience| patience / 4), fed: None }
    }

    /// When the control loop must make a turn at the latest, whatever comes in.
    pub fn wake(&self, now: Instant, deadline: Option<Instant>) -> Option<Instant> {
        let wake = self.every.map(|every| now + every);
        deadline.into_iter().chain(wake).min()
    }

    /// A turn is finished; `is_attended` if the machine sees, or knows that it does not.
    pub fn turned(&mut self, now: Instant, is_attended: bool) {
        if is_attended && self.is_due(now) {
            self.fed = Some(now);
            notify(NotifyState::Watchdog);
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.every.is_some_and(|every| self.fed.is_none_or(|fed| now >= fed + every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fed_seldom_and_only_when_all_is_in_hand() {
        let at = Instant::from_millis;
        let mut watchdog = Watchdog { every: Some(Duration::from_millis(100)), fed: None };
        watchdog.turned(at(0), false);
        assert!(watchdog.is_due(at(0)));
        watchdog.turned(at(10), true);
        assert!(!watchdog.is_due(at(109)) && watchdog.is_due(at(110)));
        assert_eq!(watchdog.wake(at(20), Some(at(50))), Some(at(50)));
        assert_eq!(watchdog.wake(at(20), None), Some(at(120)));
        let none = Watchdog { every: None, fed: None };
        assert_eq!((none.wake(at(20), None), none.is_due(at(20))), (None, false));
    }
}
