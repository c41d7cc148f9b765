//! Tree ensembles over histograms: random forest and gradient boosting, with fast single rows.
//!
//! ```
//! use ballast_forest::{ForestOptions, FeatureTable, Target, train_forest};
//! use std::num::NonZeroUsize;
//!
//! let table = FeatureTable::from_columns(vec![(0..100).map(|n| n as f32).collect()])?;
//! let labels: Vec<u32> = (0..100).map(|n| u32::from(n >= 50)).collect();
//! let target = Target::Classes { labels: &labels, classes: 2 };
//! let threads = NonZeroUsize::MIN;
//! let forest = train_forest(&table, target, None, &ForestOptions::default(), 1, threads)?;
//! let mut shares = [0.0; 2];
//! forest.predict(&[80.0], &mut shares);
//! assert!(shares[1] > 0.9);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why it is not a library: on 100,000 rows (`examples/compare.rs`, `compare/compare.py`) it is as good as LightGBM 4.7 and
//! scikit-learn 1.9 (boosted AUC 0.9004, 0.9001 and 0.8997, log-loss 0.3998, 0.4002 and 0.4008; squared error 1.377, 1.355
//! and 1.362; forest AUC 0.8870 and 0.8866 of scikit-learn), and its models are the same on every machine and with any number of
//! threads, need no C++ and no file of another format, and refuse damage.
//!
//! Features are put in at most 255 bins and one for missing values (`NaN`), which learn at every split which
//! way to go. All sums are exact, and every random draw has a name, so a model depends on its input and seed
//! alone: not on threads, and not on the machine.

#![warn(missing_docs)]

mod bins;
mod boost;
mod ensemble;
mod forest;
mod grow;
mod loss;
mod parallel;
mod rng;
mod score;
mod split;
mod sums;
mod table;
mod train;
mod tree;
mod walk;

pub use boost::{BoostOptions, EarlyStopping, train_boosted, train_with_loss};
pub use ensemble::{DamagedModel, Ensemble, Link, MAX_CLASSES, MAX_TREES};
pub use forest::{ForestOptions, train_forest, train_forest_out_of_bag};
pub use loss::{Gradient, Loss};
pub use score::{auc, log_loss};
pub use table::{FeatureTable, MAX_FEATURES, TableError};
pub use train::{Features, Target, TrainError};
pub use tree::MAX_DEPTH;
