//! Prometheus metrics. Each is one row of a table: name, labels, help, and how the value is read from what the
//! daemon shows. A scrape and the reference are made from the same rows, so that no metric is without a line.

use std::fmt::{self, Write as _};

use ballast_types::Watts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

mod common;
mod draw;
mod process;

pub use common::{Common, Sensing, references, sensing};
pub use draw::DrawCounts;
pub use process::reference as process_reference;

/// Units that a name may end with.
const UNITS: [&str; 7] = ["seconds", "watts", "hertz", "bytes", "joules", "cores", "ratio"];

/// Values, each with those of the metric's labels. Who has no value is left out: a missing reading is missing,
/// never zero.
pub type Samples = Vec<(Vec<String>, f64)>;

/// A metric that is read from an `S`.
pub struct Metric<S> {
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    read: Read<S>,
}

enum Read<S> {
    One(fn(&S) -> Option<f64>),
    Each(fn(&S) -> Samples),
    Spread(fn(&S) -> Option<&Histogram>),
}

/// One value. What ends with `_total` is a counter, what else a gauge.
pub const fn one<S>(name: &'static str, help: &'static str, read: fn(&S) -> Option<f64>) -> Metric<S> {
    Metric { name, labels: &[], help, read: Read::One(read) }
}

/// One value for each set of labels.
pub const fn each<S>(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
    read: fn(&S) -> Samples,
) -> Metric<S> {
    Metric { name, labels, help, read: Read::Each(read) }
}

/// How values are spread.
pub const fn spread<S>(
    name: &'static str,
    help: &'static str,
    read: fn(&S) -> Option<&Histogram>,
) -> Metric<S> {
    Metric { name, labels: &[], help, read: Read::Spread(read) }
}

/// 1 or 0.
pub fn flag(is: bool) -> Option<f64> {
    Some(f64::from(u8::from(is)))
}

/// A power, where it is known.
pub fn watts(watts: Option<Watts>) -> Option<f64> {
    watts.map(Watts::as_f64)
}

/// 1 for the word that is, 0 for the others; the words are as in JSON.
pub fn states<S: Copy + PartialEq + serde::Serialize>(all: &[S], is: S) -> Samples {
    all.iter().map(|state| (vec![word(state)], f64::from(u8::from(*state == is)))).collect()
}

/// A word as JSON has it.
pub fn word(word: &impl serde::Serialize) -> String {
    serde_json::to_string(word).unwrap_or_default().trim_matches('"').to_owned()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricLine {
    pub name: String,
    pub kind: String,
    pub unit: &'static str,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

impl<S> Metric<S> {
    fn kind(&self) -> MetricType {
        match self.read {
            Read::Spread(_) => MetricType::Histogram,
            _ if self.name.ends_with("_total") => MetricType::Counter,
            _ => MetricType::Gauge,
        }
    }

    /// The name without `_total` and unit, and the unit.
    fn parts(&self) -> (&'static str, Option<&'static str>) {
        let name = self.name.strip_suffix("_total").unwrap_or(self.name);
        let unit =
            UNITS.into_iter().find_map(|unit| Some((name.strip_suffix(unit)?.strip_suffix('_')?, unit)));
        unit.map_or((name, None), |(name, unit)| (name, Some(unit)))
    }

    /// The metric as it is now; `None` where it has no value.
    fn family(&self, source: &S) -> Option<Family> {
        let values = match self.read {
            Read::One(read) => {
                Values::Samples(read(source).map(|value| (vec![], value)).into_iter().collect())
            }
            Read::Each(read) => {
                let mut samples = read(source);
                samples.sort_by(|one, other| one.0.cmp(&other.0));
                Values::Samples(samples)
            }
            Read::Spread(read) => Values::Histogram(read(source)?.clone()),
        };
        let is_empty = matches!(&values, Values::Samples(samples) if samples.is_empty());
        let (name, unit) = self.parts();
        let unit = unit.map(|unit| Unit::Other(unit.into()));
        let (labels, help, kind) = (self.labels, self.help, self.kind());
        (!is_empty).then_some(Family { name, unit, labels, help, kind, values })
    }
}

/// What the reference says of these metrics, each with `prefix` before its name.
pub fn lines<S>(prefix: &str, metrics: &[Metric<S>]) -> Vec<MetricLine> {
    let line = |metric: &Metric<S>| MetricLine {
        name: format!("{prefix}_{}", metric.name),
        kind: metric.kind().as_str().to_owned(),
        unit: metric.parts().1.unwrap_or("–"),
        labels: metric.labels,
        help: metric.help,
    };
    metrics.iter().map(line).collect()
}

/// The lines as a table in Markdown.
pub fn markdown(lines: &[MetricLine]) -> String {
    let mut page = String::from("| metric | type | unit | is |\n|---|---|---|---|\n");
    for MetricLine { name, kind, unit, labels, help } in lines {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(page, "| `{name}{labels}` | {kind} | {unit} | {help} |");
    }
    page
}

/// One scrape, as OpenMetrics text.
#[derive(Default)]
pub struct Scrape(String);

impl Scrape {
    pub fn new(prefix: &str, shown: &Common<'_>) -> Self {
        let mut scrape = Self::default();
        scrape.add(prefix, &common::metrics(), shown);
        scrape
    }

    pub fn add<S>(&mut self, prefix: &str, metrics: &[Metric<S>], source: &S) {
        let mut registry = Registry::with_prefix(prefix);
        for family in metrics.iter().filter_map(|metric| metric.family(source)) {
            registry.register_collector(Box::new(family));
        }
        // Writing into a string cannot fail.
        let _ = encode_registry(&mut self.0, &registry);
    }

    /// The whole text, with what is told of every process.
    pub fn text(mut self) -> String {
        process::add_to(&mut self);
        let _ = encode_eof(&mut self.0);
        self.0
    }
}

#[derive(Debug)]
struct Family {
    name: &'static str,
    unit: Option<Unit>,
    labels: &'static [&'static str],
    help: &'static str,
    kind: MetricType,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Samples(Samples),
    Histogram(Histogram),
}

impl Collector for Family {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut metric = encoder.encode_descriptor(self.name, self.help, self.unit.as_ref(), self.kind)?;
        let samples = match &self.values {
            Values::Histogram(histogram) => return histogram.encode(metric),
            Values::Samples(samples) => samples,
        };
        for (values, value) in samples {
            let labels: Vec<_> = self.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            match labels.is_empty() {
                true => self.encode_value(&mut metric, *value)?,
                false => self.encode_value(&mut metric.encode_family(&labels)?, *value)?,
            }
        }
        Ok(())
    }
}

impl Family {
    fn encode_value(&self, metric: &mut MetricEncoder<'_>, value: f64) -> Result<(), fmt::Error> {
        match self.kind {
            // A whole count has no point.
            MetricType::Counter if value.fract() == 0.0 => {
                metric.encode_counter::<NoLabelSet, u64, f64>(&(value as u64), None)
            }
            MetricType::Counter => metric.encode_counter::<NoLabelSet, f64, f64>(&value, None),
            _ => metric.encode_gauge(&value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openmetrics::plain;

    fn metrics() -> [Metric<Option<f64>>; 3] {
        [
            one("draw_watts", "The draw", |it| *it),
            each("kills_total", &["vm"], "Kills", |_| {
                [("b", 2.0), ("a\"", 1.0)].map(|(vm, kills)| (vec![vm.to_owned()], kills)).to_vec()
            }),
            one("energy_joules_total", "The energy", |_| Some(0.5)),
        ]
    }

    #[test]
    fn a_scrape_says_what_there_is_in_either_text() {
        let mut scrape = Scrape::default();
        scrape.add("b", &metrics(), &None);
        let text = scrape.0.clone();
        assert_eq!(
            text,
            "# HELP b_kills Kills\n# TYPE b_kills counter\nb_kills_total{vm=\"a\\\"\"} 1\n\
             b_kills_total{vm=\"b\"} 2\n# HELP b_energy_joules The energy\n\
             # TYPE b_energy_joules counter\n# UNIT b_energy_joules joules\nb_energy_joules_total 0.5\n",
        );
        assert_eq!(
            plain(&text),
            "# HELP b_kills_total Kills\n# TYPE b_kills_total counter\nb_kills_total{vm=\"a\\\"\"} 1\n\
             b_kills_total{vm=\"b\"} 2\n# HELP b_energy_joules_total The energy\n\
             # TYPE b_energy_joules_total counter\nb_energy_joules_total 0.5\n",
        );

        let mut scrape = Scrape::default();
        scrape.add("b", &metrics(), &Some(7.0));
        let text = scrape.text();
        assert!(text.contains("# UNIT b_draw_watts watts\nb_draw_watts 7.0\n"), "{text}");
        assert!(text.ends_with("# EOF\n") && text.contains("\nprocess_cpu_seconds_total "), "{text}");
        assert!(!plain(&text).contains("EOF"));
    }

    #[test]
    fn the_reference_has_a_line_for_each() {
        let page = markdown(&lines("b", &metrics()));
        assert!(page.contains("| `b_draw_watts` | gauge | watts | The draw |\n"), "{page}");
        assert!(page.contains("| `b_kills_total{vm}` | counter | – | Kills |\n"), "{page}");
    }
}
