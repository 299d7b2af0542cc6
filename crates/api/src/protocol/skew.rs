//! Versions of hub and agent that work together.

/// Number of the protocol; each minor release adds one. Both sides send it with every request and answer, as
/// [`PROTOCOL_HEADER`].
pub const PROTOCOL: u32 = 1;
pub const PROTOCOL_HEADER: &str = "farwater-protocol";
/// Maximum number of releases between hub and agent, whichever is newer.
pub const MAX_SKEW: u32 = 2;

/// Relation of an agent's version to its hub's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Skew {
    /// The same version, or an agent that is older within the supported range.
    #[default]
    Supported,
    /// Works, but the hub should be upgraded first.
    AgentAhead,
    AgentTooNew,
    AgentTooOld,
}

impl Skew {
    pub fn between(agent: u32, hub: u32) -> Self {
        match (agent.checked_sub(hub), hub.saturating_sub(agent)) {
            (Some(1..=MAX_SKEW), _) => Self::AgentAhead,
            (Some(ahead), _) if ahead > MAX_SKEW => Self::AgentTooNew,
            (_, behind) if behind > MAX_SKEW => Self::AgentTooOld,
            _ => Self::Supported,
        }
    }

    /// What the skew means and what to do. It follows a sentence that names both versions.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::Supported => None,
            Self::AgentAhead => Some("the agent is newer than the hub: upgrade the hub, which always comes first"),
            Self::AgentTooNew => Some(
                "the agent is more than two releases newer than the hub: upgrade the hub; until then the agent may \
                 understand it wrongly where they differ",
            ),
            Self::AgentTooOld => Some(
                "the agent is more than two releases older than the hub: upgrade it, by an AgentPolicy or with farwater \
                 cluster join --context; until then it holds what it does not know",
            ),
        }
    }
}

/// Parses the value of a header.
pub fn parse(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_releases_either_way_are_supported() {
        let found: Vec<_> = (1..=7).map(|agent| Skew::between(agent, 4)).collect();
        use Skew::{AgentAhead, AgentTooNew, AgentTooOld, Supported};
        assert_eq!(
            found,
            [
                AgentTooOld,
                Supported,
                Supported,
                Supported,
                AgentAhead,
                AgentAhead,
                AgentTooNew
            ]
        );
        assert_eq!(Skew::between(u32::MAX, 1), AgentTooNew);
        assert_eq!(Skew::between(1, u32::MAX), AgentTooOld);
    }

    #[test]
    fn a_number_is_read_strictly() {
        assert_eq!(
            ["1", " 7 ", "0", "-1", "x", "", "99999999999"].map(parse),
            [Some(1), Some(7), None, None, None, None, None]
        );
    }
}
