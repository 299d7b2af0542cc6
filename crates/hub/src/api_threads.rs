//! Threads that serve the API's clients and give way to all others: a storm of lists must not make agents late.

use std::{future::poll_fn, io, pin::pin, thread};

#[cfg(target_os = "linux")]
use rustix::{
    process::setpriority_process,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

pub struct ApiThreads(Option<Runtime>);

impl ApiThreads {
    pub fn start() -> io::Result<Self> {
        let mut threads = Builder::new_multi_thread();
        threads.thread_name("api").enable_all();
        #[cfg(target_os = "linux")]
        give_way(&mut threads);
        Ok(Self(Some(threads.build()?)))
    }

    /// Goes on there with what was begun elsewhere, and after each step lets those go first who have waited meanwhile: a thread that
    /// is only nice is left to end its slice, which is longer than a poll takes.
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
            // The last to use it may be one of its own threads.
            runtime.shutdown_background();
        }
    }
}

/// Where threads compete, one that isn't nice gets three times the time of one that is this nice. But it waits until the other's slice
/// ends, which is longer than a poll takes: so one core is never the other's. What these threads start, such as SQLite's readers, is
/// bound as they are.
#[cfg(target_os = "linux")]
fn give_way(threads: &mut Builder) {
    let cores = all_but_one();
    if let Some(cores) = &cores {
        threads.worker_threads(cores.count() as usize);
    }
    threads.on_thread_start(move || {
        let nice = setpriority_process(None, 5);
        let bound = cores.as_ref().map_or(Ok(()), |cores| sched_setaffinity(None, cores));
        if let Err(error) = nice.and(bound) {
            tracing::debug!(%error, "requests to the API don't give way to agents");
        }
    });
}

/// None where there is only one, or where the system doesn't say.
#[cfg(target_os = "linux")]
fn all_but_one() -> Option<CpuSet> {
    let mut cores = sched_getaffinity(None).ok()?;
    let first = (0..CpuSet::MAX_CPU).find(|core| cores.is_set(*core))?;
    cores.unset(first);
    (cores.count() > 0).then_some(cores)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn one_core_is_never_theirs() {
        let threads = ApiThreads::start().unwrap();
        let (told, hear) = std::sync::mpsc::channel();
        let tell = move || told.send((sched_getaffinity(None).unwrap(), getpriority_process(None).unwrap())).unwrap();
        let begun = tell.clone();
        threads.spawn(async move {
            begun();
            tokio::task::spawn_blocking(tell).await.unwrap();
        });
        let expected = all_but_one().unwrap_or_else(|| sched_getaffinity(None).unwrap());
        for (cores, nice) in hear.iter().take(2) {
            assert!(cores == expected && nice >= 5, "{} of {} cores, nice {nice}", cores.count(), expected.count());
        }
    }
}
