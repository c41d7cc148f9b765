//! The model checker, as deep as a test may take. `just model` goes further.

#![expect(clippy::print_stderr, reason = "a test says what it reached")]

use core::time::Duration;

use ballast_model::{Model, Search};

/// A search that takes longer is cut off, and fails the test: in truth it is some seconds of one core.
const LIMIT: Duration = Duration::from_secs(600);

/// No history of `model` breaks anything.
fn check(model: Model) {
    let outcome = model.search(Search::Short(LIMIT), 1);
    assert!(outcome.complete, "not every history in {LIMIT:?}");
    assert!(outcome.broken.is_empty(), "{outcome}");
    eprintln!("{outcome}");
}

#[test]
fn one_fault_under_a_load_that_changes_breaks_nothing() {
    check(Model::new(1, 1, Duration::from_secs(2)));
}

#[test]
fn two_faults_break_nothing() {
    check(Model::new(2, 0, Duration::from_secs(1)));
}
