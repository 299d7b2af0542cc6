//! `farwater admin restore --context`: stops the hub, restores in a pod beside it on its volume, and starts it again.
//!
//! ```text
//!  scale to 0 ─ pod farwater-hub-restore ─ its standard input ◄─ the backup ─ it checks, replaces, ends ─ scale to 1
//! ```
//!
//! In that pod `farwater admin restore` replaces the data, all or nothing. So whatever happens here (this program is
//! killed, a connection breaks, a node goes away), the volume has the old or the new data, and repeating the command
//! completes it.

use std::{
    env, io,
    path::Path,
    time::{Duration, Instant},
};

use farwater_manifests::names::hub as names;
use farwater_store::archive::{self, Copied};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use kube::api::{AttachParams, AttachedProcess, DeleteParams, LogParams, PostParams};
use tokio::io::{AsyncWriteExt as _, BufReader};

use super::{
    backup::{Spooled, is_stream},
    failures::failed,
    helper_pod::{self, helper_pod},
};
use crate::{
    commands::login,
    exit,
    failure::{Failure, Result},
    installed_hub::{self, FORWARDED, InstalledHub},
    pods::Pods,
    terminal::{self, print, say},
    text,
};

const ATTEMPT: &str = "restore the hub";
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST: u64 = 1800;
/// Time for a pod to end or to start: several times the hub's grace period.
const STEP: Duration = Duration::from_secs(300);
/// Bytes of the backup in flight.
const BUFFER: usize = 256 << 10;
/// How long the pod is read after its connection broke, because that may be the normal end.
const AFTERWORD: Duration = Duration::from_secs(30);
const MAX_LOG: i64 = 64 << 10;

/// The options of the command.
pub struct Wanted {
    pub keys_only: bool,
    pub accept_damage: bool,
    pub is_agreed: bool,
    /// Most seconds. None: the default.
    pub longest: Option<u64>,
}

pub async fn run(hub: InstalledHub<'_>, file: &Path, wanted: Wanted) -> Result<()> {
    // Declared in this order so that the file is deleted before its folder.
    let (mut folder, mut spooled) = (None, None);
    if is_stream(file) {
        let made = &*folder.insert(private_folder()?);
        spooled = Some(Spooled::read(made.path(), None)?);
    }

    let file = spooled.as_ref().map_or(file, Spooled::path);
    let copied = archive::verify(file).map_err(|error| failed(ATTEMPT, &error))?;
    let has_keys = !archive::enclosed(file)
        .map_err(|error| failed(ATTEMPT, &error))?
        .is_empty();
    let size = std::fs::metadata(file)
        .map_err(|error| Failure::file("read", file, &error))?
        .len();

    hub.target.require(hub.rights_to_replace()).await?;
    let set = hub.find().await?;
    let longest = wanted.longest.unwrap_or(LONGEST);
    let pod = helper_pod(&set, &command(size, &wanted), longest).map_err(|error| {
        Failure::new(exit::CONFLICT, format!("can't {ATTEMPT}: its StatefulSet does not fit"))
            .evidence(error.to_string())
    })?;

    say(&description(&hub, file, &copied, has_keys, &wanted));
    if !wanted.is_agreed {
        ask()?;
    }
    let restore = Restore {
        hub,
        file,
        pod,
        longest: Duration::from_secs(longest),
    };
    let outcome = tokio::select! {
        outcome = restore.replace() => outcome,
        _ = tokio::signal::ctrl_c() => Err(Broken::unknown(Failure::new(exit::NO, "it was interrupted"))),
    };
    match outcome {
        Ok(said) => restore.start_with_new(&said).await,
        Err(broken) => Err(restore.start_again(broken).await),
    }
}

/// The pod's command. The number of bytes shows when all have arrived, because the end of a connection shows nothing.
fn command(size: u64, wanted: &Wanted) -> Vec<String> {
    let size = size.to_string();
    let mut words = vec![
        "farwater",
        "admin",
        "restore",
        "--data-dir",
        names::DATA,
        "--force",
        "--size",
        &size,
    ];
    words.extend(wanted.keys_only.then_some("--keys-only"));
    words.extend(wanted.accept_damage.then_some("--accept-damage"));
    words.push("-");
    words.into_iter().map(str::to_owned).collect()
}

fn description(hub: &InstalledHub<'_>, file: &Path, copied: &Copied, has_keys: bool, wanted: &Wanted) -> String {
    let made = Timestamp::from_second(copied.moment).map_or_else(|_| "some day".to_owned(), |time| time.to_string());
    let what = match (wanted.keys_only, has_keys) {
        (true, _) => "the backup's keys replace the keys of another installation; the database stays unchanged",
        (false, true) => {
            "everything in its database is replaced, and the backup's keys replace the keys of another installation"
        }
        (false, false) => "everything in its database is replaced; the backup holds no keys, so its own must be there",
    };
    format!(
        "restoring the hub in {} of {} from {}, made {made}:\n  it is stopped, and started again afterwards\n  {what}\n  \
         clusters keep what they run; nothing is deleted in them until each is confirmed",
        hub.namespace,
        text::plain(&hub.target.context),
        file.display()
    )
}

fn ask() -> Result<()> {
    match terminal::confirm("Go on?")? {
        Some(true) => Ok(()),
        Some(false) => Err(Failure::new(exit::NO, "nothing was changed")),
        None => Err(
            Failure::usage("standard input is not a terminal, so the command can't ask whether to continue")
                .next("--yes continues without asking"),
        ),
    }
}

/// A failure, with what is known of the data.
struct Broken {
    failure: Failure,
    /// The pod refused or never ran, so the data is unchanged.
    is_untouched: bool,
}

impl Broken {
    fn untouched(failure: Failure) -> Self {
        Self {
            failure,
            is_untouched: true,
        }
    }

    fn unknown(failure: Failure) -> Self {
        Self {
            failure,
            is_untouched: false,
        }
    }
}

struct Restore<'a> {
    hub: InstalledHub<'a>,
    file: &'a Path,
    pod: Pod,
    longest: Duration,
}

impl Restore<'_> {
    /// Restores in the pod. Returns the pod's output.
    async fn replace(&self) -> Result<String, Broken> {
        self.prepare().await.map_err(Broken::untouched)?;
        say("the hub is stopped; sending the backup");
        let sending = async {
            match self.send().await {
                // Keep the connection while the pod works; ending it would end the pod's input.
                Ok(_attached) => std::future::pending().await,
                Err(failure) => failure,
            }
        };
        let ended = tokio::select! {
            ended = self.wait_until_ended() => ended,
            failure = sending => match tokio::time::timeout(AFTERWORD, self.wait_until_ended()).await {
                Ok(Ok(ended)) => Ok(ended),
                _ => Err(failure),
            },
        };

        let ended = ended.map_err(Broken::unknown)?;
        let said = self.log().await;
        if ended.exit_code == 0 {
            return Ok(said);
        }

        let reason = ended
            .reason
            .filter(|reason| reason != "Error")
            .map(|reason| format!("{reason}: "));
        let failure = Failure::new(exit::NO, format!("can't {ATTEMPT}")).evidence(format!(
            "{}{}",
            reason.unwrap_or_default(),
            said.trim()
        ));
        // The exit code shows whether the data was changed.
        let refusals = [exit::NO, exit::USAGE, exit::CONFLICT, exit::UNREACHABLE].map(i32::from);
        let is_untouched = refusals.contains(&ended.exit_code);
        Err(Broken { failure, is_untouched })
    }

    /// Stops the hub, and creates the pod that waits for the backup.
    async fn prepare(&self) -> Result<()> {
        self.hub.scale(0).await?;
        self.hub.wait_until_gone(STEP).await?;
        // Left by a killed run.
        self.remove_pod().await?;
        let made = self.hub.pods().create(&PostParams::default(), &self.pod).await;
        made.map_err(|error| self.hub.target.failure("make the pod that restores", &error))?;
        let has_started = async || {
            let pod = self.read_pod().await?;
            let container = pod
                .status
                .and_then(|status| status.container_statuses?.into_iter().next()?.state);
            let has = container.is_some_and(|state| state.running.is_some() || state.terminated.is_some());
            Ok(has.then_some(()))
        };
        let late = |state| {
            let waited = format!("the pod that restores did not start within {} s", STEP.as_secs());
            Failure::new(exit::TIMEOUT, waited).evidence(state)
        };
        let InstalledHub { target, namespace } = self.hub;
        Pods {
            target,
            namespace,
            component: helper_pod::COMPONENT,
        }
        .wait(STEP, has_started, late)
        .await
    }

    async fn read_pod(&self) -> Result<Pod> {
        let pod = self.hub.pods().get(helper_pod::NAME).await;
        pod.map_err(|error| self.hub.target.failure("read the pod that restores", &error))
    }

    async fn send(&self) -> Result<AttachedProcess> {
        let attempt = "send the backup";
        let parameters = AttachParams::default()
            .container(names::CONTAINER)
            .stdin(true)
            .stdout(false)
            .stderr(false)
            .max_stdin_buf_size(BUFFER);
        let attached = self.hub.pods().attach(helper_pod::NAME, &parameters).await;
        let mut attached = attached.map_err(|error| self.hub.target.failure(attempt, &error))?;
        let broken = |error: io::Error| {
            Failure::new(
                exit::UNREACHABLE,
                format!("can't {attempt}: the connection to its pod broke"),
            )
            .evidence(error.to_string())
        };
        let file = tokio::fs::File::open(self.file)
            .await
            .map_err(|error| Failure::file("read", self.file, &error))?;
        if let Some(mut input) = attached.stdin() {
            let mut file = BufReader::with_capacity(BUFFER, file);
            tokio::io::copy_buf(&mut file, &mut input).await.map_err(broken)?;
            input.shutdown().await.map_err(broken)?;
        }
        Ok(attached)
    }

    /// Retries while the API server is unavailable for moments.
    async fn wait_until_ended(&self) -> Result<ContainerStateTerminated> {
        let begun = Instant::now();
        loop {
            let unread = match self.hub.pods().get(helper_pod::NAME).await {
                Ok(pod) => match ended(&pod) {
                    Some(ended) => return Ok(ended),
                    None => None,
                },
                Err(kube::Error::Api(status)) if status.is_not_found() => {
                    return Err(Failure::new(exit::NO, "the restoring pod was deleted"));
                }
                Err(error) => Some(self.hub.target.failure("read the pod that restores", &error)),
            };
            if begun.elapsed() > self.longest {
                return Err(unread.unwrap_or_else(|| {
                    let waited = format!("the restore was not done after {} s", self.longest.as_secs());
                    Failure::new(exit::TIMEOUT, waited)
                }));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn log(&self) -> String {
        let parameters = LogParams {
            container: Some(names::CONTAINER.to_owned()),
            limit_bytes: Some(MAX_LOG),
            ..LogParams::default()
        };
        let log = self.hub.pods().logs(helper_pod::NAME, &parameters).await;
        log.unwrap_or_else(|error| format!("(its words can't be read: {error})"))
    }

    async fn remove_pod(&self) -> Result<()> {
        let begun = Instant::now();
        // Its only process is PID 1 of the container, which ignores signals without a handler; it may be killed at any
        // point.
        let at_once = DeleteParams::default().grace_period(1);
        loop {
            match self.hub.pods().delete(helper_pod::NAME, &at_once).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                Ok(_) if begun.elapsed() < STEP => {}
                Ok(_) => {
                    let name = helper_pod::NAME;
                    return Err(Failure::new(exit::TIMEOUT, format!("the pod {name} did not end"))
                        .next(self.hub.kubectl(&format!("delete pod {name} --force"))));
                }
                Err(error) => return Err(self.hub.target.failure("delete the pod that restores", &error)),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn start(&self) -> Result<()> {
        self.remove_pod().await?;
        self.hub.scale(1).await?;
        self.hub.wait_until_ready(STEP).await
    }

    fn by_hand(&self) -> String {
        self.hub
            .kubectl(&format!("scale statefulset {} --replicas 1", names::NAME))
    }

    async fn start_with_new(&self, said: &str) -> Result<()> {
        self.start().await.map_err(|failure| {
            let cause = format!(
                "the backup is restored, but the hub does not serve it yet: {}",
                failure.cause
            );
            let next = failure.next.clone().unwrap_or_else(|| self.by_hand());
            Failure { cause, ..failure }.next(next)
        })?;
        let way_in = self.hub.read_way_in().await?;
        let address = installed_hub::outer_address(&way_in);
        let place = login::remember(&self.hub.target.context, address.unwrap_or(FORWARDED), &way_in)?;
        say(&format!(
            "the hub is ready; you are signed in as its administrator ({})",
            place.display()
        ));
        if let Some(address) = address {
            installed_hub::wait_until_heard(address).await;
        }
        print(&text::printable(said))?;
        let epoch = said.lines().find_map(|line| line.strip_prefix("epoch ")).map(str::trim);
        let Some(epoch) = epoch else { return Ok(()) };
        say(&format!(
            "Nothing is deleted in a cluster until its Cluster is confirmed. Compare what the hub lists with what shall run, then for each:\n  \
             kubectl --kubeconfig {} annotate -n NAMESPACE clusters.farwater.dev/NAME {}={}",
            place.display(),
            farwater_api::CONFIRM_RESTORED,
            text::plain(epoch)
        ));
        Ok(())
    }

    /// Starts the hub with its present data, and adds the next step to the failure.
    async fn start_again(&self, broken: Broken) -> Failure {
        say("the restore failed; starting the hub with its present data");
        let Broken { failure, is_untouched } = broken;
        let data = if is_untouched {
            "nothing of its data was changed"
        } else {
            "its data is the old or the backup's"
        };
        let next = match self.start().await {
            Ok(()) => {
                if let Ok(way_in) = self.hub.read_way_in().await
                    && let Some(address) = installed_hub::outer_address(&way_in)
                {
                    installed_hub::wait_until_heard(address).await;
                }
                format!("{data}, and the hub runs; run the same again")
            }
            Err(started) => {
                let evidence = started
                    .evidence
                    .map_or(String::new(), |evidence| format!(" ({evidence})"));
                format!(
                    "{data}, but {}{evidence}: run the same again, or {}",
                    started.cause,
                    self.by_hand()
                )
            }
        };
        let own = failure.next.clone().map_or(String::new(), |own| format!("{own}; "));
        failure.next(format!("{own}{next}"))
    }
}

fn ended(pod: &Pod) -> Option<ContainerStateTerminated> {
    let status = pod.status.as_ref()?;
    let states = status
        .container_statuses
        .iter()
        .flatten()
        .filter_map(|container| container.state.as_ref());
    if let Some(ended) = states.filter_map(|state| state.terminated.clone()).next() {
        return Some(ended);
    }
    // Evicted, or its deadline passed before it began.
    let failed = status.phase.as_deref() == Some("Failed");
    failed.then(|| ContainerStateTerminated {
        exit_code: i32::from(exit::INTERNAL),
        reason: status.reason.clone(),
        message: status.message.clone(),
        ..ContainerStateTerminated::default()
    })
}

/// A private folder for a backup from standard input, because it contains keys.
fn private_folder() -> Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(|error| Failure::file("make a folder in", &env::temp_dir(), &error))
}
