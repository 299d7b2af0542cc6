//! The remains of a killed `git` in a mirror. Only git writes there, so they are useless once none runs.

use std::{fs, io, path::Path};

/// Removes half-written packs, keep files and locks.
pub(super) fn remove(mirror: &Path) -> io::Result<()> {
    let objects = mirror.join("objects");
    for entry in list(&objects.join("pack"))? {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("tmp_") || name.starts_with(".tmp-") || name.ends_with(".keep") || name.ends_with(".lock") {
            remove_file(&entry.path())?;
        }
    }

    for entry in list(&objects)? {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("tmp_objdir-") || name.starts_with("incoming-") {
            fs::remove_dir_all(entry.path())?;
        } else if name.len() == 2 {
            for object in list(&entry.path())? {
                if object.file_name().to_string_lossy().starts_with("tmp_obj_") {
                    remove_file(&object.path())?;
                }
            }
        }
    }

    for entry in list(mirror)? {
        let name = entry.file_name();
        if name.to_string_lossy().ends_with(".lock") || name == "gc.pid" {
            remove_file(&entry.path())?;
        }
    }
    remove_locks(&mirror.join("refs"), 8)
}

fn remove_locks(folder: &Path, depth: u8) -> io::Result<()> {
    for entry in list(folder)? {
        if entry.file_type()?.is_dir() {
            if depth > 0 {
                remove_locks(&entry.path(), depth - 1)?;
            }
        } else if entry.file_name().to_string_lossy().ends_with(".lock") {
            remove_file(&entry.path())?;
        }
    }
    Ok(())
}

pub(super) fn count_packs(mirror: &Path) -> usize {
    let is_pack = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|extension| extension == "pack");
    list(&mirror.join("objects/pack")).map_or(0, |entries| entries.iter().filter(|e| is_pack(e)).count())
}

/// Bytes of the files below a folder. Files that vanish meanwhile don't count.
pub(super) fn size(folder: &Path) -> u64 {
    let Ok(entries) = list(folder) else { return 0 };
    entries
        .iter()
        .filter_map(|entry| {
            let kind = entry.file_type().ok()?;
            Some(if kind.is_dir() {
                size(&entry.path())
            } else {
                entry.metadata().ok()?.len()
            })
        })
        .sum()
}

fn list(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_go_and_objects_stay() {
        let dir = tempfile::tempdir().unwrap();
        let touch = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        };
        let rubbish = [
            "objects/pack/tmp_pack_x",
            "objects/pack/pack-1.keep",
            "packed-refs.lock",
            "refs/farwater/tracked.lock",
            "objects/12/tmp_obj_x",
            "objects/tmp_objdir-incoming-x/y",
            "shallow.lock",
        ];
        let kept = [
            "objects/pack/pack-1.pack",
            "objects/pack/pack-1.idx",
            "objects/17/345",
            "refs/farwater/tracked",
            "HEAD",
        ];
        rubbish.iter().chain(&kept).for_each(|name| touch(name));
        remove(dir.path()).unwrap();
        assert!(rubbish.iter().all(|name| !dir.path().join(name).exists()));
        assert!(kept.iter().all(|name| dir.path().join(name).exists()));
        assert_eq!(count_packs(dir.path()), 1);
        assert_eq!(size(dir.path()), kept.len() as u64);
        remove(&dir.path().join("nowhere")).unwrap();
    }
}
