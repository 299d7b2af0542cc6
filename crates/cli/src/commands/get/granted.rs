//! Granted clusters in the place of Clusters, which a tenant has none of or may not read.

use farwater_api::GROUP;
use serde_json::Value;

use super::GetArgs;
use crate::{
    connection::Session,
    failure::Result,
    granted,
    kinds::{self, Kind},
    terminal::say,
};

/// A part of the question: objects of one kind.
pub(super) struct Part<'a> {
    pub kind: Kind,
    pub namespace: Option<&'a str>,
    /// Empty: all objects.
    pub names: Vec<String>,
}

/// Divides a question into Clusters that the user may read and granted ones. Questions about other kinds stay whole.
pub(super) async fn divide<'a>(session: &'a Session, args: &'a GetArgs, whole: Part<'a>) -> Result<Vec<Part<'a>>> {
    let is_selected = args.selector.is_some() || args.field_selector.is_some();
    let is_cluster = whole.kind.group == GROUP && whole.kind.plural == "clusters";
    if !is_cluster || is_selected || args.watch {
        return Ok(vec![whole]);
    }
    if !whole.names.is_empty() {
        return divide_names(session, whole).await;
    }

    let tenant = args.scope.namespace.or_default(session);
    let Some(why) = find_reason(session, &whole, tenant).await else {
        return Ok(vec![whole]);
    };
    say(&format!(
        "{why}; these are the clusters that ClusterGrants let namespace {tenant} deploy to:"
    ));
    Ok(vec![Part {
        kind: kinds::granted_clusters(),
        namespace: Some(tenant),
        names: Vec::new(),
    }])
}

/// Why the granted clusters are listed. None: the Clusters are, or no cluster is granted.
async fn find_reason(session: &Session, whole: &Part<'_>, tenant: &str) -> Option<&'static str> {
    let has_any = |list: &Value| list["items"].as_array().is_some_and(|items| !items.is_empty());
    let path = |kind: &Kind, namespace| format!("{}?limit=1", kind.path(namespace, None));
    let clusters = session.read("list clusters", &path(&whole.kind, whole.namespace)).await;
    let why = match &clusters {
        Ok(list) if has_any(list) => return None,
        // A user who may read all Clusters has an empty list.
        Ok(_) if !granted::is_denied(session, None).await => return None,
        Ok(_) => "there is no Cluster of its own",
        Err(failure) if failure.is_denied() => "you may not list Clusters",
        Err(_) => return None,
    };
    // An older hub doesn't know of granted clusters.
    let granted = session
        .read("list granted clusters", &path(&kinds::granted_clusters(), Some(tenant)))
        .await;
    granted.is_ok_and(|list| has_any(&list)).then_some(why)
}

/// The Clusters come first. A name of neither stays with them, so that the failure is about a Cluster.
async fn divide_names<'a>(session: &'a Session, whole: Part<'a>) -> Result<Vec<Part<'a>>> {
    let Part { kind, namespace, names } = whole;
    let (place, part) = (namespace.unwrap_or_default(), |kind, namespace| Part {
        kind,
        namespace,
        names: Vec::new(),
    });
    let (mut own, mut here, mut elsewhere) = (
        part(kind, namespace),
        part(kinds::granted_clusters(), namespace),
        part(kinds::granted_clusters(), Some(session.namespace.as_str())),
    );
    for name in names {
        let path = own.kind.path(namespace, Some(&name));
        let found = match session.read("read the Cluster", &path).await {
            Err(failure) if granted::is_hidden(session, &name, &failure).await => {
                granted::find(session, &[place, &session.namespace], (place, &name)).await?
            }
            _ => None,
        };
        let part = match found {
            None => &mut own,
            Some(granted) if granted.metadata.namespace.as_deref() == namespace => &mut here,
            Some(_) => &mut elsewhere,
        };
        part.names.push(name);
    }
    let mut parts = vec![own, here, elsewhere];
    parts.retain(|part| !part.names.is_empty());
    Ok(parts)
}
