//! `farwater admin backup`: of a data directory, and of a hub in a cluster by running the same command in its pod.

use std::{
    env, fs,
    io::{self, Read as _, Seek as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use farwater_hub::identity::read_keys;
use farwater_manifests::names::hub as names;
use farwater_store::archive::{self, ArchiveError, Destination, Enclosed, FileError};
use jiff::Timestamp;
use tempfile::NamedTempFile;

use super::{
    LocalHub, described,
    failures::{failed, keys},
};
use crate::{
    exit,
    failure::{Failure, Result},
    installed_hub::InstalledHub,
    terminal::{print, say},
};

const ATTEMPT: &str = "make the backup";
/// Parts of a backup's name in a folder, around its time.
const PREFIX: &str = "farwater-hub-";
const SUFFIX: &str = ".backup";
const KEYS_WARNING: &str =
    "it contains the hub's keys: anyone with this file can impersonate the hub and read its Secrets";

/// Whether the file means standard input or output.
pub fn is_stream(file: &Path) -> bool {
    file == Path::new("-")
}

pub async fn write(hub: &LocalHub, file: &Path, force: bool, with_keys: bool) -> Result<()> {
    let enclosed = match with_keys {
        true => read_keys(&hub.data_dir).map_err(|error| keys(ATTEMPT, &error))?,
        false => Vec::new(),
    };
    let to = match is_stream(file) {
        true => Destination::Stream(Box::new(io::stdout())),
        false => Destination::File { path: file, force },
    };
    let copied = archive::backup_to(&hub.location, to, &enclosed)
        .await
        .map_err(|error| failed(ATTEMPT, &error))?;
    if with_keys {
        check_keys(hub, &enclosed)?;
    }
    if is_stream(file) {
        return Ok(());
    }
    print(&described(&copied))?;
    let rest = match with_keys {
        true => KEYS_WARNING.to_owned(),
        false => format!("keep it with {}", hub.data_dir.join("keys").display()),
    };
    say(&format!("wrote {}; {rest}", file.display()));
    Ok(())
}

/// Checks that the keys are unchanged: the seal key may be rotated while the hub runs, and rows and keys must be of one
/// moment.
fn check_keys(hub: &LocalHub, enclosed: &[Enclosed]) -> Result<()> {
    let now = read_keys(&hub.data_dir).map_err(|error| keys(ATTEMPT, &error))?;
    let seal = |files: &[Enclosed]| -> Vec<_> {
        let of_seal = files.iter().filter(|file| file.name.starts_with("keys/seal."));
        of_seal.map(|file| (file.name.clone(), file.content.clone())).collect()
    };
    match seal(&now) == seal(enclosed) {
        true => Ok(()),
        false => Err(Failure::new(
            exit::CONFLICT,
            format!("can't {ATTEMPT}: the hub's seal key was exchanged meanwhile"),
        )
        .next("make it again: the file lacks the key")),
    }
}

/// The file gets its name when it is whole; a backup to standard output is written when it is whole, too.
pub async fn fetch(hub: InstalledHub<'_>, file: &Path, force: bool) -> Result<()> {
    if !force && !is_stream(file) && file.exists() {
        let there = ArchiveError::File(FileError::Exists { path: file.to_owned() });
        return Err(failed(ATTEMPT, &there).next("--force replaces it"));
    }

    hub.target.require(hub.rights_to_enter()).await?;
    hub.find().await?;
    let mut part = beside(file)?;
    let command = [
        "farwater",
        "admin",
        "backup",
        "--data-dir",
        names::DATA,
        "--with-keys",
        "-",
    ];
    hub.run(
        "make the backup in the hub's pod",
        &command,
        u64::MAX,
        part.as_file_mut(),
    )
    .await?;

    let verified = archive::verify(part.path()).and_then(|copied| Ok((copied, archive::enclosed(part.path())?)));
    let (copied, enclosed) = verified
        .map_err(|error| failed("take the backup from the hub's pod", &error).next("try again: nothing was written"))?;
    if enclosed.is_empty() {
        return Err(Failure::new(
            exit::CONFLICT,
            format!("can't {ATTEMPT}: the hub gave none of its keys"),
        )
        .evidence("its image is older than this program")
        .next("make it with the program of the hub's version"));
    }

    let wrong = |error: &io::Error| Failure::file("write", file, error);
    if is_stream(file) {
        part.as_file_mut().rewind().map_err(|error| wrong(&error))?;
        io::copy(part.as_file_mut(), &mut io::stdout().lock()).map_err(|error| wrong(&error))?;
        return Ok(());
    }
    part.as_file().sync_all().map_err(|error| wrong(&error))?;
    let kept = match force {
        true => part.persist(file),
        false => part.persist_noclobber(file),
    };
    let kept = kept.map_err(|error| wrong(&error.error))?;
    let bytes = kept.metadata().map_or(0, |file| file.len());

    print(&described(&copied))?;
    say(&format!(
        "wrote {} ({:.1} MB); {KEYS_WARNING}",
        file.display(),
        bytes as f64 / 1e6
    ));
    Ok(())
}

/// The destination of a new backup: a file in a folder. Afterwards the oldest backups beyond `keep` are deleted.
pub struct Shelf {
    pub file: PathBuf,
    keep: Option<(PathBuf, usize)>,
}

impl Shelf {
    pub fn of(file: &Path, keep: Option<u16>, now: Timestamp) -> Result<Self> {
        if !file.is_dir() {
            return match keep {
                Some(_) => Err(Failure::usage(format!(
                    "--keep needs a folder, and {} is none",
                    file.display()
                ))),
                None => Ok(Self {
                    file: file.to_owned(),
                    keep: None,
                }),
            };
        }
        let name = format!("{PREFIX}{}{SUFFIX}", now.strftime("%Y%m%dT%H%M%SZ"));
        Ok(Self {
            file: file.join(name),
            keep: keep.map(|keep| (file.to_owned(), keep.into())),
        })
    }

    /// Deletes old backups, once the new one exists.
    pub fn tidy(&self) -> Result<()> {
        let Some((folder, keep)) = &self.keep else {
            return Ok(());
        };
        let read = |error: io::Error| Failure::file("read", folder, &error);
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).map_err(read)? {
            names.extend(entry.map_err(read)?.file_name().into_string().ok());
        }
        for name in outdated(names, *keep) {
            let path = folder.join(name);
            fs::remove_file(&path).map_err(|error| Failure::file("remove", &path, &error))?;
            say(&format!("removed {}", path.display()));
        }
        Ok(())
    }
}

/// The oldest of our own backups; other files are never deleted.
fn outdated(names: Vec<String>, keep: usize) -> Vec<String> {
    let is_ours = |name: &String| {
        let time = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
        time.is_some_and(|time| {
            time.len() == 16 && time.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'T' | b'Z'))
        })
    };
    let mut ours: Vec<String> = names.into_iter().filter(is_ours).collect();
    // Their names sort by time.
    ours.sort_unstable();
    ours.truncate(ours.len().saturating_sub(keep));
    ours
}

/// A private temporary file in the folder of the final one.
fn beside(file: &Path) -> Result<NamedTempFile> {
    let folder = match file.parent() {
        _ if is_stream(file) => env::temp_dir(),
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => ".".into(),
    };
    let made = tempfile::Builder::new()
        .prefix(".farwater-backup-")
        .suffix(".part")
        .tempfile_in(&folder);
    made.map_err(|error| Failure::file("write into", &folder, &error))
}

/// Standard input as a file, which is deleted when dropped.
pub struct Spooled {
    path: PathBuf,
}

impl Spooled {
    /// Reads standard input, of exactly `size` bytes if that is known, so that a broken stream is detected at once.
    pub fn read(folder: &Path, size: Option<u64>) -> Result<Self> {
        let spooled = Self {
            path: folder.join("restore.part"),
        };
        let wrong = |error: io::Error| Failure::file("keep the backup in", &spooled.path, &error);
        // The remains of a killed attempt would fill the volume, and may have another mode.
        match fs::remove_file(&spooled.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(wrong(error)),
            _ => {}
        }
        let made = fs::File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&spooled.path);
        let mut file = made.map_err(wrong)?;
        let mut input = io::stdin().lock().take(size.unwrap_or(u64::MAX));
        let copied = io::copy(&mut input, &mut file).map_err(wrong)?;
        match size {
            Some(size) if copied < size => Err(Failure::usage(format!(
                "standard input ended after {copied} of {size} bytes"
            ))),
            _ => Ok(spooled),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Spooled {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_folder_keeps_the_newest_and_what_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("farwater-hub-by-hand.backup"), "").unwrap();
        for day in 1..=4 {
            let shelf = Shelf::of(folder.path(), Some(2), at(&format!("2026-01-0{day}T02:00:00Z"))).unwrap();
            fs::write(&shelf.file, "").unwrap();
            shelf.tidy().unwrap();
        }
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let kept = [
            "farwater-hub-20260103T020000Z.backup",
            "farwater-hub-20260104T020000Z.backup",
            "farwater-hub-by-hand.backup",
        ];
        assert_eq!(names, kept);
    }

    #[test]
    fn a_file_is_named_by_whoever_asks_and_never_tidied() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine");
        let shelf = Shelf::of(&file, None, at("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(shelf.file, file);
        shelf.tidy().unwrap();
        assert!(Shelf::of(&file, Some(1), at("2026-01-01T00:00:00Z")).is_err());
    }
}
