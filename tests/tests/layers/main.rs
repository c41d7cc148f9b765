//! The house rules: which crate imports which, no circles, room to breathe, plain words.
//!
//! `cargo test -p ballast-tests --test layers` says every place that breaks one.

mod book;
mod edges;
mod files;
mod shape;
mod source;
mod words;

use source::Source;

/// A rule of the source: what is said where it is broken, and the places that break it.
type Rule = (&'static str, fn(&[Source]) -> Vec<String>);

const RULES: [Rule; 10] = [
    ("no file takes names from one that takes names from it", files::circles_between_files),
    ("a command imports no other command, nor `main`", files::commands_that_import_commands),
    ("a function has at most 60 lines", shape::long_functions),
    ("closures with a name outside tests: a function says more", shape::named_closures),
    (
        "functions of 20 lines or more have blank lines between their paragraphs",
        shape::functions_without_paragraphs,
    ),
    ("a line of code has at most 110 columns", shape::wide_lines),
    ("a comment on a field says its unit, its range or why, or goes", shape::comments_without_news),
    ("a file of tests is named `tests.rs` or `…_tests.rs`, and no other file is", shape::tests_in_disguise),
    ("house words stand nowhere; say them plainly", words::words_that_nobody_else_uses),
    ("house words are no names", words::names_that_nobody_else_uses),
];

/// One test for all rules, because the source is parsed once.
#[test]
fn the_source_keeps_the_house_rules() {
    let sources = source::sources();

    let mut broken = String::new();
    for (rule, places) in RULES {
        let places = places(&sources);
        if !places.is_empty() {
            broken += &format!("\n{} times broken: {rule}\n    {}\n", places.len(), places.join("\n    "));
        }
    }
    assert!(broken.is_empty(), "{broken}");
}
