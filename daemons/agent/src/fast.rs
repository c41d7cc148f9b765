//! RAPL and CPU use in short windows, on a thread of its own: what `predictive` acts on.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use ballast_agent_core::{Fast, Input};
use ballast_hw::rapl::Energy;
use ballast_hw::{RaplMeter, Root};
use ballast_types::Instant;

use super::message::Message;
use super::vms::Vms;
use crate::config::AgentConfig;
use ballast_runtime::clock;
use ballast_runtime::threads;

/// Starts sampling; ends when the control thread does. Tells why there is no RAPL to read, if there is none:
/// the controller is `stepwise` then.
pub(super) fn start(
    config: &AgentConfig,
    root: &Root,
    vms: Arc<Mutex<Vms>>,
    messages: Sender<Message>,
) -> anyhow::Result<Option<String>> {
    let rapl = match RaplMeter::find(root, config.meter.max) {
        Ok(rapl) => rapl,
        Err(error) => return Ok(Some(format!("no RAPL: {error}"))),
    };
    let mut sampler = Sampler { rapl, from: None, vms, messages };
    threads::every("fast", config.predictive.period, move || sampler.sample())?;
    Ok(None)
}

struct Sampler {
    rapl: RaplMeter,
    /// Where the window began.
    from: Option<Instant>,
    vms: Arc<Mutex<Vms>>,
    messages: Sender<Message>,
}

impl Sampler {
    /// Ends one window, and begins the next; `false` when nobody wants it any more.
    fn sample(&mut self) -> bool {
        let now = clock::now();
        let energy = self.rapl.sample(now);
        if matches!(energy, Ok(Energy::Stale)) {
            // The counters have not moved: the window goes on.
            return true;
        }
        // While cores are being moved there is no usage, and nothing to act on.
        let usage = self.vms.try_lock().map(|mut vms| vms.fast_usage(now)).unwrap_or_default();
        let from = self.from.replace(now);
        match (energy, from) {
            (Ok(Energy::Power(rapl_w)), Some(from)) => {
                let fast = Fast { from, to: now, rapl_w, usage };
                self.messages.send(Message::Input(Input::Fast(fast))).is_ok()
            }
            _ => true,
        }
    }
}
