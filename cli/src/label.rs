//! `ballast label`: which VMs are user-facing, by their CPU use alone.

mod args;
mod days;
mod picture;
mod read;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use ballast_predict::label::ensemble::Learnt;
use ballast_predict::label::{
    Compare, Label, Pattern, PatternOptions, Reason, Series, autocorrelation_score, fourier_score,
};

pub(crate) use args::LabelArgs;
use args::Method;
use picture::Picture;

use crate::common::labelled::Labelled;
use crate::common::terminal::{is_broken_pipe, progress_bar};
use crate::common::threads::all_cores;
use crate::common::weeks::VmWeek;

/// Labels every VM of every file, in their order.
pub(crate) fn run(args: &LabelArgs) -> anyhow::Result<ExitCode> {
    let labeller = Labeller::new(args)?;
    let calendar = args.days()?;
    let sizes = args
        .input
        .iter()
        .map(|file| std::fs::metadata(file).map(|m| m.len()).with_context(|| format!("{}", file.display())));
    let bytes = sizes.sum::<anyhow::Result<u64>>()?;
    let bar = progress_bar(bytes, "{wide_bar} {bytes}/{total_bytes} {eta}");
    let mut picture = Picture::default();
    let to_file = args.output != Path::new("-");
    let folder = args.output.parent().filter(|p| !p.as_os_str().is_empty());
    let output = || format!("--output {}", args.output.display());

    // A file is complete or not there: a failed run leaves what was there before.
    let mut file = match to_file {
        true => Some(tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new("."))).with_context(output)?),
        false => None,
    };

    let sink: Box<dyn Write + '_> = match &mut file {
        Some(file) => Box::new(file),
        None => Box::new(io::stdout().lock()),
    };

    let mut table = LabelWriter {
        csv: csv::Writer::from_writer(sink),
        score: args.method != Method::Pattern,
        extra: None,
    };

    let mut take = |extra: &[String], batch: Vec<VmWeek>| {
        let labels = labeller.all(&batch);
        batch.iter().zip(&labels).for_each(|(_, l)| picture.add(&l.0));
        table.write(extra, &batch, &labels)
    };

    let done = read::vms(&args.input, &args.read, &calendar, &bar, &mut take);
    bar.finish_and_clear();
    let flushed = done.and_then(|()| Ok(table.csv.flush()?));
    drop(table);

    match flushed {
        Err(error) if is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
        flushed => flushed?,
    }

    if let Some(file) = file {
        file.persist(&args.output).with_context(output)?;
    }
    crate::common::terminal::tell(&picture.text());

    if let Some(plot) = &args.plot {
        std::fs::write(plot, picture.svg()?).with_context(|| format!("--plot {}", plot.display()))?;
    }

    Ok(ExitCode::SUCCESS)
}

/// How a week becomes a label.
struct Labeller {
    method: Method,
    options: PatternOptions,
    learnt: Option<Learnt>,
    threads: NonZeroUsize,
}

impl Labeller {
    fn new(args: &LabelArgs) -> anyhow::Result<Self> {
        let threads = all_cores();
        let mut options = args.options();
        let learnt = match (args.method, &args.fit_on) {
            (Method::Ensemble, Some(file)) => {
                let (learnt, threshold) = Labelled::read(file)?.learn(threads)?;
                options.threshold = args.threshold.unwrap_or(threshold);
                Some(learnt)
            }
            (Method::Ensemble, None) => {
                bail!("--method ensemble learns from labelled weeks: name a file with --fit-on")
            }
            _ => None,
        };
        Ok(Self { method: args.method, options, learnt, threads })
    }

    /// Labels with the score that decided, in the VMs' order.
    fn all(&self, vms: &[VmWeek]) -> Vec<(Label, Option<f64>)> {
        let share = vms.len().div_ceil(self.threads.get()).max(1);
        std::thread::scope(|scope| {
            let parts: Vec<_> = vms
                .chunks(share)
                .map(|part| scope.spawn(|| part.iter().map(|vm| self.one(vm)).collect::<Vec<_>>()))
                .collect();
            let joined =
                parts.into_iter().map(|part| part.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
            joined.flatten().collect()
        })
    }

    fn one(&self, vm: &VmWeek) -> (Label, Option<f64>) {
        let week = match &vm.week {
            Ok(week) => week,
            Err(reason) => return (Label::unknown(*reason), None),
        };

        let pattern = Pattern::new(self.options);
        let Ok(series) = Series::new(week, self.options.first_day) else {
            return (pattern.label(week), None);
        };
        let label = pattern.decide(Compare::of_series(&series));
        let (score, user_facing) = match (self.method, &self.learnt) {
            (Method::Acf, _) => below(autocorrelation_score(&series), self.options.threshold),
            (Method::Fft, _) => below(fourier_score(&series), self.options.threshold),
            (Method::Ensemble, Some(learnt)) => {
                let score = learnt.score(week).unwrap_or(1.0);
                (score, score >= self.options.threshold)
            }
            _ => return (label, None),
        };

        let reason = if user_facing { Reason::Daily } else { Reason::NotDaily };

        (Label { user_facing, reason, ..label }, Some(score))
    }
}

fn below(score: f64, threshold: f64) -> (f64, bool) {
    (score, score < threshold)
}

/// What comes out: CSV, floats in the shortest form that reads back as the same.
struct LabelWriter<W: Write> {
    csv: csv::Writer<W>,
    score: bool,
    /// The further columns, once the header is written.
    extra: Option<Vec<String>>,
}

impl<W: Write> LabelWriter<W> {
    fn write(
        &mut self,
        extra: &[String],
        vms: &[VmWeek],
        labels: &[(Label, Option<f64>)],
    ) -> anyhow::Result<()> {
        match &self.extra {
            None => {
                let own = ["id", "compare8", "compare12", "user_facing", "reason"];
                self.row(own.iter().chain(self.score.then_some(&"score")), extra)?;
                self.extra = Some(extra.to_vec());
            }
            Some(first) if first == extra => {}
            Some(first) => {
                bail!("further columns {extra:?}: the files before have {first:?}; label them apart")
            }
        }

        let number = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
        for (vm, (label, score)) in vms.iter().zip(labels) {
            let Label { compare8, compare12, user_facing, reason } = label;
            let numbers = [compare8, compare12].map(|value| number(*value));
            let own = [&vm.id, &numbers[0], &numbers[1], &user_facing.to_string(), &reason.to_string()];
            let score = self.score.then(|| number(*score));
            self.row(own.into_iter().chain(&score), &vm.extra)?;
        }

        Ok(())
    }

    fn row(&mut self, own: impl Iterator<Item = impl AsRef<[u8]>>, extra: &[String]) -> csv::Result<()> {
        for cell in own {
            self.csv.write_field(cell)?;
        }
        self.csv.write_record(extra)
    }
}
