//! Samples the memory and the number of this process's children.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

pub struct Sample {
    bytes: Arc<AtomicU64>,
    processes: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Sample {
    pub fn begin() -> Self {
        let (bytes, processes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let ended = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (bytes, processes, ended) = (Arc::clone(&bytes), Arc::clone(&processes), Arc::clone(&ended));
            move || {
                while !ended.load(Ordering::Relaxed) {
                    let (now, count) = descendants();
                    bytes.fetch_max(now, Ordering::Relaxed);
                    processes.fetch_max(count, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        });
        Self {
            bytes,
            processes,
            ended,
            thread,
        }
    }

    /// The largest number of bytes and of processes.
    pub fn end(self) -> (u64, u64) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        (
            self.bytes.load(Ordering::Relaxed),
            self.processes.load(Ordering::Relaxed),
        )
    }
}

/// Resident bytes of all descendants of this process, and their number.
fn descendants() -> (u64, u64) {
    let mut children: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let Some((_, fields)) = stat.rsplit_once(") ") else {
            continue;
        };
        let fields: Vec<&str> = fields.split(' ').collect();
        let (Some(Ok(parent)), Some(Ok(pages))) = (
            fields.get(1).map(|f| f.parse()),
            fields.get(21).map(|f| f.parse::<u64>()),
        ) else {
            continue;
        };
        children.entry(parent).or_default().push((pid, pages * 4096));
    }
    let (mut total, mut count, mut pending) = (0, 0, vec![std::process::id()]);
    while let Some(parent) = pending.pop() {
        for (pid, bytes) in children.get(&parent).into_iter().flatten() {
            total += bytes;
            count += 1;
            pending.push(*pid);
        }
    }
    (total, count)
}
