//! Finds why an object is not healthy in the objects that it owns: a few reads as the service's account, none of which
//! may fail anything.

use std::time::Duration;

use farwater_api::{objects::Health, protocol::ServiceAccount};
use farwater_fleet::health::{
    children::{self, ChildKind, Place},
    rules::Rules,
};
use serde_json::Value;
use tokio::time::timeout;

use crate::kubernetes::{ApiError, Kubernetes, escape};

/// Most requests for one object. A custom resource takes the most: seven lists, and its own objects among them.
const REQUESTS: u32 = 20;
/// Most pods that are read of one list, each about 10 KB.
const PODS: usize = 50;
/// Most objects of other kinds, of which only metadata is read.
const OTHERS: usize = 250;
const EVENTS: usize = 50;
/// Children of one kind that are read whole.
const CHOSEN: usize = 3;
/// Most levels, e.g. a custom resource, its Deployment, its ReplicaSet, a Pod.
const DEPTH: usize = 4;
const PATIENCE: Duration = Duration::from_secs(30);

/// The result of a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Empty: there is nothing to say.
    pub text: String,
    /// A claim that is bound by its first consumer, so waiting for it makes no sense.
    pub waits_for_consumer: bool,
}

struct Look<'a> {
    kubernetes: &'a Kubernetes,
    account: &'a ServiceAccount,
    rules: &'a Rules,
    requests_left: u32,
    /// The first read that the account may not make.
    refused: Option<String>,
}

/// Finds the reason why the object at this path is not healthy by these rules.
pub async fn explain(
    kubernetes: &Kubernetes,
    account: &ServiceAccount,
    rules: &Rules,
    path: &str,
) -> Result<Looked, ApiError> {
    let look = Look {
        kubernetes,
        account,
        rules,
        requests_left: REQUESTS,
        refused: None,
    };
    match timeout(PATIENCE, look.run(path)).await {
        Ok(looked) => looked,
        Err(_) => Err(ApiError::Silent(PATIENCE)),
    }
}

impl Look<'_> {
    async fn run(mut self, path: &str) -> Result<Looked, ApiError> {
        let rules = self.rules;
        let mut object = self.kubernetes.look(Some(self.account), path).await?;
        if rules.evaluate(&object).0 == Health::Current {
            return Ok(Looked::default());
        }

        let mut titles = Vec::new();
        let mut more = None;
        for _ in 0..DEPTH {
            let Some((child, others, kind)) = self.worst_child(&object).await? else {
                break;
            };
            more = (others > 0).then(|| kind.count_more(others));
            // A ReplicaSet between a Deployment and its pods is not worth naming.
            if child["kind"] != "ReplicaSet" || children::tells(rules, &child) {
                titles.push(children::title(&child));
            }
            object = child;
        }

        let own = if titles.is_empty() {
            String::new()
        } else {
            rules.evaluate(&object).1
        };
        let events = if children::tells(rules, &object) {
            Vec::new()
        } else {
            self.events(&object).await?
        };
        let waits_for_consumer = titles.is_empty() && children::waits_for_consumer(rules, &object, &events);
        let said = [
            Some(own).filter(|own| !own.is_empty()),
            children::explain_events(&object, &events),
            more,
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();

        let mut parts = Vec::new();
        match (titles.is_empty(), said.is_empty()) {
            (true, true) => {}
            (true, false) => parts.push(said.join("; ")),
            (false, _) => parts.push(format!("{}: {}", titles.join(", "), said.join("; "))),
        }
        let refused = self.refused.filter(|_| !children::tells(rules, &object));
        parts.extend(refused.map(|error| format!("why can't be told: {error}")));
        Ok(Looked {
            text: parts.join("; "),
            waits_for_consumer,
        })
    }

    /// The worst object that an object owns, and the number of others of its kind that are not ready.
    async fn worst_child(&mut self, owner: &Value) -> Result<Option<(Value, usize, &'static ChildKind)>, ApiError> {
        let metadata = &owner["metadata"];
        let uid = metadata["uid"].as_str().unwrap_or_default();
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let mut found: Option<(Value, usize, &'static ChildKind)> = None;
        for place in children::places(owner) {
            let owned = self.list_owned(&place, namespace, uid).await?;
            let Some((child, others)) = children::worst(self.rules, owner, owned) else {
                continue;
            };
            let rank = children::rank(self.rules, owner, &child);
            if found
                .as_ref()
                .is_none_or(|(other, ..)| rank < children::rank(self.rules, owner, other))
            {
                found = Some((child, others, place.kind));
            }
        }
        Ok(found)
    }

    /// Whole objects in a list that the object with this uid owns.
    async fn list_owned(&mut self, place: &Place, namespace: &str, uid: &str) -> Result<Vec<Value>, ApiError> {
        let whole = place.is_read_whole();
        let collection = format!(
            "{}/namespaces/{}/{}",
            place.kind.root,
            escape(namespace),
            place.kind.plural
        );
        let limit = if whole { PODS } else { OTHERS };
        let path = format!("{collection}?limit={limit}&labelSelector={}", escape(&place.selector));

        let mut owned = Vec::new();
        self.list(&path, !whole, |mut child| {
            if children::is_owned_by(&child, uid) {
                child["metadata"]["managedFields"] = Value::Null;
                place.complete(&mut child);
                owned.push(child);
            }
        })
        .await?;
        if whole {
            return Ok(owned);
        }

        let mut read = Vec::new();
        for child in children::choose(place, owned, CHOSEN) {
            let name = child["metadata"]["name"].as_str().unwrap_or_default();
            let path = format!("{collection}/{}", escape(name));
            if !self.may_ask() {
                break;
            }
            match self.kubernetes.look(Some(self.account), &path).await {
                Err(error) if error.is_not_found() => {}
                other => read.extend(self.unless_forbidden(other)?),
            }
        }
        Ok(read)
    }

    async fn events(&mut self, object: &Value) -> Result<Vec<Value>, ApiError> {
        let metadata = &object["metadata"];
        let (namespace, uid) = (metadata["namespace"].as_str(), metadata["uid"].as_str());
        let path = format!(
            "/api/v1/namespaces/{}/events?limit={EVENTS}&fieldSelector={}",
            escape(namespace.unwrap_or_default()),
            escape(&format!("involvedObject.uid={}", uid.unwrap_or_default()))
        );
        let mut events = Vec::new();
        self.list(&path, false, |event| events.push(event)).await?;
        Ok(events)
    }

    async fn list(&mut self, path: &str, metadata_only: bool, each: impl FnMut(Value)) -> Result<(), ApiError> {
        if !self.may_ask() {
            return Ok(());
        }
        let listed = self
            .kubernetes
            .look_at_list(Some(self.account), path, metadata_only, each)
            .await;
        self.unless_forbidden(listed).map(drop)
    }

    fn may_ask(&mut self) -> bool {
        let left = self.requests_left > 0;
        self.requests_left = self.requests_left.saturating_sub(1);
        left
    }

    /// Records a forbidden read, and continues without it.
    fn unless_forbidden<T>(&mut self, answer: Result<T, ApiError>) -> Result<Option<T>, ApiError> {
        match answer {
            Err(error) if error.is_forbidden() => {
                self.refused.get_or_insert(error.to_string());
                Ok(None)
            }
            other => other.map(Some),
        }
    }
}
