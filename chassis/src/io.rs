//! What the chassis's controller is told, and what it wants done.

use ballast_types::wire::{Alert, Event, Refusal, Report};
use ballast_types::{ActionId, Epoch, Instant, Seq, ServerId, Supply, Watts};
use serde::{Deserialize, Serialize};

use crate::Params;

/// What the chassis's controller is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// One poll of every power supply.
    Psu(Poll),
    /// What came of one message.
    Answer { server: ServerId, seq: Seq, answer: Answer },
    Applied {
        id: ActionId,
        /// How it went; `Err` holds the reason.
        result: Result<(), String>,
    },
    /// An operator lowers the budget; `None` goes back to the configured one.
    Budget(Option<Watts>),
    /// The BMC's word on whether a server is switched on.
    Powered { server: ServerId, on: bool },
    /// What a server's BMC says of its cap, asked unasked for, every few seconds.
    RecoveredCap {
        server: ServerId,
        /// The cap that is on; `None` if there is none.
        cap: Option<Watts>,
    },
    /// The operator has changed the configuration: other parameters, with the servers and supplies there are now.
    /// The next poll has those supplies.
    Params(Box<Params>),
    /// The daemon stops: lift what is out of band and safe to lift, tell the agents nothing more.
    Leave,
}

/// One poll of every power supply.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Poll {
    /// Every configured supply, in configured order.
    pub supplies: Vec<Supply>,
    /// When the newest of the readings was produced. One that has not moved is not fresh.
    pub taken_at: Instant,
}

/// What came of one message to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It was obeyed.
    Report(Box<Report>),
    /// It was refused (409).
    Refused(Refusal),
    /// There was no answer, or none that can be read; the reason.
    Nothing(String),
}

/// What the chassis's controller wants done, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Send this to that server's agent. Answered by [`Input::Answer`].
    Alert { server: ServerId, alert: Alert },
    /// Cap a server through its BMC or slot, without its own software. Answered by [`Input::Applied`].
    OutOfBandCap {
        id: ActionId,
        server: ServerId,
        /// Its draw, at most.
        watts: Watts,
    },
    /// Release that cap. Answered.
    OutOfBandLift { id: ActionId, server: ServerId },
    /// Write this to the ledger, on disk, before the outputs that follow are performed.
    Ledger(Ledger),
    /// Something that an operator may want to see.
    Event(Event),
}

/// What a chassis manager keeps over a restart, and over a reboot: out-of-band caps survive both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ledger {
    /// The newest epoch used.
    pub epoch: Epoch,
    /// The operator's lower budget.
    pub budget_w: Option<Watts>,
    /// Out-of-band caps that are on, or may be.
    pub out_of_band: Vec<(ServerId, Watts)>,
    /// The most that was ever drawn by what no agent's meter sees.
    pub shared_w: Watts,
    /// The highest draw that each server ever reported: what one may draw that reports nothing any more.
    pub highest_w: Vec<(ServerId, Watts)>,
}
