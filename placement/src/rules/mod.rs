//! The preferences.

mod best_fit;
mod power;

pub use best_fit::BestFit;
pub use power::{Alpha, Power};
