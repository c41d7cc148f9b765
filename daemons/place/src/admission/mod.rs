//! Whether new deployments may come: what is seen of deployments, and what is answered about new ones.

pub(crate) mod book;
pub(crate) mod calls;
pub(crate) mod decision;
pub(crate) mod record;

#[cfg(test)]
mod tests;
