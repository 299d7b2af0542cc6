//! Minted credentials, and the fingerprints by which they are kept.

use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::{credentials::basic, secret::Secret};

/// A fetch that begins with a token must end before the token does.
const MARGIN: Duration = Duration::from_secs(5 * 60);
/// Longest time that credentials are kept, whatever their stated lifetime.
const LONGEST: Duration = Duration::from_secs(3600);
/// Time that credentials without a stated lifetime are kept.
const UNSAID: Duration = Duration::from_secs(5 * 60);

/// Minted credentials, as sent.
#[derive(Clone, Debug)]
pub(crate) struct Minted {
    /// None: a bearer token.
    pub username: Option<String>,
    pub token: Secret,
    /// When new ones must be minted.
    pub until: Instant,
}

impl Minted {
    /// `left`: remaining lifetime. None: not stated.
    pub fn new(username: Option<String>, token: Secret, left: Option<Duration>) -> Self {
        let kept = left.map_or(UNSAID, |left| left.saturating_sub(MARGIN.min(left / 2)).min(LONGEST));
        Self {
            username,
            token,
            until: Instant::now() + kept,
        }
    }

    pub fn header(&self) -> Zeroizing<String> {
        match &self.username {
            Some(username) => basic(username, &self.token),
            None => Zeroizing::new(format!("Bearer {}", self.token.reveal())),
        }
    }
}

pub(crate) type Fingerprint = [u8; 32];

/// A fingerprint of parts, each hashed with its length so that they are unambiguous.
pub(crate) fn fingerprint(parts: &[&str]) -> Fingerprint {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
