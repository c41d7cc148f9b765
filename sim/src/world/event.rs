//! What is still to come.

use ballast_chassis_core as chassis;
use ballast_types::wire::Alert;
use ballast_types::{ActionId, CoreId, Instant, KiloHertz, Seq, VmId, Watts};

use super::faults::Fault;
use super::kills::Kill;

#[derive(Debug)]
pub(crate) enum Event {
    /// The chassis manager starts for the first time.
    Start,
    Poll {
        manager: usize,
        instance: u32,
    },
    Budget(Option<Watts>),
    Sample(usize),
    /// An agent's CPU use is read.
    Usage(usize),
    Alert(Envelope, Box<Alert>),
    /// What came of a message reaches the chassis manager.
    Answer {
        to: Sender,
        server: usize,
        seq: Seq,
        answer: Box<chassis::Answer>,
    },
    Act {
        server: usize,
        instance: u32,
        id: ActionId,
        action: Action,
    },
    /// The out-of-band path acts, and answers.
    Slot {
        from: Sender,
        id: ActionId,
        server: usize,
        watts: Option<Watts>,
    },
    Gone(usize, VmId),
    /// From here on the effects of a process are counted.
    Kill(Kill),
    Begin(Fault),
    End(Fault),
    /// Nothing changes from here on but by faults that last.
    Quiet,
    Stop,
}

/// A chassis manager, from one start to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) manager: usize,
    pub(crate) instance: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) from: Sender,
    pub(crate) server: usize,
    pub(crate) seq: Seq,
    pub(crate) sent: Instant,
    /// A duplicate: nobody waits for its answer.
    pub(crate) is_duplicate: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// What an agent in a dry run asks for: it only logs it.
    Nothing,
    Cap(CoreId, KiloHertz),
    Lift(CoreId),
    /// A VM, by its index on the server, and its bandwidth in millicores.
    Quota(usize, Option<u32>),
    Limit(Option<Watts>),
    Kill(VmId),
}

impl Action {
    /// Whether it takes something away, rather than giving it back.
    pub(crate) fn restricts(&self) -> bool {
        matches!(self, Self::Cap(..) | Self::Quota(_, Some(_)) | Self::Limit(Some(_)) | Self::Kill(_))
    }
}
