//! A hub and its agent as pods of a real node, installed with `farwater` as an operator would.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{ADMIN_NAMESPACE, AGENT_NAMESPACE, Cluster, ClusterStatus, GitRepository, ServiceDeployment};
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::Pod,
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    Node,
    farwater::program,
    git::GitServer,
    images::{AGENT, HUB, Images},
    process::bare_command,
    wait_for,
};

/// Maximum time for work of kubelet, hub and agent together on two busy cores.
pub const PATIENCE: Duration = Duration::from_secs(90);
/// Name of the node's cluster in its hub.
pub const CLUSTER: &str = "east";
/// Name of the service that [`Site::deploy`] creates, and of its namespace in the cluster.
pub const SERVICE: &str = "web";
/// Context of the node's cluster.
pub const CONTEXT: &str = "admin";
pub const HUB_NAMESPACE: &str = "farwater-hub";
pub const HUB_POD: &str = "farwater-hub-0";

/// Fields are dropped in this order, so that the node ends before the servers that its pods use.
pub struct Site {
    pub node: Node,
    pub git: GitServer,
    dir: TempDir,
}

impl Site {
    /// Starts a node with our images and a volume, without hub and agent.
    pub async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let images = Images::of_run(dir.path())?;
        Self::with(dir, &images).await
    }

    /// Starts a node with other images of these names.
    pub async fn with(dir: TempDir, images: &Images) -> Result<Self> {
        let node = Node::start(&images.all()).await?;
        node.provide("hub").await?;
        let git = GitServer::start_at(node.machine().into()).await?;
        Ok(Self { node, git, dir })
    }

    /// URL at which agents and people reach the hub.
    pub fn url(&self) -> String {
        format!("https://{}:30443", self.node.address())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Installs the hub in the node's cluster.
    pub fn install(&self) -> Result<String> {
        self.install_with(&[])
    }

    /// Installs the hub with further options.
    pub fn install_with(&self, more: &[&str]) -> Result<String> {
        self.install_image(HUB, more)
    }

    /// Installs the hub with another image.
    pub fn install_image(&self, image: &str, more: &[&str]) -> Result<String> {
        let url = self.url();
        let own = [
            "install",
            "--context",
            CONTEXT,
            "--url",
            &url,
            "--service-type",
            "NodePort",
            "--image",
            image,
        ];
        self.farwater(&[&own[..], more].concat())
    }

    /// Sets a variable of the hub's program, and waits until it runs with it.
    pub async fn set_variable(&self, name: &str, value: &str) -> Result<()> {
        let sets: Api<StatefulSet> = self.theirs(HUB_NAMESPACE).await?;
        let container = json!({"name": "hub", "env": [{"name": name, "value": value}]});
        let patch = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        sets.patch("farwater-hub", &PatchParams::default(), &Patch::Strategic(patch))
            .await?;
        wait_for("the hub to run with another variable", PATIENCE, || async {
            let set = sets.get("farwater-hub").await?;
            let status = set.status.unwrap_or_default();
            let is_seen = status.observed_generation == set.metadata.generation;
            let is_new = status.update_revision == status.current_revision && status.ready_replicas == Some(1);
            Ok((is_seen && is_new).then_some(()))
        })
        .await
    }

    pub fn join(&self) -> Result<()> {
        self.join_with(&[])
    }

    /// Joins the cluster with further options.
    pub fn join_with(&self, more: &[&str]) -> Result<()> {
        let own = ["cluster", "join", CLUSTER, "--context", CONTEXT, "--image", AGENT];
        self.farwater(&[&own[..], more].concat()).map(drop)
    }

    pub fn leave(&self) -> Result<()> {
        self.farwater(&["cluster", "leave", CLUSTER, "--context", CONTEXT])
            .map(drop)
    }

    /// Runs `farwater` with its own home and the node's cluster. Returns its output if it ended with 0.
    pub fn farwater(&self, arguments: &[&str]) -> Result<String> {
        let output = self.run(arguments)?;
        ensure!(output.status.success(), "{}", told(arguments, &output));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `farwater`, which must end with this other code. Returns its messages.
    pub fn refused(&self, arguments: &[&str], code: i32) -> Result<String> {
        let output = self.run(arguments)?;
        ensure!(
            output.status.code() == Some(code),
            "expected {code}: {}",
            told(arguments, &output)
        );
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        self.command(arguments)?.output().context("run farwater")
    }

    pub fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = bare_command(program("farwater")?);
        command
            .args(arguments)
            .env("HOME", self.dir.path())
            .env("KUBECONFIG", self.node.plane().kubeconfig());
        Ok(command)
    }

    /// Configuration that `farwater` has stored for the hub.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path(".config/farwater/config")
    }

    /// A client of the hub as the user who installed it.
    pub async fn hub(&self) -> Result<Client> {
        crate::kube::client(&self.kubeconfig(), None).await
    }

    /// Resources of the hub.
    pub async fn ours<K>(&self) -> Result<Api<K>>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Ok(Api::namespaced(self.hub().await?, ADMIN_NAMESPACE))
    }

    /// Objects of the node's cluster.
    pub async fn theirs<K>(&self, namespace: &str) -> Result<Api<K>>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Ok(Api::namespaced(self.node.client().await?, namespace))
    }

    pub async fn cluster(&self) -> Result<ClusterStatus> {
        Ok(self
            .ours::<Cluster>()
            .await?
            .get(CLUSTER)
            .await?
            .status
            .unwrap_or_default())
    }

    pub async fn poll_every(&self, interval: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"pollInterval": interval}}));
        self.ours::<Cluster>()
            .await?
            .patch(CLUSTER, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    /// Waits until a condition of the cluster has this status. Returns its message.
    pub async fn until_cluster(&self, kind: &str, status: Option<&str>) -> Result<String> {
        // An agent that could not reach its hub retries after two minutes at the latest.
        wait_for(
            &format!("the cluster to be {kind}: {status:?}"),
            2 * PATIENCE,
            || async {
                let conditions = self.cluster().await?.conditions;
                let found = conditions.into_iter().find(|condition| condition.type_ == kind);
                Ok(match (found, status) {
                    (None, None) => Some(String::new()),
                    (Some(found), Some(status)) if found.status == status => Some(found.message),
                    _ => None,
                })
            },
        )
        .await
    }

    /// Creates a service with running pods.
    pub async fn deploy(&self) -> Result<()> {
        self.publish("apps", &[("web/deployment.yaml", WEB)]).await?;
        let spec = json!({
            "clusterRef": {"name": CLUSTER}, "targetNamespace": SERVICE, "sourceRef": {"name": "apps"}, "path": "web",
        });
        let service = ServiceDeployment::new(SERVICE, serde_json::from_value(spec)?);
        self.ours().await?.create(&PostParams::default(), &service).await?;
        self.until_ready().await
    }

    /// Creates a source with these files.
    pub async fn publish(&self, name: &str, files: &[(&str, &str)]) -> Result<()> {
        self.git.create(name)?.commit("main", files)?;
        let spec = serde_json::from_value(json!({"url": self.git.url(name)}))?;
        self.ours()
            .await?
            .create(&PostParams::default(), &GitRepository::new(name, spec))
            .await?;
        Ok(())
    }

    pub async fn until_ready(&self) -> Result<()> {
        self.until_service(SERVICE).await
    }

    /// Waits until a service is ready.
    pub async fn until_service(&self, name: &str) -> Result<()> {
        let what = format!("{name} to be ready");
        let ready = wait_for(&what, PATIENCE, || async {
            let service: ServiceDeployment = self.ours().await?.get(name).await?;
            let conditions = service.status.unwrap_or_default().conditions;
            Ok(conditions
                .iter()
                .any(|one| one.type_ == "Ready" && one.status == "True")
                .then_some(()))
        });
        let Err(error) = ready.await else { return Ok(()) };
        let why = self
            .farwater(&["why", name])
            .unwrap_or_else(|error| format!("{error:#}"));
        let agent = match self.agent_pod().await {
            Ok(pod) => {
                self.log_of(AGENT_NAMESPACE, &pod.metadata.name.unwrap_or_default())
                    .await
            }
            Err(error) => format!("{error:#}"),
        };
        Err(error.context(format!("{why}\nthe agent's log ends with:\n{agent}")))
    }

    /// Uids of the service's Deployment and pods.
    pub async fn uids(&self) -> Result<Vec<String>> {
        let deployment = self.theirs::<Deployment>(SERVICE).await?.get(SERVICE).await?;
        let pods = self.theirs::<Pod>(SERVICE).await?.list(&ListParams::default()).await?;
        let pods = pods.items.into_iter().filter_map(|pod| pod.metadata.uid);
        Ok(deployment.metadata.uid.into_iter().chain(pods).collect())
    }

    /// The agent's running pod.
    pub async fn agent_pod(&self) -> Result<Pod> {
        let pods = self.theirs::<Pod>(AGENT_NAMESPACE).await?;
        let selector = ListParams::default().labels("app.kubernetes.io/component=agent");
        let running = |pod: &Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        };
        pods.list(&selector)
            .await?
            .items
            .into_iter()
            .find(running)
            .context("no pod of the agent runs")
    }

    /// The last lines of a pod's log, for a failure.
    pub async fn log_of(&self, namespace: &str, pod: &str) -> String {
        let parameters = kube::api::LogParams {
            tail_lines: Some(25),
            ..kube::api::LogParams::default()
        };
        match self.theirs::<Pod>(namespace).await {
            Ok(pods) => pods
                .logs(pod, &parameters)
                .await
                .unwrap_or_else(|error| error.to_string()),
            Err(error) => error.to_string(),
        }
    }

    /// Folder of a provisioned volume.
    pub fn volume(&self, name: &str) -> Result<PathBuf> {
        self.node.volume(name)
    }
}

fn told(arguments: &[&str], output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let words = arguments.join(" ");
    format!(
        "farwater {words}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// All objects of these kinds in a namespace as `KIND NAME`, with values that change with the object.
pub async fn snapshot(client: &Client, namespace: &str) -> Result<Vec<(String, Value)>> {
    const KINDS: [&str; 8] = [
        "api/v1/NS/configmaps",
        "api/v1/NS/pods",
        "api/v1/NS/secrets",
        "api/v1/NS/serviceaccounts",
        "api/v1/NS/services",
        "apis/apps/v1/NS/deployments",
        "apis/apps/v1/NS/replicasets",
        "apis/rbac.authorization.k8s.io/v1/NS/roles",
    ];
    let mut objects = Vec::new();
    for kind in KINDS {
        let path = format!("/{}", kind.replace("NS", &format!("namespaces/{namespace}")));
        let list: Value = client.request(http::Request::get(path).body(Vec::new())?).await?;
        let plural = Path::new(kind)
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        for object in list["items"].as_array().into_iter().flatten() {
            let metadata = &object["metadata"];
            let marks = json!({
                "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"], "generation": metadata["generation"],
            });
            objects.push((
                format!("{plural} {}", metadata["name"].as_str().unwrap_or_default()),
                marks,
            ));
        }
    }
    objects.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(objects)
}

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "localhost/farwater/busybox:test", imagePullPolicy: Never, command: [/bin/sleep, "100000"]}]
"#;
