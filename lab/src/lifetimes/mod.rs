//! How long VMs live, and what knowing it is worth to a cluster.

pub mod lars;
