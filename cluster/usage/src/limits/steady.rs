//! Few changes: a limit rises at once, and falls only where it has been too high for long and by much.

use super::{Recommender, UseWindow};

/// When a limit may fall.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Patience {
    /// Recommendations that are lower by less than this share change nothing.
    pub deadband: f32,
    /// All recommendations of so many windows must be lower.
    pub windows: u32,
    /// Where it rises, it rises by this share more than it must.
    pub headroom: f32,
}

impl Patience {
    /// Every recommendation is followed.
    pub const NONE: Self = Self { deadband: 0.0, windows: 1, headroom: 0.0 };
}

/// A recommender whose limits change seldom.
#[derive(Clone, Debug)]
pub struct Steady<R> {
    recommender: R,
    patience: Patience,
    limit: Option<f32>,
    /// For so many windows what was recommended was lower, and this was the most of it.
    lower: (u32, f32),
}

impl<R> Steady<R> {
    pub const fn new(recommender: R, patience: Patience) -> Self {
        Self { recommender, patience, limit: None, lower: (0, 0.0) }
    }
}

impl<R: Recommender> Recommender for Steady<R> {
    fn observe(&mut self, window: &UseWindow<'_>) {
        self.recommender.observe(window);
        let Some(recommended) = self.recommender.limit() else { return };
        let Patience { deadband, windows, headroom } = self.patience;

        match self.limit {
            Some(limit) if recommended <= limit * (1.0 - deadband) => {
                self.lower = (self.lower.0 + 1, self.lower.1.max(recommended));
                if self.lower.0 >= windows {
                    self.limit = Some(self.lower.1);
                    self.lower = (0, 0.0);
                }
            }
            Some(limit) if recommended <= limit => self.lower = (0, 0.0),
            _ => {
                self.limit = Some((recommended * (1.0 + headroom)).min(1.0));
                self.lower = (0, 0.0);
            }
        }
    }

    fn handle_oom(&mut self, number: u64, used: f32) {
        self.recommender.handle_oom(number, used);
    }

    fn limit(&self) -> Option<f32> {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::bucket::UseBucket;

    /// Recommends what was used.
    struct Last(Option<f32>);
    impl Recommender for Last {
        fn observe(&mut self, window: &UseWindow<'_>) {
            self.0 = window.peak().map(UseBucket::edge);
        }
        fn limit(&self) -> Option<f32> {
            self.0
        }
    }

    #[test]
    fn it_rises_at_once_and_falls_when_all_of_a_while_is_lower() {
        let patience = Patience { deadband: 0.1, windows: 3, headroom: 0.0 };
        let mut steady = Steady::new(Last(None), patience);
        let edge = |share: f32| UseBucket::of(share).unwrap().edge();
        let mut limits = Vec::new();
        for (number, share) in (0..).zip([0.5, 0.2, 0.3, 0.48, 0.2, 0.3, 0.2, 0.6]) {
            steady.observe(&UseWindow { number, samples: &[(UseBucket::of(share).unwrap(), 1.0)] });
            limits.push(steady.limit().unwrap());
        }
        let [high, low, higher] = [0.5, 0.3, 0.6].map(edge);
        assert_eq!(limits, [high, high, high, high, high, high, low, higher]);
    }
}
