//! The server that draws are computed from, on a command line.

use ballast_types::PowerModel;
use clap::Args;

use crate::common::numbers::positive;

/// A server's draw; the paper's where nothing is said.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct ServerArgs {
    /// What a server draws while idle, in watts [default: 112]
    #[arg(long, value_name = "W", value_parser = positive)]
    idle_w: Option<f64>,
    /// What a server draws at full load, in watts [default: 310]
    #[arg(long, value_name = "W", value_parser = positive)]
    full_w: Option<f64>,
    /// The same at half frequency, idle [default: as the paper's server, in proportion]
    #[arg(long, value_name = "W", value_parser = positive)]
    half_idle_w: Option<f64>,
    /// The same at half frequency, full load [default: as the paper's server, in proportion]
    #[arg(long, value_name = "W", value_parser = positive)]
    half_full_w: Option<f64>,
}

impl ServerArgs {
    pub fn is_told(&self) -> bool {
        let Self { idle_w, full_w, half_idle_w, half_full_w } = self;
        [idle_w, full_w, half_idle_w, half_full_w].iter().any(|w| w.is_some())
    }

    pub fn flags(&self) -> String {
        let Self { idle_w, full_w, half_idle_w, half_full_w } = *self;
        let flags = [
            ("idle-w", idle_w),
            ("full-w", full_w),
            ("half-idle-w", half_idle_w),
            ("half-full-w", half_full_w),
        ];
        flags.into_iter().filter_map(|(flag, w)| Some(format!(" --{flag} {}", w?))).collect()
    }

    /// The curves; the caller checks them.
    pub fn model(&self) -> PowerModel {
        let idle_w = self.idle_w.unwrap_or(PowerModel::PAPER.idle_w);
        let full_w = self.full_w.unwrap_or(PowerModel::PAPER.full_w);
        let guess = PowerModel::in_proportion(idle_w, full_w);
        let half_idle_w = self.half_idle_w.unwrap_or(guess.half_idle_w);
        let dynamic_w = guess.half_full_w - guess.half_idle_w;
        PowerModel { half_idle_w, half_full_w: self.half_full_w.unwrap_or(half_idle_w + dynamic_w), ..guess }
    }
}
