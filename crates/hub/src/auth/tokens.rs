//! Bearer tokens: opaque random text, of which the store keeps the sha256.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use farwater_fleet::access::{AUTHENTICATED_GROUP, MASTERS_GROUP, User};
use farwater_store::{ApiToken, BoundObject, Key, Kind, StoreError};
use http::{HeaderMap, header::AUTHORIZATION};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

use super::Access;

/// Prefix of every token, so that scanners for leaked secrets find them.
const PREFIX: &str = "fwt_";
const TOKEN_BYTES: usize = 32;
/// Maximum length of a token that is hashed; ours have 47 characters.
const MAX_TOKEN: usize = 512;
/// Kubernetes' own limit: clocks may differ by almost as much as a shorter token would last.
const MIN_TTL: Duration = Duration::from_secs(10 * 60);
const MAX_TTL: Duration = Duration::from_secs(365 * 24 * 3600);
pub(crate) const ADMINISTRATOR: &str = "farwater-admin";

/// Why a request could not be authenticated.
#[derive(Debug, Error)]
pub enum Unauthenticated {
    #[error("no bearer token was sent")]
    Absent,
    #[error("the authorization header is not \"Bearer\" and a token")]
    Malformed,
    #[error("the token is unknown, expired, or its service account is gone")]
    Unknown,
    /// Not the client's fault: an answer of 503.
    #[error("the token could not be looked up")]
    Unavailable(#[source] StoreError),
}

/// The service account that a token is issued for.
#[derive(Clone, Debug)]
pub struct TokenOwner {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// A new token; its text exists only here.
pub struct IssuedToken {
    pub token: Zeroizing<String>,
    pub expires: Option<Timestamp>,
}

#[derive(Debug, Error)]
pub enum TokenError {
    #[error("may not specify a duration less than 10 minutes")]
    TooShort,
    #[error("may not specify a duration of more than 1 year")]
    TooLong,
    #[error("make a token: the system's random source failed")]
    Random,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Access {
    /// The user of the request's bearer token.
    pub async fn authenticate(&self, headers: &HeaderMap) -> Result<User, Unauthenticated> {
        let token = bearer_token(headers)?;
        let found = self.find(token).await.map_err(Unauthenticated::Unavailable)?;
        found.ok_or(Unauthenticated::Unknown)
    }

    /// Issues a token for a service account. It is valid until it expires or the account is deleted. Default lifetime:
    /// one hour.
    pub async fn issue_token(
        &self,
        owner: &TokenOwner,
        ttl: Option<Duration>,
        now: Timestamp,
    ) -> Result<IssuedToken, TokenError> {
        let ttl = ttl.unwrap_or(Duration::from_secs(3600));
        if ttl < MIN_TTL {
            return Err(TokenError::TooShort);
        }
        if ttl > MAX_TTL {
            return Err(TokenError::TooLong);
        }
        let expires = now + SignedDuration::from_secs(ttl.as_secs() as i64);
        let user = User::service_account(&owner.namespace, &owner.name, &owner.uid);
        let bound = BoundObject {
            kind: "ServiceAccount".to_owned(),
            namespace: owner.namespace.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        };
        self.save(user, Some(bound), Some(expires), now).await
    }

    /// Issues a token for the administrator. It doesn't expire, because it is the way back in.
    pub(crate) async fn issue_administrator_token(&self, now: Timestamp) -> Result<IssuedToken, TokenError> {
        let user = User {
            name: ADMINISTRATOR.to_owned(),
            groups: vec![MASTERS_GROUP.to_owned(), AUTHENTICATED_GROUP.to_owned()],
            ..User::default()
        };
        self.save(user, None, None, now).await
    }

    /// Deletes expired tokens; authentication refuses them in any case.
    pub(crate) async fn expire_tokens(&self, now: Timestamp) -> Result<u64, StoreError> {
        self.store.expire_tokens(now.as_second()).await
    }

    pub(crate) async fn find(&self, token: &str) -> Result<Option<User>, StoreError> {
        let Some(stored) = self
            .store
            .find_token(&hash(token), Timestamp::now().as_second())
            .await?
        else {
            return Ok(None);
        };
        if let Some(bound) = &stored.bound
            && !self.is_alive(bound).await?
        {
            return Ok(None);
        }
        Ok(Some(User {
            name: stored.user,
            uid: stored.uid,
            groups: stored.groups,
            ..User::default()
        }))
    }

    /// Whether the object that a token is bound to still exists; another object with the same name does not count. A
    /// service account that waits for its finalizers counts as deleted, as in Kubernetes.
    async fn is_alive(&self, bound: &BoundObject) -> Result<bool, StoreError> {
        if bound.kind != "ServiceAccount" {
            return Ok(false);
        }
        let key = Key {
            kind: Kind::new("serviceaccounts", ""),
            namespace: bound.namespace.clone(),
            name: bound.name.clone(),
        };
        let account = self.store.get(&key).await?;
        Ok(account.is_some_and(|account| {
            account.uid == bound.uid && account.object["metadata"]["deletionTimestamp"].is_null()
        }))
    }

    async fn save(
        &self,
        user: User,
        bound: Option<BoundObject>,
        expires: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<IssuedToken, TokenError> {
        let token = make_token()?;
        let stored = ApiToken {
            hash: hash(&token),
            user: user.name,
            uid: user.uid,
            groups: user.groups,
            bound,
            created: now.as_second(),
            expires: expires.map(Timestamp::as_second),
        };
        self.store.insert_token(stored).await?;
        Ok(IssuedToken { token, expires })
    }
}

fn make_token() -> Result<Zeroizing<String>, TokenError> {
    let mut bytes = Zeroizing::new([0u8; TOKEN_BYTES]);
    aws_lc_rs::rand::fill(&mut *bytes).map_err(|_| TokenError::Random)?;
    Ok(Zeroizing::new(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(*bytes))))
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// RFC 6750. Two headers are refused, because a proxy before the hub may have checked the other one.
fn bearer_token(headers: &HeaderMap) -> Result<&str, Unauthenticated> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(Unauthenticated::Absent)?;
    if values.next().is_some() {
        return Err(Unauthenticated::Malformed);
    }
    let (scheme, token) = value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .ok_or(Unauthenticated::Malformed)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() || token.len() > MAX_TOKEN {
        return Err(Unauthenticated::Malformed);
    }
    Ok(token)
}
