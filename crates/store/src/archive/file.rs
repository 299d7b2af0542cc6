//! A backup's file: a zstd stream of JSON lines. The first says what it is, then each table's name and its rows, and the last
//! line holds the sha256 of all lines before it. `zstd -dc FILE` shows it.

use std::{
    fs::{self, File},
    io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use super::chunk::Cell;
use crate::open::with_suffix;

const FORMAT: &str = "farwater-backup/1";
/// Fast, and JSON shrinks to a fifth.
const LEVEL: i32 = 3;
/// The longest line that is read. Objects end at some MiB; base64 makes them a third longer.
const MAX_LINE: u64 = 256 << 20;

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("write {}: there is a file already", path.display())]
    Exists { path: PathBuf },
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
    /// How many migrations its tables have had.
    pub schema: usize,
    /// Seconds since 1970.
    pub created: i64,
    /// The newest version in it.
    pub counter: u64,
}

impl Header {
    pub(crate) fn new(schema: usize, created: i64, counter: u64) -> Self {
        Self { format: FORMAT.to_owned(), schema, created, counter }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Line {
    Table(String),
    Row(Vec<Cell>),
    Sha256(String),
}

/// Writes beside the path that was asked for, and takes its place when it is whole.
pub(crate) struct Writer {
    path: PathBuf,
    temporary: PathBuf,
    stream: zstd::stream::write::Encoder<'static, BufWriter<File>>,
    sum: Context,
}

impl Writer {
    pub(crate) fn create(path: &Path, header: &Header, force: bool) -> Result<Self, FileError> {
        if !force && path.exists() {
            return Err(FileError::Exists { path: path.to_owned() });
        }
        let temporary = with_suffix(path, ".part");
        let error = |source| FileError::Write { path: temporary.clone(), source };
        // Everything of the hub is in it, if sealed.
        let file =
            File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary).map_err(error)?;
        let mut stream = zstd::stream::write::Encoder::new(BufWriter::new(file), LEVEL).map_err(error)?;
        stream.include_checksum(true).map_err(error)?;
        let mut writer = Self { path: path.to_owned(), temporary, stream, sum: Context::new(&SHA256) };
        writer.write(header)?;
        Ok(writer)
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
        self.stream.write_all(&text).map_err(|source| FileError::Write { path: self.temporary.clone(), source })
    }

    /// Answers how long the file is.
    pub(crate) fn finish(mut self) -> Result<u64, FileError> {
        let sum = hex::encode(self.sum.clone().finish());
        self.write(&Line::Sha256(sum))?;
        let Self { path, temporary, stream, .. } = self;
        let finish = || {
            let file = stream.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new(".")))?
                .sync_all()?;
            Ok(file.metadata()?.len())
        };
        finish().map_err(|source| FileError::Write { path: path.clone(), source })
    }
}

/// What a backup says, line by line.
pub(crate) enum Entry {
    Table(String),
    Row(Vec<Cell>),
    /// The end, and the sum was right.
    End,
}

pub(crate) struct Reader {
    path: PathBuf,
    stream: BufReader<zstd::stream::read::Decoder<'static, BufReader<File>>>,
    sum: Context,
    line: Vec<u8>,
}

impl Reader {
    pub(crate) fn open(path: &Path) -> Result<(Self, Header), FileError> {
        let read = |source| FileError::Read { path: path.to_owned(), source };
        let stream = zstd::stream::read::Decoder::new(File::open(path).map_err(read)?).map_err(read)?;
        let mut reader = Self {
            path: path.to_owned(),
            stream: BufReader::new(stream),
            sum: Context::new(&SHA256),
            line: Vec::new(),
        };
        let no_backup = |_| FileError::Format { path: path.to_owned() };
        reader.next_line().map_err(no_backup)?;
        let header: Header = serde_json::from_slice(&reader.line).map_err(|_| no_backup(reader.damaged("")))?;
        if header.format != FORMAT {
            return Err(FileError::Format { path: path.to_owned() });
        }
        Ok((reader, header))
    }

    pub(crate) fn next(&mut self) -> Result<Entry, FileError> {
        let before = self.sum.clone();
        self.next_line()?;
        let line = serde_json::from_slice(&self.line).map_err(|error| self.damaged(&error.to_string()))?;
        match line {
            Line::Table(name) => Ok(Entry::Table(name)),
            Line::Row(row) => Ok(Entry::Row(row)),
            Line::Sha256(sum) if sum == hex::encode(before.finish()) => Ok(Entry::End),
            Line::Sha256(_) => Err(self.damaged("its checksum is another")),
        }
    }

    fn next_line(&mut self) -> Result<(), FileError> {
        self.line.clear();
        let read = (&mut self.stream).take(MAX_LINE).read_until(b'\n', &mut self.line);
        // What isn't zstd any more shows as an error of reading.
        read.map_err(|error| self.damaged(&error.to_string()))?;
        if self.line.last() != Some(&b'\n') {
            return Err(self.damaged("it ends too early"));
        }
        self.sum.update(&self.line);
        Ok(())
    }

    pub(crate) fn damaged(&self, problem: &str) -> FileError {
        FileError::Damaged { path: self.path.clone(), problem: problem.to_owned() }
    }
}
