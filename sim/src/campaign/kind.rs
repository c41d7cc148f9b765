//! What can go wrong in a campaign.

use core::time::Duration;

use ballast_types::Instant;
use serde::Serialize;

use crate::world::{Chance, Disorder, Extent, Fault, MeterFault, Rewind, Rogue, Window};

/// The kinds of trouble, each with its name on the command line and in reports.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// One kind of trouble.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$kind),*];

            /// Its name on the command line and in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// An agent is killed.
    AgentDown = "agent-down",
    /// An agent is killed every five seconds.
    AgentCrashLoop = "agent-crash-loop",
    /// An agent's process stands still.
    AgentStall = "agent-stall",
    /// The chassis manager is killed.
    ChassisDown = "chassis-down",
    /// The chassis manager is killed every five seconds.
    ChassisCrashLoop = "chassis-crash-loop",
    /// The chassis manager's process stands still.
    ChassisStall = "chassis-stall",
    /// A server reboots.
    Reboot = "reboot",
    /// A server's meter cannot be read.
    MeterMissing = "meter-missing",
    /// A server's meter shows the same as before.
    MeterStuck = "meter-stuck",
    /// A server's meter shows 0 W.
    MeterZero = "meter-zero",
    /// A server's meter shows a hundred times the draw.
    MeterImplausible = "meter-implausible",
    /// A server's meter is off by 5 %.
    MeterBiased = "meter-biased",
    /// Two agents read each other's meters.
    MetersSwapped = "meters-swapped",
    /// A supply cannot be read.
    SupplyUnreadable = "supply-unreadable",
    /// A supply's meter shows the same as before.
    SupplyStuck = "supply-stuck",
    /// All supplies' meters are off by 1 %.
    SuppliesBiased = "supplies-biased",
    /// A supply loses its feed.
    FeedLoss = "feed-loss",
    /// A server cannot be reached.
    Partition = "partition",
    /// Most of what an agent writes fails.
    WritesFail = "writes-fail",
    /// Everything that an agent writes is refused.
    WritesRefused = "writes-refused",
    /// What an agent writes is acknowledged and has no effect.
    WritesIgnored = "writes-ignored",
    /// A server's BMC does not answer.
    BmcFails = "bmc-fails",
    /// A server's BMC acknowledges caps and does not keep them.
    BmcForgets = "bmc-forgets",
    /// Messages are lost, duplicated, late.
    Disorder = "disorder",
    /// The chassis manager is restarted without its ledger.
    LedgerLost = "ledger-lost",
    /// The chassis manager is restarted with its first ledger.
    LedgerOld = "ledger-old",
    /// An agent is restarted without its memory.
    MemoryLost = "memory-lost",
    /// An agent is restarted with its first memory.
    MemoryOld = "memory-old",
    /// A second chassis manager runs, without a ledger.
    SecondManager = "second-manager",
    /// A second chassis manager runs, with a copy of the ledger.
    CopiedLedger = "copied-ledger",
    /// An agent refuses every message, for an epoch far ahead.
    RogueRefuses = "rogue-refuses",
    /// An agent reports half of its draw.
    RogueUnderstates = "rogue-understates",
    /// An agent reports 1.8 times its draw.
    RogueOverstates = "rogue-overstates",
    /// An agent's power model is up to a fifth off.
    WrongModel = "wrong-model",
    /// An operator lowers the budget, and takes that back.
    BudgetMoves = "budget-moves",
}

/// From one kill of a crash loop to the next.
const CRASH_PERIOD: Duration = Duration::from_secs(5);

impl Kind {
    /// What the simulator does for it from `from` to `to`; nothing for the kinds that are not faults of a
    /// running machine but of how it was set up.
    pub(super) fn windows(
        self,
        chance: &mut Chance,
        extent: Extent,
        from: Instant,
        to: Instant,
    ) -> Vec<Window> {
        let server = chance.below(extent.servers as u64) as usize;
        let other = (server + 1 + chance.below(extent.servers.max(2) as u64 - 1) as usize) % extent.servers;
        let supply = chance.below(extent.supplies as u64) as usize;
        let sign = if chance.happens(500_000) { 1 } else { -1 };

        // A restart takes a moment, however long the fault would be.
        let restarted = from + Duration::from_millis(200) + chance.span(Duration::from_secs(2));

        let one = |fault| vec![Window { from, to, fault }];
        let restart = |fault| vec![Window { from, to: restarted, fault }];
        match self {
            Self::AgentDown => one(Fault::AgentDown(server)),
            Self::AgentCrashLoop => crashes(chance, from, to, Fault::AgentDown(server)),
            Self::AgentStall => one(Fault::AgentStalls(server)),
            Self::ChassisDown => one(Fault::ChassisDown),
            Self::ChassisCrashLoop => crashes(chance, from, to, Fault::ChassisDown),
            Self::ChassisStall => one(Fault::ChassisStalls),
            Self::Reboot => one(Fault::Reboot(server)),
            Self::MeterMissing => one(Fault::Meter(server, MeterFault::Missing)),
            Self::MeterStuck => one(Fault::Meter(server, MeterFault::Frozen)),
            Self::MeterZero => one(Fault::Meter(server, MeterFault::Zero)),
            Self::MeterImplausible => one(Fault::Meter(server, MeterFault::Implausible)),
            Self::MeterBiased => one(Fault::Meter(server, MeterFault::Biased(sign * 50_000))),
            Self::MetersSwapped => [(server, other), (other, server)]
                .map(|(reader, meter)| Window { from, to, fault: Fault::MeterOf(reader, meter) })
                .to_vec(),
            Self::SupplyUnreadable => one(Fault::SupplyUnreadable(supply)),
            Self::SupplyStuck => one(Fault::SupplyStuck(supply)),
            Self::SuppliesBiased => one(Fault::SuppliesBiased(sign * 10_000)),
            Self::FeedLoss => one(Fault::FeedLoss(supply)),
            Self::Partition => one(Fault::Partition(server)),
            Self::WritesFail => one(Fault::WritesFail(server)),
            Self::WritesRefused => one(Fault::WritesRefused(server)),
            Self::WritesIgnored => one(Fault::WritesIgnored(server)),
            Self::BmcFails => one(Fault::OutOfBandFails(server)),
            Self::BmcForgets => one(Fault::BmcForgets(server)),
            Self::Disorder => one(Fault::Disorder(disorder(chance))),
            Self::LedgerLost => restart(Fault::Ledger(Rewind::Lost)),
            Self::LedgerOld => restart(Fault::Ledger(Rewind::Old)),
            Self::MemoryLost => restart(Fault::Memory(server, Rewind::Lost)),
            Self::MemoryOld => restart(Fault::Memory(server, Rewind::Old)),
            Self::SecondManager => one(Fault::SecondManager { copied: false }),
            Self::CopiedLedger => one(Fault::SecondManager { copied: true }),
            Self::RogueRefuses => one(Fault::Rogue(server, Rogue::Refuses)),
            Self::RogueUnderstates => one(Fault::Rogue(server, Rogue::Understates)),
            Self::RogueOverstates => one(Fault::Rogue(server, Rogue::Overstates)),
            Self::WrongModel | Self::BudgetMoves => Vec::new(),
        }
    }
}

/// Messages that get lost, come twice or come late.
fn disorder(chance: &mut Chance) -> Disorder {
    Disorder {
        lost_ppm: chance.below(300_000) as u32,
        duplicated_ppm: chance.below(200_000) as u32,
        late_ppm: chance.below(300_000) as u32,
        late_by: chance.span(Duration::from_millis(1500)),
    }
}

/// A process that is killed again and again, each time down for half a second to two.
fn crashes(chance: &mut Chance, from: Instant, to: Instant, fault: Fault) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut at = from;
    while at < to {
        let down = Duration::from_millis(500) + chance.span(Duration::from_millis(1500));
        windows.push(Window { from: at, to: at + down, fault });
        at += CRASH_PERIOD;
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own_and_does_something() {
        let extent = Extent { servers: 3, supplies: 2 };
        let (from, to) = (Instant::from_millis(1000), Instant::from_millis(21_000));
        let mut names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::ALL.len());
        for kind in Kind::ALL {
            let windows = kind.windows(&mut Chance::new(1, 1), extent, from, to);
            let set_up = matches!(kind, Kind::WrongModel | Kind::BudgetMoves);
            assert_eq!(windows.is_empty(), set_up, "{kind:?}");
            assert!(windows.iter().all(|w| w.from >= from && w.from < w.to), "{windows:?}");
        }
    }

    #[test]
    fn two_servers_swap_their_meters_and_a_lone_one_keeps_its_own() {
        let swap = |servers| {
            let extent = Extent { servers, supplies: 1 };
            let to = Instant::from_millis(1);
            Kind::MetersSwapped.windows(&mut Chance::new(1, 1), extent, Instant::ZERO, to)
        };
        for window in swap(5) {
            assert!(matches!(window.fault, Fault::MeterOf(a, b) if a != b), "{window:?}");
        }
        assert!(swap(1).iter().all(|w| w.fault == Fault::MeterOf(0, 0)));
    }
}
