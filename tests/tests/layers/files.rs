//! No circle between files, and no command that imports another.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, Visibility};

use super::source::{Modules, Source, is_for_tests, packages, root, used};

/// What one module names of its own crate, apart from what it passes on with `pub use`.
struct Names {
    paths: Vec<Vec<String>>,
}

impl Names {
    fn of(items: &[Item]) -> Vec<Vec<String>> {
        let mut names = Self { paths: Vec::new() };
        items.iter().for_each(|item| names.visit_item(item));
        names.paths
    }
}

impl<'a> Visit<'a> for Names {
    fn visit_item(&mut self, item: &'a Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    /// A module within the module has its own turn.
    fn visit_item_mod(&mut self, _: &'a ItemMod) {}

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        if matches!(item.vis, Visibility::Inherited) {
            used(&item.tree, &[], &mut self.paths);
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1 {
            self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

/// The items of `module` in `file`: of the file itself, or of a module that stands within it.
fn items<'a>(file: &'a Source, within: &[String]) -> &'a [Item] {
    within.iter().fold(&file.file.items, |items, name| {
        let inner = items.iter().find_map(|item| match item {
            Item::Mod(inner) if inner.ident == name => inner.content.as_ref(),
            _ => None,
        });
        inner.map_or(&file.file.items, |(_, items)| items)
    })
}

/// Which files each file of a library or program takes names from. What a module takes from its own children is left
/// out: a module is made of its children, and they may use its names.
fn imports(sources: &BTreeMap<&str, &Source>, entry: &str) -> BTreeMap<String, BTreeSet<String>> {
    let modules = Modules::walk(sources, entry);
    let mut imports = BTreeMap::<_, BTreeSet<_>>::new();
    for (module, file) in modules.iter() {
        let outer =
            (0..=module.len()).find(|&n| modules.file(&module[..n]) == file).expect("a module in the file");
        for path in Names::of(items(sources[file], &module[outer..])) {
            let Some(target) = modules.resolve(module, &path) else { continue };
            let of_a_child = target.len() > module.len() && target.starts_with(module);
            let target = modules.file(&target);
            if target != file && !of_a_child {
                imports.entry(file.to_owned()).or_default().insert(target.to_owned());
            }
        }
    }
    imports
}

fn reached<'a>(imports: &'a BTreeMap<String, BTreeSet<String>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for next in imports.get(file).into_iter().flatten() {
            if found.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    found
}

/// The circles, each once, as a list of its files.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<&str>> {
    let reach: BTreeMap<_, _> = imports.keys().map(|file| (file.as_str(), reached(imports, file))).collect();

    let circle = |file: &str| -> Vec<&str> {
        let back = |other: &&str| reach.get(other).is_some_and(|reached| reached.contains(file));
        reach[file].iter().copied().filter(back).collect()
    };
    reach.keys().map(|file| circle(file)).filter(|circle| !circle.is_empty()).collect()
}

/// The files in which libraries and programs begin.
fn entries() -> Vec<String> {
    let packages = packages();
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().expect("targets"));
    let product = targets.filter(|target| ["lib", "bin"].contains(&target["kind"][0].as_str().unwrap_or("")));
    let path = |target: &serde_json::Value| {
        let path = std::path::Path::new(target["src_path"].as_str().expect("a path"))
            .canonicalize()
            .expect("a file");
        path.strip_prefix(root()).expect("a path below the root").to_str().expect("UTF-8").to_owned()
    };
    product.map(path).collect()
}

/// No file takes names from one that takes names from it.
pub(crate) fn circles_between_files(sources: &[Source]) -> Vec<String> {
    let sources: BTreeMap<_, _> = sources.iter().map(|source| (source.path.as_str(), source)).collect();

    let mut found = Vec::new();
    for entry in entries() {
        let imports = imports(&sources, &entry);
        for circle in circles(&imports) {
            let arrows = circle.iter().flat_map(|file| {
                let targets = imports[*file].iter().filter(|target| circle.contains(&target.as_str()));
                targets.map(move |target| format!("\n        {file} -> {target}"))
            });
            found.push(format!("a circle:{}", arrows.collect::<String>()));
        }
    }
    found
}

/// A command stands above `common`; it imports no other command, and not `main`.
pub(crate) fn commands_that_import_commands(sources: &[Source]) -> Vec<String> {
    let sources: BTreeMap<_, _> = sources.iter().map(|source| (source.path.as_str(), source)).collect();
    let imports = imports(&sources, "cli/src/lib.rs");
    let command = |file: &str| {
        let below = file.strip_prefix("cli/src/").expect("a file of the program");
        below.split(['/', '.']).next().expect("a name").to_owned()
    };

    let mut found = Vec::new();
    for (file, targets) in &imports {
        let own = command(file);
        for target in targets.iter().filter(|target| command(target) != own) {
            if own == "common" || command(target) != "common" {
                found.push(format!("{file} must not import {target}"));
            }
        }
    }
    found
}
