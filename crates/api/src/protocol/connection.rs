//! The second way: a WebSocket beside the polls, over which the hub says that there is something to poll for.
//!
//! Nothing here is the truth. Whatever of it is lost, doubled, late or in another order changes when an agent polls, and never
//! what it does.

use serde::{Deserialize, Serialize};

/// Header of an answer to a poll: the hub would keep a connection of this agent, which is to be opened at a random moment
/// within so many seconds. Without it, an agent opens none.
pub const CONNECTION_HEADER: &str = "farwater-connection";
pub const CONNECTION_PATH: &str = "/agent/v1/connection";
/// Longest message of either side.
pub const MAX_CONNECTION_MESSAGE: usize = 1 << 10;

/// Why the hub closes a connection: the code of its close frame. Agents poll after any of them.
pub mod close {
    /// The hub ends; [`Hint::Return`](super::Hint::Return) has said when to come back.
    pub const GOING_AWAY: u16 = 1001;
    /// The agent sent what it should not.
    pub const POLICY: u16 = 1008;
    /// The same agent has opened another one, or another process speaks for its cluster.
    pub const REPLACED: u16 = 4000;
    /// The hub would refuse a poll now; that says why.
    pub const REFUSED: u16 = 4001;
}

/// One message of the hub, as JSON in a text frame. Agents pass over those that they don't know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum Hint {
    /// The first one: bytes pass in this direction.
    Welcome {
        /// Something comes at least this often, a ping if there is nothing else.
        keep_alive_seconds: f64,
        /// How often to poll as long as that holds.
        poll_seconds: f64,
    },
    /// There is something to poll for.
    Poll {
        /// The number of the desired state; none where it is about something else.
        #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
        desired: Option<Number>,
    },
    /// The hub ends: come back at a random moment within so many seconds.
    Return { within_seconds: f64 },
    /// Of a newer hub.
    #[serde(other)]
    Unknown,
}

/// Which of a cluster's desired states. They only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Number {
    pub epoch: u64,
    pub generation: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &Hint) {
        assert_eq!(&serde_json::from_str::<Hint>(text).unwrap(), expected, "{text}");
    }

    #[test]
    fn messages_are_read_as_they_are_written_and_unknown_ones_too() {
        let number = Number { epoch: 3, generation: 7 };
        for (text, hint) in [
            (
                r#"{"type":"Welcome","keepAliveSeconds":45.0,"pollSeconds":300.0}"#,
                Hint::Welcome { keep_alive_seconds: 45.0, poll_seconds: 300.0 },
            ),
            (r#"{"type":"Poll","epoch":3,"generation":7}"#, Hint::Poll { desired: Some(number) }),
            (r#"{"type":"Poll"}"#, Hint::Poll { desired: None }),
            (r#"{"type":"Return","withinSeconds":2.5}"#, Hint::Return { within_seconds: 2.5 }),
        ] {
            check(text, &hint);
            assert_eq!(serde_json::to_string(&hint).unwrap(), text);
        }
        check(r#"{"type":"Poll","service":"web"}"#, &Hint::Poll { desired: None });
        check(r#"{"type":"Sing","song":1}"#, &Hint::Unknown);
    }
}
