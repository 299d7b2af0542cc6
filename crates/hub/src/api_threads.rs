//! Threads that serve the API's clients and yield to all others, so that many lists don't delay agents.

use std::{future::poll_fn, io, pin::pin, thread};

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

/// Bytes of stack of each thread that answers requests. Parsers recurse once per level of a value, and an unoptimized
/// build takes up to 20 KiB per level: a body may have 127 levels. Unused stack takes no memory.
pub const STACK: usize = 8 << 20;

pub struct ApiThreads(Option<Runtime>);

impl ApiThreads {
    pub fn start() -> io::Result<Self> {
        let mut threads = Builder::new_multi_thread();
        threads
            .thread_name("api")
            .thread_stack_size(STACK)
            .enable_all()
            .on_thread_start(give_way);
        let runtime = threads.build()?;
        Ok(Self(Some(runtime)))
    }

    /// Continues work on these threads that began elsewhere. After each step it yields to waiting threads, because a
    /// thread that is only nice may use its whole time slice, which is longer than a poll takes.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let work = async move {
            let mut work = pin!(work);
            poll_fn(|context| {
                let step = work.as_mut().poll(context);
                thread::yield_now();
                step
            })
            .await;
        };
        match &self.0 {
            Some(runtime) => runtime.spawn(work),
            None => tokio::spawn(work),
        }
    }
}

impl Drop for ApiThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // One of its own threads may be the last user.
            runtime.shutdown_background();
        }
    }
}

fn give_way() {
    // If threads compete, one with normal priority gets three times the time of one that is this nice.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 5) {
        tracing::debug!(%error, "requests to the API don't give way to agents");
    }
}
