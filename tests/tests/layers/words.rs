//! The words that this project does not use, and those that it does not use as names.

use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Field, ImplItemFn, ItemEnum, ItemFn, ItemStruct, ItemTrait, ItemType, TraitItemFn, Variant};

use super::source::{Source, root};

/// Words and phrases that stand nowhere: not in code, documents or messages. Endings count as the word.
const NOWHERE: [&str; 15] = [
    "burial",
    "bury",
    "buried",
    "curfew",
    "stranger",
    "doubled",
    "lent",
    "loosen",
    "tighten",
    "is there twice",
    "is no name of",
    "want of cores",
    "want of memory",
    "for the admission's sake",
    "everything is as it was",
];

/// Folders and files in which words are not looked for: what is built or generated, and this list.
const NOT_READ: [&str; 6] =
    [".git", "target", "docs/book", "proof/results", "packaging/generated", "tests/tests/layers/words.rs"];

/// Every text file of the project below `folder`.
fn texts(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.strip_prefix(root).expect("a path below the root");
        if NOT_READ.iter().any(|left_out| name == Path::new(left_out)) {
            continue;
        }

        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
        if path.is_dir() {
            texts(root, &path, found);
        } else if ["rs", "md", "toml", "service", "timer", "sql", "yaml"].contains(&ending) {
            found.push(path);
        }
    }
}

/// Whether `line` has `word` with no letter before it and at most the ending of a form after it.
fn says(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let begins = !line[..at].chars().next_back().is_some_and(char::is_alphanumeric);
        let rest = line[at + word.len()..].split(|c: char| !c.is_alphanumeric()).next();
        begins && matches!(rest, Some("" | "s" | "ed" | "ing"))
    })
}

/// The words of the first list that stand somewhere.
pub(crate) fn words_that_nobody_else_uses(_: &[Source]) -> Vec<String> {
    let root = root();
    let mut files = Vec::new();
    texts(&root, &root, &mut files);
    assert!(files.len() > 500, "only {} files were found", files.len());

    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("text").to_lowercase();
        for (n, line) in text.lines().enumerate() {
            for word in NOWHERE.iter().filter(|word| says(line, word)) {
                found.push(format!("{}:{}: {word}", file.display(), n + 1));
            }
        }
    }
    found
}

#[test]
fn a_word_counts_with_its_endings_and_not_within_another() {
    assert!(says("two burials.", "burial") && says("a_stranger_came", "stranger"));
    assert!(!says("excellent", "lent") && !says("lentil", "lent"));
}

/// Words that are no part of any name: of no type, field, function, file or flag.
const NO_NAME: [&str; 22] = [
    "absurd",
    "around",
    "burial",
    "calm",
    "climb",
    "curfew",
    "door",
    "hunt",
    "hurry",
    "keeper",
    "kit",
    "lent",
    "letter",
    "looked",
    "mended",
    "remains",
    "rival",
    "rivals",
    "spared",
    "stranger",
    "strangers",
    "wish",
];

/// Words that are no part of the name of a type, a variant of one, or a file.
const NO_TYPE: [&str; 19] = [
    "asked", "course", "found", "frame", "gate", "hand", "joint", "known", "law", "life", "live", "made",
    "pass", "place", "seen", "stamp", "stock", "told", "wanted",
];

/// Whole names of structures that say nothing, where several stood.
const TOO_SHORT: [&str; 4] = ["Line", "Row", "Table", "Vm"];

/// Plain uses, with their files or folders: the placement daemon keeps its name, and to place is a plain verb.
const PLAIN: [(&str, &str); 15] = [
    ("cli/src/lib.rs", "Place"),
    ("proof/bench/src/lib.rs", "Place"),
    ("cli/src/common/answers.rs", "Place"),
    ("cli/src/status", "place"),
    ("daemons/place/src", "PlaceAnswer"),
    ("daemons/place/src", "PlaceConfig"),
    ("daemons/place/src", "PlaceDaemon"),
    ("daemons/runtime/src", "Place"),
    ("cluster/placement/tests", "Place"),
    ("tests/bed/src/lab/place.rs", "PlaceLab"),
    ("tests/bed/src/lab/place.rs", "place"),
    ("tests/tests/place.rs", "place"),
    ("types/src", "Place"),
    ("types/src/wire/place.rs", "PlaceStatus"),
    ("types/src/wire/place.rs", "place"),
];

/// The words of a name, in small letters: `PowerCap`, `power_cap` and `POWER_CAP` are power and cap.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut small = false;
    for letter in name.chars() {
        if !letter.is_alphanumeric() || (letter.is_uppercase() && small) {
            words.push(String::new());
        }
        small = letter.is_lowercase();
        if letter.is_alphanumeric() {
            words.last_mut().expect("a word").extend(letter.to_lowercase());
        }
    }
    words
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Structure,
    /// A variant, a trait, an alias or a file.
    OtherType,
    FieldOrFunction,
}

/// Every name that a file gives, with its line.
#[derive(Default)]
struct Names {
    all: Vec<(usize, String, Kind)>,
}

impl Names {
    fn add(&mut self, ident: &syn::Ident, kind: Kind) {
        self.all.push((ident.span().start().line, ident.to_string(), kind));
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_item_struct(&mut self, item: &'a ItemStruct) {
        self.add(&item.ident, Kind::Structure);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'a ItemEnum) {
        self.add(&item.ident, Kind::Structure);
        visit::visit_item_enum(self, item);
    }

    fn visit_variant(&mut self, variant: &'a Variant) {
        self.add(&variant.ident, Kind::OtherType);
        visit::visit_variant(self, variant);
    }

    fn visit_item_trait(&mut self, item: &'a ItemTrait) {
        self.add(&item.ident, Kind::OtherType);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'a ItemType) {
        self.add(&item.ident, Kind::OtherType);
    }

    fn visit_field(&mut self, field: &'a Field) {
        field.ident.iter().for_each(|name| self.add(name, Kind::FieldOrFunction));
    }

    fn visit_item_fn(&mut self, item: &'a ItemFn) {
        // The name of a test is a sentence.
        let is_test = |attribute: &syn::Attribute| {
            attribute.path().segments.last().is_some_and(|segment| segment.ident == "test")
        };
        if !item.attrs.iter().any(is_test) {
            self.add(&item.sig.ident, Kind::FieldOrFunction);
        }
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a ImplItemFn) {
        self.add(&item.sig.ident, Kind::FieldOrFunction);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'a TraitItemFn) {
        self.add(&item.sig.ident, Kind::FieldOrFunction);
    }
}

/// Names that are made of words of the second list.
pub(crate) fn names_that_nobody_else_uses(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let stem = source.path.trim_end_matches(".rs").trim_end_matches("/mod").rsplit('/').next();
        let mut names = Names::default();
        names.all.push((1, stem.unwrap_or_default().to_owned(), Kind::OtherType));
        names.visit_file(&source.file);

        for (line, name, kind) in names.all {
            if PLAIN.iter().any(|(file, plain)| source.path.starts_with(file) && *plain == name) {
                continue;
            }

            let banned = |word: &str| {
                NO_NAME.contains(&word) || kind != Kind::FieldOrFunction && NO_TYPE.contains(&word)
            };
            let word = words(&name).into_iter().find(|word| banned(word));
            if word.is_some() || kind == Kind::Structure && TOO_SHORT.contains(&name.as_str()) {
                found.push(format!("{}:{line}: {name}", source.path));
            }
        }
    }
    found
}
