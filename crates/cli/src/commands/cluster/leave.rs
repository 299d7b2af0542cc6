//! Removes the agent of a cluster, and the cluster from the hub.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use farwater_api::{Cluster, IDENTITY_SECRET, SECRET_CONTENT, protocol::Keeper};
use farwater_manifests::{Agent, names::agent as names};

use super::{TargetArgs, join::identity, remove};
use crate::{
    connection::Session,
    exit,
    failure::{Failure, Result},
    scope::NamespaceArgs,
    target::Target,
    terminal::{print, say},
    text,
};

/// Time for deletions, mostly of the agent's namespace with its pod.
const GONE: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub(super) struct LeaveArgs {
    /// The cluster's name in the hub.
    pub(super) name: String,
    #[command(flatten)]
    pub(super) namespace: NamespaceArgs,
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// Remove the agent even if it may belong to another Cluster, or if the Cluster no longer exists.
    #[arg(long)]
    force: bool,
}

pub(super) async fn leave(args: &LeaveArgs, session: &Session, context: Option<&str>) -> Result<u8> {
    let (namespace, name) = (args.namespace.or_default(session), &args.name);
    let cluster = match session.get::<Cluster>(namespace, name).await {
        Err(failure) if args.force && failure.is_missing() => None,
        found => Some(found?),
    };
    if let Some(context) = context {
        let target = Target::open(args.target.cluster_kubeconfig.as_deref(), Some(context)).await?;
        uninstall(args, namespace, &target, cluster.as_ref()).await?;
    }
    if cluster.is_some() {
        remove(session, namespace, name).await?;
        say("the objects of its services stay in the cluster");
    }
    print(&format!("{namespace}/{name}\n"))?;
    Ok(exit::YES)
}

/// Removes the agent, if it belongs to that Cluster.
async fn uninstall(args: &LeaveArgs, namespace: &str, target: &Target, cluster: Option<&Cluster>) -> Result<()> {
    let agent = Agent {
        join_token: Some(String::new()),
        https_proxy: Some(String::new()),
        authorities: Some(String::new()),
        plugins: Some(String::new()),
        bind_administrator: true,
        ..Agent::default()
    };
    let objects = agent.objects();
    target.prepare_delete(&objects).await?;
    if !args.force
        && let Some(keeper) = find_keeper(target).await?
        && cluster.and_then(|cluster| cluster.metadata.uid.as_ref()) != Some(&keeper.cluster.uid)
    {
        return Err(not_this_cluster(args, namespace, target, &keeper));
    }
    for object in target.delete(&objects).await? {
        say(&format!("deleted {object} in {}", text::plain(&target.context)));
    }
    // A join right afterwards would fail in a namespace that is being deleted.
    if let Some(left) = target.wait_until_gone(&objects, GONE).await? {
        say(&format!(
            "note: still being deleted after {} s: {}",
            GONE.as_secs(),
            text::plain(&left)
        ));
    }
    Ok(())
}

/// Whose a cluster is, as its agent remembers it; none before that has joined.
pub async fn find_keeper(target: &Target) -> Result<Option<Keeper>> {
    let Some(found) = target.find(&identity()).await? else {
        return Ok(None);
    };
    let content = found.data["data"][SECRET_CONTENT]
        .as_str()
        .and_then(|text| STANDARD.decode(text).ok());
    let keeper = content.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let damaged = || {
        let secret = format!("Secret {}/{IDENTITY_SECRET} of {}", names::NAMESPACE, target.context);
        Failure::new(
            exit::CONFLICT,
            format!("{secret} is damaged: it doesn't name the agent's hub and Cluster"),
        )
        .next("give --force if it is of this Cluster")
    };
    keeper.map(Some).ok_or_else(damaged)
}

fn not_this_cluster(args: &LeaveArgs, namespace: &str, target: &Target, keeper: &Keeper) -> Failure {
    let (context, keeper) = (
        &target.context,
        format!("{}/{} of {}", keeper.cluster.namespace, keeper.cluster.name, keeper.hub),
    );
    let refused = format!(
        "{context} is not the cluster {namespace}/{} of this hub; nothing was changed",
        args.name
    );
    Failure::new(exit::CONFLICT, refused)
        .evidence(format!("its agent has joined as {keeper}"))
        .next("let it leave as that, signed in there; if that hub or Cluster is gone, give --force")
}
