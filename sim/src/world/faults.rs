//! What goes wrong, and when: a plan drawn from a seed, or written by hand.

use core::time::Duration;

use ballast_types::Instant;
use serde::{Deserialize, Serialize};

use super::chance::Chance;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The agent of this server is killed at the start and started again at the end.
    AgentDown(usize),
    /// The chassis manager is killed at the start and started again at the end; it keeps its ledger.
    ChassisDown,
    /// This server's meter.
    Meter(usize, MeterFault),
    SupplyUnreadable(usize),
    FeedLoss(usize),
    /// No message from or to this server gets through.
    Partition(usize),
    /// What this server's agent writes fails, and may work when tried again.
    WritesFail(usize),
    /// What this server's agent writes fails, and will go on failing.
    WritesRefused(usize),
    OutOfBandFails(usize),
    /// Messages are lost, duplicated, delayed and so overtake each other.
    Disorder(Disorder),
    /// The agent of this server stands still: what comes in waits, and is handled at the end.
    AgentStalls(usize),
    /// The chassis manager stands still: what comes in waits, and is handled at the end.
    ChassisStalls,
    /// This server is down; at the end it boots: the boot id is new, caps and the journal are gone.
    Reboot(usize),
    /// The agent of this server is down, and starts again with another memory than it wrote.
    Memory(usize, Rewind),
    /// The chassis manager is down, and starts again with another ledger than it wrote.
    Ledger(Rewind),
    /// A second chassis manager runs: with a copy of the first one's ledger, or with none.
    SecondManager {
        /// Whether the ledger is a copy.
        copied: bool,
    },
    /// The agent of this server does not tell the truth.
    Rogue(usize, Rogue),
    /// What this server's agent writes to take something away is acknowledged and has no effect. What it
    /// gives back is: a daemon reads that back, and tries again.
    WritesIgnored(usize),
    /// The first server's agent reads the second one's meter.
    MeterOf(usize, usize),
    /// This supply's meter shows the same as before.
    SupplyStuck(usize),
    /// Every supply's meter is off by so many parts per million.
    SuppliesBiased(i32),
    /// This server's BMC acknowledges caps and does not keep them.
    BmcForgets(usize),
    /// The chassis manager lives and sends in time, and what it sends is wrong. It orders no hardware caps.
    ManagerWrong(ManagerFault),
}

/// What a chassis manager sends that lives and is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManagerFault {
    /// What it worked out last, again and again.
    Repeats,
    /// Grants without an end: it has lost its set point.
    GrantsAll,
}

/// What a process finds on disk instead of what it wrote last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rewind {
    /// Nothing.
    Lost,
    /// What it wrote first: an old backup.
    Old,
}

/// How an agent's answers differ from the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rogue {
    /// It refuses every message, for an epoch a thousand ahead.
    Refuses,
    /// It reports half of its draw.
    Understates,
    /// It reports 1.8 times its draw.
    Overstates,
}

/// What a server's meter says instead of its draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeterFault {
    /// Nothing.
    Missing,
    /// The same as before.
    Frozen,
    /// 0 W.
    Zero,
    /// A hundred times too much.
    Implausible,
    /// Its draw, off by so many parts per million.
    Biased(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disorder {
    /// Messages lost, in parts per million.
    pub lost_ppm: u32,
    /// Messages that come twice, in parts per million.
    pub duplicated_ppm: u32,
    /// Messages that are late, in parts per million.
    pub late_ppm: u32,
    pub late_by: Duration,
}

impl Disorder {
    /// A network that does its work.
    pub const NONE: Self = Self { lost_ppm: 0, duplicated_ppm: 0, late_ppm: 0, late_by: Duration::ZERO };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub from: Instant,
    pub to: Instant,
    pub fault: Fault,
}

/// Everything that goes wrong in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultPlan {
    /// In no particular order; of two faults on one thing at once, it ends when both have ended.
    pub windows: Vec<Window>,
}

/// How many of each thing there are to go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub servers: usize,
    pub supplies: usize,
}

impl FaultPlan {
    /// `count` faults drawn from `seed`, all of them between `from` and `until`, 0.1 to 8 s long.
    pub fn draw(seed: u64, extent: Extent, count: usize, from: Instant, until: Instant) -> Self {
        let mut chance = Chance::new(seed, 0xFA);
        let room = until.since(from);
        let windows = (0..count)
            .map(|_| {
                let start = from + chance.span(room);
                let length = Duration::from_millis(100) + chance.span(Duration::from_millis(7900));
                let fault = Fault::draw(&mut chance, extent);
                Window { from: start, to: (start + length).min(until), fault }
            })
            .collect();
        Self { windows }
    }
}

impl Fault {
    fn draw(chance: &mut Chance, extent: Extent) -> Self {
        let server = chance.below(extent.servers as u64) as usize;
        let supply = chance.below(extent.supplies as u64) as usize;
        match chance.below(10) {
            0 => Self::AgentDown(server),
            1 => Self::ChassisDown,
            2 | 3 => Self::Meter(
                server,
                [MeterFault::Missing, MeterFault::Frozen, MeterFault::Zero, MeterFault::Implausible]
                    [chance.below(4) as usize],
            ),
            4 => Self::SupplyUnreadable(supply),
            5 => Self::FeedLoss(supply),
            6 => Self::Partition(server),
            7 if chance.happens(500_000) => Self::WritesFail(server),
            7 => Self::WritesRefused(server),
            8 => Self::OutOfBandFails(server),
            _ => Self::Disorder(Disorder {
                lost_ppm: chance.below(300_000) as u32,
                duplicated_ppm: chance.below(200_000) as u32,
                late_ppm: chance.below(300_000) as u32,
                late_by: chance.span(Duration::from_millis(1500)),
            }),
        }
    }
}

impl Fault {
    /// The server whose own parts this fault affects; `None` for what all servers share.
    pub const fn server(&self) -> Option<usize> {
        match self {
            Self::AgentDown(server)
            | Self::Meter(server, _)
            | Self::Partition(server)
            | Self::WritesFail(server)
            | Self::WritesRefused(server)
            | Self::WritesIgnored(server)
            | Self::OutOfBandFails(server)
            | Self::AgentStalls(server)
            | Self::Reboot(server)
            | Self::Memory(server, _)
            | Self::Rogue(server, _)
            | Self::MeterOf(server, _)
            | Self::BmcForgets(server) => Some(*server),
            _ => None,
        }
    }

    /// Whether it keeps the software of its server from lowering the draw.
    pub(crate) const fn stops_software(&self) -> bool {
        matches!(
            self,
            Self::AgentDown(_)
                | Self::AgentStalls(_)
                | Self::Memory(..)
                | Self::WritesFail(_)
                | Self::WritesRefused(_)
                | Self::WritesIgnored(_)
        )
    }

    /// Whether it keeps hardware caps from its server, or from every server.
    pub(crate) const fn stops_hardware(&self) -> bool {
        matches!(
            self,
            Self::OutOfBandFails(_)
                | Self::BmcForgets(_)
                | Self::ChassisDown
                | Self::ChassisStalls
                | Self::ManagerWrong(_)
                | Self::Ledger(_)
        )
    }

    /// Whether it falsifies or hides the chassis's draw at the supplies.
    pub(crate) const fn blurs_supplies(&self) -> bool {
        matches!(self, Self::SupplyUnreadable(_) | Self::SupplyStuck(_) | Self::SuppliesBiased(_))
    }

    /// Whether it falsifies or hides the draw of its server.
    pub(crate) const fn blurs_server(&self) -> bool {
        matches!(
            self,
            Self::AgentDown(_)
                | Self::AgentStalls(_)
                | Self::Reboot(_)
                | Self::Memory(..)
                | Self::Meter(..)
                | Self::MeterOf(..)
                | Self::Partition(_)
                | Self::Rogue(..)
        )
    }
}

/// For so long after its end a fault still explains what happens.
const LATELY: Duration = Duration::from_secs(15);

/// The faults that are on now, and those that ended lately.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    on: Vec<Fault>,
    ended: Vec<(Instant, Fault)>,
    /// The worst disorder on now: the newest.
    pub(crate) disorder: Disorder,
}

impl Default for Active {
    fn default() -> Self {
        Self { on: Vec::new(), ended: Vec::new(), disorder: Disorder::NONE }
    }
}

impl Active {
    pub(crate) fn begin(&mut self, fault: Fault) {
        self.on.push(fault);
        self.refresh();
    }

    /// Ends one; whether the thing is now whole.
    pub(crate) fn end(&mut self, now: Instant, fault: Fault) -> bool {
        if let Some(index) = self.on.iter().position(|f| *f == fault) {
            self.on.remove(index);
            self.ended.retain(|(at, _)| now.since(*at) <= LATELY);
            self.ended.push((now, fault));
        }
        self.refresh();
        !self.has(fault)
    }

    fn refresh(&mut self) {
        let newest = self.on.iter().rev().find_map(|f| match f {
            Fault::Disorder(d) => Some(*d),
            _ => None,
        });
        self.disorder = newest.unwrap_or(Disorder::NONE);
    }

    /// The faults that are on, or ended lately.
    pub(crate) fn lately(&self, now: Instant) -> impl Iterator<Item = &Fault> {
        let ended = self.ended.iter().filter(move |(at, _)| now.since(*at) <= LATELY);
        self.on.iter().chain(ended.map(|(_, fault)| fault))
    }

    /// Whether some fault of this server is on, or a disorder of the network that all share.
    pub(crate) fn affects(&self, server: usize) -> bool {
        let shared = |fault: &Fault| matches!(fault, Fault::Disorder(_));
        self.on.iter().any(|fault| fault.server() == Some(server) || shared(fault))
    }

    pub(crate) fn manager_fault(&self) -> Option<ManagerFault> {
        self.on.iter().rev().find_map(|fault| match fault {
            Fault::ManagerWrong(wrong) => Some(*wrong),
            _ => None,
        })
    }

    /// Whether a fault keeps the agent of this server from running.
    pub(crate) fn holds_down(&self, server: usize) -> bool {
        self.on.iter().any(|fault| match fault {
            Fault::AgentDown(n) | Fault::Reboot(n) | Fault::Memory(n, _) => *n == server,
            _ => false,
        })
    }

    /// Whether a fault keeps the chassis manager from running.
    pub(crate) fn holds_chassis_down(&self) -> bool {
        self.on.iter().any(|f| matches!(f, Fault::ChassisDown | Fault::Ledger(_)))
    }

    /// Whether nobody can know that the draw fits: a supply cannot be read, and some server says that it
    /// draws more than it does, by no more than it might.
    pub(crate) fn hide_that_all_fits(&self) -> bool {
        let overstates = |fault: &Fault| match fault {
            Fault::Rogue(_, Rogue::Overstates) => true,
            Fault::Meter(_, MeterFault::Biased(ppm)) => *ppm > 0,
            _ => false,
        };
        let unreadable = |fault: &Fault| matches!(fault, Fault::SupplyUnreadable(_));
        self.on.iter().any(unreadable) && self.on.iter().any(overstates)
    }

    pub(crate) fn rogue(&self, server: usize) -> Option<Rogue> {
        self.on.iter().find_map(|f| match f {
            Fault::Rogue(n, rogue) if *n == server => Some(*rogue),
            _ => None,
        })
    }

    /// The server whose meter this one's agent reads.
    pub(crate) fn meter_of(&self, server: usize) -> usize {
        let other = self.on.iter().find_map(|f| match f {
            Fault::MeterOf(n, other) if *n == server => Some(*other),
            _ => None,
        });
        other.unwrap_or(server)
    }

    /// By how many parts per million every supply's meter is off.
    pub(crate) fn supply_bias_ppm(&self) -> i32 {
        let bias = self.on.iter().find_map(|f| match f {
            Fault::SuppliesBiased(ppm) => Some(*ppm),
            _ => None,
        });
        bias.unwrap_or(0)
    }

    #[inline]
    pub(crate) fn has(&self, fault: Fault) -> bool {
        !self.on.is_empty() && self.on.contains(&fault)
    }

    #[inline]
    pub(crate) fn meter(&self, server: usize) -> Option<MeterFault> {
        self.on.iter().find_map(|f| match f {
            Fault::Meter(s, fault) if *s == server => Some(*fault),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_its_seed_and_ends_in_time() {
        let extent = Extent { servers: 4, supplies: 2 };
        let (from, until) = (Instant::from_millis(1000), Instant::from_millis(20_000));
        let draw = |seed| FaultPlan::draw(seed, extent, 40, from, until);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(3).windows.iter().all(|w| from <= w.from && w.from <= w.to && w.to <= until));
    }

    #[test]
    fn that_all_fits_is_hidden_where_no_honest_reading_is_left() {
        let blind = Fault::SupplyUnreadable(0);
        for (faults, hidden) in [
            (vec![blind, Fault::Rogue(1, Rogue::Overstates)], true),
            (vec![blind, Fault::Meter(1, MeterFault::Biased(50_000))], true),
            (vec![blind, Fault::Meter(1, MeterFault::Biased(-50_000))], false),
            (vec![blind, Fault::Meter(1, MeterFault::Implausible)], false),
            (vec![Fault::SuppliesBiased(10_000), Fault::Rogue(1, Rogue::Overstates)], false),
            (vec![blind], false),
        ] {
            let mut active = Active::default();
            faults.iter().for_each(|fault| active.begin(*fault));
            assert_eq!(active.hide_that_all_fits(), hidden, "{faults:?}");
        }
    }

    #[test]
    fn a_thing_is_whole_when_all_of_its_faults_have_ended() {
        let mut active = Active::default();
        active.begin(Fault::Partition(1));
        active.begin(Fault::Partition(1));
        let now = Instant::from_millis(1);
        assert!(!active.end(now, Fault::Partition(1)));
        assert!(active.has(Fault::Partition(1)));
        assert!(active.end(now, Fault::Partition(1)));
        assert!(!active.has(Fault::Partition(1)));
    }
}
