//! A digest of anything that prints itself, without a text in between: the machines derive `Debug`, not
//! `Hash`.
//!
//! Points in time stand in it as they are. Counted by their distance from now the same situation at another
//! time would be the same state; that was tried, and joined not one state of 68,568: the numbers of messages
//! tell two instants apart anyway. States join where faults are independent of each other.

use core::fmt::{self, Debug, Write as _};
use core::hash::Hasher as _;
use std::hash::DefaultHasher;

/// Takes what `Debug` writes.
struct Digest(DefaultHasher);

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

pub(crate) fn digest(value: &impl Debug) -> u64 {
    let mut digest = Digest(DefaultHasher::new());
    // Writing into a hasher cannot fail.
    let _ = write!(digest, "{value:?}");
    digest.0.finish()
}
