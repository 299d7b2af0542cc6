//! Reads a container's log in parts, because it may be as large as its node allows.

use http::Method;
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::{ApiError, As, Kubernetes, PATIENCE, TRIES, refusal, retry_after};
use crate::messages::shorten;

/// Most bytes of a log that are read.
const MAX_LOG: usize = 16 << 20;
/// Most bytes of a refusal that are read.
const MAX_REFUSAL: usize = 64 << 10;

impl Kubernetes {
    /// Passes the log at this path to `each`. After an error a part may have been passed.
    pub async fn read_log(&self, who: As<'_>, path: &str, mut each: impl FnMut(&[u8])) -> Result<(), ApiError> {
        let (mut tried, mut begun) = (0, false);
        loop {
            let read = self.read_log_once(who, path, |part| {
                begun = true;
                each(part);
            });
            let result = read.await;
            tried += 1;
            match &result {
                Err(error) if tried < TRIES && !begun => match error.pause(tried) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return result,
                },
                _ => return result,
            }
        }
    }

    async fn read_log_once(&self, who: As<'_>, path: &str, mut each: impl FnMut(&[u8])) -> Result<(), ApiError> {
        let read = async {
            let response = self.requests.send(who, Method::GET, path, "*/*", None).await?;
            let (status, after) = (response.status(), retry_after(&response));
            let mut body = response.into_body();
            let (mut refused, mut bytes) = (Vec::new(), 0);
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| ApiError::Lost(shorten(&error.to_string())))?;
                let Some(data) = frame.data_ref() else { continue };
                bytes += data.len();
                match status.is_success() {
                    true if bytes > MAX_LOG => return Ok(()),
                    true => each(data),
                    false if bytes > MAX_REFUSAL => break,
                    false => refused.extend_from_slice(data),
                }
            }
            if status.is_success() {
                Ok(())
            } else {
                Err(refusal(status, after, &refused, false))
            }
        };
        timeout(PATIENCE, read).await.map_err(|_| ApiError::Silent(PATIENCE))?
    }
}
