//! WebSocket beside the polls, over which the hub announces that a poll has news.
//!
//! The connection carries no state. A lost, duplicated, late or reordered message changes when an agent polls, and
//! never what it does.

use serde::{Deserialize, Serialize};

/// Header of an answer to a poll: the hub accepts a connection of this agent. The agent opens it at a random moment
/// within this many seconds. Without the header, an agent opens none.
pub const CONNECTION_HEADER: &str = "farwater-connection";
pub const CONNECTION_PATH: &str = "/agent/v1/connection";
/// Maximum size of a message of either side.
pub const MAX_CONNECTION_MESSAGE: usize = 1 << 10;

/// Codes of the close frame: why the hub closes a connection. Agents poll after any of them.
pub mod close {
    /// The hub stops. [`Hint::Return`](super::Hint::Return) has told the agent when to reconnect.
    pub const GOING_AWAY: u16 = 1001;
    /// The agent sent a forbidden message.
    pub const POLICY: u16 = 1008;
    /// The same agent opened another connection, or another process acts for its cluster.
    pub const REPLACED: u16 = 4000;
    /// The hub would refuse a poll now. The answer to a poll says why.
    pub const REFUSED: u16 = 4001;
}

/// A message of the hub, as JSON in a text frame. Agents skip unknown ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum Hint {
    /// The first message: it shows that bytes pass in this direction.
    Welcome {
        /// Maximum seconds between messages; a ping is sent if there is nothing else.
        keep_alive_seconds: f64,
        /// Seconds between polls while messages arrive in time.
        poll_seconds: f64,
    },
    /// A poll has news.
    Poll {
        /// Number of the desired state. None if the news is something else.
        #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
        desired: Option<Number>,
    },
    /// The hub stops. Reconnect at a random moment within this many seconds.
    Return { within_seconds: f64 },
    /// Message of a newer hub.
    #[serde(other)]
    Unknown,
}

/// Number of a cluster's desired state. It only grows.
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
        let number = Number {
            epoch: 3,
            generation: 7,
        };
        for (text, hint) in [
            (
                r#"{"type":"Welcome","keepAliveSeconds":45.0,"pollSeconds":300.0}"#,
                Hint::Welcome {
                    keep_alive_seconds: 45.0,
                    poll_seconds: 300.0,
                },
            ),
            (
                r#"{"type":"Poll","epoch":3,"generation":7}"#,
                Hint::Poll { desired: Some(number) },
            ),
            (r#"{"type":"Poll"}"#, Hint::Poll { desired: None }),
            (
                r#"{"type":"Return","withinSeconds":2.5}"#,
                Hint::Return { within_seconds: 2.5 },
            ),
        ] {
            check(text, &hint);
            assert_eq!(serde_json::to_string(&hint).unwrap(), text);
        }
        check(r#"{"type":"Poll","service":"web"}"#, &Hint::Poll { desired: None });
        check(r#"{"type":"Sing","song":1}"#, &Hint::Unknown);
    }
}
