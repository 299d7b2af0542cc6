//! How much memory the children of this process take at the most.

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
    most: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Sample {
    pub fn begin() -> Self {
        let (most, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (most, ended) = (Arc::clone(&most), Arc::clone(&ended));
            move || {
                while !ended.load(Ordering::Relaxed) {
                    most.fetch_max(resident(), Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        });
        Self { most, ended, thread }
    }

    /// Bytes.
    pub fn end(self) -> u64 {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.most.load(Ordering::Relaxed)
    }
}

/// Bytes of all processes below this one.
fn resident() -> u64 {
    let mut children: BTreeMap<u32, Vec<(u32, u64)>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((_, fields)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<&str> = fields.split(' ').collect();
        let (Some(Ok(parent)), Some(Ok(pages))) =
            (fields.get(1).map(|f| f.parse()), fields.get(21).map(|f| f.parse::<u64>()))
        else {
            continue;
        };
        children.entry(parent).or_default().push((pid, pages * 4096));
    }
    let (mut total, mut pending) = (0, vec![std::process::id()]);
    while let Some(parent) = pending.pop() {
        for (pid, bytes) in children.get(&parent).into_iter().flatten() {
            total += bytes;
            pending.push(*pid);
        }
    }
    total
}
