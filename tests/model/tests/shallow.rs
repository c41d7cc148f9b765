//! The model checker, as deep as a test may take. `just model` goes further.

#![expect(clippy::print_stderr, reason = "a test says what it reached")]

use core::time::Duration;

use ballast_model::{KNOWN, Model, Search};

/// A search that takes longer is cut off, and fails the test: in truth it is some seconds of one core.
const LIMIT: Duration = Duration::from_secs(600);

/// Every history of `model` breaks what is known to be broken, and nothing else.
fn check(model: Model, known: &[&str]) {
    let outcome = model.search(Search::Short(LIMIT), 1);
    eprintln!("{outcome}");
    assert!(outcome.complete, "not every history in {LIMIT:?}");
    let broken: Vec<_> = outcome.broken.iter().map(|(promise, _)| *promise).collect();
    assert_eq!(broken, known, "if less is broken than was known, take it from KNOWN");
}

#[test]
fn one_fault_under_a_load_that_changes_breaks_nothing() {
    check(Model::new(1, 1, Duration::from_secs(2)), &[]);
}

#[test]
fn two_faults_break_only_what_is_known() {
    check(Model::new(2, 0, Duration::from_secs(1)), KNOWN);
}
