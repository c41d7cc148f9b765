//! No priority inversion: no user-facing core is slowed while a low-priority core runs above its floor.
//!
//! Judged are servers that a manager reaches and that have no fault. Every 100 ms their slowed user-facing
//! core-time is compared with the low-priority cores of all servers in reach. A controller needs one reaction time to
//! notice and act, so the promise is broken when both last longer than that.

use core::time::Duration;

use ballast_types::Instant;

use crate::plant::WINDOW_S;

/// Less slowed core-time in a window is rounding.
const LEAST_S: f64 = 1e-6;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Priorities {
    /// Its agent answers a manager within the lease, and the server has no fault.
    pub(crate) in_reach: bool,
    /// User-facing core-seconds that were slowed since the start.
    pub(crate) slowed_s: f64,
    /// Low-priority cores and VMs that are not at their floor.
    pub(crate) above_floor: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Inversion {
    reaction: Duration,
    since: Option<Instant>,
    before_s: Vec<f64>,
    left_out_s: f64,
    broken_windows: u32,
}

impl Inversion {
    /// `reaction`: from a change of the draw until what was decided has its effect, hardware limits included.
    pub(crate) fn new(servers: usize, reaction: Duration) -> Self {
        let before_s = vec![0.0; servers];
        Self { reaction, since: None, before_s, left_out_s: 0.0, broken_windows: 0 }
    }

    /// Takes a window of 100 ms. What is wrong, if the promise is broken.
    pub(crate) fn window(&mut self, now: Instant, servers: &[Priorities]) -> Option<String> {
        let (mut slowed, mut above_floor) = (0, 0);
        for (server, before_s) in servers.iter().zip(&mut self.before_s) {
            let slowed_s = server.slowed_s - core::mem::replace(before_s, server.slowed_s);
            if server.in_reach {
                slowed += usize::from(slowed_s > LEAST_S);
                above_floor += server.above_floor;
            } else {
                self.left_out_s += slowed_s;
            }
        }
        if slowed == 0 || above_floor == 0 {
            self.since = None;
            return None;
        }
        let lasted = now.since(*self.since.get_or_insert(now));
        if lasted <= self.reaction {
            return None;
        }
        self.broken_windows += 1;
        Some(format!(
            "user-facing cores of {slowed} servers are slowed for {:.1} s while {above_floor} low-priority \
             cores run above their floor",
            lasted.as_secs_f64()
        ))
    }

    /// Seconds in which the promise was broken.
    pub(crate) fn broken_s(&self) -> f64 {
        f64::from(self.broken_windows) * WINDOW_S
    }

    /// Slowed user-facing core-seconds of servers out of reach.
    pub(crate) fn left_out_s(&self) -> f64 {
        self.left_out_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of two servers: the first is slowed in each window where that is given. The first broken window.
    fn broken_at(slowed: &[bool], above_floor: usize, in_reach: [bool; 2]) -> Option<usize> {
        let mut judge = Inversion::new(2, Duration::from_millis(500));
        let mut slowed_s = 0.0;
        slowed.iter().enumerate().position(|(n, slowed)| {
            slowed_s += if *slowed { 0.05 } else { 0.0 };
            let first = Priorities { in_reach: in_reach[0], slowed_s, above_floor: 0 };
            let second = Priorities { in_reach: in_reach[1], slowed_s: 0.0, above_floor };
            judge.window(Instant::from_millis(100 * n as u64), &[first, second]).is_some()
        })
    }

    #[test]
    fn it_is_broken_after_a_reaction_time_without_a_pause() {
        let always = [true; 20];
        assert_eq!(broken_at(&always, 1, [true, true]), Some(6));
        assert_eq!(broken_at(&always, 0, [true, true]), None);
        assert_eq!(broken_at(&always, 1, [true, false]), None, "no manager rules the cores that are free");
        assert_eq!(broken_at(&always, 1, [false, true]), None, "no manager rules the server that is slowed");
        let pauses: Vec<bool> = (0..40).map(|n| n % 6 != 5).collect();
        assert_eq!(broken_at(&pauses, 1, [true, true]), None);
    }
}
