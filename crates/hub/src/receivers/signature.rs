//! Signatures: whether the sender of a delivery has the receiver's token. This is checked before any of it is parsed.

use aws_lc_rs::{constant_time::verify_slices_are_equal, digest, hmac};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_api::receiver::{MAX_TOKEN, MIN_TOKEN, ReceiverType};
use http::HeaderMap;
use thiserror::Error;

use super::log::Refused;
use crate::resources::Name;

const GITHUB: &str = "x-hub-signature-256";
const GITEA: &str = "x-gitea-signature";
const FORGEJO: &str = "x-forgejo-signature";
const GENERIC: &str = "x-signature";
const GITLAB_TOKEN: &str = "x-gitlab-token";
/// According to [Standard Webhooks](https://www.standardwebhooks.com), over id, time and body.
const GITLAB: &str = "webhook-signature";
const GITLAB_ID: &str = "webhook-id";
const GITLAB_TIME: &str = "webhook-timestamp";
const ALL: [&str; 6] = [GITHUB, GITEA, FORGEJO, GENERIC, GITLAB_TOKEN, GITLAB];
/// Prefix of GitLab's signing tokens; the key in base64 follows.
const SIGNING_TOKEN: &str = "whsec_";
/// Maximum signatures of a delivery: two, while a host changes its key.
const MAX_SIGNATURES: usize = 4;

#[derive(Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    #[error("it has {0} bytes; at least {MIN_TOKEN} are needed: create one with openssl rand -hex 32")]
    Short(usize),
    #[error("it has {0} bytes; at most {MAX_TOKEN} are allowed")]
    Long(usize),
    #[error("it begins with {SIGNING_TOKEN} like GitLab's signing tokens, but the rest is not base64")]
    Signing,
}

/// A receiver's token, as keys. It is never printed.
pub struct Token {
    short: hmac::Key,
    long: hmac::Key,
    /// Key of a token that GitLab signs with and never sends.
    signing: Option<hmac::Key>,
    digest: digest::Digest,
}

impl Token {
    /// Parses a token, without the line breaks at its end that `echo` adds.
    pub fn parse(bytes: &[u8]) -> Result<Self, TokenError> {
        let end = bytes
            .iter()
            .rposition(|byte| !matches!(byte, b'\r' | b'\n'))
            .map_or(0, |last| last + 1);
        let bytes = &bytes[..end];
        match bytes.len() {
            length if length < MIN_TOKEN => return Err(TokenError::Short(length)),
            length if length > MAX_TOKEN => return Err(TokenError::Long(length)),
            _ => {}
        }
        let signing = match bytes.strip_prefix(SIGNING_TOKEN.as_bytes()) {
            Some(text) => Some(BASE64.decode(text).map_err(|_| TokenError::Signing)?),
            None => None,
        };
        Ok(Self {
            short: hmac::Key::new(hmac::HMAC_SHA256, bytes),
            long: hmac::Key::new(hmac::HMAC_SHA512, bytes),
            signing: signing.map(|key| hmac::Key::new(hmac::HMAC_SHA256, &key)),
            digest: digest::digest(&digest::SHA256, bytes),
        })
    }

    /// A token that no receiver has.
    pub fn random() -> Self {
        let key = || hmac::Key::new(hmac::HMAC_SHA256, &rand::random::<[u8; 32]>());
        let digest = digest::digest(&digest::SHA256, &rand::random::<[u8; 32]>());
        Self {
            short: key(),
            long: key(),
            signing: Some(key()),
            digest,
        }
    }

    /// The path of a receiver with this token. It can't be guessed without the token, and reveals nothing about it.
    pub fn path(&self, name: &Name) -> String {
        let text = format!("farwater receiver v1\n{}\n{}", name.namespace, name.name);
        hex::encode(hmac::sign(&self.short, text.as_bytes()))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Whether a delivery has any signature. One without is refused before its path or body is read.
pub fn is_signed(headers: &HeaderMap) -> bool {
    ALL.iter().any(|name| headers.contains_key(*name))
}

/// The header with the signature in deliveries of a type, for people.
pub fn header(kind: ReceiverType) -> &'static str {
    match kind {
        ReceiverType::GitHub => "X-Hub-Signature-256",
        ReceiverType::GitLab => "webhook-signature or X-Gitlab-Token",
        ReceiverType::Gitea => "X-Gitea-Signature",
        ReceiverType::GenericHmac => "X-Signature",
    }
}

/// A delivery's claim, until its body was read.
pub struct Claim {
    context: hmac::Context,
    claimed: Claimed,
}

enum Claimed {
    /// The body's MAC is one of these.
    Macs(Vec<Vec<u8>>),
    /// It brought the token itself, and that was right.
    Token,
    Not(Refused),
}

impl Claim {
    /// The claim of a delivery to a receiver, or to an unknown path. An invalid delivery is read and hashed like a
    /// valid one.
    pub fn read(receiver: Option<(ReceiverType, &Token)>, headers: &HeaderMap, nobody: &Token) -> Self {
        let Some((kind, token)) = receiver else {
            return Self::refuse(Refused::SignatureWrong, nobody);
        };
        let claim = match kind {
            ReceiverType::GitHub => one(&token.short, hexadecimal(text(headers, GITHUB), "sha256=")),
            ReceiverType::Gitea => {
                let given = text(headers, GITEA).or_else(|| text(headers, FORGEJO));
                one(&token.short, hexadecimal(given, ""))
            }
            ReceiverType::GenericHmac => match text(headers, GENERIC) {
                Some(given) if given.starts_with("sha512=") => one(&token.long, hexadecimal(Some(given), "sha512=")),
                given => one(&token.short, hexadecimal(given, "sha256=")),
            },
            ReceiverType::GitLab => gitlab(token, headers),
        };
        claim.unwrap_or_else(|refused| Self::refuse(refused, nobody))
    }

    fn refuse(refused: Refused, nobody: &Token) -> Self {
        Self {
            context: hmac::Context::with_key(&nobody.short),
            claimed: Claimed::Not(refused),
        }
    }

    /// Adds the next piece of the body.
    pub fn update(&mut self, piece: &[u8]) {
        self.context.update(piece);
    }

    /// Call this after the end of the body.
    pub fn verify(self) -> Result<(), Refused> {
        let mac = self.context.sign();
        match self.claimed {
            Claimed::Token => Ok(()),
            Claimed::Not(refused) => Err(refused),
            Claimed::Macs(given) => {
                let is_right = |given: &Vec<u8>| verify_slices_are_equal(mac.as_ref(), given).is_ok();
                // Compare all of them, so that the time does not reveal which one is right.
                match given.iter().filter(|given| is_right(given)).count() {
                    0 => Err(Refused::SignatureWrong),
                    _ => Ok(()),
                }
            }
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn hexadecimal(given: Option<&str>, prefix: &str) -> Result<Vec<u8>, Refused> {
    let given = given.ok_or(Refused::SignatureMissing)?;
    let digits = given.strip_prefix(prefix).ok_or(Refused::SignatureWrong)?;
    hex::decode(digits).map_err(|_| Refused::SignatureWrong)
}

fn one(key: &hmac::Key, given: Result<Vec<u8>, Refused>) -> Result<Claim, Refused> {
    Ok(Claim {
        context: hmac::Context::with_key(key),
        claimed: Claimed::Macs(vec![given?]),
    })
}

/// A signing token is never sent, so a sender that sends it got it from elsewhere.
fn gitlab(token: &Token, headers: &HeaderMap) -> Result<Claim, Refused> {
    let Some(key) = &token.signing else {
        let given = headers.get(GITLAB_TOKEN).ok_or(Refused::SignatureMissing)?;
        let given = digest::digest(&digest::SHA256, given.as_bytes());
        let is_right = verify_slices_are_equal(given.as_ref(), token.digest.as_ref()).is_ok();
        let claimed = if is_right {
            Claimed::Token
        } else {
            Claimed::Not(Refused::SignatureWrong)
        };
        return Ok(Claim {
            context: hmac::Context::with_key(&token.short),
            claimed,
        });
    };
    let given = text(headers, GITLAB).ok_or(Refused::SignatureMissing)?;
    let (Some(id), Some(time)) = (headers.get(GITLAB_ID), headers.get(GITLAB_TIME)) else {
        return Err(Refused::SignatureMissing);
    };
    let macs = given.split(' ').filter_map(|signature| signature.strip_prefix("v1,"));
    let macs = macs
        .filter_map(|text| BASE64.decode(text).ok())
        .take(MAX_SIGNATURES)
        .collect();
    let mut context = hmac::Context::with_key(key);
    for part in [id.as_bytes(), b".", time.as_bytes(), b"."] {
        context.update(part);
    }
    Ok(Claim {
        context,
        claimed: Claimed::Macs(macs),
    })
}

#[cfg(test)]
mod tests {
    use farwater_testkit::deliveries::{Host, Sender};
    use http::HeaderValue;

    use super::*;

    const TOKEN: &str = "It's a Secret to Everybody";
    const BODY: &[u8] = b"{\"ref\": \"refs/heads/main\"}";

    fn verify(kind: ReceiverType, token: &str, headers: &HeaderMap, body: &[u8]) -> Result<(), Refused> {
        let (token, nobody) = (Token::parse(token.as_bytes()).unwrap(), Token::random());
        let mut claim = Claim::read(Some((kind, &token)), headers, &nobody);
        // The size of the pieces does not matter.
        body.chunks(7).for_each(|piece| claim.update(piece));
        claim.verify()
    }

    #[test]
    fn githubs_own_example_is_right() {
        let mut headers = HeaderMap::new();
        let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        headers.insert(GITHUB, HeaderValue::from_static(signature));
        assert_eq!(verify(ReceiverType::GitHub, TOKEN, &headers, b"Hello, World!"), Ok(()));
        assert_eq!(
            verify(ReceiverType::GitHub, TOKEN, &headers, b"Hello, World?"),
            Err(Refused::SignatureWrong)
        );
    }

    #[test]
    fn each_hosts_signature_is_right_for_its_token_and_its_body_alone() {
        let signing = "whsec_dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3Q=";
        for (host, token) in [
            (Host::GitHub, TOKEN),
            (Host::GitLab, TOKEN),
            (Host::GitLab, signing),
            (Host::Gitea, TOKEN),
            (Host::Generic, TOKEN),
        ] {
            let kind = host.receiver_type();
            let headers = Sender::new(host, token).headers("push", BODY);
            assert!(is_signed(&headers));
            assert_eq!(verify(kind, token, &headers, BODY), Ok(()), "{host:?}");
            let other = "another token of some length";
            let other = if token == signing {
                "whsec_b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90aGVyMTI="
            } else {
                other
            };
            assert_eq!(
                verify(kind, other, &headers, BODY),
                Err(Refused::SignatureWrong),
                "{host:?}"
            );
            if !(host == Host::GitLab && token == TOKEN) {
                assert_eq!(
                    verify(kind, token, &headers, b"{}"),
                    Err(Refused::SignatureWrong),
                    "{host:?}"
                );
            }
            assert_eq!(
                verify(kind, token, &HeaderMap::new(), BODY),
                Err(Refused::SignatureMissing),
                "{host:?}"
            );
        }
    }

    #[test]
    fn what_is_no_signature_is_refused() {
        let check = |kind: ReceiverType, name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            assert_eq!(
                verify(kind, TOKEN, &headers, BODY),
                Err(Refused::SignatureWrong),
                "{name}: {value}"
            );
        };
        for value in ["", "sha256=", "sha256=zz", "sha1=00", "757107ea"] {
            check(ReceiverType::GitHub, GITHUB, value);
            check(ReceiverType::GenericHmac, GENERIC, value);
        }
        check(ReceiverType::GenericHmac, GENERIC, "sha512=00");
        check(ReceiverType::Gitea, GITEA, "sha256=00");
        check(ReceiverType::GitLab, GITLAB_TOKEN, "it's a secret to everybody");
    }

    #[test]
    fn a_signing_token_that_is_sent_itself_proves_nothing() {
        let token = "whsec_dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3Q=";
        let mut headers = HeaderMap::new();
        headers.insert(GITLAB_TOKEN, HeaderValue::from_static(token));
        assert_eq!(
            verify(ReceiverType::GitLab, token, &headers, BODY),
            Err(Refused::SignatureMissing)
        );
    }

    #[test]
    fn tokens_have_a_length_and_no_line_break_at_their_end() {
        let check = |token: &str, expected: Option<TokenError>| {
            assert_eq!(Token::parse(token.as_bytes()).err(), expected, "{token:?}");
        };
        check("", Some(TokenError::Short(0)));
        check("only-15-bytes..\n\n", Some(TokenError::Short(15)));
        check("sixteen bytes it\r\n", None);
        check(&"x".repeat(513), Some(TokenError::Long(513)));
        check("whsec_not base64 at all", Some(TokenError::Signing));
        let name = Name::new("a", "hook");
        let path = |token: &str| Token::parse(token.as_bytes()).unwrap().path(&name);
        assert_eq!(path("sixteen bytes it\n"), path("sixteen bytes it"));
        assert_ne!(path("sixteen bytes it"), path("sixteen bytes i7"));
        assert_eq!(path(TOKEN).len(), 64);
        assert_eq!(format!("{:?}", Token::random()), "Token(..)");
    }
}
