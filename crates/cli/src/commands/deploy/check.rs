//! Checks of a deployment before anything is written.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use farwater_api::{
    ADMIN_NAMESPACE, GitRepository, ServiceDeployment, SourceKind, service_deployment::ClusterReference,
    service_sources::SourceReference,
};
use farwater_fleet::{
    deletion::holders,
    placement::cluster_candidates,
    takeover::{self, Present, Refusal},
    why::{Standing, explain_source},
};
use farwater_sources::{Address, Remote, RemoteError, Scheme, SecretData};
use serde_json::{Value, json};
use sha2::Digest as _;
use sha2::Sha256;

use super::{
    Plan,
    objects::{collection, named},
};
use crate::{
    commands::impact,
    connection::Session,
    exit,
    failure::{Failure, Result},
    kinds,
    terminal::say,
    text,
};

/// Refuses a deployment onto an object that is being deleted: the deletion would remove it too.
fn refuse_deleted(object: &Value, named: &str) -> Result<()> {
    if !object["metadata"]["deletionTimestamp"].is_string() {
        return Ok(());
    }
    let finalizers: Vec<String> = serde_json::from_value(object["metadata"]["finalizers"].clone()).unwrap_or_default();
    let failure =
        Failure::new(exit::CONFLICT, format!("{named} is being deleted")).next("deploy again once it is gone");
    Err(match holders(&finalizers) {
        holders if holders.is_empty() => failure,
        holders => failure.evidence(format!("held by {holders}")),
    })
}

/// Whether two addresses, in any spelling, name one repository.
fn is_same_repository(a: &str, b: &str) -> bool {
    match (Address::parse(a), Address::parse(b)) {
        (Ok(a), Ok(b)) => a.identity() == b.identity(),
        _ => a == b,
    }
}

/// `branch main`
fn describe_reference(stated: &Value) -> String {
    let stated = stated.as_object().and_then(|fields| fields.iter().next());
    stated.map_or_else(
        || "a default branch".to_owned(),
        |(field, value)| format!("{field} {}", value.as_str().unwrap_or_default()),
    )
}

/// Whether one of our resources is known to be missing.
pub(super) async fn is_missing(session: &Session, plural: &str, namespace: &str, name: &str) -> Result<bool> {
    match session
        .read(
            &format!("read {namespace}/{name}"),
            &format!("{}/{name}", collection(plural, namespace)),
        )
        .await
    {
        Ok(found) => refuse_deleted(&found, &format!("{} {namespace}/{name}", named(&found).0)).map(|()| false),
        Err(failure) if failure.is_missing() => Ok(true),
        Err(failure) if failure.is_denied() => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Whether the hub could sign in with a Secret, judging by its keys.
fn check_credentials(url: &str, name: &str, secret: &Value) -> Result<()> {
    let decode = |(key, value): (&String, &Value)| Some((key.clone(), BASE64.decode(value.as_str()?).ok()?));
    let data: SecretData = secret["data"]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(decode)
        .collect();
    let unusable = |error: RemoteError| {
        Failure::new(
            exit::CONFLICT,
            format!("Secret {name} can't be used for {url}: {error}"),
        )
    };
    Remote::new(url, Some(&data)).map(drop).map_err(unusable)
}

/// Whether a list of GrantedClusters names the cluster. A list that is cut may name it in the part that is missing.
fn is_granted(granted: &Value, cluster: &str) -> bool {
    let is_it = |one: &Value| one["metadata"]["name"] == cluster;
    let is_whole = granted["metadata"]["continue"].as_str().is_none_or(str::is_empty);
    !is_whole || granted["items"].as_array().into_iter().flatten().any(is_it)
}

fn not_granted(tenant: &str, cluster: &str) -> Failure {
    let told = format!("no ClusterGrant lets namespace {tenant} deploy to a cluster {cluster}");
    Failure::new(exit::MISSING, told).next(format!("{{program}} get clusters -n {tenant}"))
}

/// Returns the failure with the evidence and the next step for each refusal.
fn explain_refusal((namespace, name): (&str, &str), refusal: Refusal) -> Failure {
    let refuse = |what: String| Failure::new(exit::CONFLICT, format!("service {namespace}/{name} {what}"));
    match refusal {
        Refusal::Deleting { held_by } => {
            let held_by = if held_by.is_empty() {
                "nothing holds it any more".to_owned()
            } else {
                format!("held by {held_by}")
            };
            refuse("is being deleted".to_owned()).evidence(held_by).next(format!(
                "deploy again once it is gone: {{program}} delete {name} -n {namespace} --yes --wait"
            ))
        }
        Refusal::Owned { by } => refuse(format!("is made by {by}"))
            .evidence("a change here would be changed back")
            .next(format!("change {by}, or give another name with --name NAME")),
        Refusal::Other(what) => refuse(format!("exists already: {what}"))
            .next("give another name with --name NAME, or --replace to take it over"),
    }
}

impl Plan {
    /// Checks that the cluster and the namespace exist, before anything is written. The hub checks objects that the
    /// user may not read.
    pub(super) async fn check(&self, session: &Session) -> Result<()> {
        let reference: ClusterReference = serde_json::from_value(self.service_spec["clusterRef"].clone())
            .map_err(|error| Failure::new(exit::INTERNAL, error.to_string()))?;
        let mut places = Vec::new();
        for (namespace, name) in cluster_candidates(&reference, &self.tenant) {
            if !is_missing(session, "clusters", namespace, name).await? {
                places.clear();
                break;
            }
            places.push(namespace);
        }
        if !places.is_empty() {
            let told = format!(
                "cluster {} does not exist in namespace {}",
                reference.name,
                places.join(" or ")
            );
            return Err(Failure::new(exit::MISSING, told)
                .next(format!("{{program}} get clusters -n {}", places[places.len() - 1])));
        }
        self.check_granted(session, &reference).await?;
        if let Some(secret) = self.source_spec["secretRef"]["name"].as_str() {
            let path = format!("/api/v1/namespaces/{}/secrets/{secret}", self.tenant);
            match session.read("read the Secret", &path).await {
                Err(failure) if failure.is_missing() => {
                    let told = format!("Secret {secret} does not exist in namespace {} of the hub", self.tenant);
                    let create = format!(
                        "create secret generic {secret} -n {} {}",
                        self.tenant,
                        self.credentials()
                    );
                    return Err(Failure::new(exit::MISSING, told).next(session.kubectl(&create)));
                }
                Err(failure) if failure.is_denied() => {}
                other => check_credentials(self.source_spec["url"].as_str().unwrap_or_default(), secret, &other?)?,
            }
        }
        Ok(())
    }

    /// The options of `kubectl create secret` for the repository's credentials.
    fn credentials(&self) -> &'static str {
        let url = self.source_spec["url"].as_str().unwrap_or_default();
        match Address::parse(url) {
            Ok(address) if address.scheme == Scheme::Ssh => "--from-file=identity --from-file=known_hosts",
            _ => "--from-literal=username=NAME --from-literal=password=PASSWORD",
        }
    }

    /// Refuses a cluster that no grant names. A tenant can't read Clusters, but those that are granted to it.
    async fn check_granted(&self, session: &Session, reference: &ClusterReference) -> Result<()> {
        if self.tenant == ADMIN_NAMESPACE {
            return Ok(());
        }
        let path = kinds::granted_clusters().path(Some(&self.tenant), None);
        let granted = match session.read("list granted clusters", &path).await {
            Ok(granted) => granted,
            // The hub checks the grant when it gets the service.
            Err(failure) if failure.is_denied() || failure.is_missing() => return Ok(()),
            Err(failure) => return Err(failure),
        };
        match is_granted(&granted, &reference.name) {
            true => Ok(()),
            false => Err(not_granted(&self.tenant, &reference.name)),
        }
    }

    /// Refuses a service of this name that is another deployment, or that is being deleted.
    pub(super) async fn check_present(&mut self, session: &Session, replace: bool) -> Result<()> {
        let (namespace, name) = (&self.tenant, &self.service_name);
        let found = match session.get::<ServiceDeployment>(namespace, name).await {
            Err(failure) if failure.is_missing() || failure.is_denied() => return Ok(()),
            found => found?,
        };
        let source = match session
            .get::<GitRepository>(namespace, &found.spec.source_ref.name)
            .await
        {
            Err(failure) if failure.is_missing() || failure.is_denied() => None,
            source => Some(source?),
        };
        let url = source.as_ref().map(|source| source.spec.url.as_str());
        let url = url.filter(|_| found.spec.source_ref.kind == SourceKind::GitRepository);
        let stated = self.source_spec["url"].as_str().unwrap_or_default();
        let spec = serde_json::to_value(&found.spec).unwrap_or_default();
        let wanted = self.service_spec.as_object().into_iter().flatten();
        let present = Present {
            service: &found,
            url,
            is_same_repository: url.is_some_and(|url| is_same_repository(url, stated)),
            path: self.service_spec["path"].as_str().unwrap_or_default(),
            changes: wanted.clone().any(|(field, value)| spec[field] != *value),
        };
        let refusal = takeover::judge(&present);
        if !matches!(refusal, Some(Refusal::Deleting { .. } | Refusal::Owned { .. })) {
            self.check_cluster(&found)?;
        }
        match refusal {
            None => Ok(()),
            Some(Refusal::Other(_)) if replace => {
                self.clear_others();
                Ok(())
            }
            Some(refusal) => Err(explain_refusal((namespace, name), refusal)),
        }
    }

    /// Refuses a service that is on another cluster, because a service keeps its cluster.
    fn check_cluster(&self, found: &ServiceDeployment) -> Result<()> {
        let on = &found.spec.cluster_ref.name;
        if self.service_spec["clusterRef"]["name"].as_str().unwrap_or_default() == on {
            return Ok(());
        }
        let (namespace, name) = (&self.tenant, &self.service_name);
        let told = format!(
            "service {namespace}/{name} exists already: it is on cluster {on}, and a service keeps its cluster"
        );
        Err(Failure::new(exit::CONFLICT, told)
            .next("give another name with --name NAME, or use a ServiceSet for several clusters"))
    }

    /// Clears the fields that belong to the deployment that is replaced.
    fn clear_others(&mut self) {
        for field in ["chart", "sources", "renderers", "patches", "pin"] {
            self.service_spec[field] = Value::Null;
        }
    }

    /// Checks for a dry run whether the repository can be read. The hub only asks a repository with a GitRepository, and
    /// the dry run creates none.
    pub(super) async fn check_source(&self, session: &Session) -> Result<u8> {
        let url = self.source_spec["url"].as_str().unwrap_or_default();
        let path = self.service_spec["path"].as_str().unwrap_or_default();
        let wanted = describe_reference(&self.source_spec["ref"]);
        let Some(known) = &self.known_source else {
            let why = "the hub asks a repository once its GitRepository exists";
            say(&format!(
                "not checked: whether {url} can be read and has {wanted} and folder {path}; {why}"
            ));
            return Ok(exit::YES);
        };
        let reference = &self.source_spec["ref"];
        match ["branch", "tag", "commit"]
            .iter()
            .find_map(|field| reference[*field].as_str())
        {
            // The remote is asked now.
            Some(named) => match impact::measure(session, (&self.tenant, known), named).await {
                Ok(impact) => say(&format!(
                    "{url} can be read and has {wanted}: {}",
                    text::plain(&impact.revision)
                )),
                Err(failure) if failure.is_denied() => say(&format!("not checked: whether {url} has {wanted}")),
                Err(failure) => {
                    let told = failure.evidence.unwrap_or(failure.cause);
                    say(&format!("{url} can't be deployed from: {}", text::plain(&told)));
                    return Ok(exit::NO);
                }
            },
            None if *known == self.source_name => {
                let source: GitRepository = session.get(&self.tenant, known).await?;
                let reference = SourceReference {
                    kind: SourceKind::GitRepository,
                    name: known.clone(),
                };
                let finding = explain_source(&source.into(), &reference, &self.tenant, jiff::Timestamp::now());
                say(&text::plain(&finding.sentence));
                if finding.standing == Standing::Broken {
                    return Ok(exit::NO);
                }
            }
            None => say(&format!("not checked: whether {url} has {wanted}")),
        }
        say(&format!("not checked: whether it has folder {path}"));
        Ok(exit::YES)
    }

    /// Services of one repository share its source; the same name for another repository or branch gets a suffix, so
    /// that a second `deploy` never moves what the first one stated for others.
    pub(super) async fn settle_source_name(&mut self, session: &Session) -> Result<()> {
        let stated = |spec: &Value| (spec["url"].clone(), spec["ref"].clone(), spec["secretRef"].clone());
        let wanted = stated(&self.source_spec);
        let hash = hex::encode(Sha256::digest(json!([wanted.0, wanted.1, wanted.2]).to_string()));
        let suffixed = format!("{}-{}", self.source_name, &hash[..8]);
        for name in [self.source_name.clone(), suffixed] {
            self.service_spec["sourceRef"]["name"] = name.clone().into();
            self.source_name.clone_from(&name);
            let path = format!("{}/{name}", collection("gitrepositories", &self.tenant));
            let existing = match session.read("read the source", &path).await {
                Err(failure) if failure.is_missing() => return Ok(()),
                other => other?,
            };
            let (url, reference, secret) = stated(&existing["spec"]);
            if (&url, &secret) == (&wanted.0, &wanted.2) {
                self.known_source = Some(name.clone());
            }
            if (url, reference, secret) == wanted {
                return refuse_deleted(&existing, &format!("GitRepository {}/{name}", self.tenant));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_is_not_among_the_granted_ones_is_refused() {
        let granted = json!({"metadata": {}, "items": [{"metadata": {"name": "east"}}]});
        assert!(is_granted(&granted, "east") && !is_granted(&granted, "west"));
        assert!(!is_granted(&json!({"metadata": {}, "items": []}), "east"));
        // The hub decides about clusters on later pages.
        let first_page = json!({"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "east"}}]});
        assert!(is_granted(&first_page, "west"));
        assert_eq!(
            not_granted("team-a", "west").render("farwater"),
            "farwater: no ClusterGrant lets namespace team-a deploy to a cluster west\n  next: farwater get clusters -n team-a\n"
        );
    }
}
