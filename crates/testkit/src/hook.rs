//! A receiver of webhooks as in [Standard Webhooks](https://www.standardwebhooks.com). It checks the signature over the
//! id, the time and the body, and that the body has no unknown field.

use std::time::Duration;

use anyhow::Result;
use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

use crate::fake::{Asked, Fake, Said};

pub const PATH: &str = "/events/deploy";
const FIELDS: [&str; 9] = [
    "id", "type", "thread", "sequence", "severity", "title", "details", "rollout", "services",
];
/// Maximum age of a signature in seconds.
const TOLERANCE: i64 = 300;

/// Ends when dropped.
pub struct Hook(Fake<State>);

struct State {
    key: Vec<u8>,
    taken: Vec<Map<String, Value>>,
}

impl Hook {
    /// `token` is the signing key, as it is or as base64 after `whsec_`.
    pub async fn start(token: &str) -> Result<Self> {
        let key = match token.strip_prefix("whsec_") {
            Some(text) => STANDARD.decode(text)?,
            None => token.as_bytes().to_vec(),
        };
        Ok(Self(Fake::start(State { key, taken: Vec::new() }, answer).await?))
    }

    pub fn url(&self) -> String {
        format!("{}{PATH}", self.0.url())
    }

    /// Bodies with a valid signature, in order.
    pub fn taken(&self) -> Vec<Map<String, Value>> {
        self.0.with(|state| state.taken.clone())
    }

    pub fn set_fault(&self, fault: Option<Said>) {
        self.0.set_fault(fault);
    }

    pub fn set_delay(&self, delay: Duration) {
        self.0.set_delay(delay);
    }

    pub fn refused(&self) -> Vec<String> {
        self.0.refused()
    }

    pub fn asked(&self) -> usize {
        self.0.asked()
    }
}

fn answer(state: &mut State, asked: &Asked) -> Result<Said, (Said, String)> {
    check(state, asked).map_err(|why| (Said::json(401, &json!({"message": "no"})), why))?;
    let body = asked.object(&FIELDS).map_err(|why| (Said::status(400), why))?;
    if body.get("id").and_then(Value::as_str) != Some(asked.header("webhook-id")) {
        return Err((Said::status(400), "another id in the body".to_owned()));
    }
    state.taken.push(body);
    Ok(Said {
        status: 204,
        body: String::new(),
        headers: Vec::new(),
    })
}

fn check(state: &State, asked: &Asked) -> Result<(), String> {
    if asked.method != http::Method::POST || asked.uri.path() != PATH {
        return Err(format!("{} {}", asked.method, asked.uri));
    }
    check_signature(&state.key, asked)
}

/// Signature over the id, the time and the body.
pub(crate) fn check_signature(key: &[u8], asked: &Asked) -> Result<(), String> {
    let (id, time) = (asked.header("webhook-id"), asked.header("webhook-timestamp"));
    let seconds: i64 = time.parse().map_err(|_| format!("no time: {time:?}"))?;
    if id.is_empty() || (jiff::Timestamp::now().as_second() - seconds).abs() > TOLERANCE {
        return Err(format!("id {id:?}, time {time}"));
    }
    let mut signed = format!("{id}.{time}.").into_bytes();
    signed.extend_from_slice(&asked.body);
    let given = asked
        .header("webhook-signature")
        .strip_prefix("v1,")
        .ok_or("no signature")?;
    let given = STANDARD.decode(given).map_err(|error| error.to_string())?;
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::verify(&key, &signed, &given).map_err(|_| "a wrong signature".to_owned())
}
