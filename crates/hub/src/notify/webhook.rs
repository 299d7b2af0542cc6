//! Any webhook: JSON, signed according to [Standard Webhooks](https://www.standardwebhooks.com).

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use farwater_sources::{Access, SecretData, Web};
use http::HeaderName;
use jiff::Timestamp;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{
    channel::{Content, Letter, Sent},
    line::{Fault, Line, Trouble},
};

/// Prefix of a token that is the key in base64.
const SIGNING_TOKEN: &str = "whsec_";
/// Maximum number of services that a message lists.
const MAX_LISTED: usize = 100;

/// A line and a signer for messages that are signed with a token. The token is never sent. The receiver has it too, and
/// may repeat it in a reply.
pub fn open_signed(
    web: &Web,
    address: &str,
    token: &Zeroizing<String>,
    tls: Option<&SecretData>,
) -> Result<(Line, Signer), Trouble> {
    let signer = Signer::new(token)?;
    let access = Access::with_token(None, tls).map_err(|error| ("SecretInvalid", error.to_string()))?;
    let secret = token.strip_prefix(SIGNING_TOKEN).unwrap_or(token);
    let line = Line::open_with(web, address, access, vec![Zeroizing::new(secret.to_owned())])?;
    Ok((line, signer))
}

/// Signs messages, so that the receiver knows their sender.
pub struct Signer(hmac::Key);

impl Signer {
    fn new(token: &Zeroizing<String>) -> Result<Self, Trouble> {
        let key = match token.strip_prefix(SIGNING_TOKEN) {
            Some(text) => Zeroizing::new(BASE64.decode(text).map_err(|_| {
                (
                    "SecretInvalid",
                    format!("its token begins with {SIGNING_TOKEN}, but the rest is not base64"),
                )
            })?),
            None => Zeroizing::new(token.as_bytes().to_vec()),
        };
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &key)))
    }

    /// The headers of a body that is sent now.
    pub fn headers(&self, id: &str, body: &[u8]) -> [(HeaderName, String); 3] {
        let time = Timestamp::now().as_second().to_string();
        let mut context = hmac::Context::with_key(&self.0);
        for part in [id.as_bytes(), b".", time.as_bytes(), b".", body] {
            context.update(part);
        }
        let signature = format!("v1,{}", BASE64.encode(context.sign()));
        [
            (HeaderName::from_static("webhook-id"), id.to_owned()),
            (HeaderName::from_static("webhook-timestamp"), time),
            (HeaderName::from_static("webhook-signature"), signature),
        ]
    }
}

pub struct Webhook {
    line: Line,
    signer: Signer,
}

impl Webhook {
    pub fn open(
        web: &Web,
        address: &str,
        token: &Zeroizing<String>,
        tls: Option<&SecretData>,
    ) -> Result<Self, Trouble> {
        let (line, signer) = open_signed(web, address, token, tls)?;
        Ok(Self { line, signer })
    }

    pub async fn send(&self, letter: &Letter<'_>) -> Result<Sent, Fault> {
        if !letter.is_turn(true) {
            return Ok(Sent::Skipped);
        }
        let body = body(letter).to_string().into_bytes();
        let headers = self.signer.headers(&letter.id, &body);
        self.line.post(self.line.url().clone(), &headers, body).await?;
        Ok(Sent::Taken { remote: String::new() })
    }
}

fn body(letter: &Letter<'_>) -> Value {
    let words = letter.content.words();
    let mut body = json!({
        "id": letter.id,
        "thread": letter.thread,
        "sequence": letter.sequence,
        "severity": words.severity,
        "title": words.title,
        "details": words.details,
    });
    let (kind, field) = match letter.content {
        Content::Rollout(news) => ("rollout", json!(news)),
        Content::Services(services) => ("services", json!(&services[..services.len().min(MAX_LISTED)])),
        Content::Commit(news) => ("commit", json!(news)),
        Content::Test => ("test", Value::Null),
    };
    body["type"] = kind.into();
    if !field.is_null() {
        body[kind] = field;
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_signs_is_told_in_no_error() {
        for token in ["0123456789abcdef", "whsec_MDEyMzQ1Njc4OWFiY2RlZg=="] {
            let token = Zeroizing::new(token.to_owned());
            let (line, _) = open_signed(&Web::default(), "https://h/a", &token, None).unwrap();
            let fault = line.fault(&format!("not signed with {}", *token), false);
            assert!(fault.why.ends_with("***\"") && !fault.why.contains("MDEy"), "{fault}");
        }
    }
}
