//! `farwater cluster join` and `leave`: installs or removes the agent of a cluster; and shows the key to encrypt to it.

mod join;
mod leave;

use std::path::PathBuf;

use http::Method;

use crate::{
    connection::{ConnectArgs, Session},
    exit,
    failure::{Failure, Result},
    program::Program,
    scope::NamespaceArgs,
    terminal::{print, say},
    text,
};
use join::{JoinArgs, join};
use leave::{LeaveArgs, leave};

pub use leave::find_keeper;

#[derive(Debug, clap::Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Installs the agent into the cluster of --context and waits until it connects. Without --context, prints a
    /// one-time command that joins a cluster. Creates the Cluster if it is missing.
    Join(Box<JoinArgs>),
    /// Removes the agent from the cluster of --context, and the Cluster from the hub. The objects of services stay.
    Leave(LeaveArgs),
    /// Prints the cluster's age recipient. Only its agent can open files that SOPS encrypts to it.
    AgeKey(AgeKeyArgs),
}

#[derive(Debug, clap::Args)]
struct AgeKeyArgs {
    /// The cluster's name in the hub.
    name: String,
    #[command(flatten)]
    namespace: NamespaceArgs,
}

/// The cluster itself; `--context` names it.
#[derive(Debug, clap::Args)]
struct TargetArgs {
    /// The kubeconfig with the context of --context [default: KUBECONFIG, as kubectl reads it].
    #[arg(long, value_name = "FILE")]
    cluster_kubeconfig: Option<PathBuf>,
}

pub async fn run(args: ClusterArgs, connect: &ConnectArgs, program: Program) -> Result<u8> {
    // `--context` is that of the cluster here; the hub is the current context of its own kubeconfig.
    let hub = ConnectArgs {
        context: None,
        ..connect.clone()
    };
    let session = Session::open(&hub, program).await?;
    let context = connect.context.as_deref();
    match args.action {
        Action::Join(args) => join(&args, &session, context).await,
        Action::Leave(args) => leave(&args, &session, context).await,
        Action::AgeKey(_) if context.is_some() => {
            Err(Failure::usage("the hub knows the key: this command takes no --context"))
        }
        Action::AgeKey(args) => show_age_key(&args, &session).await,
    }
}

async fn show_age_key(args: &AgeKeyArgs, session: &Session) -> Result<u8> {
    let (namespace, name) = (args.namespace.or_default(session), &args.name);
    let path = format!(
        "/apis/{}/{}/namespaces/{namespace}/clusters/{name}",
        farwater_api::GROUP,
        farwater_api::VERSION
    );
    let cluster = session.read(&format!("read Cluster {namespace}/{name}"), &path).await?;
    let Some(recipient) = cluster["status"]["ageRecipient"].as_str() else {
        return Err(Failure::new(
            exit::CONFLICT,
            format!("Cluster {namespace}/{name} has no key yet: no agent has joined"),
        )
        .next(format!("{{program}} cluster join {name} -n {namespace}")));
    };
    print(&format!("{}\n", text::plain(recipient)))?;
    Ok(exit::YES)
}

async fn remove(session: &Session, namespace: &str, name: &str) -> Result<()> {
    let path = format!(
        "/apis/{}/{}/namespaces/{namespace}/clusters/{name}",
        farwater_api::GROUP,
        farwater_api::VERSION
    );
    let attempt = format!("delete Cluster {namespace}/{name}");
    session
        .ask(&attempt, Method::DELETE, &path, "application/json", None)
        .await?;
    say(&format!("deleted Cluster {namespace}/{name}"));
    Ok(())
}
