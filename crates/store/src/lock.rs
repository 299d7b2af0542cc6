//! File locks that a process holds as long as it runs.

use std::{
    fs::{File, TryLockError},
    thread::sleep,
    time::{Duration, Instant},
};

/// A forked child holds its parent's files until its exec, and the parent may have ended in between.
const PATIENCE: Duration = Duration::from_millis(500);

/// Takes the kernel's lock of a file. Err: another process holds it. Blocks for half a second at most.
pub fn lock_file(file: &File) -> Result<(), TryLockError> {
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => sleep(PATIENCE / 25),
            result => return result,
        }
    }
}
