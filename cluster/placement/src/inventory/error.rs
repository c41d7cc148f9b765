use thiserror::Error;

use crate::{EXTRAS, Shortage};

/// Why an inventory was not changed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum InventoryError {
    /// This is no name.
    #[error("{name:?} is not a valid name of a {what}: 1 to 320 bytes without control characters")]
    Name {
        /// `host`, `chassis`, `fault domain`, `resource`, `VM`, `deployment`, `tenant`, `VM type` or `label`.
        what: &'static str,
        /// As told, at most 80 characters of it.
        name: String,
    },
    /// There is no such host.
    #[error("host {host:?} is not known")]
    UnknownHost {
        /// The host as the request names it.
        host: String,
    },
    /// The VM is nowhere.
    #[error("VM {vm:?} is not placed")]
    UnknownVm {
        /// The VM as the request names it.
        vm: String,
    },
    /// The VM is somewhere already.
    #[error("VM {vm:?} is already placed, on host {host:?}")]
    AlreadyPlaced {
        /// The VM that this is about.
        vm: String,
        /// The host that the VM is on.
        host: String,
    },
    /// One name stands for two things.
    #[error("{what} {name:?} is listed twice")]
    Twice {
        /// What the name is of: `host` or `VM`.
        what: &'static str,
        /// The name that is not allowed.
        name: String,
    },
    /// The VM takes no cores.
    #[error("VM {vm:?} asks for no cores: more than 0 is needed")]
    Empty {
        /// The VM that this is about.
        vm: String,
    },
    /// The host has no cores.
    #[error("host {host:?} has no cores: more than 0 is needed")]
    NoCores {
        /// The host that this is about.
        host: String,
    },
    /// A demand that nothing can have.
    #[error("VM {vm:?}: {field} = {value}: a number from 0 to 1e9 is needed")]
    Demand {
        /// The VM that this is about.
        vm: String,
        /// The field: `demand.mean` or `demand.variance`.
        field: &'static str,
        /// The value that the request gives.
        value: f64,
    },
    /// No host could hold the VM, however empty it were.
    #[error("VM {vm:?} asks for {requested}: the largest host has {largest}")]
    TooLarge {
        /// The VM that this is about.
        vm: String,
        /// What it asks for.
        requested: String,
        /// The host that comes nearest.
        largest: String,
    },
    /// The host has too little left.
    #[error("VM {vm:?} asks for {requested}: host {host:?} has {free} left")]
    Full {
        /// The VM that this is about.
        vm: String,
        /// What it asks for.
        requested: String,
        /// The host that the VM is on.
        host: String,
        /// What the host has left.
        free: String,
    },
    /// The host may have no more VMs.
    #[error("VM {vm:?}: host {host:?} may have {max} VMs (`max_vms`), and has no place for more")]
    Crowded {
        /// The VM that this is about.
        vm: String,
        /// The host that this is about.
        host: String,
        /// How many VMs it may have.
        max: u32,
    },
    /// No host has what the VM asks for.
    #[error("VM {vm:?} asks for {name:?}: no host has any")]
    NotOffered {
        /// The VM that this is about.
        vm: String,
        /// The name of the resource, as the request gives it.
        name: String,
    },
    /// Hosts and VMs have more kinds of resources than can be counted.
    #[error("{name:?}: at most {EXTRAS} kinds of resources beside cores and memory; there are {known}")]
    Kinds {
        /// The one too many.
        name: String,
        /// Those that hosts and VMs have.
        known: String,
    },
    /// No host is left by the constraints.
    #[error("VM {vm:?}: no host fits{}", refusals(.refused, *.short))]
    NoHost {
        /// The VM that this is about.
        vm: String,
        /// How many hosts each constraint refused.
        refused: Vec<(&'static str, usize)>,
        /// What there is too little of, where nothing but the room refused open hosts.
        short: Option<Shortage>,
    },
    /// There are VMs on the host.
    #[error("host {host:?} has {vms} VMs: none may be there when it goes")]
    NotEmpty {
        /// The host that this is about.
        host: String,
        /// How many VMs the host still has.
        vms: u32,
    },
}

fn refusals(refused: &[(&'static str, usize)], short: Option<Shortage>) -> String {
    let each: Vec<String> = refused
        .iter()
        .filter(|(_, hosts)| *hosts > 0)
        .map(|(fit, hosts)| format!("{fit} refuses {hosts}"))
        .collect();
    let short = short.map(|short| format!("{}; ", short.words())).unwrap_or_default();
    if each.is_empty() { ": there are none".to_owned() } else { format!(": {short}{}", each.join(", ")) }
}
