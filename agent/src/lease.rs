//! What the chassis ordered, and for how long it holds: epochs, leases, the fallback.
//!
//! ```text
//!                 live message                 lease end                rise
//!   fallback ───────────────────▶ Live(cap) ─────────────▶ Held ────────────────▶ fallback
//!      │                            ▲   ▲         lower of cap and fallback
//!      └── lower cap, echo dead ──▶ Held └── live message ──┘
//! ```
//! No clocks are shared. A lease runs from the agent's own stamp that the chassis echoes, so a
//! message that was delayed in the network can restrict, but grants nothing.

use core::time::Duration;

use ballast_types::wire::{Alert, Level, Refusal, RefusalReason};
use ballast_types::{BootId, ChassisId, Epoch, Instant, Seq, Watts};

use crate::Memory;

/// No lease is longer, whatever the message says: a cap below the fallback must end by itself.
const LONGEST_LEASE: Duration = Duration::from_secs(60);
/// A manager cannot restart faster than this, and every restart costs one epoch.
const FASTEST_RESTART: Duration = Duration::from_millis(200);
/// Epochs that may be burnt at once (a crash loop before the first message).
const EPOCH_SLACK: u64 = 16;

/// The lower of two caps; `None` is uncapped.
fn lower(a: Option<Watts>, b: Option<Watts>) -> Option<Watts> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    }
}

/// One order in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grant {
    cap: Option<Watts>,
    /// The lease's end.
    end: Instant,
    /// From here on the fallback alone holds.
    rise: Instant,
    /// Whether the lease has ended.
    held: bool,
}

/// What an accepted message changed besides the cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// The cap that it means.
    pub(crate) cap: Option<Watts>,
    /// It opened a new epoch.
    pub(crate) new_epoch: bool,
    /// What is to be remembered has changed.
    pub(crate) remember: bool,
}

/// Everything the chassis has ordered.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    chassis_id: ChassisId,
    boot_id: BootId,
    memory: Memory,
    /// The newest message of this life, and when it came.
    heard: Option<(Seq, Instant)>,
    grant: Option<Grant>,
    /// No raise before this instant: the last message was an emergency.
    emergency_until: Option<Instant>,
}

impl Orders {
    pub(crate) fn new(chassis_id: ChassisId, boot_id: BootId, memory: Memory) -> Self {
        Self {
            chassis_id,
            boot_id,
            memory,
            heard: None,
            grant: None,
            emergency_until: None,
        }
    }

    /// Obeys `alert`, or says why not; a refused alert changes nothing.
    pub(crate) fn take(&mut self, now: Instant, alert: &Alert) -> Result<Accepted, RefusalReason> {
        self.check(now, alert)?;
        let before = self.memory;
        let first = self.heard.is_none();
        self.memory.epoch = alert.epoch;
        self.heard = Some((alert.seq, now));
        // An emergency that names no cap still means that there is too much draw.
        let emergency = alert.level == Level::Emergency;
        let cap = alert.cap_w.or(emergency.then_some(alert.fallback_w));
        self.obey(now, alert, cap);
        Ok(Accepted {
            cap,
            new_epoch: first || before.epoch != alert.epoch,
            remember: before != self.memory,
        })
    }

    fn check(&self, now: Instant, alert: &Alert) -> Result<(), RefusalReason> {
        if alert.chassis_id != self.chassis_id {
            return Err(RefusalReason::ForeignChassis);
        }
        let newest = self.memory.epoch;
        let Some((seq, at)) = self.heard else {
            // Numbers within the epoch are not kept over a restart: what an old message could
            // grant has expired with its echo.
            return if alert.epoch < newest {
                Err(RefusalReason::Stale)
            } else {
                Ok(())
            };
        };
        if (alert.epoch, alert.seq) <= (newest, seq) {
            return Err(RefusalReason::Stale);
        }
        let jump = alert.epoch.0 - newest.0;
        let restarts = now.since(at).as_nanos() / FASTEST_RESTART.as_nanos();
        if u128::from(jump) > u128::from(EPOCH_SLACK) + restarts {
            return Err(RefusalReason::EpochJump);
        }
        Ok(())
    }

    fn obey(&mut self, now: Instant, alert: &Alert, cap: Option<Watts>) {
        let span = Duration::from_millis(alert.valid_for_ms).min(LONGEST_LEASE);
        self.emergency_until = (alert.level == Level::Emergency).then(|| now + span);
        let live = self.live_until(now, alert, span);
        let fallback = Some(alert.fallback_w);
        if live.is_some() || lower(self.memory.fallback_w, fallback) != self.memory.fallback_w {
            self.memory.fallback_w = fallback;
        }
        if let Some(end) = live {
            self.grant = Some(Grant {
                cap,
                end,
                rise: end + span,
                held: false,
            });
        } else if cap.is_some() && lower(cap, self.cap()) == cap {
            let rise = now + span;
            self.grant = Some(match self.grant {
                Some(grant) => Grant {
                    cap,
                    rise: grant.rise.max(rise),
                    ..grant
                },
                None => Grant {
                    cap,
                    end: now,
                    rise,
                    held: true,
                },
            });
        }
    }

    /// The end of the lease that `alert` grants, if it is still to come.
    fn live_until(&self, now: Instant, alert: &Alert, span: Duration) -> Option<Instant> {
        let echo = alert.echo_agent_ms?;
        if alert.echo_boot_id.as_ref() != Some(&self.boot_id) || echo > now.as_millis() {
            return None;
        }
        let end = Instant::from_millis(echo) + span;
        (end > now).then_some(end)
    }

    /// Lets leases end that end by `now`.
    pub(crate) fn tick(&mut self, now: Instant) {
        if let Some(grant) = &mut self.grant {
            grant.held |= now >= grant.end;
            if now >= grant.rise {
                self.grant = None;
            }
        }
    }

    /// When the cap changes next by itself.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.grant
            .map(|grant| if grant.held { grant.rise } else { grant.end })
    }

    /// The cap in force; `None` is uncapped.
    pub(crate) fn cap(&self) -> Option<Watts> {
        match self.grant {
            None => self.memory.fallback_w,
            Some(grant) if grant.held => lower(grant.cap, self.memory.fallback_w),
            Some(grant) => grant.cap,
        }
    }

    /// Whether a live lease says "uncapped", rather than nobody having said anything.
    pub(crate) fn uncapped_by_lease(&self) -> bool {
        self.grant
            .is_some_and(|grant| !grant.held && grant.cap.is_none())
    }

    /// The live lease's end.
    pub(crate) fn lease_end(&self) -> Option<Instant> {
        self.grant
            .filter(|grant| !grant.held)
            .map(|grant| grant.end)
    }

    /// Whether the newest message was an emergency that still holds.
    pub(crate) fn emergency(&self, now: Instant) -> bool {
        self.emergency_until.is_some_and(|until| now < until)
    }

    /// The newest epoch and message obeyed.
    pub(crate) fn newest(&self) -> (Epoch, Seq) {
        (self.memory.epoch, self.heard.map_or(Seq(0), |(seq, _)| seq))
    }

    pub(crate) fn memory(&self) -> Memory {
        self.memory
    }

    pub(crate) fn refusal(&self, reason: RefusalReason) -> Refusal {
        let (newest_epoch, newest_seq) = self.newest();
        Refusal {
            reason,
            newest_epoch,
            newest_seq,
        }
    }
}
