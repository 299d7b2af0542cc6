//! Memory of answers and events that clients have not read yet, in total and per client.

use std::{sync::Arc, time::Duration};

use axum::{body::Body, response::Response};
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use tokio::{sync::AcquireError, time::timeout};

use crate::{
    auth::User,
    kinds::status::TOO_MUCH,
    room::{Held, Room},
    server::Closer,
    status::{failure, try_later},
    turns::Shares,
};

/// Bytes of unread answers and events of all clients.
const ROOM: usize = 256 << 20;
/// The same for administrators.
const RESERVED: usize = 256 << 20;
/// One user may use this part of the room. It is small, because one person may have accounts in several namespaces.
const PARTS: usize = 8;
const RESERVED_PARTS: usize = 4;
/// Maximum number of one user's answers that wait for room.
const WAITING: usize = 2;
/// Maximum wait for room.
const PATIENCE: Duration = Duration::from_secs(10);
/// Answers of at least this many bytes take room.
const LONG: usize = 8 << 10;
/// A connection whose client has not read a long answer after this time is closed. The client has a second more for
/// each [`LEAST_RATE`] bytes.
const UNREAD: Duration = Duration::from_secs(60);
const LEAST_RATE: usize = 32 << 10;

/// Room for the answers of all clients.
pub struct Answers {
    room: Room,
    reserved: Room,
    waiting: Arc<Shares>,
}

/// Room for the answers of one user.
#[derive(Clone)]
pub struct UserAnswers {
    room: Room,
    waiting: Arc<Shares>,
    user: String,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            room: Room::new(ROOM, PARTS),
            reserved: Room::new(RESERVED, RESERVED_PARTS),
            waiting: Arc::new(Shares::new(WAITING)),
        }
    }
}

impl Answers {
    pub fn of(&self, user: &User) -> UserAnswers {
        let room = if user.is_master() { &self.reserved } else { &self.room };
        UserAnswers {
            room: room.clone(),
            waiting: Arc::clone(&self.waiting),
            user: user.share_name().to_owned(),
        }
    }
}

impl UserAnswers {
    /// Room for an answer, or a page of one, until its client has read it. None: there was too little for too long. The
    /// answer is in memory already, so only few answers wait for room.
    pub async fn take(&self, bytes: usize) -> Option<Held> {
        let mut held = Held::default();
        if !self.room.try_grow(&mut held, &self.user, bytes) {
            let _waits = self.waiting.take(&self.user)?;
            timeout(PATIENCE, self.room.grow(&mut held, &self.user, bytes))
                .await
                .ok()?
                .ok()?;
        }
        Some(held)
    }

    /// Grows the held room to this many bytes, as soon as there is room.
    pub async fn grow(&self, held: &mut Held, bytes: usize) -> Result<(), AcquireError> {
        self.room.grow(held, &self.user, bytes).await
    }

    /// Whether the user, or all users together, hold more than half of their room.
    pub fn is_short(&self) -> bool {
        self.room.is_short(&self.user)
    }

    /// Returns the answer, which keeps its room until it is read, or a refusal. `is_read`: the request wrote nothing.
    /// If the answer stays unread, the connection is closed.
    pub async fn hold(self, response: Response, is_read: bool, connection: Option<Closer>) -> Response {
        let (parts, body) = response.into_parts();
        let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
        let Some(length) = length.filter(|length| *length >= LONG) else {
            return Response::from_parts(parts, body);
        };
        let Some(held) = self.take(length).await else {
            return refuse(is_read);
        };
        let Ok(body) = body.collect().await else {
            return failure(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                "the answer could not be made",
            );
        };
        let (bytes, sent) = held.watched(body.to_bytes());
        if let Some(connection) = connection {
            let patience = UNREAD + Duration::from_secs((length / LEAST_RATE) as u64);
            tokio::spawn(async move {
                if timeout(patience, sent).await.is_err() {
                    connection.close();
                }
            });
        }
        Response::from_parts(parts, Body::from(bytes))
    }
}

fn refuse(is_read: bool) -> Response {
    if is_read {
        return try_later(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", TOO_MUCH);
    }
    // Like for a request that takes too long: it may have been committed.
    let message = "the request was carried out; its answer is not sent, because too much that was sent to this user is not read yet";
    failure(StatusCode::GATEWAY_TIMEOUT, "Timeout", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(room: usize) -> UserAnswers {
        UserAnswers {
            room: Room::new(room, 1),
            waiting: Arc::new(Shares::new(WAITING)),
            user: "ada".to_owned(),
        }
    }

    fn answer(bytes: usize) -> Response {
        Response::new(Body::from(vec![b'a'; bytes]))
    }

    #[tokio::test(start_paused = true)]
    async fn without_room_a_read_comes_again_and_a_write_says_that_it_was_carried_out() {
        let answers = user(2 * LONG);
        let unread = answers.clone().hold(answer(2 * LONG), true, None).await;
        assert_eq!(unread.status(), 200);
        for (is_read, code, retries) in [(true, 429, true), (false, 504, false)] {
            let refused = answers.clone().hold(answer(LONG), is_read, None).await;
            assert_eq!(
                (refused.status().as_u16(), refused.headers().contains_key("retry-after")),
                (code, retries)
            );
            let text = refused.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(String::from_utf8_lossy(&text).contains("was carried out"), !is_read);
        }
        let short = answers.clone().hold(answer(LONG - 1), true, None).await;
        assert_eq!(short.status(), 200, "short answers take no room");
        drop(unread);
        assert_eq!(answers.hold(answer(LONG), false, None).await.status(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn few_answers_of_a_user_wait_for_room() {
        let answers = user(LONG);
        let _unread = answers.take(LONG).await.unwrap();
        let (one, other, third) = tokio::join!(
            async { (answers.take(LONG).await.is_some(), tokio::time::Instant::now()) },
            async { (answers.take(LONG).await.is_some(), tokio::time::Instant::now()) },
            async { (answers.take(LONG).await.is_some(), tokio::time::Instant::now()) },
        );
        assert!(!one.0 && !other.0 && !third.0);
        assert!(
            one.1 == other.1 && third.1 + PATIENCE <= one.1,
            "the third is refused at once"
        );
    }
}
