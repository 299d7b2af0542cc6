//! Files of the hub's machine: a folder for each path, a file for each value. This is the form of a Secret that is
//! mounted into a pod: its files are links into a folder that Kubernetes replaces as a whole.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    backend::{Backend, BackendError, MAX_VALUES, MAX_VALUES_BYTES, Reference, SecretBytes, Values},
    config,
};

/// Minimum age at which an empty file counts as an empty value.
const SETTLED: Duration = Duration::from_secs(10);

pub(crate) struct Files {
    folder: PathBuf,
}

impl Files {
    pub(crate) fn new(config: &config::Files) -> Result<Self, String> {
        match config.folder.is_absolute() {
            true => Ok(Self {
                folder: config.folder.clone(),
            }),
            false => Err(format!("folder {} is not absolute", config.folder.display())),
        }
    }
}

#[async_trait]
impl Backend for Files {
    async fn read(&self, reference: &Reference) -> Result<Values, BackendError> {
        let (folder, wanted) = (self.folder.clone(), reference.clone());
        let read = tokio::task::spawn_blocking(move || read(&folder, &wanted)).await;
        read.unwrap_or_else(|_| Err(BackendError::passing("the hub failed to read the files")))
    }
}

fn read(root: &Path, reference: &Reference) -> Result<Values, BackendError> {
    let path = &reference.path;
    if !Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_)))
        || path.is_empty()
    {
        return Err(BackendError::lasting(format!(
            "{path:?} is not a path below the backend's folder"
        )));
    }
    let failed = |error: io::Error| failure(path, &error);
    let root = root.canonicalize().map_err(failed)?;
    let within = |place: &Path| {
        let real = place.canonicalize().map_err(failed)?;
        match real.starts_with(&root) {
            true => Ok(real),
            false => Err(BackendError::lasting(format!(
                "{path} leads out of the backend's folder"
            ))),
        }
    };
    let place = within(&root.join(path))?;
    let mut found = Values::new();
    let mut room = MAX_VALUES_BYTES;
    let entries: Vec<(String, PathBuf)> = if place.is_dir() {
        list(&place).map_err(failed)?
    } else {
        let name = Path::new(path)
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        vec![(name.unwrap_or_default(), place)]
    };
    for (name, entry) in entries {
        let real = within(&entry)?;
        let metadata = fs::metadata(&real).map_err(failed)?;
        if !metadata.is_file() {
            continue;
        }
        let bytes = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        if bytes > room || found.len() == MAX_VALUES {
            let problem = format!("{path} has more than {MAX_VALUES_BYTES} bytes or {MAX_VALUES} files");
            return Err(BackendError::lasting(problem));
        }
        let value = read_whole(&real, &metadata, path)?;
        room = room.saturating_sub(value.len());
        found.push((name, SecretBytes::new(value)));
    }
    if found.is_empty() {
        // A volume that is not mounted yet is an empty folder.
        return Err(BackendError::lasting(format!("{path} is an empty folder")));
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

fn failure(path: &str, error: &io::Error) -> BackendError {
    match error.kind() {
        io::ErrorKind::NotFound => BackendError::lasting(format!("there is no {path}")),
        io::ErrorKind::PermissionDenied => BackendError::lasting(format!("the hub may not read {path}")),
        kind => BackendError::passing(format!("{path} can't be read: {kind}")),
    }
}

/// The content of a file that is not being written. `before`: its metadata before it was read.
fn read_whole(file: &Path, before: &fs::Metadata, path: &str) -> Result<Vec<u8>, BackendError> {
    let value = fs::read(file).map_err(|error| failure(path, &error))?;
    let after = fs::metadata(file).map_err(|error| failure(path, &error))?;
    let moved = |one: &fs::Metadata| (one.len(), one.modified().ok());
    if moved(before) != moved(&after) || (value.is_empty() && is_fresh(&after)) {
        return Err(BackendError::passing(format!("{path} is being written")));
    }
    Ok(value)
}

/// A program that overwrites a file empties the file first.
fn is_fresh(file: &fs::Metadata) -> bool {
    let age = file.modified().ok().and_then(|time| time.elapsed().ok());
    age.is_none_or(|age| age < SETTLED)
}

/// Lists all files except hidden ones. The targets of a mounted volume's links are hidden folders.
fn list(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string();
        entries.extend(
            name.ok()
                .filter(|name| !name.starts_with('.'))
                .map(|name| (name, entry.path())),
        );
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(values: &Values) -> Vec<(&str, &[u8])> {
        values
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose()))
            .collect()
    }

    fn reference(path: &str) -> Reference {
        Reference {
            path: path.into(),
            ..Reference::default()
        }
    }

    #[test]
    fn a_mounted_secret_is_read_through_its_links_and_follows_its_exchange() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("web");
        for (version, password) in [("..v1", "hunter2"), ("..v2", "hunter3")] {
            fs::create_dir_all(folder.join(version)).unwrap();
            fs::write(folder.join(version).join("password"), password).unwrap();
            fs::write(folder.join(version).join("user"), "admin").unwrap();
        }
        symlink("..v1", folder.join("..data")).unwrap();
        for name in ["password", "user"] {
            symlink(format!("..data/{name}"), folder.join(name)).unwrap();
        }
        let all = read(root.path(), &reference("web")).unwrap();
        assert_eq!(names(&all), [("password", &b"hunter2"[..]), ("user", b"admin")]);
        symlink("..v2", folder.join("..new")).unwrap();
        fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
        assert_eq!(
            names(&read(root.path(), &reference("web")).unwrap()),
            [("password", &b"hunter3"[..]), ("user", b"admin")]
        );
        assert_eq!(
            names(&read(root.path(), &reference("web/user")).unwrap()),
            [("user", &b"admin"[..])]
        );
    }

    #[test]
    fn nothing_outside_of_the_folder_is_read() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("secret"), "hunter2").unwrap();
        fs::create_dir(root.path().join("web")).unwrap();
        symlink(outside.path(), root.path().join("way-out")).unwrap();
        symlink(outside.path().join("secret"), root.path().join("web/secret")).unwrap();
        let check = |path: &str, problem: &str| {
            let error = read(root.path(), &reference(path)).unwrap_err();
            assert!(
                !error.is_passing() && error.to_string().contains(problem),
                "{path}: {error}"
            );
            assert!(!error.to_string().contains("hunter2"));
        };
        check("../x", "not a path below");
        check("/etc/passwd", "not a path below");
        check("", "not a path below");
        check("way-out", "leads out");
        check("way-out/secret", "leads out");
        check("web", "leads out");
        check("absent", "there is no absent");
    }

    #[test]
    fn what_is_being_written_and_a_folder_that_was_emptied_are_no_values() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("web")).unwrap();
        let error = read(root.path(), &reference("web")).unwrap_err();
        assert!(
            !error.is_passing() && error.to_string().contains("web is an empty folder"),
            "{error}"
        );
        let file = fs::File::create(root.path().join("web/password")).unwrap();
        let error = read(root.path(), &reference("web")).unwrap_err();
        assert!(
            error.is_passing() && error.to_string().contains("being written"),
            "{error}"
        );
        file.set_modified(std::time::SystemTime::now() - 2 * SETTLED).unwrap();
        assert_eq!(
            names(&read(root.path(), &reference("web")).unwrap()),
            [("password", &b""[..])]
        );
    }

    #[test]
    fn too_much_is_refused_before_it_is_read() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("large")).unwrap();
        fs::write(root.path().join("large/a"), vec![0; MAX_VALUES_BYTES + 1]).unwrap();
        fs::write(root.path().join("large/b"), "small").unwrap();
        assert!(
            read(root.path(), &reference("large"))
                .unwrap_err()
                .to_string()
                .contains("more than")
        );
        assert_eq!(
            names(&read(root.path(), &reference("large/b")).unwrap()),
            [("b", &b"small"[..])]
        );
    }
}
