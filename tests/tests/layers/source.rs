//! Every Rust file of the project, read once: its text, its syntax tree, and the module that it is.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use syn::{Attribute, Item, UseTree};

pub(crate) fn root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).canonicalize().expect("the project's folder")
}

pub(crate) struct Source {
    /// Below the project's folder, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) file: syn::File,
}

impl Source {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("a readable file");
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let path = path.strip_prefix(root()).expect("a path below the root");

        Self { path: path.to_str().expect("UTF-8").to_owned(), text, file }
    }

    /// Whether the file's name says that it holds tests, what tests share, or benchmarks.
    pub(crate) fn is_named_as_test(&self) -> bool {
        let path = self.path.trim_end_matches(".rs");
        let stem = path.rsplit('/').next().unwrap_or(path);

        // The test bed is product code: the demonstration runs on it.
        stem == "tests"
            || stem.ends_with("_tests")
            || path
                .replace("tests/bed/src/", "")
                .split('/')
                .any(|folder| folder == "tests" || folder == "benches")
    }
}

pub(crate) fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    for package in packages() {
        let folder =
            Path::new(package["manifest_path"].as_str().expect("a path")).parent().expect("a folder");
        collect(folder, &mut found);
    }
    found.sort();
    found.dedup();
    assert!(found.len() > 500, "only {} files were found", found.len());

    found.iter().map(|path| Source::read(path)).collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The workspace's packages, as `cargo metadata` tells them.
pub(crate) fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

/// Whether an item is compiled for tests only.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let tokens = || attribute.meta.require_list().map(|list| list.tokens.to_string());
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg") && tokens().is_ok_and(|cfg| cfg.starts_with("test")))
    })
}

/// The modules of one library or program: the path of each, as `["plan", "args"]`, and the file that it stands in.
pub(crate) struct Modules {
    files: BTreeMap<Vec<String>, String>,
}

impl Modules {
    /// Walks the `mod` items from `entry`, leaving out what is compiled for tests only.
    pub(crate) fn walk(sources: &BTreeMap<&str, &Source>, entry: &str) -> Self {
        let mut modules = Self { files: BTreeMap::new() };
        let folder = entry.rsplit_once('/').expect("a folder").0;
        modules.add(sources, &[], entry, folder);
        modules
    }

    fn add(&mut self, sources: &BTreeMap<&str, &Source>, module: &[String], path: &str, folder: &str) {
        let Some(source) = sources.get(path) else { return };
        self.files.insert(module.to_vec(), path.to_owned());
        self.add_items(sources, module, &source.file.items, path, folder);
    }

    fn add_items(
        &mut self,
        sources: &BTreeMap<&str, &Source>,
        module: &[String],
        items: &[Item],
        path: &str,
        folder: &str,
    ) {
        for item in items {
            let Item::Mod(child) = item else { continue };
            if is_for_tests(&child.attrs) {
                continue;
            }

            let name = child.ident.to_string();
            let below = [module, std::slice::from_ref(&name)].concat();
            let folder = format!("{folder}/{name}");
            if let Some((_, items)) = &child.content {
                self.files.insert(below.clone(), path.to_owned());
                self.add_items(sources, &below, items, path, &folder);
            } else {
                self.add(sources, &below, &format!("{folder}.rs"), &folder);
                self.add(sources, &below, &format!("{folder}/mod.rs"), &folder);
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[String], &str)> {
        self.files.iter().map(|(module, file)| (module.as_slice(), file.as_str()))
    }

    /// The module that `path`, written in `module`, takes a name from. `None` for a name from elsewhere.
    pub(crate) fn resolve(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut at = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" | "super" => module.to_vec(),
            child => {
                let below = [module, &[child.to_owned()]].concat();
                self.files.contains_key(&below).then_some(module.to_vec())?
            }
        };

        for name in path {
            match name.as_str() {
                "crate" | "self" => {}
                "super" => drop(at.pop()),
                name => {
                    at.push(name.to_owned());
                    if !self.files.contains_key(&at) {
                        at.pop();
                        break;
                    }
                }
            }
        }
        Some(at)
    }

    pub(crate) fn file(&self, module: &[String]) -> &str {
        &self.files[module]
    }
}

/// Every full path that a `use` names.
pub(crate) fn used(tree: &UseTree, before: &[String], paths: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(path) => used(&path.tree, &[before, &[path.ident.to_string()]].concat(), paths),
        UseTree::Group(group) => group.items.iter().for_each(|tree| used(tree, before, paths)),
        UseTree::Name(name) => paths.push([before, &[name.ident.to_string()]].concat()),
        UseTree::Rename(name) => paths.push([before, &[name.ident.to_string()]].concat()),
        UseTree::Glob(_) => paths.push(before.to_vec()),
    }
}
