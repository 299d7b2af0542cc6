//! Location of a store: a file, or a database of a PostgreSQL server. Its printed form never contains a password.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use sqlx::any::AnyConnectOptions;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A SQLite file; created if missing. Its folder must exist. `-wal`, `-shm` and `.lock` are beside it.
    File(Arc<Path>),
    Postgres(PostgresUrl),
}

impl Location {
    /// Path of the file. None: it is a server.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Postgres(_) => None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self::File(path.into())
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        Self::File(path.into())
    }
}

impl From<PostgresUrl> for Location {
    fn from(url: PostgresUrl) -> Self {
        Self::Postgres(url)
    }
}

/// `postgres://[USER[:PASSWORD]@]HOST[:PORT]/DATABASE[?sslmode=…]`, as libpq reads it. Two are equal if they name the
/// same database in the same words.
#[derive(Clone)]
pub struct PostgresUrl(Arc<Parsed>);

#[derive(Clone)]
struct Parsed {
    options: AnyConnectOptions,
    shown: String,
}

/// Allowed query parameters of a URL. libpq's other parameters are refused, because some change what the store relies
/// on.
const PARAMETERS: &[&str] = &["host", "sslcert", "sslkey", "sslmode", "sslrootcert"];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("expected postgres://USER@HOST[:PORT]/DATABASE")]
    Form,
    #[error("the URL names no database: expected postgres://USER@HOST[:PORT]/DATABASE")]
    NoDatabase,
    #[error("the URL has the parameter {0:?}; valid ones are {list}", list = PARAMETERS.join(", "))]
    Parameter(String),
}

impl PostgresUrl {
    /// Parses a URL. The error repeats nothing that could be a password.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let options: AnyConnectOptions = text.parse().map_err(|_| UrlError::Form)?;
        let url = &options.database_url;
        if !matches!(url.scheme(), "postgres" | "postgresql") || url.cannot_be_a_base() {
            return Err(UrlError::Form);
        }
        let database = url.path().trim_start_matches('/');
        if database.is_empty() || database.contains('/') {
            return Err(UrlError::NoDatabase);
        }
        if let Some((name, _)) = url.query_pairs().find(|(name, _)| !PARAMETERS.contains(&&**name)) {
            return Err(UrlError::Parameter(name.into_owned()));
        }
        let socket = url
            .query_pairs()
            .find_map(|(name, value)| (name == "host").then(|| value.into_owned()));
        let host = url
            .host_str()
            .filter(|host| !host.is_empty())
            .map(str::to_owned)
            .or(socket);
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let shown = format!("postgres://{}{port}/{database}", host.unwrap_or_default());
        Ok(Self(Arc::new(Parsed { options, shown })))
    }

    pub fn has_password(&self) -> bool {
        self.0.options.database_url.password().is_some()
    }

    /// The same URL with this password.
    pub fn with_password(mut self, password: &str) -> Result<Self, UrlError> {
        // The crate accepts no password for a URL without a host.
        let url = &mut Arc::make_mut(&mut self.0).options.database_url;
        url.set_password(Some(password)).map_err(|()| UrlError::Form)?;
        Ok(self)
    }

    pub(crate) fn options(&self) -> &AnyConnectOptions {
        &self.0.options
    }
}

impl PartialEq for PostgresUrl {
    fn eq(&self, other: &Self) -> bool {
        self.0.shown == other.0.shown
    }
}

impl Eq for PostgresUrl {}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.shown)
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_url_has_no_password() {
        let check = |text: &str, shown: &str| {
            let url = PostgresUrl::parse(text).unwrap();
            assert_eq!(
                (url.to_string(), format!("{url:?}")),
                (shown.to_owned(), shown.to_owned())
            );
        };
        check(
            "postgres://hub:canary@db.example:5433/farwater",
            "postgres://db.example:5433/farwater",
        );
        check(
            "postgresql://hub:canary@db.example/farwater?sslmode=require",
            "postgres://db.example/farwater",
        );
        check(
            "postgres:///farwater?host=/run/postgresql",
            "postgres:///run/postgresql/farwater",
        );
        let with = PostgresUrl::parse("postgres://hub@db/farwater")
            .unwrap()
            .with_password("can/ary")
            .unwrap();
        assert_eq!(with.to_string(), "postgres://db/farwater");
        assert_eq!(with.options().database_url.password(), Some("can%2Fary"));
    }

    #[test]
    fn a_wrong_url_is_told_without_its_text() {
        let check = |text: &str, expected: &str| {
            let error = PostgresUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("canary"), "{text}: {error}");
        };
        check("mysql://hub:canary@db/farwater", "expected postgres://");
        check("canary", "expected postgres://");
        check("postgres:canary", "expected postgres://");
        check("postgres://hub:canary@db:port/farwater", "expected postgres://");
        check("postgres://hub:canary@db", "names no database");
        check("postgres://hub:canary@db/a/b", "names no database");
        check(
            "postgres://hub:canary@db/farwater?options=-c%20fsync=off",
            "\"options\"",
        );
        check("postgres://hub@db/farwater?password=canary", "\"password\"");
    }
}
