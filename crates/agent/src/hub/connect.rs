//! Opens a WebSocket to the hub, through the same proxies as polls.

use farwater_api::protocol::{CONNECTION_PATH, MAX_CONNECTION_MESSAGE};
use http::{Method, StatusCode, header};
use http_body_util::Full;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        handshake::{client::generate_key, derive_accept_key},
        protocol::{Role, WebSocketConfig},
    },
};

use super::{Caller, HubClient, HubError, PATIENCE, unreachable};

/// Buffer size for reading, which is kept as long as the connection lasts.
const READ_BUFFER: usize = 512;

pub type Socket = WebSocketStream<TokioIo<Upgraded>>;

impl HubClient {
    /// Opens the connection over which the hub says when to poll.
    pub async fn connect(&self, who: &Caller<'_>) -> Result<Socket, HubError> {
        let what = "open a connection";
        let key = generate_key();
        let response = self
            .authorized(who, what, |token| {
                self.request(Method::GET, CONNECTION_PATH, Some(token))
                    .header(header::CONNECTION, "upgrade")
                    .header(header::UPGRADE, "websocket")
                    .header(header::SEC_WEBSOCKET_VERSION, "13")
                    .header(header::SEC_WEBSOCKET_KEY, &key)
                    .body(Full::default())
            })
            .await?;

        let status = response.status();
        let accepted = response.headers().get(header::SEC_WEBSOCKET_ACCEPT);
        let accepted = accepted.is_some_and(|accepted| accepted == derive_accept_key(key.as_bytes()).as_str());
        if status != StatusCode::SWITCHING_PROTOCOLS || !accepted {
            return Err(HubError::NotSwitched { what, status });
        }

        let upgraded = timeout(PATIENCE, hyper::upgrade::on(response))
            .await
            .map_err(|e| unreachable(what, e))?;
        let upgraded = TokioIo::new(upgraded.map_err(|e| unreachable(what, e))?);
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0)
            .max_write_buffer_size(4 * MAX_CONNECTION_MESSAGE)
            .max_message_size(Some(MAX_CONNECTION_MESSAGE))
            .max_frame_size(Some(MAX_CONNECTION_MESSAGE));
        Ok(WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await)
    }
}
