//! The preferences.

mod best_fit;
mod power;
mod spare_extras;

pub use best_fit::BestFit;
pub use power::{Alpha, Power};
pub use spare_extras::SpareExtras;
