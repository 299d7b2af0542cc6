//! How the keys of the hub and of agents change without a new join: statements, each signed by the key before.
//!
//! A *succession* names all that agents pin of the hub, the signing key and the authorities, from then on. Successions are
//! numbered and each names the one before, so an agent that was away for years walks from what it pins to what is in use, and
//! notices a gap, a forgery and a fork. A *handover* is an agent's: its old key names the new ones, and the new key proves that the
//! agent holds it. Neither needs a time or a nonce: each holds only from one key to the next, and what was followed once leads
//! nowhere a second time.

use serde::{Deserialize, Serialize};

use crate::{
    Digest,
    protocol::{SigningKey, Verbatim},
};

/// Authorities that one succession may name: today's, and those that are announced.
pub const MAX_AUTHORITIES: usize = 4;
/// Successions in one answer; an agent that is further behind asks again.
pub const MAX_SUCCESSIONS: usize = 64;
/// Handovers that an agent keeps and a hub reads: one in 90 days makes four years.
pub const MAX_HANDOVERS: usize = 16;

/// How far somebody has followed the hub's successions. 0: the keys of the installation's first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub sequence: u64,
    /// [`Verbatim::link`] of the last one; none at 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Digest>,
}

impl Position {
    pub fn is_first(&self) -> bool {
        *self == Self::default()
    }
}

/// From here on the hub is who holds this signing key and is vouched for by one of these authorities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Succession {
    pub installation: String,
    /// 1, 2, 3 …
    pub sequence: u64,
    /// [`Verbatim::link`] of the one before; none for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Digest>,
    /// The same as before where only an authority changes.
    pub signing_key: SigningKey,
    /// sha256 of each certificate.
    pub authorities: Vec<Digest>,
    /// Seconds since 1970, for people.
    pub made: i64,
}

/// What signatures cover begins with its purpose, so that one kind of statement is never another.
impl Verbatim<Succession> {
    /// What the key before signs.
    pub fn message(&self) -> Vec<u8> {
        self.message_for(b"farwater-succession-v1\n")
    }

    /// What the next one calls this one by.
    pub fn link(&self) -> Digest {
        Digest::of(self.message())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedSuccession {
    pub succession: Verbatim<Succession>,
    /// Ed25519 over its message by the key of the succession before, base64.
    pub signature: String,
}

/// Answer of `GET /agent/v1/successions/<sequence>`: those that follow, at most [`MAX_SUCCESSIONS`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Successions {
    pub successions: Vec<SignedSuccession>,
}

/// What somebody goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trusted {
    pub position: Position,
    pub signing_key: SigningKey,
    pub authorities: Vec<Digest>,
}

/// Why a succession is not followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("follow the hub's successions: number {0} is of installation {1:?}")]
    Installation(u64, String),
    #[error("follow the hub's successions: number {found} came where {expected} was expected")]
    Gap { expected: u64, found: u64 },
    #[error("follow the hub's successions: number {0} is not signed by the key before it, {1}")]
    Forged(u64, String),
    #[error(
        "follow the hub's successions: there are two different ones of number {0}: the hub's keys were restored from an older copy \
         and changed again, or stolen. Restore the newest copy of keys/, or join again with a new token"
    )]
    Fork(u64),
    #[error("follow the hub's successions: number {0} {1}")]
    Invalid(u64, &'static str),
}

impl Trusted {
    /// What one more succession makes of it. `verifies` says whether a key has made a signature over a message.
    fn follow(
        &self,
        installation: &str,
        next: &SignedSuccession,
        verifies: impl Fn(&SigningKey, &[u8], &str) -> bool,
    ) -> Result<Self, Broken> {
        let SignedSuccession { succession, signature } = next;
        let sequence = succession.sequence;
        if succession.installation != installation {
            return Err(Broken::Installation(sequence, succession.installation.chars().take(64).collect()));
        }
        if !verifies(&self.signing_key, &succession.message(), signature) {
            return Err(Broken::Forged(sequence, self.signing_key.id.clone()));
        }
        if succession.previous != self.position.link {
            return Err(Broken::Fork(self.position.sequence));
        }
        if !succession.signing_key.is_sound() {
            return Err(Broken::Invalid(sequence, "names a signing key that is none"));
        }
        if !(1..=MAX_AUTHORITIES).contains(&succession.authorities.len()) {
            return Err(Broken::Invalid(sequence, "names no authority, or too many"));
        }
        Ok(Self {
            position: Position { sequence, link: Some(succession.link()) },
            signing_key: succession.signing_key.clone(),
            authorities: succession.authorities.clone(),
        })
    }

    /// Follows all of them or none. What was followed before is passed over.
    pub fn walk(
        &self,
        installation: &str,
        successions: &[SignedSuccession],
        verifies: impl Fn(&SigningKey, &[u8], &str) -> bool,
    ) -> Result<Self, Broken> {
        let mut at = self.clone();
        for next in successions {
            let (known, found) = (at.position.sequence, next.succession.sequence);
            if found < known {
                continue;
            }
            if found == known {
                if at.position.link != Some(next.succession.link()) {
                    return Err(Broken::Fork(known));
                }
                continue;
            }
            if found - known > 1 {
                return Err(Broken::Gap { expected: known + 1, found });
            }
            at = at.follow(installation, next, &verifies)?;
        }
        Ok(at)
    }
}

/// An agent's old key names its new ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handover {
    pub installation: String,
    pub cluster_uid: String,
    /// The old Ed25519 public key, base64.
    pub from: String,
    /// The new one.
    pub public_key: String,
    /// X25519, base64: what secrets are sealed to from then on.
    pub sealing_key: String,
}

impl Verbatim<Handover> {
    /// What the old key signs.
    pub fn message(&self) -> Vec<u8> {
        self.message_for(b"farwater-handover-v1\n")
    }

    /// What the new one does.
    pub fn proof_message(&self) -> Vec<u8> {
        self.message_for(b"farwater-handover-proof-v1\n")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedHandover {
    pub handover: Verbatim<Handover>,
    /// By `from`, base64.
    pub signature: String,
    /// By `publicKey`, base64.
    pub proof: String,
}

/// Body of `POST /agent/v1/keys`. It needs no access token: the key that the hub knows has signed it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeysRequest {
    pub cluster_uid: String,
    /// The oldest first; a hub that was restored knows an older key than the last one.
    pub handovers: Vec<SignedHandover>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeysAnswer {
    /// The new keys are good once a token was asked for with them.
    pub hub_time: i64,
}

/// Where handovers lead from the public key that the hub knows; none where no handover begins there, or one that follows is not
/// signed and proven. `verifies` says whether a public key has made a signature over a message.
pub fn follow_handovers<'a>(
    (installation, cluster_uid): (&str, &str),
    known: &str,
    handovers: &'a [SignedHandover],
    verifies: impl Fn(&str, &[u8], &str) -> bool,
) -> Option<&'a Handover> {
    let begin = handovers.iter().position(|link| link.handover.from == known)?;
    let mut at = None;
    for SignedHandover { handover, signature, proof } in handovers.iter().skip(begin) {
        let from = at.map_or(known, |last: &Handover| &last.public_key);
        let holds = handover.installation == installation
            && handover.cluster_uid == cluster_uid
            && handover.from == from
            && verifies(from, &handover.message(), signature)
            && verifies(&handover.public_key, &handover.proof_message(), proof);
        if !holds {
            return None;
        }
        at = Some(handover);
    }
    at
}

#[cfg(test)]
#[path = "succession_tests.rs"]
mod tests;
