use thiserror::Error;

use crate::{HostId, Resources, VmKey};

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// There is no such host.
    #[error("host {host}: there are {hosts} hosts, counted from 0")]
    UnknownHost {
        /// As requested.
        host: HostId,
        /// How many there are.
        hosts: usize,
    },
    /// The VM is somewhere already.
    #[error("VM {vm} is already placed, on host {host}")]
    AlreadyPlaced {
        /// Which.
        vm: VmKey,
        /// Where.
        host: HostId,
    },
    /// The VM is nowhere.
    #[error("VM {vm} is not placed")]
    NotPlaced {
        /// Which.
        vm: VmKey,
    },
    /// The VM takes nothing.
    #[error("VM {vm} asks for no cores")]
    Empty {
        /// Which.
        vm: VmKey,
    },
    /// No host could hold the VM, however empty it were.
    #[error("VM {vm} asks for {requested}: the largest host has {largest}")]
    TooLarge {
        /// Which.
        vm: VmKey,
        /// What it asks for.
        requested: Resources,
        /// The host that comes nearest.
        largest: Resources,
    },
    /// The host has too little left.
    #[error("VM {vm} asks for {requested}: host {host} has {free} left")]
    Full {
        /// Which.
        vm: VmKey,
        /// What it asks for.
        requested: Resources,
        /// Where.
        host: HostId,
        /// What that has.
        free: Resources,
    },
    /// No host is left by the constraints.
    #[error("VM {vm}: no host fits")]
    NoHost {
        /// Which.
        vm: VmKey,
    },
}
