//! Checks for free disk space before a run. On a full disk, tests would fail after an hour with confusing errors.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use walkdir::WalkDir;

const GIB: u64 = 1 << 30;
/// Space for the target directory at the end of a run (16 GiB), the tools, and the servers' files.
const IN_ALL: u64 = 20 * GIB;
/// Space that a run needs with an existing target directory. Most of it is rebuilt, and the tests write as much as
/// before.
const AT_LEAST: u64 = 6 * GIB;

/// Fails if the file system of `target` lacks the space for a whole run.
pub fn require_room(target: &Path) -> Result<()> {
    let room = rustix::fs::statvfs(target).with_context(|| format!("ask how much room is at {}", target.display()))?;
    check(target, room.f_bavail * room.f_frsize, size(target))
}

fn check(target: &Path, free: u64, built: u64) -> Result<()> {
    let wanted = IN_ALL.saturating_sub(built).max(AT_LEAST);
    if free < wanted {
        let (target, free, wanted) = (target.display(), free as f64 / GIB as f64, wanted / GIB);
        bail!(
            "{free:.1} GiB are free at {target}, but builds and tests need up to {wanted} GiB: free some space \
             (cargo clean, go clean -cache), or set CARGO_TARGET_DIR to a folder on a larger disk"
        );
    }
    Ok(())
}

fn size(folder: &Path) -> u64 {
    let files = WalkDir::new(folder)
        .into_iter()
        .filter_map(Result::ok)
        .filter_map(|entry| entry.metadata().ok());
    files.filter(std::fs::Metadata::is_file).map(|file| file.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_named_before_anything_is_built() {
        let target = Path::new("/somewhere/target");
        let error = check(target, 18 * GIB, 0).unwrap_err().to_string();
        assert!(
            error.contains("18.0 GiB are free at /somewhere/target") && error.contains("up to 20"),
            "{error}"
        );
        check(target, 18 * GIB, 4 * GIB).unwrap();
        check(target, 5 * GIB, 40 * GIB).unwrap_err();
        check(target, 6 * GIB, 40 * GIB).unwrap();
    }

    #[test]
    fn what_is_built_already_counts() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("debug")).unwrap();
        std::fs::write(folder.path().join("debug/a"), [0; 1000]).unwrap();
        assert_eq!(size(folder.path()), 1000);
        // The free space of this machine is unknown, so accept both results.
        let asked = require_room(folder.path()).err().map(|error| error.to_string());
        let place = folder.path().display().to_string();
        assert!(asked.is_none_or(|told| told.contains(" GiB are free at ") && told.contains(&place)));
        let nowhere = require_room(&folder.path().join("nowhere")).unwrap_err().to_string();
        assert!(nowhere.contains("ask how much room is at"), "{nowhere}");
    }
}
