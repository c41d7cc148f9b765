//! The promises, by the words that a counterexample is reported with.

/// No watt is granted twice.
pub const TWICE: &str = "no watt is granted twice";
/// After ten seconds no two managers of one epoch rule.
pub const ONE_EPOCH: &str = "one ruler: of two managers of one epoch, one is fenced or silent";
/// After ten seconds no two managers rule.
pub const TWO_RULERS: &str = "one ruler: of two managers of two epochs, one is fenced or silent";
/// After ten seconds everybody is ruled.
pub const NO_RULER: &str = "one ruler: all agents obey the same manager";
/// Nobody is fenced by a lone agent's word.
pub const LONE_WORD: &str = "nobody is fenced by a lone agent's word";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub promise: &'static str,
    pub what: String,
}
