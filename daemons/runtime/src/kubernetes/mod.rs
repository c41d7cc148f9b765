//! The API server of a Kubernetes cluster: what there is, listed and then watched.

pub mod follow;
pub mod object;
pub mod quantity;
