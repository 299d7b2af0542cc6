//! Locks on files, for as long as a process lives.

use std::{
    fs::{File, TryLockError},
    thread::sleep,
    time::{Duration, Instant},
};

/// A child that was just forked holds its parent's files until its exec; the parent may have ended in between.
const PATIENCE: Duration = Duration::from_millis(500);

/// Takes the kernel's lock of a file, or says that another process holds it. Blocks for half a second at most.
pub fn lock_file(file: &File) -> Result<(), TryLockError> {
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => sleep(PATIENCE / 25),
            result => return result,
        }
    }
}
