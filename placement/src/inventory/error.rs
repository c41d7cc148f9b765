use thiserror::Error;

use crate::Resources;

/// Why an inventory was not changed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum InventoryError {
    /// This is no name.
    #[error("{name:?} is not a valid name of a {what}: 1 to 320 bytes without control characters")]
    Name {
        /// `host`, `chassis`, `VM`, `deployment` or `tenant`.
        what: &'static str,
        /// As told, at most 80 characters of it.
        name: String,
    },
    /// There is no such host.
    #[error("host {host:?} is not known")]
    UnknownHost {
        /// As requested.
        host: String,
    },
    /// The VM is nowhere.
    #[error("VM {vm:?} is not placed")]
    UnknownVm {
        /// As requested.
        vm: String,
    },
    /// The VM is somewhere already.
    #[error("VM {vm:?} is already placed, on host {host:?}")]
    AlreadyPlaced {
        /// Which.
        vm: String,
        /// Where.
        host: String,
    },
    /// One name stands for two things.
    #[error("{what} {name:?} is listed twice")]
    Twice {
        /// `host` or `VM`.
        what: &'static str,
        /// Which.
        name: String,
    },
    /// The VM takes no cores.
    #[error("VM {vm:?} asks for no cores: more than 0 is needed")]
    Empty {
        /// Which.
        vm: String,
    },
    /// The host has no cores.
    #[error("host {host:?} has no cores: more than 0 is needed")]
    NoCores {
        /// Which.
        host: String,
    },
    /// A demand that nothing can have.
    #[error("VM {vm:?}: {field} = {value}: a number from 0 to 1e9 is needed")]
    Demand {
        /// Which.
        vm: String,
        /// `demand.mean` or `demand.variance`.
        field: &'static str,
        /// As told.
        value: f64,
    },
    /// No host could hold the VM, however empty it were.
    #[error("VM {vm:?} asks for {requested}: the largest host has {largest}")]
    TooLarge {
        /// Which.
        vm: String,
        /// What it asks for.
        requested: Resources,
        /// The host that comes nearest.
        largest: Resources,
    },
    /// The host has too little left.
    #[error("VM {vm:?} asks for {requested}: host {host:?} has {free} left")]
    Full {
        /// Which.
        vm: String,
        /// What it asks for.
        requested: Resources,
        /// Where.
        host: String,
        /// What that has.
        free: Resources,
    },
    /// No host is left by the constraints.
    #[error("VM {vm:?}: no host fits{}", refusals(.refused))]
    NoHost {
        /// Which.
        vm: String,
        /// How many hosts each constraint refused.
        refused: Vec<(&'static str, usize)>,
    },
    /// There are VMs on the host.
    #[error("host {host:?} has {vms} VMs: none may be there when it goes")]
    NotEmpty {
        /// Which.
        host: String,
        /// How many.
        vms: u32,
    },
}

fn refusals(refused: &[(&'static str, usize)]) -> String {
    let each: Vec<String> = refused
        .iter()
        .filter(|(_, hosts)| *hosts > 0)
        .map(|(fit, hosts)| format!("{fit} refuses {hosts}"))
        .collect();
    if each.is_empty() { ": there are none".to_owned() } else { format!(": {}", each.join(", ")) }
}
