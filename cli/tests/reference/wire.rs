//! The documents that cross the network, as Markdown: tables of fields and values, from the types' own source.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use syn::{Attribute, Expr, Fields, GenericArgument, Item, Lit, Meta, PathArguments, Type};

/// Where the types stand, below `types/src/`.
const FILES: [&str; 10] = [
    "wire.rs",
    "wire/history.rs",
    "wire/alarm.rs",
    "impact.rs",
    "wire/prediction.rs",
    "wire/usage.rs",
    "wire/limits.rs",
    "wire/place.rs",
    "wire/drain.rs",
    "wire/kubernetes.rs",
];

/// Types of other files whose text is a number.
const NUMBERS: [&str; 6] = ["Watts", "Epoch", "Seq", "Instance", "Instant", "KiloHertz"];

/// Every document and every enum of words, each under a heading of its own.
pub(super) fn markdown() -> String {
    let items: Vec<Item> = FILES.iter().flat_map(|file| items(file)).collect();
    let names: Vec<String> = items.iter().filter_map(name).collect();
    let mut page = String::new();

    for item in &items {
        match item {
            Item::Struct(it) => {
                let _ = writeln!(
                    page,
                    "### {}\n\n{}\n\n| field | type | is |\n|---|---|---|",
                    it.ident,
                    doc(&it.attrs)
                );
                for field in &it.fields {
                    let (shape, is) = (shape(&field.ty, &field.attrs, &names), doc(&field.attrs));
                    let name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
                    let name = if has(&field.attrs, "flatten") { "…".into() } else { format!("`{name}`") };
                    let _ = writeln!(page, "| {name} | {shape} | {is} |");
                }
            }
            Item::Enum(it) => {
                let _ = writeln!(page, "### {}\n\n{}\n\n| value | is |\n|---|---|", it.ident, doc(&it.attrs));
                let kebab = has(&it.attrs, "kebab-case");
                for variant in it.variants.iter().filter(|it| !has(&it.attrs, "other")) {
                    let word = word(&variant.ident.to_string(), if kebab { '-' } else { '_' });
                    let _ =
                        writeln!(page, "| `{word}`{} | {} |", fields(&variant.fields), doc(&variant.attrs));
                }
            }
            _ => continue,
        }
        page.push('\n');
    }
    page
}

/// What a file says of structs and enums that are sent.
fn items(file: &str) -> Vec<Item> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../types/src").join(file);
    let mut items = syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap().items;
    items.retain(|item| name(item).is_some());
    items
}

fn name(item: &Item) -> Option<String> {
    let (ident, attrs) = match item {
        Item::Struct(it) => (&it.ident, &it.attrs),
        Item::Enum(it) => (&it.ident, &it.attrs),
        _ => return None,
    };
    let is_sent = attrs.iter().any(|it| it.path().is_ident("derive") && text(it).contains("Serialize"));
    is_sent.then(|| ident.to_string())
}

fn fields(fields: &Fields) -> String {
    let names: Vec<_> =
        fields.iter().filter_map(|it| it.ident.as_ref()).map(|name| format!("`{name}`")).collect();
    if names.is_empty() { String::new() } else { format!(" with {}", names.join(", ")) }
}

/// What a doc comment says, in one line.
fn doc(attrs: &[Attribute]) -> String {
    let lines = attrs.iter().filter_map(|it| match &it.meta {
        Meta::NameValue(it) if it.path.is_ident("doc") => match &it.value {
            Expr::Lit(it) => match &it.lit {
                Lit::Str(line) => Some(line.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    lines.collect::<Vec<_>>().join(" ").replace("[`", "`").replace("`]", "`").trim().to_owned()
}

/// Whether serde is told this word.
fn has(attrs: &[Attribute], word: &str) -> bool {
    attrs.iter().any(|it| it.path().is_ident("serde") && text(it).contains(word))
}

fn text(attribute: &Attribute) -> String {
    match &attribute.meta {
        Meta::List(list) => list.tokens.to_string(),
        _ => String::new(),
    }
}

/// What a field holds, in JSON's words.
fn shape(ty: &Type, attrs: &[Attribute], names: &[String]) -> String {
    let Type::Path(path) = ty else { return "list".into() };
    let last = path.path.segments.last().unwrap();
    let ident = last.ident.to_string();
    let inner = match &last.arguments {
        PathArguments::AngleBracketed(it) => match it.args.last() {
            Some(GenericArgument::Type(ty)) => shape(ty, &[], names),
            _ => String::new(),
        },
        _ => String::new(),
    };
    let shape = match ident.as_str() {
        "Option" => format!("{inner} or null"),
        "Vec" => format!("list: {inner}"),
        "BTreeMap" => format!("object: {inner}"),
        "bool" => "true or false".into(),
        _ if names.contains(&ident) => format!("[{ident}](#{})", ident.to_lowercase()),
        _ if NUMBERS.contains(&ident.as_str()) || ident.starts_with(['u', 'i', 'f']) => "number".into(),
        _ => "text".into(),
    };
    match has(attrs, "default") || has(attrs, "skip_serializing_if") {
        true => format!("{}; may be absent", shape.trim_end_matches(" or null")),
        false => shape,
    }
}

/// `OutOfBand` as `out_of_band`.
fn word(name: &str, between: char) -> String {
    let mut word = String::new();
    for (at, letter) in name.char_indices() {
        if letter.is_uppercase() && at > 0 {
            word.push(between);
        }
        word.push(letter.to_ascii_lowercase());
    }
    word
}
