//! Joins a cluster: makes it in the hub, and installs its agent.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use farwater_api::{Cluster, IDENTITY_SECRET};
use farwater_bundle::yaml::{self, Budget};
use farwater_manifests::{Agent, Limits, Mounts, names::agent as names};
use farwater_render::Plugins;
use http::Method;
use serde_json::{Value, json};

use super::{TargetArgs, remove};
use crate::{
    connection::Session,
    exit,
    failure::{Failure, Result},
    format::{self, Answer},
    pods::Pods,
    scope::{NamespaceArgs, is_label, is_name, parse_label},
    target::{Right, Target},
    terminal::{print, say},
    text,
};

/// Most bytes of a file in a ConfigMap, with some room for other fields.
const MAX_CONFIG_MAP: usize = 1_000_000;

#[derive(Debug, clap::Args)]
pub(super) struct JoinArgs {
    /// The cluster's name in the hub.
    pub(super) name: String,
    #[command(flatten)]
    pub(super) namespace: NamespaceArgs,
    /// Labels of a new Cluster, for example `env=prod,region=eu`.
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = parse_label, value_delimiter = ',')]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// The agent's image.
    #[arg(long, value_name = "IMAGE", default_value = concat!("localhost/farwater/agent:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// HTTP proxy between agent and hub, http://[USER:PASSWORD@]HOST:PORT; kept in a Secret.
    #[arg(long, value_name = "URL")]
    pub(super) https_proxy: Option<String>,
    /// PEM file of further authorities that the agent trusts for the hub, for example a company's TLS proxy.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// YAML file of the plugins that services may use as renderers; kept in a ConfigMap.
    #[arg(long, value_name = "FILE")]
    pub(super) plugins: Option<PathBuf>,
    /// YAML file with initContainers, volumes and volumeMounts that bring plugins into the agent's pod.
    #[arg(long, value_name = "FILE")]
    mounts: Option<PathBuf>,
    /// Service accounts that services may use, as NAMESPACE/NAME with `*`. The hub can't extend this. Accounts of
    /// kube-system, kube-public and kube-node-lease need the full namespace [default: */*].
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    allow_accounts: Vec<String>,
    /// Namespaces that services may change, with `*`. The hub can't extend this. kube-system, kube-public and
    /// kube-node-lease need their full names [default: *].
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    allow_namespaces: Vec<String>,
    /// Kinds that services may not change: RESOURCE[.GROUP] with `*`. The hub can't allow them.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    deny_kinds: Vec<String>,
    /// Maximum number of objects per minute that the agent deletes [default: 1000].
    #[arg(long, value_name = "N")]
    max_deletions: Option<u32>,
    /// Print the agent's objects, for Git, and change nothing in the cluster. Their Secret contains the one-time token.
    #[arg(long)]
    pub(super) print: bool,
    /// How long to wait for the agent, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    timeout: u64,
    /// Output format: only the command, or the hub's whole answer.
    #[arg(short, long, value_enum, default_value_t)]
    output: Answer,
}

pub(super) async fn join(args: &JoinArgs, session: &Session, context: Option<&str>) -> Result<u8> {
    // Check before anything is created in the hub.
    let stated = args.stated()?;
    check_options(args, context)?;
    let target = match context {
        Some(context) => Some(Target::open(args.target.cluster_kubeconfig.as_deref(), Some(context)).await?),
        None => None,
    };
    let namespace = args.namespace.or_default(session);
    check_name(namespace, &args.name)?;
    if let Some(target) = target.as_ref().filter(|_| !args.print) {
        prepare_target(target, &stated).await?;
    }

    let is_new = ensure_cluster(args, session, namespace).await?;
    let answer = make_token(session, namespace, &args.name).await?;
    let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
    let agent = Agent {
        hub: text("hub"),
        ca_pin: text("caPin"),
        join_token: Some(text("token")),
        ..stated
    };

    if args.print {
        print(&format::yaml_documents(&agent.objects())?)?;
        return Ok(exit::YES);
    }
    if let Some(target) = target {
        if let Err(refused) = refuse_other_hub(&target, &agent).await {
            if is_new {
                remove(session, namespace, &args.name).await?;
            }
            return Err(refused);
        }
        install(args, session, namespace, &target, &agent).await?;
        return Ok(exit::YES);
    }
    match args.output {
        Answer::Json => print(&format::json(&answer)?)?,
        Answer::Yaml => print(&format::yaml(&answer)?)?,
        Answer::Text => show_command(session, namespace, &args.name, &answer)?,
    }
    Ok(exit::YES)
}

/// Refuses options of an installed agent if the command installs none.
fn check_options(args: &JoinArgs, context: Option<&str>) -> Result<()> {
    if !args.is_for_a_pod() || context.is_some() || args.print {
        return Ok(());
    }
    Err(Failure::usage(
        "--https-proxy, --ca-file, --plugins, --mounts and limits are for an agent that is installed: give --context or --print",
    )
    .next("an agent elsewhere has its variable HTTPS_PROXY and options of its own: --ca-file, --plugins, --allow-accounts"))
}

/// Checks the names before paths of the hub are made of them.
fn check_name(namespace: &str, name: &str) -> Result<()> {
    if is_name(name) && is_label(namespace) {
        return Ok(());
    }
    Err(Failure::usage(format!("{namespace}/{name} can't name a cluster"))
        .evidence("names are lower-case letters, digits, '-' and '.'"))
}

/// Checks that the agent can be installed in the cluster, with placeholders for the values that the hub gives later.
async fn prepare_target(target: &Target, stated: &Agent) -> Result<()> {
    let places = Agent {
        join_token: Some(String::new()),
        ..stated.clone()
    };
    let further = [
        // To explain why its pod doesn't start.
        Right::new("list", "", "pods", names::NAMESPACE),
        // To remove an agent that has never joined.
        Right::new("delete", "apps", "deployments", names::NAMESPACE),
    ];
    target.prepare(&places.objects(), &further).await
}

/// Creates the Cluster if it is missing. Returns whether it was.
async fn ensure_cluster(args: &JoinArgs, session: &Session, namespace: &str) -> Result<bool> {
    let name = &args.name;
    let path = format!("{}/{name}", clusters(namespace));
    match session.read(&format!("read Cluster {namespace}/{name}"), &path).await {
        Ok(cluster) => {
            warn_if_joined(name, &cluster);
            Ok(false)
        }
        Err(failure) if failure.is_missing() => {
            create(args, session, namespace).await?;
            Ok(true)
        }
        Err(failure) => Err(failure),
    }
}

/// The path of a namespace's Clusters.
fn clusters(namespace: &str) -> String {
    format!(
        "/apis/{}/{}/namespaces/{namespace}/clusters",
        farwater_api::GROUP,
        farwater_api::VERSION
    )
}

/// Returns the hub's answer with the token and the hub's address.
async fn make_token(session: &Session, namespace: &str, name: &str) -> Result<Value> {
    let attempt = format!("make a join token for {namespace}/{name}");
    let path = format!("{}/{name}/join", clusters(namespace));
    session
        .ask(&attempt, Method::POST, &path, "application/json", Some(&json!({})))
        .await
}

/// Prints the hub's command, which starts an agent that this command does not install.
fn show_command(session: &Session, namespace: &str, name: &str, answer: &Value) -> Result<()> {
    let command = answer["command"].as_str().ok_or_else(|| {
        Failure::new(
            exit::UNREACHABLE,
            format!("can't make a join token for {namespace}/{name}: the hub's answer holds no command"),
        )
    })?;
    let expires = answer["expiresAt"].as_str().unwrap_or("soon");
    say(&format!(
        "Run this once where {name}'s API server can be reached, within its time (until {}).\n\
         The token in it works once; --kubeconfig FILE and --state-dir DIR may be added.",
        text::plain(expires)
    ));
    print(&format!("{}\n", text::plain(command)))?;
    say(&format!(
        "then: {} get clusters {name} -n {namespace} -w",
        session.program.name()
    ));
    Ok(())
}

impl JoinArgs {
    /// The agent's settings that are known without the hub.
    fn stated(&self) -> Result<Agent> {
        Ok(Agent {
            image: self.image.clone(),
            https_proxy: self.https_proxy.clone(),
            authorities: self.ca_file.as_deref().map(read_authorities).transpose()?,
            plugins: self.plugins.as_deref().map(read_plugins).transpose()?,
            mounts: self.mounts.as_deref().map(read_mounts).transpose()?.unwrap_or_default(),
            limits: self.limits(),
            bind_administrator: true,
            ..Agent::default()
        })
    }

    fn limits(&self) -> Limits {
        Limits {
            allow_accounts: self.allow_accounts.clone(),
            allow_namespaces: self.allow_namespaces.clone(),
            deny_kinds: self.deny_kinds.clone(),
            max_deletions: self.max_deletions,
        }
    }

    fn is_for_a_pod(&self) -> bool {
        let files = [&self.ca_file, &self.plugins, &self.mounts];
        let is_limited = self.limits() != Limits::default();
        self.https_proxy.is_some() || is_limited || files.iter().any(|file| file.is_some())
    }
}

fn read_authorities(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))?;
    if text.len() > MAX_CONFIG_MAP || !text.contains("-----BEGIN CERTIFICATE-----") {
        return Err(Failure::usage(format!("{} is no file of certificates", path.display()))
            .evidence("it must be PEM and fit a ConfigMap, at most 1 MiB"));
    }
    Ok(text)
}

/// Parses the file like the agent, which exits if it can't be parsed.
fn read_plugins(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))?;
    let unusable =
        |why: String| Failure::usage(format!("{} is no configuration of plugins", path.display())).evidence(why);
    if text.len() > MAX_CONFIG_MAP {
        return Err(unusable("it must fit a ConfigMap, at most 1 MiB".to_owned()));
    }
    Plugins::parse(&text).map_err(|error| unusable(error.to_string()))?;
    Ok(text)
}

fn read_mounts(path: &Path) -> Result<Mounts> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::file("read", path, &error))?;
    parse_mounts(&text).map_err(|why| {
        Failure::usage(format!(
            "{} holds no initContainers, volumes and volumeMounts",
            path.display()
        ))
        .evidence(why)
    })
}

fn parse_mounts(text: &str) -> Result<Mounts, String> {
    let mut documents = yaml::parse(text, &Budget::default()).map_err(|error| error.to_string())?;
    if documents.len() > 1 {
        return Err(format!("it has {} documents", documents.len()));
    }
    let Some(document) = documents.pop().filter(|document| !document.is_null()) else {
        return Ok(Mounts::default());
    };
    let value = document.into_json().map_err(|error| error.to_string())?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}

async fn create(args: &JoinArgs, session: &Session, namespace: &str) -> Result<()> {
    let labels: serde_json::Map<String, Value> = args
        .labels
        .iter()
        .map(|(key, value)| (key.clone(), value.clone().into()))
        .collect();
    let cluster = json!({
        "apiVersion": format!("{}/{}", farwater_api::GROUP, farwater_api::VERSION),
        "kind": "Cluster",
        "metadata": {"name": args.name, "namespace": namespace, "labels": labels},
        "spec": {},
    });
    let attempt = format!("make Cluster {namespace}/{}", args.name);
    let path = format!(
        "{}?fieldManager=farwater-cli&fieldValidation=Strict",
        clusters(namespace)
    );
    session
        .ask(&attempt, Method::POST, &path, "application/json", Some(&cluster))
        .await?;
    say(&format!("made Cluster {namespace}/{}", args.name));
    Ok(())
}

/// Installs the agent in the cluster, and waits until the hub has heard it.
async fn install(args: &JoinArgs, session: &Session, namespace: &str, target: &Target, agent: &Agent) -> Result<()> {
    let asked = jiff::Timestamp::now();
    remove_unjoined(target).await?;
    target.apply(&agent.objects()).await?;
    say(&format!(
        "the agent is installed in {}; waiting for its first word",
        text::plain(&target.context)
    ));
    let heard_since = async || {
        let cluster: Cluster = session.get(namespace, &args.name).await?;
        let status = cluster.status.unwrap_or_default();
        let is_heard = status.last_heard_time.is_some_and(|heard| heard.0 >= asked);
        Ok(is_heard.then(|| status.agent_version.unwrap_or_default()))
    };
    let late = |state| {
        let waited = format!(
            "the hub heard nothing from {}'s agent within {} s; the agent connects to the hub at {}",
            args.name, args.timeout, agent.hub
        );
        let log = format!(
            "kubectl --context {} -n {} logs deployment/{}",
            target.context,
            names::NAMESPACE,
            names::NAME
        );
        Failure::new(exit::TIMEOUT, waited).evidence(state).next(log)
    };
    let longest = Duration::from_secs(args.timeout);
    let pods = Pods {
        target,
        namespace: names::NAMESPACE,
        component: "agent",
    };
    let version = pods.wait(longest, heard_since, late).await?;
    say(&format!(
        "{namespace}/{} has joined (agent {})",
        args.name,
        text::plain(&version)
    ));
    print(&format!("{namespace}/{}\n", args.name))
}

/// Removes an agent that has never joined. It uses the settings from its start and holds the agents' Lease while it
/// tries to join. Its Deployment keeps it until a new pod is ready, which needs the Lease; so it is removed before a
/// corrected one is installed.
async fn remove_unjoined(target: &Target) -> Result<()> {
    if target.find(&identity()).await?.is_none() {
        target.delete(&[deployment()]).await?;
    }
    Ok(())
}

/// Identifies the agent's Deployment.
fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": names::NAME, "namespace": names::NAMESPACE},
    })
}

/// Identifies the Secret with the identity of a joined agent.
pub(super) fn identity() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": IDENTITY_SECRET, "namespace": names::NAMESPACE},
    })
}

/// Refuses a cluster that another hub's agent is in, because two hubs would undo each other's work.
async fn refuse_other_hub(target: &Target, agent: &Agent) -> Result<()> {
    let Some(found) = target.find(&deployment()).await? else {
        return Ok(());
    };
    let variables = &found.data["spec"]["template"]["spec"]["containers"][0]["env"];
    let value = |name: &str| {
        let all = variables.as_array().into_iter().flatten();
        all.filter(|one| one["name"] == name)
            .find_map(|one| one["value"].as_str())
            .unwrap_or_default()
            .to_owned()
    };
    // The authority identifies the hub, whose address may change. At the same address it may have another authority
    // now.
    if value("FARWATER_CA_PIN") == agent.ca_pin || value("FARWATER_HUB") == agent.hub {
        return Ok(());
    }
    Err(Failure::new(
        exit::CONFLICT,
        format!("{} belongs to another hub: {}", target.context, value("FARWATER_HUB")),
    )
    .evidence(format!(
        "its authority is {}, this hub's is {}",
        value("FARWATER_CA_PIN"),
        agent.ca_pin
    ))
    .next("let it leave that hub first: {program} cluster leave NAME --context CTX, signed in there"))
}

fn warn_if_joined(name: &str, cluster: &Value) {
    if let Some(version) = cluster["status"]["agentVersion"].as_str() {
        say(&format!(
            "note: {name} has joined already (agent {}); an agent that joins with the new token replaces it",
            text::plain(version)
        ));
    }
}

#[cfg(test)]
mod tests {
    use farwater_manifests::Mounts;

    use super::*;

    #[test]
    fn mounts_have_the_names_that_kubernetes_has() {
        let text = "volumes: [{name: plugins, emptyDir: {}}]\nvolumeMounts: [{name: plugins, mountPath: /plugins}]\n";
        let mounts = parse_mounts(text).unwrap();
        assert_eq!(mounts.volumes, [json!({"name": "plugins", "emptyDir": {}})]);
        assert_eq!((mounts.volume_mounts.len(), mounts.init_containers.len()), (1, 0));
        assert_eq!(parse_mounts("# nothing\n"), Ok(Mounts::default()));
        assert!(
            parse_mounts("mounts: []")
                .unwrap_err()
                .contains("unknown field `mounts`")
        );
        assert!(
            parse_mounts("volumes: []\n---\nvolumes: []")
                .unwrap_err()
                .contains("2 documents")
        );
        assert!(parse_mounts("volumes: [").is_err());
    }
}
