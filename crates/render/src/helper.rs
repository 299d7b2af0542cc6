//! The child process that renders: started on demand, kept while it is used, ended when it is idle.
//!
//! `farwater-render` contains Helm's and Kustomize's own libraries; any program with the same protocol can be used
//! instead. A request that takes too long or too much ends with its child, and the next request gets a new one. Several
//! children work at one time, so one that hangs doesn't delay the others.

mod child;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::Instant,
};

use self::child::{Broken, Child};
use crate::{
    engine::Asker,
    limits::Limits,
    message::{Confinement, Done, MessageError, Reason, Request, RequestLimits},
};

/// Time after the child's own limit, which comes first because the child can give the reason.
const GRACE: Duration = Duration::from_secs(3);
/// A render that takes longer lets others go first and can't get back to the front. Most renders take some
/// milliseconds.
const LONG: Duration = Duration::from_millis(100);
/// Children at one time. Two, so that one that hangs until its limit doesn't stop the others.
const CHILDREN: usize = 2;
/// How long an idle child is kept: about a poll interval.
const IDLE: Duration = Duration::from_secs(60);
/// A new child that is not ready by then never will be; on a busy machine it takes half a second.
const START: Duration = Duration::from_secs(30);

/// How the program is started.
#[derive(Clone, Debug)]
pub struct Program {
    /// Path and arguments.
    pub command: Vec<String>,
    pub limits: Limits,
    pub children: usize,
    pub idle: Duration,
    /// Folder in which users' programs get their working folders; the helper itself needs none.
    pub work: Option<PathBuf>,
}

impl Program {
    pub fn new(command: Vec<String>) -> Self {
        Self {
            command,
            limits: Limits::default(),
            children: CHILDREN,
            idle: IDLE,
            work: None,
        }
    }

    /// Fingerprint of its files, which the result may depend on.
    pub(crate) fn fingerprint(&self) -> String {
        self.command
            .iter()
            .map(|word| fingerprint(word))
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// A word of a command, with size and time if it names a file.
pub(crate) fn fingerprint(word: &str) -> String {
    let file = std::fs::metadata(word).ok().filter(std::fs::Metadata::is_file);
    let changed = |file: &std::fs::Metadata| {
        file.modified()
            .ok()?
            .duration_since(std::time::UNIX_EPOCH)
            .ok()
            .map(|time| time.as_nanos())
    };
    file.map_or_else(
        || word.to_owned(),
        |file| format!("{word}@{}-{}", file.len(), changed(&file).unwrap_or(0)),
    )
}

/// Why nothing was rendered.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("start {program}: {source}; it comes with farwater-agent and farwater, and belongs beside them")]
    Start { program: String, source: std::io::Error },
    #[error(
        "{program} speaks version {found} of the renderers' messages, not {}",
        crate::message::PROTOCOL
    )]
    Protocol { program: String, found: u32 },
    /// The program's own error.
    #[error("{message}")]
    Failed { reason: Reason, message: String },
    #[error("rendering took over {} s", .0.as_secs())]
    Time(Duration),
    #[error("rendering took over {} MiB of memory", .0 >> 20)]
    Memory(u64),
    #[error("{program} ended while it rendered{}", said(.words))]
    Crashed { program: String, words: String },
    #[error("{program}: {source}")]
    Message { program: String, source: MessageError },
}

fn said(words: &str) -> String {
    if words.is_empty() {
        String::new()
    } else {
        format!(": {words}")
    }
}

impl HelperError {
    /// Whether a limit was reached, so that a retry would fail again.
    pub fn is_limit(&self) -> bool {
        matches!(
            self,
            Self::Time(_)
                | Self::Memory(_)
                | Self::Failed {
                    reason: Reason::Limit,
                    ..
                }
        )
    }
}

pub struct Helper {
    program: Program,
    working: Semaphore,
    idle: Arc<Mutex<Idle>>,
}

#[derive(Default)]
struct Idle {
    children: Vec<(Instant, Child)>,
    /// A task waits to end them.
    attended: bool,
}

impl Helper {
    pub fn new(program: Program) -> Self {
        Self {
            working: Semaphore::new(program.children.max(1)),
            idle: Arc::default(),
            program,
        }
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Process ids of idle children.
    pub fn idle(&self) -> Vec<u32> {
        lock(&self.idle)
            .children
            .iter()
            .filter_map(|(_, child)| child.id())
            .collect()
    }

    /// How the kernel confines a child. Starts one if there is none.
    pub async fn confinement(&self) -> Result<Confinement, HelperError> {
        let child = match self.take_idle() {
            Some(child) => child,
            None => self.start().await?,
        };
        let confinement = child.confinement();
        self.put_back(child);
        Ok(confinement)
    }

    /// A place among the working children, for another program.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.working.acquire().await.ok()
    }

    /// Dropping the future ends the child.
    pub(crate) async fn call(
        &self,
        mut request: Request<'_>,
        body: &[&[u8]],
        asker: &dyn Asker,
    ) -> Result<(Done, Vec<u8>), HelperError> {
        let Limits {
            time,
            cpu,
            memory,
            output,
            ..
        } = self.program.limits;
        request.limits = RequestLimits {
            seconds: time.as_secs_f64(),
            cpu_seconds: cpu.as_secs().max(1),
            memory_bytes: memory,
            output_bytes: output,
        };

        let _turn = self.turn().await;
        loop {
            let (mut child, is_new) = match self.take_idle() {
                Some(child) => (child, false),
                None => (self.start().await?, true),
            };
            let begun = Instant::now();
            let answered = tokio::time::timeout(time + GRACE, child.exchange(&request, body, output, asker)).await;
            let gave_way = begun.elapsed() >= LONG;
            let failed = match answered {
                Ok(Ok(Ok(done))) => {
                    if !gave_way {
                        self.put_back(child);
                    }
                    return Ok(done);
                }
                // The child refused the request and continues, unless it was at its limits.
                Ok(Ok(Err(failure))) => {
                    if !gave_way && failure.reason != Reason::Limit {
                        self.put_back(child);
                    }
                    return Err(HelperError::Failed {
                        reason: failure.reason,
                        message: failure.message,
                    });
                }
                Ok(Err(source)) => Some(source),
                Err(_) => None,
            };
            match self.explain(child.end().await, failed) {
                // It was already ending before the request, so nothing is known of the request.
                HelperError::Crashed { .. } if !is_new => {}
                error => return Err(error),
            }
        }
    }

    /// `failed`: the broken message. None: no answer came in time.
    fn explain(&self, broken: Broken, failed: Option<MessageError>) -> HelperError {
        let limits = &self.program.limits;
        let program = self.name();
        match failed {
            None => HelperError::Time(limits.time),
            Some(MessageError::Ended) if broken.by_time => HelperError::Time(limits.cpu),
            Some(MessageError::Ended) if broken.by_memory => HelperError::Memory(limits.memory),
            Some(MessageError::Ended) => HelperError::Crashed {
                program,
                words: broken.words,
            },
            Some(source) => HelperError::Message { program, source },
        }
    }

    /// An idle child that is still running.
    fn take_idle(&self) -> Option<Child> {
        let take = || lock(&self.idle).children.pop();
        while let Some((_, mut child)) = take() {
            if child.is_running() {
                return Some(child);
            }
        }
        None
    }

    async fn start(&self) -> Result<Child, HelperError> {
        let program = self.name();
        let start = |source| HelperError::Start {
            program: program.clone(),
            source,
        };
        let mut child = Child::start(&self.program).map_err(start)?;
        match tokio::time::timeout(START, child.ready()).await {
            Ok(Ok(ready)) if ready.protocol == crate::message::PROTOCOL => {
                tracing::debug!(program, versions = ?ready.versions, confinement = ?ready.confinement, "renderer started");
                Ok(child)
            }
            Ok(Ok(ready)) => Err(HelperError::Protocol {
                program,
                found: ready.protocol,
            }),
            Ok(Err(MessageError::Ended)) => Err(HelperError::Crashed {
                program,
                words: child.end().await.words,
            }),
            Ok(Err(source)) => Err(HelperError::Message { program, source }),
            Err(_) => {
                child.end().await;
                let source = std::io::Error::new(std::io::ErrorKind::TimedOut, "it did not say that it is ready");
                Err(start(source))
            }
        }
    }

    fn put_back(&self, child: Child) {
        let mut idle = lock(&self.idle);
        idle.children.push((Instant::now(), child));
        if !idle.attended {
            idle.attended = true;
            tokio::spawn(attend(Arc::clone(&self.idle), self.program.idle));
        }
    }

    /// The error for an invalid answer.
    pub(crate) fn broken(&self, source: MessageError) -> HelperError {
        HelperError::Message {
            program: self.name(),
            source,
        }
    }

    pub(crate) fn too_long(&self, object: &str, bytes: usize) -> HelperError {
        let most = farwater_bundle::manifests::MAX_DOCUMENT_BYTES;
        let message = format!("{object} has {bytes} bytes; the Kubernetes API takes at most {most}");
        HelperError::Failed {
            reason: Reason::Limit,
            message,
        }
    }

    fn name(&self) -> String {
        let path = self.program.command.first().map(String::as_str).unwrap_or_default();
        Path::new(path)
            .file_name()
            .map_or_else(|| path.to_owned(), |name| name.to_string_lossy().into_owned())
    }
}

/// Ends children that were idle for too long, until there are none.
async fn attend(idle: Arc<Mutex<Idle>>, patience: Duration) {
    loop {
        let next = {
            let mut idle = lock(&idle);
            // Dropping a child ends it.
            idle.children.retain(|(since, _)| since.elapsed() < patience);
            let next = idle.children.iter().map(|(since, _)| *since + patience).min();
            idle.attended = next.is_some();
            next
        };
        let Some(next) = next else { return };
        tokio::time::sleep_until(next).await;
    }
}

fn lock(idle: &Mutex<Idle>) -> MutexGuard<'_, Idle> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}
