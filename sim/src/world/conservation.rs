//! Nobody is throttled for nothing: once a second every server is compared with what it would draw if
//! nothing held it.
//!
//! - **Work conservation**: a server without a fault is not throttled below its need for a minute on end
//!   while watts are free.
//!   Without any fault in the run ten seconds count, and free is what is 2 % under the highest set point.
//! - **Liveness**: a minute after the last change, and after everything fits, nothing restricts a server
//!   without a fault. A change is a fault that begins or ends, and another budget; once a run has come to
//!   its calm phase, what goes on to change there is no excuse any more.
//!
//! What is drawn is the higher of what the supplies and the servers' own reports show, as the loop judges
//! it. With even shares a server needs no more than its share: what others leave of theirs counts for it
//! only as far as the integral term goes.
//!
//! A server is judged only while some chassis manager reaches its agent; time without is counted, and the
//! minutes begin anew. Seconds in which its lease has run out and its fallback holds are counted too.

use super::checks::Promise;

/// Seconds on end after which a restriction that serves nobody is a broken promise.
const PATIENCE_S: u32 = 60;

/// Watts are free when the draw is under this share of the limit.
const FREE: f64 = 0.95;

/// The same in a run without any fault: seconds, and 2 % under a set point of 98.5 % of the limit.
const FAULTLESS: (u32, f64) = (10, 0.965);

/// Everything fits when the need is under this share of the limit: below every threshold of a lift.
const FITS: f64 = 0.93;

/// A server is throttled below its need when so much of it is missing: a share, and watts.
const MISSING: (f64, f64) = (0.03, 3.0);

#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerView {
    /// Some fault of its own is on.
    pub(crate) faulty: bool,
    /// Its agent obeyed a message within the last seconds.
    pub(crate) ruled: bool,
    /// Its lease is live: it does not draw its fallback.
    pub(crate) leased: bool,
    pub(crate) restricted: bool,
    pub(crate) draw_w: f64,
    /// What it would draw if nothing held it.
    pub(crate) need_w: f64,
    /// With even shares its share; else without bound.
    pub(crate) share_w: f64,
}

/// How long each server has been as it is, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Lasting {
    judged: u32,
    wasted: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Conservation {
    servers: Vec<Lasting>,
    /// Seconds on end that a server may waste, and the share of the limit under which watts are free.
    waste: (u32, f64),
    /// How long everything has fitted since the last change, in seconds.
    fits: u32,
    /// Server-seconds without a fault in which no manager reached the agent.
    unjudged_s: u64,
}

impl Conservation {
    /// `faultless`: nothing fails in the run, and the budget does not change.
    pub(crate) fn new(servers: usize, faultless: bool) -> Self {
        let waste = if faultless { FAULTLESS } else { (PATIENCE_S, FREE) };
        Self { servers: vec![Lasting::default(); servers], waste, fits: 0, unjudged_s: 0 }
    }

    /// Something has changed: who is held now may be held for that.
    pub(crate) fn changed(&mut self) {
        self.fits = 0;
    }

    /// Server-seconds that were not judged because no manager reached the server.
    pub(crate) fn unjudged_s(&self) -> u64 {
        self.unjudged_s
    }

    /// Takes one second: the limit, the draw at the supplies' input, what the servers report together, and
    /// every server. The first broken promise, if there is one.
    pub(crate) fn second(
        &mut self,
        limit_w: f64,
        draw_w: f64,
        reported_w: f64,
        views: &[ServerView],
    ) -> Option<(Promise, usize, String)> {
        // What comes back at the servers costs a little more at the supplies' input.
        let back: f64 = views.iter().map(|view| (view.need_w - view.draw_w).max(0.0)).sum();
        let drawn_w = draw_w.max(reported_w);
        let fits = drawn_w + 1.1 * back < FITS * limit_w;
        self.fits = if fits { self.fits + 1 } else { 0 };
        let free = drawn_w < self.waste.1 * limit_w;

        let mut broken = None;
        for (n, (lasting, view)) in self.servers.iter_mut().zip(views).enumerate() {
            let led = view.ruled && view.leased;
            self.unjudged_s += u64::from(!view.faulty && !led);

            // For a moment its fallback holds: that second says nothing, and the minute goes on.
            if view.ruled && !led {
                continue;
            }
            let judged = !view.faulty && view.ruled;
            lasting.judged = if judged { lasting.judged + 1 } else { 0 };
            let missing = view.need_w.min(view.share_w) - view.draw_w;
            let below = missing > MISSING.0 * view.need_w + MISSING.1;
            let wasted = judged && free && view.restricted && below;
            lasting.wasted = if wasted { lasting.wasted + 1 } else { 0 };

            let free_now = lasting.judged.min(self.fits) >= PATIENCE_S;
            let (promise, lasted_s) = if lasting.wasted >= self.waste.0 {
                (Promise::WorkConservation, self.waste.0)
            } else if view.restricted && free_now {
                (Promise::Liveness, PATIENCE_S)
            } else {
                continue;
            };

            broken = broken.or_else(|| {
                let what = format!(
                    "it draws {:.1} W of the {:.1} W that it needs, while {draw_w:.1} of {limit_w:.1} W \
                     are drawn ({:.1} W if nothing were held), for {lasted_s} s",
                    view.draw_w,
                    view.need_w,
                    draw_w + 1.1 * back,
                );

                Some((promise, n, what))
            });
        }

        broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE_SERVER: ServerView = ServerView {
        faulty: false,
        ruled: true,
        leased: true,
        restricted: false,
        draw_w: 200.0,
        need_w: 200.0,
        share_w: f64::INFINITY,
    };

    /// The second in which a promise breaks, and which, when these servers stay as they are.
    fn breaks(limit_w: f64, views: &[ServerView]) -> Option<(u32, Promise, usize)> {
        breaks_where(limit_w, 0.0, views)
    }

    /// The same where the servers report so much together.
    fn breaks_where(limit_w: f64, reported_w: f64, views: &[ServerView]) -> Option<(u32, Promise, usize)> {
        let mut conservation = Conservation::new(views.len(), false);
        let draw_w: f64 = views.iter().map(|view| view.draw_w).sum();
        (1..=200).find_map(|second| {
            let (promise, server, _) = conservation.second(limit_w, draw_w, reported_w, views)?;
            Some((second, promise, server))
        })
    }

    #[test]
    fn who_is_throttled_while_watts_are_free_is_throttled_for_nothing() {
        let held = ServerView { restricted: true, draw_w: 150.0, ..FREE_SERVER };
        // 350 of 370 W are drawn: watts are free, though not everything fits.
        assert_eq!(breaks(370.0, &[FREE_SERVER, held]), Some((60, Promise::WorkConservation, 1)));
        assert_eq!(breaks(360.0, &[FREE_SERVER, held]), None, "the watts are in use");
        let faulty = ServerView { faulty: true, ..held };
        assert_eq!(breaks(370.0, &[FREE_SERVER, faulty]), None);
        let alone = ServerView { ruled: false, ..held };
        assert_eq!(breaks(370.0, &[FREE_SERVER, alone]), None);
    }

    #[test]
    fn what_is_reported_is_not_free_and_an_even_share_is_all_that_a_server_needs() {
        let held = ServerView { restricted: true, draw_w: 150.0, ..FREE_SERVER };
        let views = [FREE_SERVER, held];
        assert_eq!(breaks_where(370.0, 345.0, &views), Some((60, Promise::WorkConservation, 1)));
        assert_eq!(breaks_where(370.0, 360.0, &views), None);
        // Nor does everything fit where reports show more than 93 %.
        assert!(breaks_where(440.0, 350.0, &views).is_some());
        assert_eq!(breaks_where(440.0, 425.0, &views), None);
        for (share_w, broken) in [(155.0, false), (165.0, true)] {
            let views = [FREE_SERVER, ServerView { share_w, ..held }];
            assert_eq!(breaks(370.0, &views).is_some(), broken, "{share_w} W");
        }
    }

    #[test]
    fn when_everything_fits_nothing_may_be_held_even_if_nothing_is_missing() {
        let held = ServerView { restricted: true, ..FREE_SERVER };
        assert_eq!(breaks(440.0, &[FREE_SERVER, held]), Some((60, Promise::Liveness, 1)));
        assert_eq!(breaks(420.0, &[FREE_SERVER, held]), None, "it does not fit well enough");
        assert_eq!(breaks(440.0, &[FREE_SERVER, FREE_SERVER]), None);
    }

    #[test]
    fn after_a_change_the_minute_begins_anew() {
        let held = ServerView { restricted: true, ..FREE_SERVER };
        let mut conservation = Conservation::new(1, false);
        for second in 0..59 {
            assert_eq!(conservation.second(1000.0, 200.0, 0.0, &[held]), None, "{second}");
        }
        conservation.changed();
        for second in 0..59 {
            assert_eq!(conservation.second(1000.0, 200.0, 0.0, &[held]), None, "{second}");
        }
        assert!(conservation.second(1000.0, 200.0, 0.0, &[held]).is_some());
    }

    #[test]
    fn time_without_a_manager_is_counted_and_the_minute_begins_anew() {
        let held = ServerView { restricted: true, ..FREE_SERVER };
        let mut conservation = Conservation::new(1, false);
        for second in 0..59 {
            assert_eq!(conservation.second(1000.0, 200.0, 0.0, &[held]), None, "{second}");
        }
        assert_eq!(conservation.second(1000.0, 200.0, 0.0, &[ServerView { ruled: false, ..held }]), None);
        for second in 0..59 {
            assert_eq!(conservation.second(1000.0, 200.0, 0.0, &[held]), None, "{second}");
        }
        assert!(conservation.second(1000.0, 200.0, 0.0, &[held]).is_some());
        assert_eq!(conservation.unjudged_s(), 1);
    }

    #[test]
    fn a_second_at_the_fallback_is_counted_and_the_minute_goes_on() {
        let held = ServerView { restricted: true, ..FREE_SERVER };
        let at_fallback = ServerView { leased: false, ..held };
        let mut conservation = Conservation::new(1, false);
        for second in 0..59 {
            assert_eq!(conservation.second(1000.0, 200.0, 0.0, &[held]), None, "{second}");
        }
        assert_eq!(conservation.second(1000.0, 200.0, 0.0, &[at_fallback]), None);
        assert!(conservation.second(1000.0, 200.0, 0.0, &[held]).is_some());
        assert_eq!(conservation.unjudged_s(), 1);
    }
}
