//! Ballast's daemons: text → [`config`] → machine → shell around it → run → drain.
//!
//! `ballast-agent` and `ballast-chassis` are slim binaries over this library, and `ballast` carries
//! them as subcommands, so that one build gives a whole demonstration.

pub mod config;
