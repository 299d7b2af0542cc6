//! The hub's database, from `--database` and its password file.

use std::{fmt, fs, path::Path};

use farwater_store::{Location, PostgresUrl, UrlError};
use thiserror::Error;
use zeroize::Zeroizing;

/// File in a data directory that names the database server it belongs to.
pub(crate) const ELSEWHERE: &str = "database";

/// Far longer than any password.
const MAX_PASSWORD_BYTES: u64 = 4 << 10;

/// A URL as it was given. It may contain a password, so it is never printed. It is parsed only after all options are
/// known, because an error of the command line would print it.
#[derive(Clone, Default)]
pub struct DatabaseUrl(Zeroizing<String>);

impl From<&str> for DatabaseUrl {
    fn from(text: &str) -> Self {
        Self(Zeroizing::new(text.to_owned()))
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseUrl(..)")
    }
}

/// A password as it was given.
#[derive(Clone, Default)]
pub struct DatabasePassword(Zeroizing<String>);

impl From<&str> for DatabasePassword {
    fn from(text: &str) -> Self {
        Self(Zeroizing::new(text.to_owned()))
    }
}

impl fmt::Debug for DatabasePassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabasePassword(..)")
    }
}

#[derive(Debug, Error)]
pub enum DatabaseError {
    #[error("option database")]
    Url(#[from] UrlError),
    #[error("read the database's password from {path}")]
    Read { path: String, source: std::io::Error },
    #[error("read the database's password from {path}: {problem}")]
    Password { path: String, problem: &'static str },
    #[error("a database's password is given, but no database that it is for")]
    NoDatabase,
    #[error("option database-password is empty")]
    Empty,
    #[error("the data directory {directory} belongs to {database}: name it with --database")]
    Elsewhere { directory: String, database: String },
    #[error(
        "the database's password is given twice: it belongs into one of its URL, database-password and database-password-file"
    )]
    Twice,
}

/// Where a command finds a store that is named by a path or a URL.
pub fn locate(named: DatabaseUrl, password_file: Option<&Path>) -> Result<Location, DatabaseError> {
    let is_url = ["postgres:", "postgresql:"]
        .iter()
        .any(|scheme| named.0.starts_with(scheme));
    if is_url {
        return resolve(Some(named), None, password_file)?
            .map(Location::from)
            .ok_or(DatabaseError::NoDatabase);
    }
    if password_file.is_some() {
        return Err(DatabaseError::NoDatabase);
    }
    Ok(Path::new(&*named.0).into())
}

/// Where a hub's store is, according to its options.
pub fn store_location(
    data_dir: &Path,
    url: Option<DatabaseUrl>,
    password: Option<DatabasePassword>,
    password_file: Option<&Path>,
) -> Result<Location, DatabaseError> {
    match resolve(url, password, password_file)? {
        Some(url) => Ok(url.into()),
        None => local_file(data_dir),
    }
}

/// The file in the data directory. Fails if the directory belongs to a database server: an empty file in it would look
/// like a hub that has lost everything.
pub(crate) fn local_file(data_dir: &Path) -> Result<Location, DatabaseError> {
    let file = data_dir.join("hub.db");
    match fs::read_to_string(data_dir.join(ELSEWHERE)) {
        Ok(database) if !file.exists() => Err(DatabaseError::Elsewhere {
            directory: data_dir.display().to_string(),
            database: database.trim().to_owned(),
        }),
        _ => Ok(file.into()),
    }
}

/// None: the file in the data directory.
pub(super) fn resolve(
    url: Option<DatabaseUrl>,
    password: Option<DatabasePassword>,
    password_file: Option<&Path>,
) -> Result<Option<PostgresUrl>, DatabaseError> {
    let is_given = password.is_some() || password_file.is_some();
    let Some(url) = url else {
        return if is_given {
            Err(DatabaseError::NoDatabase)
        } else {
            Ok(None)
        };
    };
    let url = PostgresUrl::parse(&url.0)?;
    if is_given && url.has_password() {
        return Err(DatabaseError::Twice);
    }
    let password = match (password, password_file) {
        (None, None) => return Ok(Some(url)),
        (Some(_), Some(_)) => return Err(DatabaseError::Twice),
        (Some(given), None) if given.0.is_empty() => return Err(DatabaseError::Empty),
        (Some(given), None) => given.0,
        (None, Some(file)) => read_password(file)?,
    };
    Ok(Some(url.with_password(&password)?))
}

/// The first line, because editors end a file with a newline.
fn read_password(path: &Path) -> Result<Zeroizing<String>, DatabaseError> {
    let shown = || path.display().to_string();
    let read = |source| DatabaseError::Read { path: shown(), source };
    let wrong = |problem| DatabaseError::Password { path: shown(), problem };
    if fs::metadata(path).map_err(read)?.len() > MAX_PASSWORD_BYTES {
        return Err(wrong("it is too long for a password"));
    }
    let text = Zeroizing::new(fs::read_to_string(path).map_err(read)?);
    match text.lines().collect::<Vec<_>>()[..] {
        [line] if !line.is_empty() => Ok(Zeroizing::new(line.to_owned())),
        [] | [_] => Err(wrong("it is empty")),
        _ => Err(wrong("it has more than one line")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(url: Option<&str>, file: Option<&Path>) -> String {
        resolve(url.map(DatabaseUrl::from), None, file).unwrap_err().to_string()
    }

    #[test]
    fn a_password_comes_from_one_place() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        fs::write(&file, "can/ary\n").unwrap();
        let url = |text: &str, file| resolve(Some(text.into()), None, file).unwrap().unwrap();
        assert!(url("postgres://hub@db/farwater", Some(&file)).has_password());
        assert!(!url("postgres://hub@db/farwater", None).has_password());
        assert!(error(Some("postgres://hub:canary@db/farwater"), Some(&file)).contains("given twice"));
        assert!(error(None, Some(&file)).contains("no database"));
        let given = |url: Option<&str>, password: &str, file| {
            resolve(url.map(DatabaseUrl::from), Some(password.into()), file).map_err(|error| error.to_string())
        };
        let (plain, full) = (
            Some("postgres://hub@db/farwater"),
            Some("postgres://hub:canary@db/farwater"),
        );
        assert!(given(plain, "can/ary", None).unwrap().unwrap().has_password());
        assert!(given(plain, "canary", Some(&file)).unwrap_err().contains("given twice"));
        assert!(given(full, "canary", None).unwrap_err().contains("given twice"));
        assert!(given(None, "canary", None).unwrap_err().contains("no database"));
        assert!(given(plain, "", None).unwrap_err().contains("is empty"));
        fs::write(&file, "").unwrap();
        assert!(error(Some("postgres://hub@db/farwater"), Some(&file)).contains("is empty"));
        fs::write(&file, "one\ntwo\n").unwrap();
        assert!(error(Some("postgres://hub@db/farwater"), Some(&file)).contains("more than one line"));
        assert!(error(Some("postgres://hub@db/farwater"), Some(&folder.path().join("none"))).contains("none"));
        assert!(resolve(None, None, None).unwrap().is_none());
    }

    #[test]
    fn a_url_is_nowhere_printed() {
        assert!(!format!("{:?}", DatabaseUrl::from("postgres://hub:canary@db/farwater")).contains("canary"));
        assert!(!format!("{:?}", DatabasePassword::from("canary")).contains("canary"));
        assert!(!error(Some("mysql://hub:canary@db/farwater"), None).contains("canary"));
    }
}
