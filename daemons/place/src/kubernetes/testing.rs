//! The extender without a network, for tests that bring lists, watches and questions of their own.

use ballast_placement::Policy;
use ballast_predict::Prediction;

use super::Kube;
use super::feed::Followed;
use crate::config::{ConfigFile as _, PlaceConfig};
use ballast_runtime::events::Events;
use ballast_runtime::http::Refused;
use ballast_runtime::kubernetes::follow::{Failure, Lines, Sink, take};
use ballast_runtime::kubernetes::object::{List, Node, Pod};

/// An extender that follows nobody: it knows what it is given.
pub struct Extender(Kube);

impl Default for Extender {
    fn default() -> Self {
        let config = PlaceConfig::parse("place.toml", "name = \"a\"\n[kubernetes]\n");
        let config = config.ok().and_then(|config| config.kubernetes).expect("the defaults are good");
        let predict = Box::new(|_: &_| Prediction::unknown());
        Self(Kube::new(&config, Policy::POWER, predict, Events::default()))
    }
}

impl Extender {
    /// A page of all nodes, as the API server sends it.
    pub fn list_nodes(&self, page: &[u8]) -> Result<(), String> {
        self.list::<Node>(page)
    }

    pub fn list_pods(&self, page: &[u8]) -> Result<(), String> {
        self.list::<Pod>(page)
    }

    /// What a watch of nodes says, in pieces of so many bytes.
    pub fn watch_nodes(&self, stream: &[u8], piece: usize) -> Result<(), String> {
        self.watch::<Node>(stream, piece)
    }

    pub fn watch_pods(&self, stream: &[u8], piece: usize) -> Result<(), String> {
        self.watch::<Pod>(stream, piece)
    }

    fn list<T: Followed>(&self, page: &[u8]) -> Result<(), String> {
        let page: List<T> = serde_json::from_slice(page).map_err(|error| error.to_string())?;
        Sink::<T>::listed(&self.0, page.items.iter().map(|object| self.0.read(object)).collect());
        Ok(())
    }

    fn watch<T: Followed>(&self, stream: &[u8], piece: usize) -> Result<(), String> {
        let (mut lines, mut version) = (Lines::default(), String::new());
        for chunk in stream.chunks(piece.max(1)) {
            for line in lines.take(chunk).map_err(|failure: Failure| failure.why)? {
                take::<T>(&line, &self.0, &mut version).map_err(|failure| failure.why)?;
            }
        }
        Ok(())
    }

    pub fn filter(&self, question: &[u8]) -> Result<Vec<u8>, String> {
        self.0.answer_filter(question).map_err(|Refused(_, why)| why)
    }

    pub fn prioritize(&self, question: &[u8]) -> Result<Vec<u8>, String> {
        self.0.answer_prioritize(question).map_err(|Refused(_, why)| why)
    }
}
