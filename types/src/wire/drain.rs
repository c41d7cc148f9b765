//! Hosts that are drained, as a placement daemon tells of them.

use serde::{Deserialize, Serialize};

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DrainState {
    /// It was only asked what would happen: nothing was written down.
    DryRun,
    /// It waits for approval: nothing was changed.
    Proposed,
    /// VMs are moved.
    UnderWay,
    /// Every host has become empty, or is drained no longer.
    Done,
    /// Somebody has ended it.
    Cancelled,
}

/// What becomes of a VM of a host that is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveState {
    /// It is to be moved now: its room is held where it goes.
    Due,
    /// Its turn comes.
    Waiting,
    /// It is expected to end before its turn.
    EndsBefore,
}

/// A VM of a host that is drained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainMove {
    /// As it was placed, and as its moves are told.
    pub vm_id: String,
    /// The host that it is on.
    pub from: String,
    /// The host that holds its room. Before its turn the host that it would go to, were all moved now; `null` where none has
    /// room, or for one that ends before.
    pub to: Option<String>,
    /// What becomes of it.
    pub state: MoveState,
    /// Cores that it takes on both hosts while it is moved.
    pub cores: f64,
    /// Its memory, in GB.
    pub memory_gb: f64,
    /// How much longer it is expected to live; `null` where nobody knows.
    pub remaining_s: Option<f64>,
    /// In how many seconds its move is expected to begin; `null` for one that is due, or ends before, or for which no host has
    /// room as it is now.
    pub starts_in_s: Option<f64>,
    /// In how many seconds it is expected to be gone from there.
    pub ends_in_s: f64,
    /// Whether a move that is due takes more than three times as long as it should.
    pub late: bool,
}

/// A host of a drain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainHost {
    /// As the inventory has it.
    pub host: String,
    /// How many VMs it has; `null` where there is no such host any more.
    pub vms: Option<u32>,
    /// In how many seconds it is expected to be empty; `null` where it is drained no longer, or no host has room for
    /// a VM of it as it is now.
    pub free_in_s: Option<f64>,
}

/// The drain under way, in [`super::PlaceStatus`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DrainStatus {
    /// The number that `/v1/drains/{id}` takes.
    pub id: u64,
    /// VMs that are to be moved now.
    pub due: u64,
    /// Those of them that take more than three times as long as they should.
    pub late: u64,
    /// VMs that wait for their turn.
    pub waiting: u64,
    /// Hosts whose next VM finds no room.
    pub hosts_without_room: u64,
}

/// `GET /v1/drains/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainAnswer {
    /// Its number; `null` for a dry run.
    pub id: Option<u64>,
    /// How far it is.
    pub state: DrainState,
    /// Who goes first: `largest`, `arrival`, `per-host` or `global`.
    pub order: String,
    /// So many VMs may be on their way together.
    pub limit: u32,
    /// How long a move is taken to last, in seconds.
    pub move_s: f64,
    /// Whether hosts open again once they are empty.
    pub reopen: bool,
    /// VMs that were to be moved, once it is under way.
    pub scheduled: u64,
    /// VMs that were moved.
    pub moved: u64,
    /// VMs that ended before their turn.
    pub saved: u64,
    /// VMs that ended on their way, or that others have moved.
    pub other: u64,
    /// VMs for which no host has room as it is now; they wait until one has. 0 in a list.
    pub without_room: u64,
    /// Its hosts, in the order of the request.
    pub hosts: Vec<DrainHost>,
    /// The VMs: those that are due, then the others in the order of their turns, then those that end before.
    pub moves: Vec<DrainMove>,
}
