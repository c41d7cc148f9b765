//! A digest of anything that prints itself, without a text in between.
//!
//! The machines derive `Debug` and not `Hash`. What `Debug` writes goes straight into a hasher. Points in
//! time count by their distance from now, so that the same situation at another time is the same state.

use core::fmt::{self, Debug, Write as _};
use core::hash::Hasher as _;
use std::hash::DefaultHasher;

use ballast_types::Instant;

/// Where in `Instant(…)`, or in a field of milliseconds of the agent's clock, the text is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Elsewhere,
    /// After this name its number follows, in so many nanoseconds.
    Named(u64),
}

/// Takes what `Debug` writes.
pub(crate) struct Digest {
    hasher: DefaultHasher,
    now: u64,
    place: Place,
}

impl Digest {
    /// One at `now`, by the clock of what will be written.
    pub(crate) fn at(now: Instant) -> Self {
        Self { hasher: DefaultHasher::new(), now: now.as_nanos(), place: Place::Elsewhere }
    }

    /// Adds `value`.
    pub(crate) fn add(mut self, value: &impl Debug) -> Self {
        // Writing into a hasher cannot fail.
        let _ = write!(self, "{value:?};");
        self
    }

    /// What all of it comes to.
    pub(crate) fn finish(self) -> u64 {
        self.hasher.finish()
    }
}

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match (self.place, text) {
            (_, "Instant") => self.place = Place::Named(1),
            (_, "agent_ms" | "echo_agent_ms") => self.place = Place::Named(1_000_000),
            (Place::Named(unit), number) if number.starts_with(|c: char| c.is_ascii_digit()) => {
                self.place = Place::Elsewhere;
                let at = number.parse::<u64>().unwrap_or(0).saturating_mul(unit);
                self.hasher.write_u64(at.wrapping_sub(self.now));
                return Ok(());
            }
            (Place::Named(_), "None") => self.place = Place::Elsewhere,
            _ => {}
        }
        self.hasher.write(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    #[expect(dead_code, reason = "only printed")]
    struct Thing {
        at: Option<Instant>,
        agent_ms: u64,
        count: u64,
    }

    fn digest(now: u64, at: u64, agent_ms: u64, count: u64) -> u64 {
        let thing = Thing { at: Some(Instant::from_millis(at)), agent_ms, count };
        Digest::at(Instant::from_millis(now)).add(&thing).finish()
    }

    #[test]
    fn time_counts_by_its_distance_from_now() {
        let one = digest(1000, 900, 950, 3);
        assert_eq!(digest(2000, 1900, 1950, 3), one);
        for other in
            [digest(1000, 901, 950, 3), digest(1000, 900, 951, 3), digest(1000, 900, 950, 4)]
        {
            assert_ne!(other, one);
        }
    }
}
