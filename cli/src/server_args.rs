//! The server that draws are computed from, on a command line.

use ballast_types::PowerModel;
use clap::Args;

use crate::demo::positive;

/// A server's draw; the paper's where nothing is said.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ServerArgs {
    /// What a server draws while idle, in watts
    #[arg(long, value_name = "W", default_value_t = PowerModel::PAPER.idle_w, value_parser = positive)]
    idle_w: f64,
    /// What a server draws at full load, in watts
    #[arg(long, value_name = "W", default_value_t = PowerModel::PAPER.full_w, value_parser = positive)]
    full_w: f64,
    /// The same at half frequency, idle [default: as the paper's server, in proportion]
    #[arg(long, value_name = "W", value_parser = positive)]
    half_idle_w: Option<f64>,
    /// The same at half frequency, full load [default: as the paper's server, in proportion]
    #[arg(long, value_name = "W", value_parser = positive)]
    half_full_w: Option<f64>,
}

impl ServerArgs {
    /// The curves; the caller checks them.
    pub(crate) fn model(&self) -> PowerModel {
        let (paper, Self { idle_w, full_w, .. }) = (PowerModel::PAPER, *self);
        let half_idle_w = self.half_idle_w.unwrap_or(idle_w * paper.half_idle_w / paper.idle_w);
        let at_half = (paper.half_full_w - paper.half_idle_w) / paper.dynamic_w();
        let half_full_w = self.half_full_w.unwrap_or(half_idle_w + (full_w - idle_w) * at_half);
        PowerModel { idle_w, full_w, half_idle_w, half_full_w }
    }
}
