//! The preferences.

mod best_fit;
mod exits;
mod expected_exit;
mod guests;
mod index;
mod nilas;
mod outlook;
mod power;
mod spare_extras;
mod trust;

pub use best_fit::BestFit;
pub use expected_exit::ExpectedExit;
pub use guests::{Guest, Looks, in_words, left_s};
pub use nilas::Nilas;
pub use power::{Alpha, Power};
pub use spare_extras::SpareExtras;
