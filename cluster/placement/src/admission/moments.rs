//! How large a deployment will be: mean and variance, so many hours ahead.

use multiversion::multiversion;

use super::{Belief, absorbed, gamma, paper};
use crate::admission::vector::{exp, ln};

/// Mean and variance of a number of cores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// The cores that are expected.
    pub mean: f64,
    /// Of the cores, so in cores squared.
    pub variance: f64,
}

/// Which formula is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The exact moments, but that a deployment without cores may still scale out.
    Exact,
    /// As the paper's Propositions 4.3 and 4.5: parts that depend on each other are taken as independent.
    PaperLike,
    /// The exact ones, corrected for deployments that end with their last core; some ten thousand times slower. The mean
    /// is corrected, and the variance in the same ratio.
    Absorbed,
}

/// The moments of a deployment at several horizons, as functions of the cores C that it has now. With
/// `[mean_c, mean_0, square_0, square_1, square_2]` the mean is C · `mean_c` + `mean_0`, and the mean of the square
/// `square_0` + C · `square_1` + C² · `square_2`.
pub(super) type Coefficients<'a> = [&'a mut [f64]; 5];

/// So many horizons are looked at, and computed at once.
pub const HORIZONS: usize = 28;
/// This near to a pole of Γ, kappa is moved by as much, until it is no longer: the brackets are finite there, but no longer
/// precise.
const POLE: f64 = 1e-3;

impl Belief {
    /// Mean and variance `hours` ahead, of a deployment that has so many cores now. Not finite where they cannot be computed.
    pub fn moments(&self, form: Form, cores: f64, hours: f64) -> Moments {
        match form {
            Form::Exact => {
                let mut at = [0.0; 5];
                let [a, b, c, d, e] = &mut at;
                self.coefficients(&[hours], [a, b, c, d, e].map(core::slice::from_mut));
                combined(at, cores)
            }
            Form::PaperLike => paper::moments(self, cores, hours),
            Form::Absorbed => absorbed::moments(self, cores, hours),
        }
    }

    /// The exact moments at all of these horizons. All slices are of one length.
    ///
    /// With H(s, k) = E[mu^s e^(-k t mu)] = Γ(a + s) / Γ(a) · b^a / (b + k t)^(a + s), which holds by continuation where
    /// a + s is negative, every term is a sum of H at s = 0, κ - 1, 2κ - 2 and k = δ, δ + 1, δ + 2.
    pub(super) fn coefficients(&self, hours: &[f64], into: Coefficients<'_>) {
        let (a, b, d) = (self.mu.shape, self.mu.rate, self.delta);
        let s = self.exponent();
        let (once, twice) = (gamma::ratio(a, s), gamma::ratio(a, 2.0 * s));

        let lambda = self.lambda.mean();
        let size = 1.0 + self.sigma.mean();
        let pairs = 2.0 * self.sigma.mean() + self.sigma.mean_square();
        let arrived = lambda * once * size;
        let together = lambda * once * 0.5 * pairs;
        let squared = self.lambda.mean_square() * twice * (1.0 + pairs);

        at_horizons(&Terms { a, b, d, s, arrived, together, squared }, hours, into);
    }

    /// κ - 1, kept from where Γ(a + κ - 1) or Γ(a + 2κ - 2) has a pole.
    pub(super) fn exponent(&self) -> f64 {
        let near = |x: f64| x < 0.5 && (x - libm::round(x)).abs() < POLE;
        let (a, mut s) = (self.mu.shape, self.kappa - 1.0);
        while near(a + s) || near(a + 2.0 * s) {
            s += POLE;
        }
        s
    }
}

/// What the moments of a belief are made of, at whatever horizon.
struct Terms {
    a: f64,
    b: f64,
    d: f64,
    s: f64,
    arrived: f64,
    together: f64,
    squared: f64,
}

/// The moments at all of these horizons, with vectors of four where the processor has them. No result changes: products are
/// not fused with sums.
#[multiversion(targets("x86_64+avx2"))]
fn at_horizons(terms: &Terms, hours: &[f64], into: Coefficients<'_>) {
    let Terms { a, b, d, s, arrived, together, squared } = *terms;
    let n = hours.len();
    let ln_b = ln(b);
    let [mean_c, mean_0, square_0, square_1, square_2] = into;
    let (mean_c, mean_0) = (&mut mean_c[..n], &mut mean_0[..n]);
    let (square_0, square_1, square_2) = (&mut square_0[..n], &mut square_1[..n], &mut square_2[..n]);
    for from in (0..n).step_by(HORIZONS) {
        let hours = &hours[from..n.min(from + HORIZONS)];
        // A loop for each function: the processor then works on several horizons at once.
        let mut y = [0.0; HORIZONS];
        let [mut u, mut z] = [[[0.0; HORIZONS]; 3]; 2];
        for (k, (u, z)) in u.iter_mut().zip(&mut z).enumerate() {
            let y = &mut y[..hours.len()];
            let rate = d + k as f64;
            y.iter_mut().zip(hours).for_each(|(y, t)| *y = ln(b + rate * t));
            u.iter_mut().zip(&*y).for_each(|(u, y)| *u = exp(a * (ln_b - y)));
            z.iter_mut().zip(&*y).for_each(|(z, y)| *z = exp(-s * y));
        }

        for i in 0..hours.len() {
            let ([u0, u1, u2], [z0, z1, z2]) = ([u[0][i], u[1][i], u[2][i]], [z[0][i], z[1][i], z[2][i]]);
            let (v0, v1, v2) = (u0 * z0, u1 * z1, u2 * z2);
            let (w0, w1, w2) = (v0 * z0, v1 * z1, v2 * z2);
            let at = from + i;

            mean_c[at] = u1;
            mean_0[at] = arrived * (v0 - v1);
            square_0[at] = arrived * (v0 - v1) + together * (v0 - v2) + squared * (w0 - 2.0 * w1 + w2);
            square_1[at] = (u1 - u2) + 2.0 * arrived * (v1 - v2);
            square_2[at] = u2;
        }
    }
}

/// Mean and variance of a deployment of so many cores.
#[inline(always)]
pub(super) fn combined([mean_c, mean_0, square_0, square_1, square_2]: [f64; 5], cores: f64) -> Moments {
    let mean = cores * mean_c + mean_0;
    Moments { mean, variance: (square_0 + cores * (square_1 + cores * square_2) - mean * mean).max(0.0) }
}
