//! The preferences.

mod best_fit;
mod exits;
mod expected_exit;
mod lifetimes;
mod power;
mod spare_extras;

pub use best_fit::BestFit;
pub use expected_exit::ExpectedExit;
pub use lifetimes::{LaBinary, Nilas};
pub use power::{Alpha, Power};
pub use spare_extras::SpareExtras;
