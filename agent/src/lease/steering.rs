//! Whether the chassis manager still steers.
//!
//! A lease relies on the manager to hold the total. A manager whose control loop has stopped still sends, and renews
//! leases that nothing computed. One that has lost its set point gives although its messages name a draw above their
//! limit. The leases of both run from the last message that showed steering.

use core::time::Duration;

use ballast_types::Instant;
use ballast_types::wire::Alert;
use serde::{Deserialize, Serialize};

/// A manager that gave too much for a whole lease is not believed for so long, unless it takes while the draw is above
/// the limit. Under the fallbacks alone the draw may fit, so that nothing else would show that it still gives.
const WRONG_FOR: Duration = Duration::from_secs(300);

/// What the messages showed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Steering {
    judgements: Option<u64>,
    height_ppm: Option<u32>,
    /// When a message last showed that the manager steers.
    shown_at: Instant,
    /// Until then a message has to show more: see [`WRONG_FOR`].
    wrong_until: Instant,
}

impl Steering {
    /// Takes the newest message; from when on its lease of `span` runs at the latest.
    pub(super) fn take(&mut self, now: Instant, alert: &Alert, span: Duration) -> Instant {
        // An older manager does not count its judgements.
        let judges = alert.judgements.is_none() || alert.judgements != self.judgements;
        let is_above = alert.chassis_power_w.is_some_and(|draw| draw > alert.chassis_limit_w);
        let gives = is_above && self.gives(alert);
        if gives && now - self.shown_at >= span {
            self.wrong_until = now + WRONG_FOR;
        }
        if judges && !gives && (is_above || now >= self.wrong_until) {
            (self.shown_at, self.wrong_until) = (now, now);
        }
        (self.judgements, self.height_ppm) = (alert.judgements, alert.height_ppm);
        self.shown_at
    }

    /// Whether low-priority cores of this server get as much as before, and more than their floor.
    fn gives(&self, alert: &Alert) -> bool {
        alert.cap_w.is_none() || alert.height_ppm > Some(0) && alert.height_ppm >= self.height_ppm
    }
}

#[cfg(test)]
mod tests {
    use ballast_types::{ChassisId, Epoch, Seq, Watts};

    use super::*;

    /// A message of a chassis with a limit of 1000 W.
    fn alert(judgements: Option<u64>, drawn: Option<i64>, cap: bool, height_ppm: Option<u32>) -> Alert {
        Alert {
            judgements,
            chassis_power_w: drawn.map(Watts::from_whole),
            chassis_limit_w: Watts::from_whole(1000),
            cap_w: cap.then_some(Watts::from_whole(200)),
            height_ppm,
            ..Alert::watch(ChassisId::new("c").unwrap(), Epoch(1), Seq(1))
        }
    }

    #[test]
    fn a_message_shows_steering_if_something_was_judged_and_nothing_is_given_above_the_limit() {
        let high = Some(500_000);
        for (next, shows) in [
            (alert(Some(8), Some(900), true, high), true),
            (alert(Some(8), None, true, high), true), // a blind manager judges by reports
            (alert(Some(7), Some(900), true, high), false), // nothing was judged
            (alert(Some(3), Some(900), true, high), true), // a manager that has started again
            (alert(None, Some(900), true, high), true), // an older manager
            (alert(Some(8), Some(1001), true, Some(499_999)), true),
            (alert(Some(8), Some(1001), true, high), false),
            (alert(Some(8), Some(1001), true, Some(600_000)), false),
            (alert(Some(8), Some(1001), true, Some(0)), true), // there is nothing more to take
            (alert(Some(8), Some(1001), true, None), true),    // it caps by watts
            (alert(Some(8), Some(1001), false, None), false),
            (alert(Some(8), Some(1000), false, None), true),
        ] {
            let mut steering = Steering::default();
            let (at, span) = (Instant::from_millis, Duration::from_secs(2));
            let first = alert(Some(7), Some(900), true, high);
            assert_eq!(steering.take(at(1000), &first, span), at(1000));
            let lease_from = steering.take(at(1200), &next, span);
            assert_eq!(lease_from, at(if shows { 1200 } else { 1000 }), "{next:?}");
        }
    }

    fn gives(judgements: u64) -> Alert {
        alert(Some(judgements), Some(1100), false, None)
    }
    fn fits(judgements: u64) -> Alert {
        alert(Some(judgements), Some(900), false, None)
    }
    fn takes(judgements: u64) -> Alert {
        alert(Some(judgements), Some(1100), true, Some(0))
    }
    /// Whether message `n`, of every 200 ms, shows steering.
    fn shows(steering: &mut Steering, n: u64, message: &Alert) -> bool {
        let now = Instant::from_millis(200 * n);
        steering.take(now, message, Duration::from_secs(2)) == now
    }

    #[test]
    fn a_manager_that_gave_too_much_for_a_lease_is_believed_once_it_takes_or_after_five_minutes() {
        for (gives_for, then, believed_at) in
            [(9, fits as fn(u64) -> Alert, 10), (12, fits, 12 + 1500), (12, takes, 13)]
        {
            let mut steering = Steering::default();
            assert!(shows(&mut steering, 0, &fits(0)));
            assert!((1..=gives_for).all(|n| !shows(&mut steering, n, &gives(n))));
            let found = (gives_for + 1..2000).find(|&n| shows(&mut steering, n, &then(n)));
            assert_eq!(found, Some(believed_at), "{gives_for}");
        }
    }
}
