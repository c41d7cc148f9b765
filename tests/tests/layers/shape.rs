//! The shape of the code: room between paragraphs, short functions, narrow lines, and comments that say something.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, Field, ImplItemFn, Item, ItemFn, ItemMod, Lit, Local, Meta};

use super::source::{Source, is_for_tests};

/// The lines that a function may have outside tests.
const LONGEST_FUNCTION: usize = 60;
/// The closures with a name that all code outside tests may have. A function says more: the number only falls.
const NAMED_CLOSURES: usize = 1316;
/// The columns that a line of code may have.
const WIDEST_LINE: usize = 110;
/// A doc comment on a field says more than this many words, or goes.
const NO_COMMENT: usize = 3;

#[derive(Default)]
struct Shape {
    /// First and last line of each function that is not for tests.
    functions: Vec<(usize, usize)>,
    /// Line and text of each field's doc comment.
    comments: Vec<(usize, String)>,
    /// Files of modules that are compiled for tests only.
    test_modules: Vec<String>,
    /// `let name = |…| …` outside tests.
    named_closures: usize,
}

impl Shape {
    fn of(source: &Source) -> Self {
        let mut shape = Self::default();
        shape.visit_file(&source.file);
        shape
    }

    fn function(&mut self, span: Span, block: &Block) {
        self.functions.push((span.start().line, block.span().end().line));
    }
}

fn comment(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else { return None };
        let Expr::Lit(value) = &pair.value else { return None };
        match &value.lit {
            Lit::Str(text) if pair.path.is_ident("doc") => Some(text.value()),
            _ => None,
        }
    });
    lines.collect::<Vec<_>>().join(" ").trim().to_owned()
}

impl<'a> Visit<'a> for Shape {
    fn visit_item_mod(&mut self, module: &'a ItemMod) {
        if !is_for_tests(&module.attrs) {
            return visit::visit_item_mod(self, module);
        }
        if module.content.is_none() {
            self.test_modules.push(module.ident.to_string());
        }
    }

    fn visit_item(&mut self, item: &'a Item) {
        if !matches!(item, Item::Impl(item) if is_for_tests(&item.attrs)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'a ItemFn) {
        if !is_for_tests(&function.attrs) {
            self.function(function.sig.span(), &function.block);
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'a ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            self.function(function.sig.span(), &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_local(&mut self, local: &'a Local) {
        let value = local.init.as_ref().map(|init| &*init.expr);
        self.named_closures += usize::from(matches!(value, Some(Expr::Closure(_))));
        visit::visit_local(self, local);
    }

    fn visit_field(&mut self, field: &'a Field) {
        let comment = comment(&field.attrs);
        if !comment.is_empty() {
            self.comments.push((field.span().start().line, comment));
        }
    }
}

/// Outside tests a function has at most [`LONGEST_FUNCTION`] lines.
pub(crate) fn long_functions(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| !source.is_named_as_test()) {
        for (first, last) in Shape::of(source).functions {
            let lines = last + 1 - first;
            if lines > LONGEST_FUNCTION {
                found.push(format!("{}:{first}: {lines} lines", source.path));
            }
        }
    }
    found
}

/// Outside tests there are at most [`NAMED_CLOSURES`] closures with a name.
pub(crate) fn named_closures(sources: &[Source]) -> Vec<String> {
    let product = sources.iter().filter(|source| !source.is_named_as_test());
    let all = product.map(|source| Shape::of(source).named_closures).sum::<usize>();
    if all > NAMED_CLOSURES { vec![format!("{all}, at most {NAMED_CLOSURES}")] } else { Vec::new() }
}

/// Functions of 20 lines or more have blank lines between their paragraphs.
pub(crate) fn functions_without_paragraphs(sources: &[Source]) -> Vec<String> {
    let (mut blank, mut all) = (0, 0);
    for source in sources {
        let lines: Vec<_> = source.text.lines().collect();
        for (first, last) in
            Shape::of(source).functions.into_iter().filter(|(first, last)| last + 1 - first >= 20)
        {
            all += last + 1 - first;
            blank += lines[first - 1..last].iter().filter(|line| line.trim().is_empty()).count();
        }
    }

    let share = 100.0 * blank as f64 / all as f64;
    let message =
        format!("{share:.1} % of the lines in functions of 20 lines or more are blank; 7 % is asked");
    if share < 7.0 { vec![message] } else { Vec::new() }
}

/// A line of code has at most [`WIDEST_LINE`] columns.
pub(crate) fn wide_lines(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for (n, line) in source.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > WIDEST_LINE && !line.trim_start().starts_with("//") {
                found.push(format!("{}:{}: {columns} columns", source.path, n + 1));
            }
        }
    }
    found
}

/// A comment on a field says its unit, its range or why, or goes.
pub(crate) fn comments_without_news(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for (line, comment) in Shape::of(source).comments {
            if comment.split_whitespace().count() <= NO_COMMENT {
                found.push(format!("{}:{line}: {comment}", source.path));
            }
        }
    }
    found
}

/// A file of tests is `tests.rs` or `…_tests.rs`, and no other file is named so.
pub(crate) fn tests_in_disguise(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for module in Shape::of(source).test_modules {
            if module != "tests" && !module.ends_with("_tests") && module != "testing" {
                found.push(format!("{}: mod {module} is compiled for tests only", source.path));
            }
        }

        let stem = source.path.rsplit('/').next().unwrap_or_default();
        let product = source.path.contains("/src/") && !source.is_named_as_test();
        if product && (stem.starts_with("test") && stem != "testing.rs" || stem.ends_with("_test.rs")) {
            found.push(format!("{}: named as a test, but not compiled for tests only", source.path));
        }
    }
    found
}
