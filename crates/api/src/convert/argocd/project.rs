//! Converts an AppProject to ClusterGrants: targets and kinds of a tenant with the project's name.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    super::{Converted, Fields, NotConverted, Place, Told, name_of, namespace_of, ours},
    Input,
};

/// Label by which a grant selects one cluster.
const LABEL: &str = "cluster";
/// Kubernetes' own cluster-scoped kinds, as `Kind.group`.
const CLUSTER_SCOPED: [&str; 31] = [
    "APIService.apiregistration.k8s.io",
    "CSIDriver.storage.k8s.io",
    "CSINode.storage.k8s.io",
    "CertificateSigningRequest.certificates.k8s.io",
    "ClusterRole.rbac.authorization.k8s.io",
    "ClusterRoleBinding.rbac.authorization.k8s.io",
    "ClusterTrustBundle.certificates.k8s.io",
    "ComponentStatus",
    "CustomResourceDefinition.apiextensions.k8s.io",
    "DeviceClass.resource.k8s.io",
    "FlowSchema.flowcontrol.apiserver.k8s.io",
    "IPAddress.networking.k8s.io",
    "IngressClass.networking.k8s.io",
    "MutatingAdmissionPolicy.admissionregistration.k8s.io",
    "MutatingAdmissionPolicyBinding.admissionregistration.k8s.io",
    "MutatingWebhookConfiguration.admissionregistration.k8s.io",
    "Namespace",
    "Node",
    "PersistentVolume",
    "PriorityClass.scheduling.k8s.io",
    "PriorityLevelConfiguration.flowcontrol.apiserver.k8s.io",
    "ResourceSlice.resource.k8s.io",
    "RuntimeClass.node.k8s.io",
    "ServiceCIDR.networking.k8s.io",
    "StorageClass.storage.k8s.io",
    "StorageVersionMigration.storagemigration.k8s.io",
    "ValidatingAdmissionPolicy.admissionregistration.k8s.io",
    "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io",
    "ValidatingWebhookConfiguration.admissionregistration.k8s.io",
    "VolumeAttachment.storage.k8s.io",
    "VolumeAttributesClass.storage.k8s.io",
];

pub(super) fn convert(object: &Value, input: &mut Input<'_>) -> Result<Converted, NotConverted> {
    let mut told = Told::default();
    let mut spec = Fields::new("spec", object["spec"].clone())?;
    let project = name_of(object);
    let namespace = input.namespace(project);
    if namespace.contains('.') || namespace.len() > 63 {
        return Err(NotConverted::impossible(
            "metadata.name",
            "no namespace can be called so; name one with -n",
        ));
    }

    let mut grant = Map::from_iter([
        ("namespaces".to_owned(), json!([namespace])),
        ("verbs".to_owned(), json!(["deploy"])),
    ]);
    if let Some(prefixes) = sources(&mut spec, &mut told)? {
        grant.insert("allowedSources".to_owned(), json!(prefixes));
    }
    kinds(&mut spec, &mut grant, &mut told)?;
    grant.insert(
        "serviceAccountName".to_owned(),
        account(&mut spec, input, &mut told)?.into(),
    );
    let clusters = destinations(&mut spec, input, &mut told)?;
    others(&mut spec, &namespace, &mut told);
    spec.finish(&mut told);

    let mut objects = Vec::new();
    let is_only = clusters.len() == 1;
    for (cluster, targets) in clusters {
        let mut grant = grant.clone();
        let selector = cluster
            .as_ref()
            .map_or_else(|| json!({}), |name| json!({"matchLabels": {LABEL: name}}));
        grant.insert("clusterSelector".to_owned(), selector);
        if let Some(targets) = targets {
            grant.insert("targetNamespaces".to_owned(), json!(targets));
        }
        let name = match &cluster {
            Some(cluster) if !is_only => format!("{project}-{cluster}"),
            _ => project.to_owned(),
        };
        let shown = format!("AppProject {}/{project}", namespace_of(object));
        input.taken.claim(("ClusterGrant", "", &name), &shown, &shown)?;
        objects.push(ours("ClusterGrant", json!({"name": name}), grant.into()));
    }
    Ok(told.with(objects))
}

/// Prefixes of addresses. None: any.
fn sources(spec: &mut Fields, told: &mut Told) -> Result<Option<Vec<String>>, NotConverted> {
    let path = spec.at("sourceRepos");
    let repositories = spec.texts("sourceRepos")?;
    if repositories.is_empty() {
        return Err(NotConverted::impossible(
            path,
            "it allows no repository, and a grant that says nothing of them allows all",
        ));
    }
    let mut prefixes = Vec::new();
    for repository in &repositories {
        if matches!(repository.as_str(), "*" | "**") {
            if repositories.iter().any(|other| other.starts_with('!')) {
                return Err(NotConverted::impossible(
                    path,
                    "a grant can't say «all but»; name the repositories that are allowed",
                ));
            }
            return Ok(None);
        }
        let prefix = repository.strip_suffix("/**").or_else(|| repository.strip_suffix("/*"));
        let body = prefix.unwrap_or(repository);
        if body.contains(['*', '?', '[', '{', '!']) {
            let why = format!(
                "{} can't be said: a grant has addresses, or beginnings of them",
                super::short(repository)
            );
            return Err(NotConverted::impossible(path, why));
        }
        match prefix {
            Some(prefix) => {
                told.note(
                    &path,
                    format!("{} allows all that is below it, at any depth", super::short(repository)),
                );
                prefixes.push(format!("{prefix}/"));
            }
            None => prefixes.push(body.trim_end_matches(".git").to_owned()),
        }
    }
    Ok(Some(prefixes))
}

fn kinds(spec: &mut Fields, grant: &mut Map<String, Value>, told: &mut Told) -> Result<(), NotConverted> {
    let cluster_path = spec.at("clusterResourceWhitelist");
    let cluster = read_kinds(spec, "clusterResourceWhitelist")?;
    let has_list = !spec.is_absent("namespaceResourceWhitelist");
    let namespaced = read_kinds(spec, "namespaceResourceWhitelist")?;
    let mut denied: Vec<String> = Vec::new();
    for name in ["clusterResourceBlacklist", "namespaceResourceBlacklist"] {
        match read_kinds(spec, name)? {
            Kinds::All => {
                return Err(NotConverted::impossible(
                    spec.at(name),
                    "it denies all kinds, so that nothing can be deployed",
                ));
            }
            // Without its group, kinds of the same name in other groups are denied too. That is safer than denying too
            // few.
            Kinds::Some(kinds) => denied.extend(kinds.into_iter().map(|kind| kind.trim_end_matches('.').to_owned())),
        }
    }
    match (namespaced, cluster) {
        (Kinds::Some(namespaced), Kinds::Some(cluster)) if has_list => {
            grant.insert("allowedKinds".to_owned(), json!([namespaced, cluster].concat()));
        }
        (Kinds::Some(_), Kinds::All) if has_list => {
            let why = "all kinds without a namespace and only some with one can't be said; name those without";
            return Err(NotConverted::impossible(cluster_path, why));
        }
        (_, Kinds::All) => {}
        (_, Kinds::Some(allowed)) => {
            let is_allowed = |kind: &&str| allowed.iter().any(|allowed| allowed.trim_end_matches('.') == *kind);
            denied.extend(
                CLUSTER_SCOPED
                    .iter()
                    .filter(|kind| !is_allowed(kind))
                    .map(ToString::to_string),
            );
            told.note(
                &cluster_path,
                "Kubernetes' other kinds without a namespace are denied by name; of custom ones the account must have no right",
            );
        }
    }
    denied.sort();
    denied.dedup();
    if !denied.is_empty() {
        grant.insert("deniedKinds".to_owned(), json!(denied));
    }
    Ok(())
}

enum Kinds {
    All,
    /// `Kind.group`, or `Kind.` for the core group.
    Some(Vec<String>),
}

fn read_kinds(spec: &mut Fields, name: &str) -> Result<Kinds, NotConverted> {
    let mut kinds = Vec::new();
    for mut item in spec.maps(name)? {
        let (group, kind) = (
            item.text("group")?.unwrap_or_default(),
            item.text("kind")?.unwrap_or_default(),
        );
        let is_named = item.text("name")?.is_some() || !item.is_empty();
        if (group.as_str(), kind.as_str()) == ("*", "*") && !is_named {
            return Ok(Kinds::All);
        }
        if is_named || format!("{group}{kind}").contains(['*', '?', '[', '{']) {
            let why = "a grant names kinds with their groups, without wildcards and names of objects";
            return Err(NotConverted::impossible(item.path, why));
        }
        kinds.push(format!("{kind}.{group}"));
    }
    Ok(Kinds::Some(kinds))
}

/// Service account that applies the services.
fn account(spec: &mut Fields, input: &Input<'_>, told: &mut Told) -> Result<String, NotConverted> {
    let path = spec.at("destinationServiceAccounts");
    let mut accounts: Vec<String> = Vec::new();
    for mut one in spec.maps("destinationServiceAccounts")? {
        let account = one.text("defaultServiceAccount")?.unwrap_or_default().replace(':', "/");
        one.take("server");
        one.take("namespace");
        one.finish(told);
        if !accounts.contains(&account) {
            accounts.push(account);
        }
    }
    match accounts.as_slice() {
        [] => {
            let account = &input.terms.service_account;
            told.note(
                "spec.destinations",
                format!(
                    "services act as account {account} of their target namespace, which has to be there with its rights"
                ),
            );
            Ok(account.clone())
        }
        [account] => Ok(account.clone()),
        _ => Err(NotConverted::impossible(
            path,
            "a grant names one account; make one grant for each of these by hand",
        )),
    }
}

/// Namespaces by cluster. No cluster: all clusters. No namespaces: all namespaces.
type Destinations = BTreeMap<Option<String>, Option<Vec<String>>>;

fn destinations(spec: &mut Fields, input: &Input<'_>, told: &mut Told) -> Result<Destinations, NotConverted> {
    let mut clusters = Destinations::new();
    for mut destination in spec.maps("destinations")? {
        let path = destination.path.clone();
        let (name, server) = (destination.text("name")?, destination.text("server")?);
        let namespace = destination.text("namespace")?.unwrap_or_default();
        destination.finish(told);
        let stated = name.filter(|name| name != "*" || server.is_none()).or(server);
        let stated = stated.ok_or_else(|| NotConverted::impossible(&path, "it names no cluster"))?;
        if (stated != "*" && stated.contains('*')) || stated.starts_with('!') || namespace.starts_with('!') {
            return Err(NotConverted::impossible(
                path,
                "a grant can't say «all but», nor part of an address",
            ));
        }
        let cluster = if stated == "*" {
            None
        } else {
            Some(cluster_name(&stated, input).map_err(|why| NotConverted::impossible(&path, why))?)
        };
        if let Some(name) = &cluster {
            told.note(
                &path,
                format!("label it: kubectl label clusters.farwater.dev/{name} -n CLUSTER-NAMESPACE {LABEL}={name}"),
            );
        }
        let head = namespace.strip_suffix('*').unwrap_or(&namespace);
        if namespace.is_empty() || head.contains(['*', '?', '[', '{']) {
            return Err(NotConverted::impossible(
                path,
                "a grant has names of namespaces, or their beginnings with a * behind them",
            ));
        }
        let targets = clusters.entry(cluster).or_insert_with(|| Some(Vec::new()));
        if namespace == "*" {
            *targets = None;
        } else if let Some(targets) = targets {
            targets.push(namespace);
        }
    }
    if clusters.is_empty() {
        return Err(NotConverted::impossible(
            "spec.destinations",
            "it names none, so that nothing can be deployed",
        ));
    }
    Ok(clusters)
}

/// Name of one cluster, as the value of a label.
fn cluster_name(stated: &str, input: &Input<'_>) -> Result<String, String> {
    match input.cluster(stated)? {
        Place::Cluster(cluster) if cluster.name.len() <= 63 => Ok(cluster.name),
        Place::Cluster(_) => Err("its name is too long for a label".to_owned()),
        Place::Clusters(_) => Err("it is several clusters".to_owned()),
    }
}

fn others(spec: &mut Fields, namespace: &str, told: &mut Told) {
    spec.pass(&["description"], "no counterpart: only people read it", told);
    spec.pass(
        &["roles"],
        &format!("are RoleBindings of the hub in namespace {namespace}"),
        told,
    );
    spec.pass(
        &["sourceNamespaces"],
        "no counterpart: a service is of the namespace that it is in",
        told,
    );
    spec.pass(
        &["orphanedResources"],
        "no counterpart: objects that a service has not applied are ignored",
        told,
    );
    spec.lose(&["syncWindows"], "become ChangeWindows; write them by hand", told);
    spec.lose(
        &["signatureKeys"],
        "become spec.verify of each GitRepository; state them there",
        told,
    );
    spec.lose(
        &["permitOnlyProjectScopedClusters"],
        "has no counterpart; let the grants select only such clusters",
        told,
    );
}
