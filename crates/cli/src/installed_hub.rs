//! A hub that is installed in a cluster: its StatefulSet, its pod, and commands that run in the pod.

use std::{
    io,
    pin::pin,
    time::{Duration, Instant},
};

use farwater_manifests::names::hub as names;
use http::Uri;
use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::Status,
};
use kube::{
    Api,
    api::{AttachParams, AttachedProcess, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    exit,
    failure::{Failure, Result},
    pods::Pods,
    target::{Right, Target, is_ours, not_ours},
    terminal::say,
    text,
};

const PAUSE: Duration = Duration::from_secs(1);
/// A command in a pod that prints nothing for this long counts as failed. The database's own timeouts are shorter.
const SILENCE: Duration = Duration::from_secs(120);
/// Bytes of a stream that may be buffered.
const BUFFER: usize = 256 << 10;
/// Most bytes of standard error that are kept. The first ones name the cause.
const MAX_WORDS: usize = 16 << 10;
/// Most bytes of a kubeconfig; a real one is far smaller.
const MAX_KUBECONFIG: u64 = 1 << 20;
/// Longest wait for the address to answer: the cluster's network needs a moment to route to a pod that has become
/// ready.
const HEARD: Duration = Duration::from_secs(10);
/// Address of a hub without one of its own, after `kubectl port-forward`.
pub const FORWARDED: &str = "https://localhost:8443";

#[derive(Clone, Copy)]
pub struct InstalledHub<'a> {
    pub target: &'a Target,
    pub namespace: &'a str,
}

impl InstalledHub<'_> {
    pub fn pod_name(&self) -> String {
        format!("{}-0", names::NAME)
    }

    /// A `kubectl` command as the user has to type it for the hub's namespace.
    pub fn kubectl(&self, arguments: &str) -> String {
        format!(
            "kubectl --context {} -n {} {arguments}",
            self.target.context, self.namespace
        )
    }

    fn sets(&self) -> Api<StatefulSet> {
        Api::namespaced(self.target.client.clone(), self.namespace)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.target.client.clone(), self.namespace)
    }

    /// The hub's pods, to wait for them and to explain why they don't start.
    fn own_pods(&self) -> Pods<'_> {
        Pods {
            target: self.target,
            namespace: self.namespace,
            component: names::CONTAINER,
        }
    }

    fn right(&self, verb: &'static str, group: &str, resource: &str) -> Right {
        Right::new(verb, group, resource, self.namespace)
    }

    /// The rights to wait for the hub and to run commands in its pod. `pods/exec` opens a web socket by GET, and newer
    /// API servers check `create` as well.
    pub fn rights_to_enter(&self) -> Vec<Right> {
        vec![
            self.right("get", "apps", "statefulsets"),
            self.right("list", "", "pods"),
            self.right("get", "", "pods/exec"),
            self.right("create", "", "pods/exec"),
        ]
    }

    /// The rights to stop and start the hub, and to work on its volume in another pod.
    pub fn rights_to_replace(&self) -> Vec<Right> {
        let mut rights = self.rights_to_enter();
        rights.push(self.right("patch", "apps", "statefulsets"));
        for verb in ["get", "create", "delete"] {
            rights.push(self.right(verb, "", "pods"));
        }
        for (verb, resource) in [("get", "pods/attach"), ("create", "pods/attach"), ("get", "pods/log")] {
            rights.push(self.right(verb, "", resource));
        }
        rights
    }

    pub async fn find(&self) -> Result<StatefulSet> {
        let found = self.sets().get_opt(names::NAME).await;
        let found = found.map_err(|error| self.target.failure("read the hub's StatefulSet", &error))?;
        let found = found.ok_or_else(|| {
            let context = &self.target.context;
            Failure::new(
                exit::MISSING,
                format!("there is no hub in the namespace {} of {context}", self.namespace),
            )
            .evidence(format!("no StatefulSet {} is there", names::NAME))
            .next(format!(
                "name its namespace by -n, or make one: {{program}} install --context {context}"
            ))
        })?;
        match is_ours(&found.metadata) {
            true => Ok(found),
            false => Err(not_ours(&format!("StatefulSet {}/{}", self.namespace, names::NAME))),
        }
    }

    pub async fn scale(&self, replicas: i32) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        let scaled = self.sets().patch(names::NAME, &PatchParams::default(), &patch).await;
        scaled
            .map(drop)
            .map_err(|error| self.target.failure(&format!("scale the hub to {replicas}"), &error))
    }

    /// Waits until the hub is ready, and prints each new state of its pods.
    pub async fn wait_until_ready(&self, longest: Duration) -> Result<()> {
        let is_ready = async || Ok(is_rolled_out(&self.find().await?).then_some(()));
        let late = |state| {
            Failure::new(
                exit::TIMEOUT,
                format!("the hub was not ready after {} s", longest.as_secs()),
            )
            .evidence(state)
            .next(self.kubectl(&format!("describe pod {}", self.pod_name())))
        };
        self.own_pods().wait(longest, is_ready, late).await
    }

    /// Waits until the hub has no pod left, so that the next user of the volume is alone on it.
    pub async fn wait_until_gone(&self, longest: Duration) -> Result<()> {
        let begun = Instant::now();
        let selector = ListParams::default().labels(&format!("app.kubernetes.io/component={}", names::CONTAINER));
        loop {
            let pods = self.pods().list(&selector).await;
            let pods = pods.map_err(|error| self.target.failure("list the hub's pods", &error))?;
            let Some(pod) = pods.items.first() else { return Ok(()) };
            if begun.elapsed() > longest {
                let name = pod.metadata.name.clone().unwrap_or_default();
                return Err(Failure::new(
                    exit::TIMEOUT,
                    format!("the pod {name} did not end within {} s", longest.as_secs()),
                )
                .next(format!(
                    "if its node is dead: {}",
                    self.kubectl(&format!("delete pod {name} --force"))
                )));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Runs a command in the hub's pod and writes its standard output to `output`. More than `limit` bytes are an
    /// error. Success depends on the command's exit status alone: if the connection breaks, the command counts as
    /// failed, whatever it printed.
    pub async fn run(
        &self,
        attempt: &str,
        command: &[&str],
        limit: u64,
        output: &mut (dyn io::Write + Send),
    ) -> Result<()> {
        let parameters = AttachParams::default()
            .container(names::CONTAINER)
            .stdin(false)
            .max_stdout_buf_size(BUFFER)
            .max_stderr_buf_size(MAX_WORDS);
        let running = self
            .pods()
            .exec(&self.pod_name(), command.iter().copied(), &parameters)
            .await;
        let running = match running {
            Ok(running) => running,
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 404 | 500) => {
                return Err(self.not_running(attempt, &status.message).await);
            }
            Err(error) => return Err(self.target.failure(attempt, &error)),
        };
        follow(running, limit, output).await.map_err(|problem| {
            let code = if matches!(problem, Problem::Ended { .. }) {
                exit::NO
            } else {
                exit::UNREACHABLE
            };
            Failure::new(code, format!("can't {attempt}")).evidence(problem.to_string())
        })
    }

    async fn not_running(&self, attempt: &str, message: &str) -> Failure {
        let state = self.own_pods().explain().await;
        Failure::new(exit::CONFLICT, format!("can't {attempt}: the hub's pod does not run"))
            .evidence(format!("{message} ({})", state.unwrap_or_else(|failure| failure.cause)))
            .next(self.kubectl(&format!("describe pod {}", self.pod_name())))
    }

    /// Reads the administrator's kubeconfig, which is only on the hub's volume.
    pub async fn read_way_in(&self) -> Result<Value> {
        let attempt = "read the administrator's kubeconfig in the hub's pod";
        let mut text = Vec::new();
        let command = ["farwater", "admin", "kubeconfig", "--data-dir", names::DATA];
        self.run(attempt, &command, MAX_KUBECONFIG, &mut text).await?;
        let config = std::str::from_utf8(&text)
            .ok()
            .and_then(|text| serde_saphyr::from_str::<Value>(text).ok());
        config
            .filter(|config| config["users"][0]["user"]["token"].is_string())
            .ok_or_else(|| {
                Failure::new(exit::UNREACHABLE, format!("can't {attempt}")).evidence("it printed no kubeconfig")
            })
    }
}

/// The address in a kubeconfig. None: it is the name of a Service, which only its own cluster can reach.
pub fn outer_address(way_in: &Value) -> Option<&str> {
    let server = way_in["clusters"][0]["cluster"]["server"].as_str();
    server.filter(|server| !server.ends_with(".svc"))
}

/// Waits a moment until the hub's address answers, and prints a line if it doesn't. That is no failure: the address may
/// not be meant for this machine.
pub async fn wait_until_heard(server: &str) {
    let Ok(url) = server.parse::<Uri>() else { return };
    let host = url
        .host()
        .unwrap_or_default()
        .trim_start_matches('[')
        .trim_end_matches(']');
    let port = url.port_u16().unwrap_or(443);
    let connect = async {
        while TcpStream::connect((host, port)).await.is_err() {
            sleep(Duration::from_millis(250)).await;
        }
    };
    if timeout(HEARD, connect).await.is_err() {
        say(&format!("from here nothing answers at {} yet", text::plain(server)));
    }
}

/// Why a command in a pod failed.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{message}")]
    Ended { message: String },
    #[error("the connection to its pod broke: the result is unknown")]
    Broken,
    #[error("the connection to its pod broke: {0}")]
    Read(io::Error),
    #[error("no data for {} s", SILENCE.as_secs())]
    Silent,
    #[error("received more than {0} bytes")]
    TooMuch(u64),
    #[error("write the received data: {0}")]
    Write(io::Error),
}

async fn follow(mut running: AttachedProcess, limit: u64, output: &mut (dyn io::Write + Send)) -> Result<(), Problem> {
    let (printed, said, status) = (running.stdout(), running.stderr(), running.take_status());
    // Standard error is read at the same time as standard output: a stream that isn't read would block the other.
    let words = tokio::spawn(async move {
        match said {
            Some(said) => first_words(said).await,
            None => String::new(),
        }
    });

    let Some(printed) = printed else {
        return Err(Problem::Broken);
    };
    let mut copying = pin!(hand_on(printed, limit, output));
    let mut status = pin!(async {
        match status {
            Some(status) => status.await,
            None => None,
        }
    });

    // If the connection breaks, standard output never ends, but the status ends at once, without a value.
    let status = tokio::select! {
        copied = &mut copying => {
            copied?;
            timeout(SILENCE, status).await.map_err(|_| Problem::Silent)?
        }
        status = &mut status => {
            if status.is_none() {
                return Err(Problem::Broken);
            }
            copying.await?;
            status
        }
    };

    if status.is_none() {
        return Err(Problem::Broken);
    }
    let words = words.await.unwrap_or_default();
    match status {
        Some(Status {
            status: Some(status), ..
        }) if status == "Success" => Ok(()),
        Some(status) => {
            let message = if words.trim().is_empty() {
                status.message.unwrap_or_default()
            } else {
                words
            };
            Err(Problem::Ended { message })
        }
        None => Err(Problem::Broken),
    }
}

async fn hand_on(
    mut printed: impl AsyncRead + Unpin,
    limit: u64,
    output: &mut (dyn io::Write + Send),
) -> Result<(), Problem> {
    let mut buffer = vec![0; BUFFER];
    let mut total = 0;
    loop {
        let read = timeout(SILENCE, printed.read(&mut buffer))
            .await
            .map_err(|_| Problem::Silent)?;
        let read = read.map_err(Problem::Read)?;
        if read == 0 {
            return Ok(());
        }
        total += read as u64;
        if total > limit {
            return Err(Problem::TooMuch(limit));
        }
        output.write_all(&buffer[..read]).map_err(Problem::Write)?;
    }
}

async fn first_words(mut said: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut buffer = vec![0; MAX_WORDS];
    while let Ok(read @ 1..) = said.read(&mut buffer).await {
        let room = MAX_WORDS.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..read.min(room)]);
    }
    String::from_utf8_lossy(&kept).trim().to_owned()
}

/// Whether all replicas run the newest template and are ready.
fn is_rolled_out(set: &StatefulSet) -> bool {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    set.status.as_ref().is_some_and(|status| {
        status.observed_generation == set.metadata.generation
            && status.ready_replicas == Some(wanted)
            && status.updated_replicas == Some(wanted)
            && status.current_revision == status.update_revision
    })
}
