//! The paper's baseline for a chassis: on the supplies' alert, every server above its even share is
//! capped by hardware, all its cores alike; 30 s later the caps are lifted.

use core::time::Duration;

use ballast_types::{Instant, Watts};

use super::supplies::supplies_w;
use crate::plant::Plant;

/// Between two polls of the supplies.
const POLL: Duration = Duration::from_millis(200);
/// The alert, as a share of the budget in parts per million: that of the project's own manager.
const ALERT_PPM: u32 = 980_000;
/// From the last alert to the lift.
const HOLD: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) struct FullServer {
    budget: Watts,
    share: Watts,
    next: Instant,
    lift_at: Option<Instant>,
}

impl FullServer {
    pub(crate) fn new(budget: Watts, share: Watts) -> Self {
        Self { budget, share, next: Instant::ZERO + POLL, lift_at: None }
    }

    pub(super) fn act(&mut self, now: Instant, plant: &mut Plant) {
        if now < self.next {
            return;
        }
        self.next = now + POLL;
        let servers = plant.spec().servers.len();

        if supplies_w(plant) >= self.budget.ppm(ALERT_PPM) {
            self.lift_at = Some(now + HOLD);
            for server in 0..servers {
                if plant.server_meter(server).watts > self.share {
                    plant.set_slot_cap(server, Some(self.share));
                }
            }
        } else if self.lift_at.is_some_and(|at| now >= at) {
            self.lift_at = None;
            for server in 0..servers {
                plant.set_slot_cap(server, None);
            }
        }
    }
}
