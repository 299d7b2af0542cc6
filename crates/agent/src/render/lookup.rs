//! Lookups of templates in the cluster, made as the account that the service is applied as.

use std::{future::Future, pin::Pin};

use farwater_api::protocol::ServiceAccount;
use farwater_fleet::plan::GroupVersionKind;
use farwater_render::{Asker, Question, Unanswered};
use serde_json::{Value, json};

use crate::{
    kinds::{Kinds, Served},
    kubernetes::{ApiError, Kubernetes},
};

/// Most listed objects: more than any template needs.
const MAX_LISTED: usize = 2000;

pub struct ClusterAsker<'a> {
    pub kubernetes: &'a Kubernetes,
    pub kinds: &'a Kinds,
    pub account: &'a ServiceAccount,
}

impl Asker for ClusterAsker<'_> {
    fn look_up<'a>(
        &'a self,
        question: &'a Question,
    ) -> Pin<Box<dyn Future<Output = Result<Option<Value>, Unanswered>> + Send + 'a>> {
        Box::pin(async move { self.find(question).await.map_err(|error| Unanswered(error.to_string())) })
    }
}

impl ClusterAsker<'_> {
    async fn find(&self, question: &Question) -> Result<Option<Value>, ApiError> {
        let (group, version) = question
            .api_version
            .split_once('/')
            .unwrap_or(("", &question.api_version));
        let kind = GroupVersionKind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: question.kind.clone(),
        };
        let resource = match self.kinds.find(self.kubernetes, &kind).await? {
            Served::As(resource) if resource.version == version => resource,
            // Helm treats that as an error too.
            _ => {
                return Err(ApiError::Unusable(format!(
                    "the cluster has no {} of {}",
                    question.kind, question.api_version
                )));
            }
        };

        if question.name.is_empty() {
            let mut items = Vec::new();
            let mut too_many = false;
            let collection = resource.collection(&question.namespace);
            let listed = self
                .kubernetes
                .list(Some(self.account), &collection, "", false, |item| {
                    if items.len() < MAX_LISTED {
                        items.push(item)
                    } else {
                        too_many = true
                    }
                });
            match listed.await {
                Ok(_) if too_many => return Err(too_large(&question.kind)),
                Ok(_) => {}
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error),
            }
            let list =
                json!({"apiVersion": question.api_version, "kind": format!("{}List", question.kind), "items": items});
            return Ok(Some(list));
        }

        let path = resource.path(&question.namespace, &question.name);
        match self.kubernetes.get(Some(self.account), &path, false).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn too_large(kind: &str) -> ApiError {
    ApiError::Unusable(format!(
        "there are over {MAX_LISTED} objects of kind {kind}; look up a namespace or a name"
    ))
}
