//! A small HTTP server for tests that checks each whole request. It plays the services that the hub sends messages to.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Result;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value, json};
use tokio::{net::TcpListener, task::AbortHandle};

/// Ends when dropped.
pub struct Fake<S> {
    address: SocketAddr,
    state: Arc<Mutex<State<S>>>,
    task: AbortHandle,
}

struct State<S> {
    own: S,
    refused: Vec<String>,
    asked: usize,
    fault: Option<Said>,
    delay: Duration,
}

impl<S> Drop for Fake<S> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A request.
pub struct Asked {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Asked {
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// The body as a JSON object with only these fields.
    pub fn object(&self, fields: &[&str]) -> Result<Map<String, Value>, String> {
        if !self.header("content-type").starts_with("application/json") {
            return Err(format!("content type {:?}", self.header("content-type")));
        }
        let value: Value = serde_json::from_slice(&self.body).map_err(|error| error.to_string())?;
        only(&value, fields)
    }
}

/// The object's fields, if it has only these.
pub fn only(value: &Value, fields: &[&str]) -> Result<Map<String, Value>, String> {
    let object = value.as_object().ok_or(format!("no object: {value}"))?;
    match object.keys().find(|field| !fields.contains(&field.as_str())) {
        Some(field) => Err(format!("unknown field {field}")),
        None => Ok(object.clone()),
    }
}

/// Returns the answer, or an error that says what is wrong with the request.
pub type Answer<S> = fn(&mut S, &Asked) -> Result<Said, (Said, String)>;

/// An answer.
#[derive(Clone, Debug)]
pub struct Said {
    pub status: u16,
    pub body: String,
    pub headers: Vec<(&'static str, String)>,
}

impl Said {
    pub fn json(status: u16, body: &Value) -> Self {
        Self {
            status,
            body: body.to_string(),
            headers: Vec::new(),
        }
    }

    pub fn status(status: u16) -> Self {
        Self::json(status, &json!({"message": "fault"}))
    }

    #[must_use]
    pub fn with(mut self, header: &'static str, value: &str) -> Self {
        self.headers.push((header, value.to_owned()));
        self
    }
}

impl<S: Send + 'static> Fake<S> {
    pub async fn start(own: S, answer: Answer<S>) -> Result<Self> {
        let state = Arc::new(Mutex::new(State {
            own,
            refused: Vec::new(),
            asked: 0,
            fault: None,
            delay: Duration::ZERO,
        }));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(serve(listener, Arc::clone(&state), answer)).abort_handle();
        Ok(Self { address, state, task })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Reasons why requests were refused.
    pub fn refused(&self) -> Vec<String> {
        self.state().refused.clone()
    }

    pub fn asked(&self) -> usize {
        self.state().asked
    }

    /// Answer to every request, without processing it. None: the usual answers.
    pub fn set_fault(&self, fault: Option<Said>) {
        self.state().fault = fault;
    }

    /// Processes every request at once, but delays the answer by this time.
    pub fn set_delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut S) -> T) -> T {
        look(&mut self.state().own)
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve<S: Send + 'static>(listener: TcpListener, state: Arc<Mutex<State<S>>>, answer: Answer<S>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let state = Arc::clone(&state);
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect().await?.to_bytes();
                    let asked = Asked {
                        method: parts.method,
                        uri: parts.uri,
                        headers: parts.headers,
                        body,
                    };
                    let (response, delay) = {
                        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                        (respond(&mut state, &asked, answer), state.delay)
                    };
                    tokio::time::sleep(delay).await;
                    Ok::<_, hyper::Error>(response)
                }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn respond<S>(state: &mut State<S>, asked: &Asked, answer: Answer<S>) -> Response<Full<Bytes>> {
    state.asked += 1;
    let said = match (&state.fault, asked.header("user-agent").is_empty()) {
        (Some(fault), _) => fault.clone(),
        (None, true) => {
            state.refused.push("no user agent".to_owned());
            Said::status(403)
        }
        (None, false) => answer(&mut state.own, asked).unwrap_or_else(|(said, why)| {
            state.refused.push(why);
            said
        }),
    };
    let mut response = Response::new(Full::new(Bytes::from(said.body)));
    *response.status_mut() = StatusCode::from_u16(said.status).unwrap_or_default();
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("application/json"),
    );
    for (name, value) in said.headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    response
}
