//! All estimators behind one name and one number.

use std::cell::OnceCell;
use std::sync::Arc;

use ballast_placement::fits::estimate::{
    Aligned, Both, Convolution, EstimateError, Gaussian, Heuristic, Histogram, Hourly, Load, Machine,
    Moments, Profile, Promise, Samples, Simultaneous, Size, Sizes, Skewed, by_variance_to_mean, pack,
};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// The sum as a normal variable: the paper's GPA.
    Gaussian,
    /// The same, with the VMs of the largest variance for their mean first.
    GaussianSorted,
    /// With the third cumulant.
    Skewed,
    /// Exact convolution of histograms.
    Convolution,
    /// The share of the training time in which the sum was too much.
    #[serde(rename = "joint")]
    Simultaneous,
    /// Joint and convolution, both.
    #[serde(rename = "joint-convolution")]
    SimultaneousConvolution,
    /// The largest sum of the training time, times a factor.
    Peak,
    /// Normal in each hour of the day.
    Hourly,
    /// Every VM at a percentile of its own use.
    Percentile,
    /// Every VM at a multiple of its mean.
    Average,
    /// Every VM at its mean and some standard deviations.
    Cantelli,
}

/// Targets, from bold to wary. The nominal one, at which a family promises what was asked for, is among them.
const TARGETS: [f64; 11] = [0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001, 3e-4, 1e-4, 1e-5];
/// Where independence is a fiction, a normal tail must be stretched far: to nine standard deviations.
const FAR_TARGETS: [f64; 5] = [1e-6, 1e-8, 1e-10, 1e-14, 1e-19];

impl Family {
    pub const ALL: [Self; 11] = [
        Self::Gaussian,
        Self::GaussianSorted,
        Self::Skewed,
        Self::Convolution,
        Self::Simultaneous,
        Self::SimultaneousConvolution,
        Self::Peak,
        Self::Hourly,
        Self::Percentile,
        Self::Average,
        Self::Cantelli,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Gaussian => "gaussian",
            Self::GaussianSorted => "gaussian-sorted",
            Self::Skewed => "skewed",
            Self::Convolution => "convolution",
            Self::Simultaneous => "joint",
            Self::SimultaneousConvolution => "joint-convolution",
            Self::Peak => "peak",
            Self::Hourly => "hourly",
            Self::Percentile => "percentile",
            Self::Average => "average",
            Self::Cantelli => "cantelli",
        }
    }

    /// The parameters that are tried, the boldest first.
    pub fn parameters(self) -> Vec<f64> {
        match self {
            Self::Gaussian | Self::GaussianSorted | Self::Skewed | Self::Hourly => {
                [&TARGETS[..], &FAR_TARGETS].concat()
            }
            Self::Convolution => TARGETS.to_vec(),
            Self::Simultaneous | Self::SimultaneousConvolution => [&TARGETS[..8], &[0.0]].concat(),
            Self::Peak => vec![0.5, 0.7, 0.85, 1.0, 1.1, 1.2, 1.35, 1.5, 2.0],
            Self::Percentile => {
                vec![
                    50.0, 60.0, 70.0, 80.0, 85.0, 90.0, 92.0, 94.0, 95.0, 96.0, 97.0, 98.0, 99.0, 99.5, 100.0,
                ]
            }
            Self::Average => vec![1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0],
            Self::Cantelli => vec![0.1, 0.25, 0.5, 0.75, 1.0, 1.35, 1.7, 2.5, 4.4],
        }
    }
}

/// Who says what fits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimator {
    #[serde(rename = "estimator")]
    pub family: Family,
    /// The target for those that estimate a risk; a factor, a percentile, or a number of standard deviations for others.
    pub parameter: f64,
}

impl Estimator {
    /// Every family with every parameter that is tried.
    pub fn all() -> Vec<Self> {
        let of =
            |family: Family| family.parameters().into_iter().map(move |parameter| Self { family, parameter });
        Family::ALL.into_iter().flat_map(of).collect()
    }

    /// The overflow that it promises; `None` of those that promise nothing.
    pub fn promised(&self) -> Option<f64> {
        match self.family {
            Family::Peak | Family::Percentile | Family::Average | Family::Cantelli => None,
            _ => Some(self.parameter),
        }
    }
}

/// What was learnt of a fleet's VMs from one stretch of time. What an estimator asks for is made once, when it asks.
pub struct Learnt {
    capacity: f64,
    start_s: f64,
    period_s: f64,
    samples: Vec<Vec<f32>>,
    moments: Vec<Moments>,
    /// The samples of each VM, by size.
    sorted: OnceCell<Vec<Vec<f32>>>,
    histograms: OnceCell<Vec<Arc<Histogram>>>,
    aligned: OnceCell<Vec<Arc<Aligned>>>,
    profiles: OnceCell<Vec<Profile>>,
}

impl Learnt {
    /// From the VMs' use in cores at the same instants, `period_s` apart, the first of them `start_s` after midnight, for
    /// machines of `capacity` cores. Fails where the capacity or a use cannot be.
    pub fn new(
        samples: Vec<Vec<f32>>,
        capacity: f64,
        start_s: f64,
        period_s: f64,
    ) -> Result<Self, EstimateError> {
        Promise::new(capacity, 0.0)?;
        let moments = samples.iter().map(|values| Ok(Samples::new(values)?.moments()));
        let moments = moments.collect::<Result<_, EstimateError>>()?;
        let (sorted, histograms) = (OnceCell::new(), OnceCell::new());
        let (aligned, profiles) = (OnceCell::new(), OnceCell::new());
        Ok(Self { capacity, start_s, period_s, samples, moments, sorted, histograms, aligned, profiles })
    }

    fn made<'a, T>(
        &self,
        cell: &'a OnceCell<Vec<T>>,
        make: impl Fn(Samples<'_>) -> Result<T, EstimateError>,
    ) -> Result<&'a [T], EstimateError> {
        if cell.get().is_none() {
            let made =
                self.samples.iter().map(|values| make(Samples::new(values)?)).collect::<Result<_, _>>()?;
            return Ok(cell.get_or_init(|| made));
        }
        Ok(cell.get().map_or(&[], Vec::as_slice))
    }

    fn histograms(&self) -> Result<&[Arc<Histogram>], EstimateError> {
        self.made(&self.histograms, |samples| Histogram::new(samples, self.capacity))
    }

    fn aligned(&self, factor: f64) -> impl Fn(Samples<'_>) -> Result<Arc<Aligned>, EstimateError> {
        let length = self.samples.iter().map(Vec::len).max().unwrap_or_default();
        let capacity = self.capacity;
        move |samples| Aligned::new(samples, length, capacity, factor)
    }

    /// The VMs of each machine that the estimator needs, first fit. Fails where its parameter cannot be.
    pub fn pack(&self, estimator: Estimator) -> Result<Vec<Vec<usize>>, EstimateError> {
        self.pack_by(estimator, Heuristic::FirstFit)
    }

    /// The same with this heuristic.
    pub fn pack_by(
        &self,
        estimator: Estimator,
        heuristic: Heuristic,
    ) -> Result<Vec<Vec<usize>>, EstimateError> {
        let Estimator { family, parameter } = estimator;
        let promise = Promise::new(self.capacity, estimator.promised().unwrap_or(0.0))?;
        let all = 0..self.samples.len();
        let sizes = |size: &dyn Fn(usize) -> Result<Size, EstimateError>| {
            let sizes = all.clone().map(size).collect::<Result<Vec<Size>, _>>()?;
            Ok(vms(&pack::<Sizes>(&sizes, all.clone(), &promise, heuristic)))
        };

        Ok(match family {
            Family::Gaussian => vms(&pack::<Gaussian>(&self.moments, all, &promise, heuristic)),
            Family::GaussianSorted => {
                let order = by_variance_to_mean(&self.moments);
                vms(&pack::<Gaussian>(&self.moments, order, &promise, heuristic))
            }
            Family::Skewed => vms(&pack::<Skewed>(&self.moments, all, &promise, heuristic)),
            Family::Convolution => vms(&pack::<Convolution>(self.histograms()?, all, &promise, heuristic)),
            Family::Simultaneous => vms(&pack::<Simultaneous>(
                self.made(&self.aligned, self.aligned(1.0))?,
                all,
                &promise,
                heuristic,
            )),
            Family::SimultaneousConvolution => {
                let aligned = self.made(&self.aligned, self.aligned(1.0))?.iter().cloned();
                let both: Vec<_> = aligned.zip(self.histograms()?.iter().cloned()).collect();
                vms(&pack::<Both<Simultaneous, Convolution>>(&both, all, &promise, heuristic))
            }
            Family::Peak => {
                let stretched = OnceCell::new();
                let stretched = self.made(&stretched, self.aligned(parameter))?;
                vms(&pack::<Simultaneous>(stretched, all, &promise, heuristic))
            }
            Family::Hourly => {
                let profile = |samples: Samples<'_>| Ok(Profile::new(samples, self.start_s, self.period_s));
                vms(&pack::<Hourly>(self.made(&self.profiles, profile)?, all, &promise, heuristic))
            }
            Family::Percentile => {
                let sorted = self.made(&self.sorted, |samples| {
                    let mut sorted = samples.values().to_vec();
                    sorted.sort_by(f32::total_cmp);
                    Ok(sorted)
                })?;
                sizes(&|vm| Size::percentile(Samples::new(&sorted[vm])?, parameter))?
            }
            Family::Average => sizes(&|vm| Size::average(&self.moments[vm], parameter))?,
            Family::Cantelli => sizes(&|vm| Size::cantelli(&self.moments[vm], parameter))?,
        })
    }

    /// What each VM's use came to.
    pub fn moments(&self) -> &[Moments] {
        &self.moments
    }
}

fn vms<L: Load>(machines: &[Machine<L>]) -> Vec<Vec<usize>> {
    machines.iter().map(|machine| machine.vms().to_vec()).collect()
}
