//! `/v1/drains`: hosts that come free, and which VMs are moved for it, in which order. The daemon moves no VM: it says
//! which are due, holds their room, and is told what has been done.

pub(crate) mod answer;
pub(super) mod book;
pub(super) mod calls;
pub(super) mod record;
#[cfg(test)]
mod tests;
