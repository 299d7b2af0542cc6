//! Shared parts of Kustomizations and HelmReleases.

use serde_json::{Map, Value, json};

use super::{
    super::{
        ADMIN_NAMESPACE, Converted, Fields, NotConverted, Place, Told, drift, find, metadata, name_of, namespace_of,
        service::Service,
    },
    Input, KEEPERS, KEPT, group_of, source,
};

/// Fields that ours do not need.
const NEEDLESS: &str =
    "no counterpart is needed: clusters are watched, failures are tried again, and each object's health counts";

/// The service that an object becomes, and its target.
pub(super) fn begin(
    object: &Value,
    spec: &mut Fields,
    input: &mut Input<'_>,
    told: &mut Told,
) -> Result<Service, NotConverted> {
    if namespace_of(object).is_empty() {
        let why = "it is missing; take the object as the cluster has it, with `kubectl get -o yaml`";
        return Err(NotConverted::impossible("metadata.namespace", why));
    }
    let place = place(spec, input)?;
    let namespace = input.namespace(namespace_of(object)).to_owned();
    let name = format!("{}{}", name_of(object), input.terms.name_suffix);
    let metadata = metadata(&object["metadata"], &KEEPERS, KEPT, told);
    let mut service = Service::new(metadata, name, namespace, place);
    claim(object, &service, input)?;
    if spec.flag("suspend")? {
        service.suspended = Some(("spec.suspend".to_owned(), "it was suspended in Flux"));
    }
    account(spec, object, &service, told)?;
    common_metadata(spec, &mut service, told)?;
    spec.pass(&["interval", "retryInterval", "timeout"], NEEDLESS, told);
    Ok(service)
}

fn claim(object: &Value, service: &Service, input: &mut Input<'_>) -> Result<(), NotConverted> {
    let shown = format!(
        "{} {}/{}",
        object["kind"].as_str().unwrap_or_default(),
        namespace_of(object),
        name_of(object)
    );
    // People would confuse a set and a service of one name.
    input
        .taken
        .claim(("ServiceDeployment", &service.namespace, &service.name), &shown, &shown)
}

fn place(spec: &mut Fields, input: &Input<'_>) -> Result<Place, NotConverted> {
    let mut config = spec.map("kubeConfig")?;
    let path = config.path.clone();
    if config.is_empty() {
        let why = "objects of Flux don't say which cluster they are of; name it with --cluster, or several with --cluster-selector";
        return input
            .terms
            .place
            .clone()
            .ok_or_else(|| NotConverted::impossible("spec", why));
    }
    let mut name = String::new();
    for field in ["secretRef", "configMapRef"] {
        if let Some(text) = config.map(field)?.text("name")? {
            name = text;
        }
    }
    match input.terms.clusters.get(&name) {
        Some(cluster) => Ok(Place::Cluster(cluster.clone())),
        None => Err(NotConverted::impossible(
            path,
            format!("it goes to another cluster, that of {name}; say which with --remote {name}=CLUSTER"),
        )),
    }
}

/// The grant determines the service account.
fn account(spec: &mut Fields, object: &Value, service: &Service, told: &mut Told) -> Result<(), NotConverted> {
    let path = spec.at("serviceAccountName");
    let Some(name) = spec.text("serviceAccountName")? else {
        return Ok(());
    };
    if service.namespace == ADMIN_NAMESPACE {
        let why = format!(
            "services of {ADMIN_NAMESPACE} act with all rights of the agent; convert it into another namespace, with -n"
        );
        told.lose(&path, why);
    } else {
        let account = format!("{}/{name}", namespace_of(object));
        told.note(
            &path,
            format!(
                "the ClusterGrant of namespace {} has to name {account}",
                service.namespace
            ),
        );
    }
    Ok(())
}

fn common_metadata(spec: &mut Fields, service: &mut Service, told: &mut Told) -> Result<(), NotConverted> {
    let mut common = spec.map("commonMetadata")?;
    let mut texts = |name: &str| match common.take(name) {
        Value::Object(texts) => texts,
        _ => Map::new(),
    };
    let (labels, annotations) = (texts("labels"), texts("annotations"));
    common.finish(told);
    service
        .patches
        .extend(super::super::patches::of_metadata(labels, annotations));
    Ok(())
}

/// A source by reference. It must be in the service's own namespace of the hub.
pub(super) struct Reference {
    pub kind: String,
    pub name: String,
    /// A copy for that namespace, if the source itself is converted into another one.
    pub copy: Vec<Value>,
}

pub(super) fn source(
    mut reference: Fields,
    object: &Value,
    service: &Service,
    input: &mut Input<'_>,
    told: &mut Told,
) -> Result<Reference, NotConverted> {
    let path = reference.path.clone();
    reference.take("apiVersion");
    let kind = reference.text("kind")?.unwrap_or_default();
    let name = reference.text("name")?.unwrap_or_default();
    let namespace = reference
        .text("namespace")?
        .unwrap_or_else(|| namespace_of(object).to_owned());
    reference.finish(told);
    if !["GitRepository", "HelmRepository", "OCIRepository"].contains(&kind.as_str()) {
        let why = format!(
            "{} is no kind of source here; files come from Git, Helm or a registry",
            super::short(&kind)
        );
        return Err(NotConverted::impossible(path, why));
    }
    let shown = format!("{kind} {namespace}/{name}");
    let Some(theirs) = find(input.objects, source::FLUX_GROUP, &kind, &namespace, &name) else {
        input.taken.claim((&kind, &service.namespace, &name), &shown, &shown)?;
        told.note(
            &path,
            format!(
                "{shown} of the cluster has to be in namespace {} of the hub, under this name",
                service.namespace
            ),
        );
        return Ok(Reference {
            kind,
            name,
            copy: Vec::new(),
        });
    };
    let converted = convert_source(theirs, (&path, &shown), &service.namespace, input)?;
    let is_elsewhere = input.namespace(&namespace) != service.namespace;
    if is_elsewhere {
        told.note(
            &path,
            format!("{shown} is written into namespace {} of the hub too", service.namespace),
        );
        converted
            .notes
            .iter()
            .filter(|note| note.contains(": Secret "))
            .for_each(|note| told.note(&path, note));
    }
    Ok(Reference {
        kind,
        name,
        copy: if is_elsewhere { converted.objects } else { Vec::new() },
    })
}

impl Reference {
    pub fn to_json(&self) -> Value {
        json!({"kind": self.kind, "name": self.name})
    }
}

/// Converts a source of the cluster for a namespace of the hub. Unless losses are allowed, none may be in it.
fn convert_source(
    theirs: &Value,
    (path, shown): (&str, &str),
    namespace: &str,
    input: &mut Input<'_>,
) -> Result<Converted, NotConverted> {
    let converted = source::place_in(namespace, theirs, input)
        .map_err(|why| NotConverted::impossible(path, format!("{shown} is not converted: {why}")))?;
    if !converted.losses.is_empty() && !input.terms.allow_losses {
        return Err(NotConverted::impossible(
            path,
            format!("{shown} is not converted: {}", converted.losses.join("; ")),
        ));
    }
    Ok(converted)
}

/// `dependsOn`, of objects of the same kind.
pub(super) fn depends_on(
    spec: &mut Fields,
    object: &Value,
    service: &mut Service,
    input: &Input<'_>,
    told: &mut Told,
) -> Result<(), NotConverted> {
    let mut all: Vec<Value> = Vec::new();
    for mut other in spec.maps("dependsOn")? {
        let path = other.path.clone();
        let name = other.text("name")?.unwrap_or_default();
        let namespace = other
            .text("namespace")?
            .unwrap_or_else(|| namespace_of(object).to_owned());
        if other.text("readyExpr")?.is_some() {
            told.lose(
                &other.at("readyExpr"),
                "uses other names than ours, where `self` is the dependency; state it in spec.dependsOn of the service",
            );
        }
        other.finish(told);
        if input.namespace(&namespace) != service.namespace {
            let why = format!(
                "{namespace}/{name} is in another namespace of the hub, and services wait for those of their own; convert all into one, with -n"
            );
            told.lose(&path, why);
            continue;
        }
        let theirs = find(
            input.objects,
            group_of(object),
            object["kind"].as_str().unwrap_or_default(),
            &namespace,
            &name,
        );
        let is_remote = theirs.is_some_and(|theirs| !theirs["spec"]["kubeConfig"].is_null());
        let kind = match &input.terms.place {
            Some(Place::Clusters(_)) if !is_remote => "ServiceSet",
            _ => "ServiceDeployment",
        };
        let reference = json!({"kind": kind, "name": format!("{name}{}", input.terms.name_suffix)});
        if !all.contains(&reference) {
            all.push(reference);
        }
    }
    if !all.is_empty() {
        service.set("dependsOn", all);
    }
    Ok(())
}

/// Drift rules as `ignoreDifferences`. `lost` receives the rules that have no counterpart.
pub(super) fn ignored(
    rules: Vec<Fields>,
    service: &mut Service,
    told: &mut Told,
    lost: impl FnMut(&str, &mut Told),
) -> Result<(), NotConverted> {
    let rules = drift::flux_rules(rules, told, lost)?;
    if !rules.is_empty() {
        service.apply.insert("ignoreDifferences".to_owned(), rules.into());
    }
    Ok(())
}

/// A converted service keeps its objects when it is deleted, until its `deletionPolicy` is changed.
pub(super) const DELETION: &str = "deleting the service leaves its objects where they are, so that going back is safe; \
     spec.deletionPolicy: Delete says otherwise";
