//! `farwater tenant prepare`: the objects that a cluster needs before a tenant can deploy there.

use std::{collections::BTreeMap, path::PathBuf};

use farwater_api::{ADMIN_NAMESPACE, Cluster, ClusterGrant, protocol::Keeper, service_deployment::ClusterReference};
use farwater_fleet::{
    placement::{NamedGrant, cluster_candidates, grants_on},
    preparation::{self, Place, Preparation},
    words::counted,
};
use farwater_manifests::Tenant;
use kube::Api;
use serde_json::{Value, json};

use crate::{
    commands::cluster::find_keeper,
    connection::{ConnectArgs, Session, missing},
    exit,
    failure::{Failure, Result},
    format,
    program::Program,
    scope::{is_label, is_name},
    target::{Applied, Target, describe, is_ours, not_ours},
    terminal::{print, say},
    text,
};

#[derive(Debug, clap::Args)]
pub struct TenantArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Prints the objects that a tenant's services need in each granted cluster: target namespaces, the ClusterGrant's
    /// service account, and its rights. With --apply, creates them in the cluster of --context.
    Prepare(PrepareArgs),
}

#[derive(Debug, clap::Args)]
struct PrepareArgs {
    /// The tenant: a namespace of the hub.
    tenant: String,
    /// Only this cluster of the hub, NAME or NAMESPACE/NAME. Required if clusters need different objects.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Target namespaces that the ClusterGrant allows by a pattern. Namespaces without a pattern are always prepared.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    target_namespace: Vec<String>,
    /// ClusterRole for the account in the target namespaces.
    #[arg(long, value_name = "NAME", default_value = "edit")]
    cluster_role: String,
    /// Creates or updates the objects in the cluster of --context.
    #[arg(long)]
    apply: bool,
    /// Shows the changes of --apply without making them.
    #[arg(long, requires = "apply")]
    dry_run: bool,
    /// The kubeconfig with the context of --context [default: KUBECONFIG, as kubectl reads it].
    #[arg(long, value_name = "FILE", requires = "apply")]
    cluster_kubeconfig: Option<PathBuf>,
    /// Output format: YAML documents, or one List as JSON.
    #[arg(short, long, value_enum, default_value_t, conflicts_with = "apply")]
    output: Documents,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Documents {
    #[default]
    Yaml,
    Json,
}

pub async fn run(args: TenantArgs, connect: &ConnectArgs, program: Program) -> Result<u8> {
    let Action::Prepare(args) = args.action;
    check(&args, connect)?;
    // Here `--context` names the cluster. The hub is the current context of its own kubeconfig.
    let hub = ConnectArgs {
        context: None,
        ..connect.clone()
    };
    let session = Session::open(&hub, program).await?;
    let target = match args.apply {
        true => Some(Target::open(args.cluster_kubeconfig.as_deref(), connect.context.as_deref()).await?),
        false => None,
    };

    let grants = list_grants(&session).await?;
    let clusters = find_clusters(&args, &session, target.as_ref()).await?;
    let (preparation, names) = prepare(&args, &clusters, &grants)?;
    let rights = &preparation.rights;
    let objects = Tenant {
        name: &args.tenant,
        cluster_role: &args.cluster_role,
        rights,
    }
    .objects();

    match target {
        None => {
            let text = match args.output {
                Documents::Yaml => format::yaml_documents(&objects)?,
                Documents::Json => format::json(&json!({"apiVersion": "v1", "kind": "List", "items": objects}))?,
            };
            print(&text)?;
            say(&format!(
                "these objects must exist in {}",
                text::plain(&names.join(", "))
            ));
        }
        Some(target) => apply(&args, &target, &objects).await?,
    }
    if args.target_namespace.is_empty() && !preparation.patterns.is_empty() {
        let patterns: Vec<&str> = preparation.patterns.iter().map(String::as_str).collect();
        say(&format!(
            "note: the ClusterGrants also allow target namespaces {}: name those that are used with --target-namespace",
            text::plain(&patterns.join(", "))
        ));
    }
    Ok(exit::YES)
}

/// Refuses invalid combinations of options before the first request.
fn check(args: &PrepareArgs, connect: &ConnectArgs) -> Result<()> {
    if args.apply && connect.context.is_none() {
        return Err(
            Failure::usage("--apply needs the cluster to change: give --context").next("kubectl config get-contexts")
        );
    }
    if !args.apply && connect.context.is_some() {
        return Err(Failure::usage(
            "--context names the cluster that --apply changes: give both or neither",
        ));
    }
    if args.tenant == ADMIN_NAMESPACE {
        return Err(Failure::usage(format!(
            "{ADMIN_NAMESPACE} needs no ClusterGrant: `cluster join` prepares a cluster for it"
        )));
    }
    let namespaces = [&args.tenant].into_iter().chain(&args.target_namespace);
    if let Some(bad) = namespaces.into_iter().find(|namespace| !is_label(namespace)) {
        return Err(Failure::usage(format!("{bad:?} can't be a namespace")));
    }
    Ok(())
}

async fn list_grants(session: &Session) -> Result<Vec<NamedGrant>> {
    let grants = session
        .list_in(&Api::<ClusterGrant>::all(session.client.clone()))
        .await?;
    Ok(grants
        .into_iter()
        .map(|grant| (grant.metadata.name.unwrap_or_default(), grant.spec))
        .collect())
}

/// The named cluster, or all clusters of the hub.
async fn find_clusters(args: &PrepareArgs, session: &Session, target: Option<&Target>) -> Result<Vec<Cluster>> {
    let mut clusters = session.list::<Cluster>(None).await?;
    if let Some(named) = &args.cluster {
        clusters = vec![find_named(named, &args.tenant, clusters)?];
    }
    let Some(target) = target else { return Ok(clusters) };
    let keeper = match find_keeper(target).await {
        // Preparing namespaces does not need the right to read the agent's Secrets.
        Err(failure) if failure.is_denied() && args.cluster.is_some() => {
            say(&format!(
                "not checked: whether {} is that cluster; you may not read its agent's identity",
                target.context
            ));
            return Ok(clusters);
        }
        found => found?,
    };
    let found = choose_kept(clusters, keeper, &target.context, args.cluster.as_deref())?;
    Ok(vec![found])
}

/// The cluster of the hub that the agent of the context has joined as. `meant`: the cluster that was asked for.
fn choose_kept(clusters: Vec<Cluster>, keeper: Option<Keeper>, context: &str, meant: Option<&str>) -> Result<Cluster> {
    let Some(Keeper { cluster, hub }) = keeper else {
        let told = format!("{context} has no agent; nothing was changed");
        return Err(Failure::new(exit::CONFLICT, told).next("{program} cluster join NAME"));
    };
    let found = clusters
        .into_iter()
        .find(|known| known.metadata.uid.as_ref() == Some(&cluster.uid));
    found.ok_or_else(|| {
        let meant = meant.map_or_else(|| "a cluster of this hub".to_owned(), |name| format!("cluster {name}"));
        Failure::new(exit::CONFLICT, format!("{context} is not {meant}; nothing was changed")).evidence(format!(
            "its agent has joined as {}/{} of {hub}",
            cluster.namespace, cluster.name
        ))
    })
}

fn find_named(named: &str, tenant: &str, clusters: Vec<Cluster>) -> Result<Cluster> {
    let (namespace, name) = named
        .split_once('/')
        .map_or((None, named), |(namespace, name)| (Some(namespace), name));
    if !is_name(name) || namespace.is_some_and(|namespace| !is_label(namespace)) {
        return Err(Failure::usage(format!("{named:?} names no cluster")).evidence("expected NAME or NAMESPACE/NAME"));
    }
    let reference = ClusterReference {
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
    };
    let candidates = cluster_candidates(&reference, tenant);
    let is_at = |cluster: &Cluster, (namespace, name): (&str, &str)| {
        cluster.metadata.namespace.as_deref() == Some(namespace) && cluster.metadata.name.as_deref() == Some(name)
    };
    let place = candidates
        .iter()
        .find_map(|&candidate| clusters.iter().position(|cluster| is_at(cluster, candidate)));
    let known: Vec<&str> = clusters
        .iter()
        .filter_map(|cluster| cluster.metadata.name.as_deref())
        .collect();
    let absent = missing("Cluster", "clusters", namespace.unwrap_or_default(), name, &known);
    let found = place.and_then(|place| clusters.into_iter().nth(place));
    found.ok_or(absent)
}

/// The objects that all granted clusters need, and the names of these clusters.
fn prepare(args: &PrepareArgs, clusters: &[Cluster], grants: &[NamedGrant]) -> Result<(Preparation, Vec<String>)> {
    let tenant = args.tenant.as_str();
    let none = BTreeMap::new();
    let mut found: Vec<(Preparation, Vec<String>)> = Vec::new();
    for cluster in clusters {
        let metadata = &cluster.metadata;
        let labels = metadata.labels.as_ref().unwrap_or(&none);
        // Most clusters of the hub may be granted to other tenants only.
        if clusters.len() > 1 && grants_on(tenant, labels, grants).is_empty() {
            continue;
        }
        let name = metadata.name.as_deref().unwrap_or_default();
        let place = Place {
            tenant,
            cluster: name,
            cluster_labels: labels,
        };
        let needed = preparation::prepare(place, &args.target_namespace, grants).map_err(|denied| {
            Failure::new(exit::CONFLICT, denied.to_string()).next("{program} get clustergrants -o yaml")
        })?;
        let name = format!("{}/{name}", metadata.namespace.as_deref().unwrap_or_default());
        match found.iter_mut().find(|(known, _)| *known == needed) {
            Some((_, names)) => names.push(name),
            None => found.push((needed, vec![name])),
        }
    }
    if found.len() > 1 {
        let groups: Vec<String> = found.iter().map(|(_, names)| names.join(", ")).collect();
        return Err(Failure::usage(format!(
            "the clusters of {tenant} need different objects: name one with --cluster"
        ))
        .evidence(groups.join("; ")));
    }
    let Some((needed, names)) = found.pop() else {
        return Err(Failure::new(
            exit::CONFLICT,
            format!("no ClusterGrant lets namespace {tenant} deploy to a cluster"),
        )
        .evidence(format!(
            "the hub has {} and {}",
            counted(clusters.len(), "cluster"),
            counted(grants.len(), "ClusterGrant")
        ))
        .next("{program} get clustergrants,clusters -A --show-labels"));
    };
    if needed.rights.is_empty() {
        let patterns: Vec<&str> = needed.patterns.iter().map(String::as_str).collect();
        return Err(Failure::usage(
            "no target namespace is known: name those that the tenant uses with --target-namespace",
        )
        .evidence(format!("the ClusterGrants of {tenant} allow {}", patterns.join(", "))));
    }
    Ok((needed, names))
}

async fn apply(args: &PrepareArgs, target: &Target, objects: &[Value]) -> Result<()> {
    target.require_writable(objects).await?;
    for binding in objects.iter().filter(|object| object["kind"] == "RoleBinding") {
        check_binding(target, binding).await?;
    }
    for object in objects {
        if object["kind"] == "ServiceAccount" && is_of_others(target, object).await? {
            print(&format!(
                "kept {}, which exists and is not of Farwater\n",
                describe(object)
            ))?;
            continue;
        }
        let done = match (target.apply_one(object, args.dry_run).await?, args.dry_run) {
            (Applied::Made, false) => "made",
            (Applied::Made, true) => "would make",
            (Applied::Changed, false) => "changed",
            (Applied::Changed, true) => "would change",
            (Applied::Unchanged, _) => "unchanged:",
        };
        print(&format!("{done} {}\n", describe(object)))?;
    }
    Ok(())
}

/// Whether an account exists that others made. Pods may use it, so its fields stay as they are.
async fn is_of_others(target: &Target, account: &Value) -> Result<bool> {
    Ok(target
        .find(account)
        .await?
        .is_some_and(|found| !is_ours(&found.metadata)))
}

/// Refuses a binding to another role, because Kubernetes does not let that be changed.
async fn check_binding(target: &Target, binding: &Value) -> Result<()> {
    let Some(found) = target.find(binding).await? else {
        return Ok(());
    };
    let name = describe(binding);
    if !is_ours(&found.metadata) {
        return Err(not_ours(&name));
    }
    let (role, wanted) = (&found.data["roleRef"], &binding["roleRef"]);
    if role == wanted {
        return Ok(());
    }
    let of = |role: &Value| role["name"].as_str().unwrap_or_default().to_owned();
    let metadata = &binding["metadata"];
    let place = |field: &str| metadata[field].as_str().unwrap_or_default();
    Err(Failure::new(
        exit::CONFLICT,
        format!(
            "{name} gives ClusterRole {}, not {}; nothing was changed",
            of(role),
            of(wanted)
        ),
    )
    .evidence("Kubernetes does not let the role of a binding be changed")
    .next(format!(
        "kubectl --context {} -n {} delete rolebinding {}, or give --cluster-role {}",
        target.context,
        place("namespace"),
        place("name"),
        of(role)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(name: &str, uid: &str) -> Cluster {
        let metadata = json!({"name": name, "namespace": "fleet", "uid": uid});
        let object =
            json!({"apiVersion": "farwater.dev/v1alpha1", "kind": "Cluster", "metadata": metadata, "spec": {}});
        serde_json::from_value(object).unwrap()
    }

    fn keeper(name: &str, uid: &str) -> Keeper {
        let cluster = json!({"namespace": "fleet", "name": name, "uid": uid});
        serde_json::from_value(json!({"hub": "https://hub.example.com", "cluster": cluster})).unwrap()
    }

    #[test]
    fn a_context_without_an_agent_of_a_granted_cluster_is_not_prepared() {
        let choose = |keeper, meant: Option<&str>| {
            let clusters = vec![cluster("east", "1"), cluster("west", "2")];
            let chosen = choose_kept(clusters, keeper, "kind-a", meant);
            chosen
                .map(|cluster| cluster.metadata.name.unwrap())
                .map_err(|failure| failure.render("farwater"))
        };
        assert_eq!(choose(Some(keeper("west", "2")), None), Ok("west".to_owned()));
        let none = "farwater: kind-a has no agent; nothing was changed\n  next: farwater cluster join NAME\n";
        assert_eq!(choose(None, None), Err(none.to_owned()));
        // Another hub's cluster, or an earlier one of the same name.
        let other = "farwater: kind-a is not cluster east; nothing was changed\n  its agent has joined as fleet/east of https://hub.example.com\n";
        assert_eq!(choose(Some(keeper("east", "9")), Some("east")), Err(other.to_owned()));
    }
}
