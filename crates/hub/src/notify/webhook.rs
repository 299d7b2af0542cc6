//! Any webhook: JSON, signed as [Standard Webhooks](https://www.standardwebhooks.com) has it.

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::HeaderName;
use jiff::Timestamp;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{
    channel::{Content, Letter, Sent},
    line::{Fault, Line, Trouble},
};

/// What a token begins with that is base64 of the key.
const SIGNING_TOKEN: &str = "whsec_";
/// Services that a message lists.
const MAX_LISTED: usize = 100;

/// Signs what is sent, so that whoever gets it knows whose it is.
pub struct Signer(hmac::Key);

impl Signer {
    pub fn new(token: &Zeroizing<String>) -> Result<Self, Trouble> {
        let key = match token.strip_prefix(SIGNING_TOKEN) {
            Some(text) => Zeroizing::new(BASE64.decode(text).map_err(|_| {
                ("SecretInvalid", format!("its token begins with {SIGNING_TOKEN} and what follows is no base64"))
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
    pub fn new(line: Line, token: &Zeroizing<String>) -> Result<Self, Trouble> {
        Ok(Self { line, signer: Signer::new(token)? })
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
