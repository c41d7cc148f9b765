//! One way to read a power sensor, whatever is behind it.

use core::time::Duration;

use ballast_types::{Instant, Watts};

use crate::error::HwError;

/// Something that tells a draw: a hwmon channel, RAPL, a BMC.
///
/// A sensor reads and no more. Whether the value may be believed (plausible, fresh, not frozen) is
/// decided by [`crate::PowerMeter`], alike for all.
pub trait Sensor: Send {
    /// Asks the device once; may block, so it is called on a thread of its own. `now` is the time just before
    /// the call. Fails if the device gives no value. That is never a low power.
    fn read(&mut self, now: Instant) -> Result<Sampled, SensorError>;

    /// The time that a value is averaged over, where the device says so itself.
    fn averaged_over(&self) -> Option<Duration> {
        None
    }
}

impl<S: Sensor + ?Sized> Sensor for Box<S> {
    fn read(&mut self, now: Instant) -> Result<Sampled, SensorError> {
        (**self).read(now)
    }
    fn averaged_over(&self) -> Option<Duration> {
        (**self).averaged_over()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    pub watts: Watts,
    /// A number that the device moves with every value that it produces (DCMI's time stamp, a sequence
    /// number), if it has one: then the same watts with another mark are a fresh value.
    pub mark: Option<u64>,
}

impl From<Watts> for Sampled {
    /// A value of a device that tells nothing but watts.
    fn from(watts: Watts) -> Self {
        Self { watts, mark: None }
    }
}

/// Why there is no usable reading.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// The file is gone, or reading it failed.
    #[error(transparent)]
    Unreadable(#[from] HwError),
    /// A device that is not a file gave no value; the text says which and why.
    #[error("{0}")]
    Device(String),
    /// An energy counter was read for the first time, or anew after a gap: the next read measures.
    #[error("the energy counters were read for the first time: the next reading gives watts")]
    Started,
    /// Zero, negative, or beyond what the server can draw.
    #[error(
        "the power meter reads {watts}, but only above 0 W and at most {max} is plausible: is it the right \
             channel, and max_w high enough?"
    )]
    Implausible {
        watts: Watts,
        /// The most that is plausible.
        max: Watts,
    },
    /// The value has not moved for too long.
    #[error(
        "the power meter has read {watts} {reads} times in a row: it is frozen, or slower than stale_ms \
         allows"
    )]
    Frozen { watts: Watts, reads: u32 },
}
