//! serve_receivers: Receivers and their Secrets → the paths that take deliveries, and a status about the last ones.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use farwater_api::{
    Receiver, ReceiverStatus,
    receiver::{TOKEN_KEY, WEBHOOK_ROOT},
};
use farwater_fleet::conditions::{self, Verdict};
use farwater_store::{Resource, StoreError};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use serde::Deserialize as _;

use crate::{
    queue::Next,
    receivers::{Live, Log, Token},
    replica::Replica,
    resources::{self, Name},
};

/// Loads all receivers, before the first delivery is answered.
pub async fn load(replica: &Replica) -> Result<(), StoreError> {
    let mut names = Vec::new();
    resources::each_name::<Receiver>(&replica.store, |name| names.push(name)).await?;
    for name in names {
        serve(replica, &name).await?;
    }
    replica.receivers.set_loaded();
    Ok(())
}

pub async fn serve_receiver(replica: Arc<Replica>, name: Name) -> Result<Next, StoreError> {
    serve(&replica, &name).await?;
    Ok(Next::OnChange)
}

async fn serve(replica: &Replica, name: &Name) -> Result<(), StoreError> {
    let found = resources::load::<Receiver>(&replica.store, name).await?;
    let is_there = |receiver: &Receiver| receiver.metadata.deletion_timestamp.is_none();
    let Some((resource, receiver)) = found.filter(|(_, receiver)| is_there(receiver)) else {
        withdraw(replica, replica.receivers.forget(name));
        return Ok(());
    };
    let log = replica.receivers.expect(name, &receiver.spec.secret_ref.name);
    let generation = receiver.metadata.generation.unwrap_or(0);
    let token = load_token(replica, name, &receiver.spec.secret_ref.name).await?;
    let (next, trouble) = match token {
        Ok(token) => {
            let (uid, spec) = (resource.uid.clone(), receiver.spec.clone());
            (Some(Live::new(name.clone(), uid, generation, spec, token, log)), None)
        }
        Err(trouble) => (None, Some(trouble)),
    };
    withdraw(replica, replica.receivers.serve(name, next));
    write_status(replica, name, &resource, receiver, trouble).await
}

/// Why there is no token: reason and message of the condition.
type Trouble = (&'static str, String);

async fn load_token(replica: &Replica, name: &Name, secret: &str) -> Result<Result<Token, Trouble>, StoreError> {
    let found = resources::load_secret(&replica.store, &Name::new(&name.namespace, secret)).await?;
    let Some(found) = found else {
        return Ok(Err(("SecretNotFound", format!("Secret {secret} does not exist"))));
    };
    let data = Option::<BTreeMap<String, ByteString>>::deserialize(&found.object["data"]);
    let Ok(data) = data.map(Option::unwrap_or_default) else {
        return Ok(Err((
            "SecretUnreadable",
            format!("Secret {secret} holds data that is not base64"),
        )));
    };
    let Some(ByteString(token)) = data.get(TOKEN_KEY) else {
        return Ok(Err(("TokenMissing", format!("Secret {secret} has no {TOKEN_KEY:?}"))));
    };
    let invalid = |error| {
        (
            "TokenInvalid",
            format!("{TOKEN_KEY:?} of Secret {secret} is no token: {error}"),
        )
    };
    Ok(Token::parse(token).map_err(invalid))
}

/// Deliveries of this receiver prove nothing any more: its sources are fetched now, and from then on at their own
/// intervals.
fn withdraw(replica: &Replica, before: Option<Arc<Live>>) {
    let Some(before) = before else { return };
    for (uid, source) in replica.memory.checks.announced.withdraw(&before.uid) {
        replica.fetch_now(&uid, source);
    }
}

async fn write_status(
    replica: &Replica,
    name: &Name,
    resource: &Resource,
    receiver: Receiver,
    trouble: Option<Trouble>,
) -> Result<(), StoreError> {
    let previous = receiver.status.unwrap_or_default();
    let generation = receiver.metadata.generation.unwrap_or(0);
    let live = replica.receivers.live(name);
    let path = live.as_ref().map(|live| format!("{WEBHOOK_ROOT}{}", live.path));

    let mut verdicts = match (&path, trouble) {
        (_, Some((reason, message))) => Verdict::stalled(reason, message),
        (Some(path), None) if receiver.spec.suspend => {
            let message = format!("suspended; deliveries to {}{path} are ignored", replica.url);
            vec![Verdict::new("Ready", None, "Suspended", message)]
        }
        (Some(path), None) => Verdict::ready("Served", format!("hosts deliver to {}{path}", replica.url)),
        // Its Secret has changed since it was read, which requeues the receiver.
        (None, None) => return Ok(()),
    };

    let mut status = ReceiverStatus {
        observed_generation: Some(generation),
        conditions: Vec::new(),
        webhook_path: path,
        last_delivery_time: previous.last_delivery_time,
        last_refusal_time: previous.last_refusal_time,
    };

    if let Some(live) = &live {
        Log::complete_status(&live.log, live, &mut status, &mut verdicts, Instant::now());
    }

    let is_told = |kind: &str| verdicts.iter().any(|verdict| verdict.kind == kind);
    // Conditions about deliveries before this hub started, or while there was a token, stay.
    let kept: Vec<_> = previous
        .conditions
        .iter()
        .filter(|old| old.type_ == "Delivered" && !is_told("Delivered"))
        .cloned()
        .collect();
    status.conditions = conditions::resolve(&previous.conditions, verdicts, generation, Timestamp::now());
    status.conditions.extend(kept);

    resources::write_status::<Receiver>(&replica.store, name, &resource.uid, &status).await
}
