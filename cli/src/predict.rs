//! `ballast predict`: class and P95 bucket of arriving VMs, or how long they live.

mod lifetimes;

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use ballast_predict::lifetime::LifetimeFile;
use ballast_predict::request::{Reply, Request};
use ballast_predict::{Features, ModelFile};
use ballast_sim::trace::TableReader;
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::common::lifetimes::Target;
use crate::common::one_of;
use crate::common::table;
use crate::common::terminal::{is_broken_pipe, say, tell};

/// Columns of a CSV of arriving VMs; each must be there, others are left alone.
const COLUMNS: [&str; 5] = ["vm_id", "subscription", "cores", "memory_gb", "vm_type"];

#[derive(Args, Debug)]
#[command(group = one_of(["input", "about"]))]
pub(crate) struct PredictArgs {
    /// The model, from `ballast train`
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// What is predicted: the model must have learnt it
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    target: Target,
    /// Arriving VMs: CSV with vm_id, subscription, cores, memory_gb, vm_type, or JSON lines with the same
    /// names; plain or zstd; `-` is stdin. For lifetimes any of vm_id, start_s, uptime_s, tenant, cores, memory_gb, vm_type,
    /// deployment, batch_vms, label_…
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Where the answers go; `-` is stdout
    #[arg(long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// What input and output are [default: JSON lines where the input begins with {, CSV otherwise]
    #[arg(long, value_name = "NAME")]
    format: Option<Format>,
    /// Print what the model was learnt from and how good it is, as JSON, and end
    #[arg(long)]
    about: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Csv,
    JsonLines,
}

pub(crate) fn run(args: &PredictArgs) -> anyhow::Result<ExitCode> {
    let of_model = || format!("--model {}", args.model.display());
    let bytes = table::bytes(&args.model).with_context(of_model)?;
    match args.target {
        Target::ClassP95 => {
            let model = ModelFile::decode(&bytes).with_context(of_model)?;
            answer_all(args, &model.about, |format, input, name, mut output| match format {
                Format::Csv => csv(&model, input, name, &mut output),
                Format::JsonLines => json_lines(&model, input, name, &mut output),
            })
        }
        Target::Lifetime => {
            let LifetimeFile { about, model, .. } = LifetimeFile::decode(&bytes).with_context(of_model)?;
            answer_all(args, &about, |format, input, name, mut output| match format {
                Format::Csv => lifetimes::csv(&model, input, name, &mut output),
                Format::JsonLines => lifetimes::json_lines(&model, input, name, &mut output),
            })
        }
    }
}

/// Says what the model is, or answers the input.
fn answer_all(
    args: &PredictArgs,
    about: &impl Serialize,
    answer: impl Fn(Format, Box<dyn Read>, &str, &mut dyn Write) -> anyhow::Result<u64>,
) -> anyhow::Result<ExitCode> {
    let Some(input) = &args.input else {
        say(&serde_json::to_string_pretty(about)?)?;
        return Ok(ExitCode::SUCCESS);
    };

    let name = input.display().to_string();
    let mut reader = BufReader::new(table::text(input)?);
    let format = match args.format {
        Some(format) => format,
        None if begins_with_brace(&mut reader).with_context(|| name.clone())? => Format::JsonLines,
        None => Format::Csv,
    };
    let what = || format!("--output {}", args.output.display());
    let output: Box<dyn Write> = if args.output == Path::new("-") {
        Box::new(io::stdout().lock())
    } else {
        Box::new(File::create(&args.output).with_context(what)?)
    };

    let mut output = BufWriter::new(output);
    let told = answer(format, Box::new(reader), &name, &mut output);
    let count = match told.and_then(|count| Ok(output.flush().map(|()| count)?)) {
        // A reader that has gone away is no failure.
        Err(error) if is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
        told => told?,
    };

    tell(&format!("{count} predictions"));

    Ok(ExitCode::SUCCESS)
}

/// Whether the first character but blanks is `{`, as in JSON lines and in no header of a CSV. A pipe may give few bytes
/// at a time: blanks are dropped until something else comes.
fn begins_with_brace(reader: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let next = reader.fill_buf()?;
        if next.is_empty() {
            return Ok(false);
        }
        let blanks = next.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        match next.get(blanks) {
            Some(first) => return Ok(*first == b'{'),
            None => reader.consume(blanks),
        }
    }
}

fn csv(model: &ModelFile, input: impl Read, file: &str, output: &mut impl Write) -> anyhow::Result<u64> {
    let mut table = TableReader::csv(input, file)?;
    let columns = COLUMNS.map(|name| table.column(name));
    let columns = columns.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut csv = csv::Writer::from_writer(output);
    csv.write_record([
        "vm_id",
        "class",
        "class_confidence",
        "class_confident",
        "p95_bucket",
        "p95_percent",
        "p95_confidence",
        "p95_confident",
    ])?;
    let mut count = 0;

    while table.advance()? {
        let cell = |column: usize| table.text(columns[column]).into_owned();
        let number = |column: usize| {
            let number = table.number(columns[column], "a number")?;
            let there = !number.is_nan();
            there.then_some(number).ok_or_else(|| table.refuse(columns[column], "a number"))
        };

        let named = |column: usize| Some(cell(column)).filter(|name| !name.is_empty());
        let (cores, memory_gb) = (number(2)?, number(3)?);
        let features = Features { cores, memory_gb, vm_type: named(4), past: None };
        let request = Request { vm_id: named(0), subscription: named(1), features };
        let reply = model.answer(&request);
        let reply = reply.with_context(|| format!("{file}, {}", table.place()))?;
        let Reply { vm_id, prediction: p, .. } = reply;
        csv.write_record([
            vm_id.unwrap_or_default(),
            p.class.name().to_owned(),
            p.class_confidence.to_string(),
            p.class_confident.to_string(),
            p.p95_bucket.number().to_string(),
            p.p95_percent.to_string(),
            p.p95_confidence.to_string(),
            p.p95_confident.to_string(),
        ])?;
        count += 1;
    }

    csv.flush()?;

    Ok(count)
}

fn json_lines(
    model: &ModelFile,
    input: impl Read,
    file: &str,
    output: &mut impl Write,
) -> anyhow::Result<u64> {
    let mut count = 0;
    for (number, line) in BufReader::new(input).lines().enumerate() {
        let place = || format!("{file}, line {}", number + 1);
        let line = line.with_context(place)?;
        if line.trim().is_empty() {
            continue;
        }
        let request: Request = serde_json::from_str(&line).with_context(place)?;
        let reply = model.answer(&request).with_context(place)?;
        serde_json::to_writer(&mut *output, &reply)?;
        writeln!(output)?;
        count += 1;
    }

    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ballast_predict::{fleet, train};
    use std::sync::OnceLock;

    fn model() -> &'static ModelFile {
        static MODEL: OnceLock<ModelFile> = OnceLock::new();
        MODEL.get_or_init(|| {
            let options = fleet::Options { vms: 4000, ..fleet::Options::default() };
            let algorithm = ballast_predict::model::Algorithm::GradientBoosting;
            let how = train::Options { algorithm, ..train::Options::default() };
            train::train(&fleet::make(&options).vms, &how).unwrap()
        })
    }

    fn told(format: Format, input: &str) -> anyhow::Result<String> {
        let mut output = Vec::new();
        match format {
            Format::Csv => csv(model(), input.as_bytes(), "vms", &mut output)?,
            Format::JsonLines => json_lines(model(), input.as_bytes(), "vms", &mut output)?,
        };
        Ok(String::from_utf8(output)?)
    }

    #[test]
    fn both_formats_say_the_same() {
        let rows = "subscription,note,vm_id,cores,memory_gb,vm_type\nsub-00001,x,\"a,b\",2,8,general\n";
        let csv = told(Format::Csv, rows).unwrap();
        let line =
            r#"{"vm_id":"a,b","subscription":"sub-00001","cores":2,"memory_gb":8,"vm_type":"general"}"#;
        let json: serde_json::Value =
            serde_json::from_str(&told(Format::JsonLines, &format!("{line}\n\n")).unwrap()).unwrap();
        let row = csv.lines().nth(1).unwrap();
        assert!(row.starts_with("\"a,b\","), "{csv}");
        let expected = format!(
            ",{},{},{},{},{},{},{}",
            json["class"].as_str().unwrap(),
            json["class_confidence"].as_f64().unwrap() as f32,
            json["class_confident"],
            json["p95_bucket"],
            json["p95_percent"],
            json["p95_confidence"].as_f64().unwrap() as f32,
            json["p95_confident"],
        );

        assert!(row.ends_with(&expected), "{row} {expected}");
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let head = "vm_id,subscription,cores,memory_gb,vm_type\n";
        for (format, input, parts) in [
            (Format::Csv, format!("{head}a,s,x,8,t\n"), ["line 2", "cores = \"x\""]),
            (Format::Csv, format!("{head}a,s,1,8,t\nb,s,1,NaN,t\n"), ["line 3", "memory_gb"]),
            (Format::Csv, "vm_id,cores\n".to_owned(), ["vms", "no column is called \"subscription\""]),
            (Format::JsonLines, "\n{\"cores\":1}\n".to_owned(), ["line 2", "memory_gb"]),
            (Format::JsonLines, "{\"cores\":0,\"memory_gb\":1}".to_owned(), ["line 1", "cores"]),
        ] {
            let error = format!("{:#}", told(format, &input).unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
