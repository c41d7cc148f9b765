//! The servers' BMCs: the hardware caps that they keep.

use ballast_types::Watts;

/// See the module. Every list is by server.
#[derive(Debug)]
pub(crate) struct Bmcs {
    /// Whether a manager can reach it.
    pub(crate) has_path: Vec<bool>,
    /// The cap that it keeps.
    pub(crate) caps: Vec<Option<Watts>>,
}

impl Bmcs {
    pub(crate) fn new(has_path: Vec<bool>, servers: usize) -> Self {
        Self { has_path, caps: vec![None; servers] }
    }
}
