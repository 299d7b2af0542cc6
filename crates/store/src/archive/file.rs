//! The file of a backup: a zstd stream of JSON lines. The first line is the header, then come enclosed files, then each
//! table's name and its rows; the last line holds the SHA-256 of all lines before it. `zstd -dc FILE` shows it.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{Context, SHA256};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::chunk::Cell;
use crate::open::with_suffix;

/// First bytes of a zstd stream (RFC 8878, 3.1.1).
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const FORMAT: &str = "farwater-backup/1";
/// Fast, and shrinks JSON to a fifth.
const LEVEL: i32 = 3;
/// Longest line that is read, in bytes. Objects have at most some MiB; base64 makes them a third longer.
const MAX_LINE: u64 = 256 << 20;
/// Most bytes of all enclosed files together: keys have some KiB.
const MAX_ENCLOSED: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("write {}: there is a file already", path.display())]
    Exists { path: PathBuf },
    #[error("write the backup to standard output")]
    Stream { source: io::Error },
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("read {}: it is no backup of this program", path.display())]
    Format { path: PathBuf },
    #[error("read {}: it is damaged: {problem}", path.display())]
    Damaged { path: PathBuf, problem: String },
}

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Header {
    format: String,
    /// Number of migrations of its tables.
    pub schema: usize,
    /// Seconds since 1970.
    pub created: i64,
    /// The newest version in it.
    pub counter: u64,
}

impl Header {
    pub(crate) fn new(schema: usize, created: i64, counter: u64) -> Self {
        Self {
            format: FORMAT.to_owned(),
            schema,
            created,
            counter,
        }
    }
}

/// A small file without which the rows are useless: a key.
#[derive(Clone, PartialEq, Eq)]
pub struct Enclosed {
    /// Its path in the hub's data directory.
    pub name: String,
    pub content: Zeroizing<Vec<u8>>,
}

/// Never prints the content.
impl fmt::Debug for Enclosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Enclosed({:?}, {} bytes)", self.name, self.content.len())
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Line {
    File { name: String, base64: String },
    Table(String),
    Row(Vec<Cell>),
    Sha256(String),
}

/// Where a backup is written to.
pub enum Destination<'a> {
    /// It gets this name when it is whole.
    File {
        path: &'a Path,
        /// Replace an existing file.
        force: bool,
    },
    /// The last line shows its reader whether it is whole.
    Stream(Box<dyn io::Write + Send>),
}

enum Output {
    /// Written beside the requested path, and renamed to it at the end.
    File {
        path: PathBuf,
        temporary: PathBuf,
        file: BufWriter<File>,
    },
    Stream(Box<dyn io::Write + Send>),
}

impl Output {
    fn create(to: Destination<'_>) -> Result<Self, FileError> {
        let (path, force) = match to {
            Destination::File { path, force } => (path, force),
            Destination::Stream(stream) => return Ok(Self::Stream(stream)),
        };
        if !force && path.exists() {
            return Err(FileError::Exists { path: path.to_owned() });
        }
        let temporary = with_suffix(path, ".part");
        // Everything of the hub is in it, so only its owner may read it.
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary);
        let file = file.map_err(|source| FileError::Write {
            path: temporary.clone(),
            source,
        })?;
        Ok(Self::File {
            path: path.to_owned(),
            temporary,
            file: BufWriter::new(file),
        })
    }

    fn failure(&self) -> impl Fn(io::Error) -> FileError + use<> {
        let path = match self {
            Self::File { temporary, .. } => Some(temporary.clone()),
            Self::Stream(_) => None,
        };
        move |source| match &path {
            Some(path) => FileError::Write {
                path: path.clone(),
                source,
            },
            None => FileError::Stream { source },
        }
    }

    fn finish(self) -> Result<(), FileError> {
        let failure = self.failure();
        let finish = || match self {
            Self::Stream(mut stream) => stream.flush(),
            Self::File { path, temporary, file } => {
                file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
                fs::rename(&temporary, &path)?;
                File::open(
                    path.parent()
                        .filter(|parent| *parent != Path::new(""))
                        .unwrap_or(Path::new(".")),
                )?
                .sync_all()
            }
        };
        finish().map_err(failure)
    }
}

impl io::Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File { file, .. } => file.write(bytes),
            Self::Stream(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File { file, .. } => file.flush(),
            Self::Stream(stream) => stream.flush(),
        }
    }
}

pub(crate) struct Writer {
    stream: zstd::stream::write::Encoder<'static, Output>,
    sum: Context,
}

impl Writer {
    pub(crate) fn create(to: Destination<'_>, header: &Header) -> Result<Self, FileError> {
        let output = Output::create(to)?;
        let failure = output.failure();
        let mut stream = zstd::stream::write::Encoder::new(output, LEVEL).map_err(&failure)?;
        stream.include_checksum(true).map_err(failure)?;
        let mut writer = Self {
            stream,
            sum: Context::new(&SHA256),
        };
        writer.write(header)?;
        Ok(writer)
    }

    /// Writes a file. Files come before the first table.
    pub(crate) fn file(&mut self, file: &Enclosed) -> Result<(), FileError> {
        self.write(&Line::File {
            name: file.name.clone(),
            base64: BASE64.encode(&*file.content),
        })
    }

    pub(crate) fn table(&mut self, name: &str) -> Result<(), FileError> {
        self.write(&Line::Table(name.to_owned()))
    }

    pub(crate) fn row(&mut self, row: Vec<Cell>) -> Result<(), FileError> {
        self.write(&Line::Row(row))
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), FileError> {
        let mut text = serde_json::to_vec(line).expect("lines are plain JSON");
        text.push(b'\n');
        self.sum.update(&text);
        self.stream
            .write_all(&text)
            .map_err(|source| self.stream.get_ref().failure()(source))
    }

    pub(crate) fn finish(mut self) -> Result<(), FileError> {
        let sum = hex::encode(self.sum.clone().finish());
        self.write(&Line::Sha256(sum))?;
        let failure = self.stream.get_ref().failure();
        self.stream.finish().map_err(failure)?.finish()
    }
}

/// One line of a backup.
pub(crate) enum Entry {
    File(Enclosed),
    Table(String),
    Row(Vec<Cell>),
    /// The end; the checksum was right.
    End,
}

pub(crate) struct Reader {
    path: PathBuf,
    stream: BufReader<zstd::stream::read::Decoder<'static, BufReader<File>>>,
    sum: Context,
    line: Vec<u8>,
    /// Bytes of the files read so far.
    enclosed: usize,
}

impl Reader {
    pub(crate) fn open(path: &Path) -> Result<(Self, Header), FileError> {
        let read = |source| FileError::Read {
            path: path.to_owned(),
            source,
        };
        let no_backup = || FileError::Format { path: path.to_owned() };
        let mut file = BufReader::new(File::open(path).map_err(read)?);
        if !file.fill_buf().map_err(read)?.starts_with(&MAGIC) {
            return Err(no_backup());
        }
        let stream = zstd::stream::read::Decoder::with_buffer(file).map_err(read)?;
        let mut reader = Self {
            path: path.to_owned(),
            stream: BufReader::new(stream),
            sum: Context::new(&SHA256),
            line: Vec::new(),
            enclosed: 0,
        };
        reader.next_line()?;
        let header: Header = serde_json::from_slice(&reader.line).map_err(|_| no_backup())?;
        if header.format != FORMAT {
            return Err(no_backup());
        }
        Ok((reader, header))
    }

    pub(crate) fn next(&mut self) -> Result<Entry, FileError> {
        let before = self.sum.clone();
        self.next_line()?;
        let line = serde_json::from_slice(&self.line).map_err(|error| self.damaged(&error.to_string()))?;
        match line {
            Line::File { name, base64 } => self.enclosed(name, &base64).map(Entry::File),
            Line::Table(name) => Ok(Entry::Table(name)),
            Line::Row(row) => Ok(Entry::Row(row)),
            Line::Sha256(sum) if sum == hex::encode(before.finish()) => self.end(),
            Line::Sha256(_) => Err(self.damaged("its checksum is another")),
        }
    }

    /// Checks that nothing follows and that the stream itself is whole: a stream that lost its last bytes is damaged,
    /// whatever its lines say.
    fn end(&mut self) -> Result<Entry, FileError> {
        match self.stream.fill_buf().map(<[u8]>::len) {
            Ok(0) => Ok(Entry::End),
            Ok(_) => Err(self.damaged("something follows its end")),
            Err(error) => Err(self.damaged(&error.to_string())),
        }
    }

    fn enclosed(&mut self, name: String, base64: &str) -> Result<Enclosed, FileError> {
        self.enclosed += base64.len();
        if self.enclosed > MAX_ENCLOSED {
            return Err(self.damaged("its files are no keys: they are too long"));
        }
        let content = BASE64
            .decode(base64)
            .map_err(|error| self.damaged(&error.to_string()))?;
        Ok(Enclosed {
            name,
            content: content.into(),
        })
    }

    fn next_line(&mut self) -> Result<(), FileError> {
        self.line.clear();
        let read = (&mut self.stream).take(MAX_LINE).read_until(b'\n', &mut self.line);
        // Bytes that are not zstd give a read error.
        read.map_err(|error| self.damaged(&error.to_string()))?;
        if self.line.last() != Some(&b'\n') {
            return Err(self.damaged("it ends too early"));
        }
        self.sum.update(&self.line);
        Ok(())
    }

    pub(crate) fn damaged(&self, problem: &str) -> FileError {
        FileError::Damaged {
            path: self.path.clone(),
            problem: problem.to_owned(),
        }
    }
}
