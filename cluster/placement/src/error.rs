use thiserror::Error;

use crate::{HostId, Resources, VmKey};

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlacementError {
    /// There is no such host.
    #[error("host {host}: there are {hosts} hosts, counted from 0")]
    UnknownHost {
        /// The host as the request names it.
        host: HostId,
        /// How many there are.
        hosts: usize,
    },
    /// The VM is somewhere already.
    #[error("VM {vm} is already placed, on host {host}")]
    AlreadyPlaced {
        /// The VM that this is about.
        vm: VmKey,
        /// The host that this is about.
        host: HostId,
    },
    /// The VM is nowhere.
    #[error("VM {vm} is not placed")]
    NotPlaced {
        /// The VM that this is about.
        vm: VmKey,
    },
    /// The VM takes nothing.
    #[error("VM {vm} asks for no cores")]
    Empty {
        /// The VM that this is about.
        vm: VmKey,
    },
    /// No host could hold the VM, however empty it were.
    #[error("VM {vm} asks for {requested}: the largest host has {largest}")]
    TooLarge {
        /// The VM that this is about.
        vm: VmKey,
        /// What it asks for.
        requested: Resources,
        /// The host that comes nearest.
        largest: Resources,
    },
    /// The host has too little left.
    #[error("VM {vm} asks for {requested}: host {host} has {free} left")]
    Full {
        /// The VM that this is about.
        vm: VmKey,
        /// What it asks for.
        requested: Resources,
        /// The host that this is about.
        host: HostId,
        /// What the host has left.
        free: Resources,
    },
    /// No host is left by the constraints.
    #[error("VM {vm}: no host fits")]
    NoHost {
        /// The VM that this is about.
        vm: VmKey,
    },
    /// The host may have no more VMs.
    #[error("VM {vm}: host {host} may have {max} VMs, and has no place for more")]
    Crowded {
        /// The VM that this is about.
        vm: VmKey,
        /// The host that this is about.
        host: HostId,
        /// How many VMs it may have.
        max: u32,
    },
    /// There are VMs on the host, or room is held there.
    #[error("host {host} has {guests} VMs and holds: none may be there when it goes")]
    NotEmpty {
        /// The host that this is about.
        host: HostId,
        /// How many it still has.
        guests: u32,
    },
}
