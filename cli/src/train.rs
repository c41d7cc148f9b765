//! `ballast train`: from VMs of the past to a model file.

mod lifetimes;
mod vms;

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use ballast_hw::durable;
use ballast_predict::data::SplitBy;
use ballast_predict::file::{self, FileError};
use ballast_predict::lifetime::LifetimeFile;
use ballast_predict::model::Algorithm;
use ballast_predict::score::Scores;
use ballast_predict::train::{ClassSource, Options, Trial, worse};
use ballast_predict::{ModelFile, VmHistory, fleet};
use clap::Args;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser as _;
use serde_json::{Value, json};

use crate::common::lifetimes::Target;
use crate::common::one_of;
use crate::common::table;
use crate::common::terminal::{answer, tell};
use crate::common::threads::all_cores;

/// The new model is worse than the one that is there, which stays.
const EXIT_WORSE: u8 = 3;

#[derive(Args, Debug)]
#[command(group = one_of(["input", "generate"]))]
pub(crate) struct TrainArgs {
    /// What is learnt; the other is kept if --output has it
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    target: Target,
    /// VMs of the past: CSV with vm_id, subscription, arrival_s, end_s, cores, memory_gb, vm_type, class,
    /// avg_cpu, p95_cpu, and deployment if it is known; plain or zstd; `-` is stdin. For lifetimes CSV or Parquet with
    /// start_s, and end_s (blank while a VM runs) or dur_lo_s, dur_hi_s and censored; and any of tenant, cores, memory_gb,
    /// vm_type, deployment, batch_vms, label_…
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Classes from what `ballast label` wrote, by vm_id
    #[arg(long, value_name = "FILE", requires = "input")]
    labels: Option<PathBuf>,
    /// Learn from a synthetic fleet of so many VMs instead, for trials
    #[arg(long, value_name = "VMS",
        value_parser = clap::value_parser!(u32).range(1000..=10_000_000))]
    generate: Option<u32>,
    /// Write the synthetic VMs too, in the form that --input takes
    #[arg(long, value_name = "FILE", requires = "generate")]
    vms_output: Option<PathBuf>,
    /// Where the model goes
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the model that is there only by one that is not worse on the newest part of the input: a quarter of the
    /// time, for lifetimes a third
    #[arg(long)]
    replace_if_not_worse: bool,
    /// Score gradient boosting of lifetimes too, which takes minutes
    #[arg(long)]
    compare: bool,
    /// The algorithm that learns
    #[arg(long, value_name = "NAME", default_value = Algorithm::default().name(), value_parser = algorithm())]
    algorithm: Algorithm,
    /// The seed of what is random in that, and of the synthetic fleet
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Threads; they change no result [default: one for every core]
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Print one JSON object, alone on stdout
    #[arg(long)]
    json: bool,
}

fn algorithm() -> impl clap::builder::TypedValueParser<Value = Algorithm> {
    PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name)).try_map(|text| {
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == text);
        found.ok_or_else(|| format!("{text} is none of the names"))
    })
}

/// Trains, and writes the model unless it is worse than the one that is there.
pub(crate) fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    let written = match args.target {
        Target::ClassP95 if args.compare => bail!("--compare is for --target lifetime"),
        Target::ClassP95 => train_and_write(args)?,
        Target::Lifetime => lifetimes::train_and_write(args)?,
    };
    Ok(if written { ExitCode::SUCCESS } else { EXIT_WORSE.into() })
}

/// The same; whether it was written.
fn train_and_write(args: &TrainArgs) -> anyhow::Result<bool> {
    // What would stop the writing is said before minutes of learning.
    let old = old_model(&args.output)?;
    let vms = vms(args)?;
    let threads = args.threads.unwrap_or_else(all_cores);
    // What is not a label of ours is from somebody who knows.
    let classes = if args.labels.is_some() { ClassSource::Labeller } else { ClassSource::Operator };
    let options = Options { algorithm: args.algorithm, seed: args.seed, threads, classes };
    let trial = Trial::new(&vms, &options)?;

    // What the old file was scored with: what it answers with has seen a part of this hold-out.
    let old = old.filter(|_| args.replace_if_not_worse).map(|old| trial.score(&old.trial));
    let scores = (&trial.scores.0, &trial.scores.1);
    let verdict = old.as_ref().and_then(|old| worse(scores, (&old.0, &old.1), classes));
    let learnt = trial.learn_all(&options)?;
    // Read now: lifetimes may have been learnt meanwhile.
    let new = ModelFile { lifetime: lifetimes::old_lifetimes(&args.output), ..learnt };
    let about = &new.about;

    if verdict.is_none() {
        durable::replace(&args.output, &new.encode()?)
            .with_context(|| format!("--output {}", args.output.display()))?;
    }
    let report = json!({
        "model": args.output.display().to_string(),
        "written": verdict.is_none(),
        "worse": verdict,
        "vms": vms.len(),
        "subscriptions": new.history.len(),
        "about": about,
        "old": old.map(|(class, p95)| json!({ "class": class, "p95": p95 })),
    });

    answer(args.json, &report, || text(&report, &new))?;
    if let Some(why) = &verdict {
        tell(&format!("the model stays as it was: {why}"));
    }
    Ok(verdict.is_none())
}

fn vms(args: &TrainArgs) -> anyhow::Result<Vec<VmHistory>> {
    let Some(input) = &args.input else {
        let vms = args.generate.unwrap_or_default() as usize;
        let options = fleet::Options { seed: args.seed, vms, ..fleet::Options::default() };
        let vms = fleet::make(&options).vms;
        if let Some(path) = &args.vms_output {
            let what = || format!("--vms-output {}", path.display());
            vms::write(&vms, File::create(path).with_context(what)?).with_context(what)?;
        }
        return Ok(vms);
    };
    let mut vms = vms::read(table::text(input)?, &input.display().to_string())?;
    if let Some(labels) = &args.labels {
        let (told, doubtful) = vms::label(&mut vms, table::text(labels)?, &labels.display().to_string())?;
        tell(&format!("{told} of {} VMs have a label", vms.len()));
        if doubtful > 0 {
            tell(&format!(
                "{doubtful} labels are of names that several VMs had for five weekdays: given to none"
            ));
        }
    }
    Ok(vms)
}

/// The model that is there, if it can be used. One that is damaged or of an older version is replaced; a file
/// that is none of ours, or of a newer version, is never overwritten.
fn old_model(path: &Path) -> anyhow::Result<Option<ModelFile>> {
    let what = || format!("--output {}", path.display());
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(what),
    };
    match ModelFile::decode(&bytes) {
        Ok(model) => Ok(Some(model)),
        Err(error @ (FileError::Foreign | FileError::Newer { .. })) => Err(error).with_context(what),
        Err(error @ FileError::Version { found, .. }) if found > file::VERSION => {
            Err(error).with_context(what)
        }
        // It knows lifetimes alone, and these are kept.
        Err(FileError::Missing(_)) if LifetimeFile::decode(&bytes).is_ok() => Ok(None),
        Err(error) => {
            tell(&format!("{}: {error}; it will be replaced", path.display()));
            Ok(None)
        }
    }
}

fn text(report: &Value, file: &ModelFile) -> String {
    let about = &file.about;
    let (class, p95) = (&about.class, &about.p95);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let by = |split| match split {
        SplitBy::Time => "time",
        SplitBy::Deployments => "deployments",
    };
    let each = |scores: &Scores, n: usize| {
        scores.each.get(n).map_or_else(String::new, |each| {
            format!("{} / {}", percent(each.recall), percent(each.precision))
        })
    };

    format!(
        "{} by {}, seed {}\n\
         learnt from {} VMs of {} deployments (class) and {} of {} (P95); {} subscriptions are known\n\
         hold-out by {}, class: {} VMs, confident {}, accuracy {}; user-facing recall / precision {}, \
         non-user-facing {}; calibration error {}\n\
         hold-out by {}, P95: {} VMs, confident {}, accuracy {}; calibration error {}",
        report["model"].as_str().unwrap_or_default(),
        about.algorithm.name(),
        about.seed,
        about.rows[0],
        about.deployments[0],
        about.rows[1],
        about.deployments[1],
        file.history.len(),
        by(about.split[0]),
        class.rows,
        percent(class.confident),
        percent(class.accuracy),
        each(class, 0),
        each(class, 1),
        percent(class.calibration_error),
        by(about.split[1]),
        p95.rows,
        percent(p95.confident),
        percent(p95.accuracy),
        percent(p95.calibration_error),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_model_of_ours_is_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        assert!(old_model(&path).unwrap().is_none());
        std::fs::write(&path, "root:x:0:0").unwrap();
        let error = format!("{:#}", old_model(&path).unwrap_err());
        assert!(error.contains("not a Ballast model") && error.contains("model"), "{error}");
        std::fs::write(&path, b"BALLAST\0\xff\0\0\0").unwrap();
        assert!(old_model(&path).is_err() || old_model(&path).unwrap().is_none());
        std::fs::write(&path, [&b"BALLAST\0\xff\0\0\0"[..], &[0; 40]].concat()).unwrap();
        let error = format!("{:#}", old_model(&path).unwrap_err());
        assert!(error.contains("version 255"), "{error}");
        std::fs::write(&path, [&b"BALLAST\0\x01\0\0\0"[..], &[0; 40]].concat()).unwrap();
        assert!(old_model(&path).unwrap().is_none());
    }

    fn args(folder: &Path, input: Option<&str>) -> TrainArgs {
        TrainArgs {
            target: Target::ClassP95,
            input: input.map(|name| folder.join(name)),
            labels: None,
            generate: input.is_none().then_some(4000),
            vms_output: input.is_none().then(|| folder.join("vms.csv")),
            output: folder.join("model"),
            replace_if_not_worse: true,
            compare: false,
            algorithm: Algorithm::GradientBoosting,
            seed: 1,
            threads: NonZeroUsize::new(1),
            json: false,
        }
    }

    #[test]
    fn only_a_model_that_is_not_worse_replaces_the_one_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let (path, model) = (folder.path(), folder.path().join("model"));
        assert!(train_and_write(&args(path, None)).unwrap());
        let first = std::fs::read(&model).unwrap();

        // The same again is not worse, and is the same.
        assert!(train_and_write(&args(path, Some("vms.csv"))).unwrap());
        assert_eq!(std::fs::read(&model).unwrap(), first);

        // The same VMs to score on, and hardly any to learn from.
        let mut few = vms::read(File::open(path.join("vms.csv")).unwrap(), "vms.csv").unwrap();
        let split = ballast_predict::data::Split::of(&few);
        let mut number = 0;
        few.retain(|vm| {
            number += 1;
            let learnt_from = (split.from_s..split.until_s).contains(&vm.arrival_s);
            !learnt_from || vm.class.is_some() || number % 20 == 0
        });

        vms::write(&few, File::create(path.join("few.csv")).unwrap()).unwrap();
        assert!(!train_and_write(&args(path, Some("few.csv"))).unwrap());
        assert_eq!(std::fs::read(&model).unwrap(), first);

        // Without the condition it is replaced.
        let always = TrainArgs { replace_if_not_worse: false, ..args(path, Some("few.csv")) };
        assert!(train_and_write(&always).unwrap());
        assert_ne!(std::fs::read(&model).unwrap(), first);
    }

    /// VMs of two tenants that live for ten minutes and for ten hours.
    fn lifetimes(spread: i64) -> String {
        let row = |n: i64| {
            let (tenant, lives) = if n % 2 == 0 { ("a", 600) } else { ("b", 36_000) };
            format!("{tenant},{},{}\n", n * 600, n * 600 + lives + spread * (n * 37 % 100))
        };
        (0..2_000).map(row).fold("tenant,start_s,end_s\n".to_owned(), |text, row| text + &row)
    }

    #[test]
    fn lifetimes_and_the_rest_of_a_model_stand_in_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let (path, model) = (folder.path(), folder.path().join("model"));
        let of = |name: &str| TrainArgs { target: Target::Lifetime, ..args(path, Some(name)) };
        std::fs::write(path.join("good.csv"), lifetimes(1)).unwrap();
        assert!(lifetimes::train_and_write(&of("good.csv")).unwrap());
        let alone = lifetimes::old_lifetimes(&model).unwrap();
        assert!(alone.about.better_than_kaplan_meier);

        // A class is learnt beside them, and lifetimes beside the class.
        assert!(train_and_write(&args(path, None)).unwrap());
        let both = old_model(&model).unwrap().unwrap();
        assert!(both.lifetime.is_some());
        assert!(lifetimes::train_and_write(&of("good.csv")).unwrap());
        assert_eq!(old_model(&model).unwrap().unwrap().encode().unwrap(), both.encode().unwrap());

        // The newest as they are, and before them others: what is learnt from these is refused.
        let text = lifetimes(1);
        let swapped = |(n, row): (usize, &str)| match n {
            1..1_300 => row.replacen("a,", "c,", 1).replacen("b,", "a,", 1).replacen("c,", "b,", 1) + "\n",
            _ => row.to_owned() + "\n",
        };
        std::fs::write(path.join("bad.csv"), text.lines().enumerate().map(swapped).collect::<String>())
            .unwrap();
        let before = std::fs::read(&model).unwrap();
        assert!(!lifetimes::train_and_write(&of("bad.csv")).unwrap());
        assert_eq!(std::fs::read(&model).unwrap(), before);
        let always = TrainArgs { replace_if_not_worse: false, ..of("bad.csv") };
        assert!(lifetimes::train_and_write(&always).unwrap());

        // A journal has a row when a VM comes and one when it has ended: it is one VM. Without a name every row is.
        let twice = |row: &str, name: &str| {
            let columns: Vec<&str> = row.split(',').collect();
            format!("{name},{},{},\n{name},{row}\n", columns[0], columns[1])
        };
        let rows = text.lines().skip(1);
        let named =
            rows.clone().enumerate().map(|(n, row)| twice(row, &format!("vm-{n}"))).collect::<String>();
        let unnamed = rows.map(|row| twice(row, "")).collect::<String>();
        for (rows, vms) in [(named, 2_000), (unnamed, 4_000)] {
            std::fs::write(path.join("journal.csv"), "vm_id,tenant,start_s,end_s\n".to_owned() + &rows)
                .unwrap();
            let always = TrainArgs { replace_if_not_worse: false, ..of("journal.csv") };
            assert!(lifetimes::train_and_write(&always).unwrap());
            assert_eq!(lifetimes::old_lifetimes(&model).unwrap().about.cleaned.vms, vms);
        }

        let labels = TrainArgs { labels: Some(path.join("labels.csv")), ..of("good.csv") };
        assert!(lifetimes::train_and_write(&labels).unwrap_err().to_string().contains("--labels"));
    }

    #[test]
    fn a_file_is_written_whole_beside_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        durable::replace(&path, b"one").unwrap();
        durable::replace(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
