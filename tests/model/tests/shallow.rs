//! The model checker, as deep as a test may take. `just model` goes further.

#![expect(clippy::print_stderr, reason = "a test says what it reached")]

use core::time::Duration;

use ballast_model::{KNOWN, Model, Search};

/// Long enough for every history of these models on a busy core: were it not, the test would say so.
const LIMIT: Duration = Duration::from_secs(110);

/// Every history of `model` breaks what is known to be broken, and nothing else.
fn check(model: Model, known: &[&str]) {
    let outcome = model.search(Search::Every(LIMIT), 1);
    eprintln!("{outcome}");
    assert!(outcome.complete, "not every history in {LIMIT:?}");
    let broken: Vec<_> = outcome.broken.iter().map(|(promise, _)| *promise).collect();
    assert_eq!(broken, known, "if less is broken than was known, take it from KNOWN");
}

#[test]
fn one_fault_under_a_load_that_changes_breaks_nothing() {
    check(Model::new(1, 1, Duration::from_secs(3)), &[]);
}

#[test]
fn two_faults_break_only_what_is_known() {
    check(Model::new(2, 0, Duration::from_millis(1500)), KNOWN);
}
