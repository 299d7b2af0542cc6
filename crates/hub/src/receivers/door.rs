//! `POST /hook/<digest>`: deliveries of Git hosts. A refusal has the same text, and takes the same work, whether the
//! receiver exists or not.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    response::{IntoResponse as _, Response},
};
use farwater_api::receiver::ReceiverType;
use farwater_fleet::webhooks::hint::Hint;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use serde_json::json;
use tokio::time::timeout;

use super::{
    Live,
    body::{self, BodyError},
    log::{DeliveryNote, Refused},
    payload,
    signature::{self, Claim},
};
use crate::{
    endpoint::Endpoint,
    memory::counters::DeliveryResult,
    replica::Replica,
    status::{failure, try_later},
};

/// Delay before a source is fetched, so that all deliveries of one push are handled together.
const BURST: Duration = Duration::from_millis(5);

pub fn endpoints() -> Vec<Endpoint<Arc<Replica>>> {
    vec![Endpoint::post("/hook/{receiver}", post_delivery)]
}

pub fn router<S: Clone + Send + Sync + 'static>(replica: Arc<Replica>) -> Router<S> {
    Endpoint::router(endpoints()).with_state(replica)
}

/// Result of a delivery that was not refused.
enum Taken {
    Acted,
    Ignored,
    Suspended,
}

async fn post_delivery(
    State(replica): State<Arc<Replica>>,
    Path(path): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let receivers = &replica.receivers;
    if !receivers.is_loaded() {
        return try_later(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailable",
            "the hub is starting; deliver it again",
        );
    }
    let receiver = receivers.at(&path);
    let outcome = take_delivery(&replica, receiver.as_deref(), &headers, body).await;
    let counted = match &outcome {
        Ok(Taken::Acted) => DeliveryResult::Taken,
        Ok(Taken::Ignored | Taken::Suspended) => DeliveryResult::Ignored,
        Err(refused) => refused.counted(),
    };
    replica
        .memory
        .counters
        .count_delivery(receiver.as_ref().map(|receiver| receiver.spec.r#type), counted);
    match outcome {
        Ok(taken) => accept(&taken),
        Err(refused) => {
            if let Some(receiver) = &receiver {
                note_result(&replica, receiver, DeliveryNote::Refused(refused));
            }
            refuse(refused)
        }
    }
}

async fn take_delivery(
    replica: &Replica,
    receiver: Option<&Live>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Taken, Refused> {
    if !signature::is_signed(headers) {
        return Err(Refused::SignatureMissing);
    }

    let receivers = &replica.receivers;
    let claimed = receiver.map(|receiver| (receiver.spec.r#type, &receiver.token));
    let mut claim = Claim::read(claimed, headers, &receivers.nobody);
    let reading = body::read(body, &receivers.room, |piece| claim.update(piece));
    let kept = match timeout(receivers.body_time, reading).await {
        Ok(Ok(kept)) => kept,
        Ok(Err(BodyError::TooLarge)) => return Err(Refused::TooLarge),
        Ok(Err(BodyError::Broken)) => return Err(Refused::Broken),
        Err(_) => return Err(Refused::TooSlow),
    };

    claim.verify()?;
    // A claim without a receiver is never right.
    let receiver = receiver.ok_or(Refused::SignatureWrong)?;

    let (kind, event) = (receiver.spec.r#type, payload::event(receiver.spec.r#type, headers));
    if !payload::is_wanted(kind, &receiver.spec.events, event) {
        note_result(
            replica,
            receiver,
            DeliveryNote::Ignored {
                event: event.to_owned(),
            },
        );
        return Ok(Taken::Ignored);
    }

    let payload = payload::json(headers, &kept.bytes);
    // Senders of generic deliveries sign them on their own and may send anything.
    let is_whole = kept.is_whole && kind != ReceiverType::GenericHmac;
    let hint = Hint::parse(&payload, is_whole).map_err(|_| Refused::Unreadable)?;

    if receiver.spec.suspend {
        return Ok(Taken::Suspended);
    }

    note_result(
        replica,
        receiver,
        DeliveryNote::Taken {
            event: event.to_owned(),
        },
    );
    receiver.put([hint]);
    replica.wake_after_delivery(&receiver.name, BURST);
    Ok(Taken::Acted)
}

fn note_result(replica: &Replica, receiver: &Live, said: DeliveryNote) {
    let wait = receiver.log.note_delivery(said, Timestamp::now(), Instant::now());
    replica.wake_after_receipt(&receiver.name, wait);
}

fn accept(taken: &Taken) -> Response {
    let (code, message) = match taken {
        Taken::Acted => (StatusCode::ACCEPTED, "accepted: its sources will be fetched"),
        Taken::Ignored => (
            StatusCode::OK,
            "right, and nothing to do: the receiver does not act upon this event",
        ),
        Taken::Suspended => (StatusCode::OK, "right, and nothing is done: the receiver is suspended"),
    };
    (code, Json(json!({"message": message}))).into_response()
}

fn refuse(refused: Refused) -> Response {
    match refused {
        Refused::SignatureMissing => failure(
            StatusCode::FORBIDDEN,
            "Forbidden",
            "the delivery is not signed: give the webhook its secret",
        ),
        Refused::SignatureWrong => {
            let message = "no receiver takes this delivery: its address or its signature is wrong";
            failure(StatusCode::FORBIDDEN, "Forbidden", message)
        }
        Refused::Unreadable => failure(StatusCode::BAD_REQUEST, "BadRequest", "the payload is no JSON object"),
        Refused::Broken => failure(StatusCode::BAD_REQUEST, "BadRequest", "the payload broke off"),
        Refused::TooLarge => failure(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            "the payload is longer than 25 MiB",
        ),
        Refused::TooSlow => failure(
            StatusCode::REQUEST_TIMEOUT,
            "Timeout",
            "the payload took longer than 10 s",
        ),
    }
}
