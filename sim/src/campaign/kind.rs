//! What can go wrong in a campaign.

use core::time::Duration;

use ballast_types::Instant;
use serde::Serialize;

use crate::world::{Chance, Disorder, Fault, MeterFault, Rewind, Rogue, Window};

/// One kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An agent is killed.
    AgentDown,
    /// An agent is killed every five seconds.
    AgentCrashLoop,
    /// An agent's process stands still.
    AgentStall,
    /// The chassis manager is killed.
    ChassisDown,
    /// The chassis manager is killed every five seconds.
    ChassisCrashLoop,
    /// The chassis manager's process stands still.
    ChassisStall,
    /// A server reboots.
    Reboot,
    /// A server's meter cannot be read.
    MeterMissing,
    /// A server's meter shows the same as before.
    MeterStuck,
    /// A server's meter shows 0 W.
    MeterZero,
    /// A server's meter shows a hundred times the draw.
    MeterImplausible,
    /// A server's meter is off by 5 %.
    MeterBiased,
    /// Two agents read each other's meters.
    MetersSwapped,
    /// A supply cannot be read.
    SupplyUnreadable,
    /// A supply's meter shows the same as before.
    SupplyStuck,
    /// All supplies' meters are off by 1 %.
    SuppliesBiased,
    /// A supply loses its feed.
    FeedLoss,
    /// A server cannot be reached.
    Partition,
    /// Most of what an agent writes fails.
    WritesFail,
    /// Everything that an agent writes is refused.
    WritesRefused,
    /// What an agent writes is acknowledged and has no effect.
    WritesIgnored,
    /// A server's BMC does not answer.
    BmcFails,
    /// A server's BMC acknowledges caps and does not keep them.
    BmcForgets,
    /// Messages are lost, doubled, late.
    Disorder,
    /// The chassis manager is restarted without its ledger.
    LedgerLost,
    /// The chassis manager is restarted with its first ledger.
    LedgerOld,
    /// An agent is restarted without its memory.
    MemoryLost,
    /// An agent is restarted with its first memory.
    MemoryOld,
    /// A second chassis manager runs, without a ledger.
    SecondManager,
    /// A second chassis manager runs, with a copy of the ledger.
    CopiedLedger,
    /// An agent refuses every message, for an epoch far ahead.
    RogueRefuses,
    /// An agent reports half of its draw.
    RogueUnderstates,
    /// An agent reports 1.8 times its draw.
    RogueOverstates,
    /// An agent's power model is up to a fifth off.
    WrongModel,
    /// An operator lowers the budget, and takes that back.
    BudgetMoves,
}

/// What there is to go wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) servers: usize,
    pub(super) supplies: usize,
}

/// From one kill of a crash loop to the next.
const CRASH_PERIOD: Duration = Duration::from_secs(5);

impl Kind {
    /// All of them.
    pub const ALL: [Self; 35] = [
        Self::AgentDown,
        Self::AgentCrashLoop,
        Self::AgentStall,
        Self::ChassisDown,
        Self::ChassisCrashLoop,
        Self::ChassisStall,
        Self::Reboot,
        Self::MeterMissing,
        Self::MeterStuck,
        Self::MeterZero,
        Self::MeterImplausible,
        Self::MeterBiased,
        Self::MetersSwapped,
        Self::SupplyUnreadable,
        Self::SupplyStuck,
        Self::SuppliesBiased,
        Self::FeedLoss,
        Self::Partition,
        Self::WritesFail,
        Self::WritesRefused,
        Self::WritesIgnored,
        Self::BmcFails,
        Self::BmcForgets,
        Self::Disorder,
        Self::LedgerLost,
        Self::LedgerOld,
        Self::MemoryLost,
        Self::MemoryOld,
        Self::SecondManager,
        Self::CopiedLedger,
        Self::RogueRefuses,
        Self::RogueUnderstates,
        Self::RogueOverstates,
        Self::WrongModel,
        Self::BudgetMoves,
    ];

    /// Its name on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AgentDown => "agent-down",
            Self::AgentCrashLoop => "agent-crash-loop",
            Self::AgentStall => "agent-stall",
            Self::ChassisDown => "chassis-down",
            Self::ChassisCrashLoop => "chassis-crash-loop",
            Self::ChassisStall => "chassis-stall",
            Self::Reboot => "reboot",
            Self::MeterMissing => "meter-missing",
            Self::MeterStuck => "meter-stuck",
            Self::MeterZero => "meter-zero",
            Self::MeterImplausible => "meter-implausible",
            Self::MeterBiased => "meter-biased",
            Self::MetersSwapped => "meters-swapped",
            Self::SupplyUnreadable => "supply-unreadable",
            Self::SupplyStuck => "supply-stuck",
            Self::SuppliesBiased => "supplies-biased",
            Self::FeedLoss => "feed-loss",
            Self::Partition => "partition",
            Self::WritesFail => "writes-fail",
            Self::WritesRefused => "writes-refused",
            Self::WritesIgnored => "writes-ignored",
            Self::BmcFails => "bmc-fails",
            Self::BmcForgets => "bmc-forgets",
            Self::Disorder => "disorder",
            Self::LedgerLost => "ledger-lost",
            Self::LedgerOld => "ledger-old",
            Self::MemoryLost => "memory-lost",
            Self::MemoryOld => "memory-old",
            Self::SecondManager => "second-manager",
            Self::CopiedLedger => "copied-ledger",
            Self::RogueRefuses => "rogue-refuses",
            Self::RogueUnderstates => "rogue-understates",
            Self::RogueOverstates => "rogue-overstates",
            Self::WrongModel => "wrong-model",
            Self::BudgetMoves => "budget-moves",
        }
    }

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
        let other =
            (server + 1 + chance.below(extent.servers.max(2) as u64 - 1) as usize) % extent.servers;
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
            Self::MeterImplausible => one(Fault::Meter(server, MeterFault::Absurd)),
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
            Self::Disorder => one(Fault::Disorder(Disorder {
                lost_ppm: chance.below(300_000) as u32,
                doubled_ppm: chance.below(200_000) as u32,
                late_ppm: chance.below(300_000) as u32,
                late_by: chance.span(Duration::from_millis(1500)),
            })),
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
