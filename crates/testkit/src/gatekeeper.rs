//! Fakes that the gates of promotion pipelines ask: a service that checks each request, and a server that answers like
//! Prometheus.

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::{
    fake::{Asked, Fake, Said},
    hook,
};

const PATH: &str = "/promotions/ask";
const FIELDS: [&str; 7] = ["id", "type", "namespace", "pipeline", "stage", "revision", "digest"];
const QUERY_PATH: &str = "/prometheus/api/v1/query";

/// Gives the same answer to every signed request until the answer is changed. Ends when dropped.
pub struct Gatekeeper(Fake<Keeping>);

struct Keeping {
    key: Vec<u8>,
    says: Value,
    taken: Vec<Map<String, Value>>,
}

impl Gatekeeper {
    /// `token` is the signing key.
    pub async fn start(token: &str) -> Result<Self> {
        let own = Keeping {
            key: token.as_bytes().to_vec(),
            says: json!({"result": "wait"}),
            taken: Vec::new(),
        };
        Ok(Self(Fake::start(own, answer).await?))
    }

    pub fn url(&self) -> String {
        format!("{}{PATH}", self.0.url())
    }

    pub fn say(&self, result: &str, message: &str) {
        self.0
            .with(|own| own.says = json!({"result": result, "message": message}));
    }

    /// The requests, in order.
    pub fn taken(&self) -> Vec<Map<String, Value>> {
        self.0.with(|own| own.taken.clone())
    }

    pub fn set_fault(&self, fault: Option<Said>) {
        self.0.set_fault(fault);
    }

    pub fn refused(&self) -> Vec<String> {
        self.0.refused()
    }
}

fn answer(own: &mut Keeping, asked: &Asked) -> Result<Said, (Said, String)> {
    let refuse = |status, why: String| (Said::status(status), why);
    if asked.method != http::Method::POST || asked.uri.path() != PATH {
        return Err(refuse(404, format!("{} {}", asked.method, asked.uri)));
    }
    hook::check_signature(&own.key, asked).map_err(|why| refuse(401, why))?;
    let body = asked.object(&FIELDS).map_err(|why| refuse(400, why))?;
    if body.len() != FIELDS.len() || body.values().any(|value| value.as_str().is_none_or(str::is_empty)) {
        return Err(refuse(400, format!("something is missing: {body:?}")));
    }
    if body.get("id").and_then(Value::as_str) != Some(asked.header("webhook-id")) {
        return Err(refuse(400, "another id in the body".to_owned()));
    }
    own.taken.push(body);
    Ok(Said::json(200, &own.says))
}

/// Has one value for one query, and accepts one token. Ends when dropped.
pub struct Gauge(Fake<Measured>);

struct Measured {
    token: String,
    query: String,
    value: String,
}

impl Gauge {
    pub async fn start(token: &str, query: &str, value: &str) -> Result<Self> {
        let [token, query, value] = [token, query, value].map(str::to_owned);
        Ok(Self(Fake::start(Measured { token, query, value }, measure).await?))
    }

    /// The URL before `/api/v1/query`.
    pub fn url(&self) -> String {
        format!("{}/prometheus/", self.0.url())
    }

    pub fn set(&self, value: &str) {
        self.0.with(|own| own.value = value.to_owned());
    }

    pub fn set_fault(&self, fault: Option<Said>) {
        self.0.set_fault(fault);
    }

    pub fn refused(&self) -> Vec<String> {
        self.0.refused()
    }
}

fn measure(own: &mut Measured, asked: &Asked) -> Result<Said, (Said, String)> {
    let refuse = |status, why: String| (Said::status(status), why);
    if asked.method != http::Method::GET || asked.uri.path() != QUERY_PATH {
        return Err(refuse(404, format!("{} {}", asked.method, asked.uri)));
    }
    if asked.header("authorization") != format!("Bearer {}", own.token) {
        return Err(refuse(401, "another token".to_owned()));
    }
    let query = asked
        .uri
        .query()
        .and_then(|text| text.strip_prefix("query="))
        .map(decode);
    if query.as_deref() != Some(own.query.as_bytes()) {
        return Err(refuse(400, asked.uri.to_string()));
    }
    let sample = json!({"metric": {}, "value": [1_767_225_600.123, own.value]});
    Ok(Said::json(
        200,
        &json!({"status": "success", "data": {"resultType": "vector", "result": [sample]}}),
    ))
}

/// Decodes a form value.
fn decode(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next().unwrap_or_default(), bytes.next().unwrap_or_default()];
                let number = std::str::from_utf8(&digits)
                    .ok()
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok());
                number.unwrap_or_default()
            }
            other => other,
        });
    }
    decoded
}
