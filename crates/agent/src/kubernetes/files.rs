//! Files with credentials of the agent and authorities of the API server. They change while the agent runs: a pod's
//! token each hour, its cluster's authority now and then.

use std::{
    error::Error,
    fmt,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::{hub::chain, sync::lock};

/// A pod's token is replaced after four fifths of its lifetime, i.e. at least two minutes before it ends.
const INTERVAL: Duration = Duration::from_secs(60);

/// Reads a whole file of at most `most` bytes.
pub fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has over {most} bytes")));
    }
    Ok(bytes)
}

/// The content of a file, read again at most once a minute. If that fails, the last content stays valid, because the
/// file may have been meant only for the start (kubernetes/kubernetes#68164).
pub struct Rotating<T, E> {
    path: PathBuf,
    read: fn(&Path) -> Result<T, E>,
    last: Mutex<Last<T>>,
}

struct Last<T> {
    value: T,
    at: Instant,
    has_failed: bool,
}

impl<T: Clone, E: Error> Rotating<T, E> {
    /// Fails if the file can't be read now.
    pub fn new(path: &Path, read: fn(&Path) -> Result<T, E>) -> Result<Self, E> {
        let last = Last {
            value: read(path)?,
            at: Instant::now(),
            has_failed: false,
        };
        Ok(Self {
            path: path.to_owned(),
            read,
            last: Mutex::new(last),
        })
    }

    pub fn get(&self) -> T {
        self.get_at(Instant::now())
    }

    pub fn get_at(&self, now: Instant) -> T {
        let mut last = lock(&self.last);
        if now.saturating_duration_since(last.at) >= INTERVAL {
            self.renew(&mut last, now);
        }
        last.value.clone()
    }

    fn renew(&self, last: &mut Last<T>, now: Instant) {
        last.at = now;
        let read = (self.read)(&self.path);
        if let Err(error) = &read
            && !last.has_failed
        {
            tracing::warn!(
                error = chain(error),
                "a file can't be read again; its last content stays in use"
            );
        }
        last.has_failed = read.is_err();
        if let Ok(value) = read {
            last.value = value;
        }
    }
}

impl<T: Clone + PartialEq, E: Error> Rotating<T, E> {
    /// Reads the file now. Returns whether its content has changed.
    pub fn read_again(&self) -> bool {
        let mut last = lock(&self.last);
        let before = last.value.clone();
        self.renew(&mut last, Instant::now());
        last.value != before
    }
}

impl<T, E> fmt::Debug for Rotating<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rotating({})", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_read_once_a_minute_and_its_last_word_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let read = |path: &Path| fs::read_to_string(path);
        assert!(Rotating::new(&path, read).is_err());
        fs::write(&path, "one").unwrap();
        let file = Rotating::new(&path, read).unwrap();
        let start = Instant::now();
        let at = |seconds| file.get_at(start + Duration::from_secs(seconds));
        fs::write(&path, "two").unwrap();
        assert_eq!(at(30), "one");
        assert_eq!(at(61), "two");
        fs::remove_file(&path).unwrap();
        assert_eq!(at(130), "two");
        fs::write(&path, "three").unwrap();
        assert_eq!(at(150), "two");
        assert_eq!(at(200), "three");
        assert_eq!(file.get(), "three");
        assert!(!file.read_again());
        fs::write(&path, "four").unwrap();
        assert!(file.read_again());
        assert_eq!(file.get(), "four");
    }

    #[test]
    fn a_file_that_is_too_large_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read_at_most(&path, 5).unwrap(), b"12345");
        assert_eq!(read_at_most(&path, 4).unwrap_err().to_string(), "it has over 4 bytes");
    }
}
