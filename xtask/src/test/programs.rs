//! Compiled tests, as `cargo test` runs them. Asking cargo for some of them alone would build their dependencies anew, with the
//! features that only these need.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::repository;

/// A program made of a file of a package's `tests` folder.
pub struct TestProgram {
    pub name: String,
    executable: PathBuf,
    package: PathBuf,
}

/// A line of what cargo says in JSON; of other lines all is absent.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

impl TestProgram {
    /// Those of the crate in a folder of `crates`.
    pub fn of_crate(folder: &str) -> Result<Vec<Self>> {
        let said = repository::cargo_output(&[
            "test",
            "--workspace",
            "--locked",
            "--no-run",
            "--quiet",
            "--message-format=json-render-diagnostics",
        ])?;
        let folder = repository::root()?.join("crates").join(folder);
        let programs: Vec<Self> = said.lines().filter_map(|line| Self::parse(line, &folder)).collect();
        ensure!(!programs.is_empty(), "cargo names no test programs of {}", folder.display());
        Ok(programs)
    }

    fn parse(line: &str, folder: &Path) -> Option<Self> {
        let Message { manifest_path, target, executable } = serde_json::from_str(line).ok()?;
        let target = target.filter(|target| target.kind == ["test"])?;
        let package = manifest_path?.parent().filter(|parent| *parent == folder)?.to_owned();
        Some(Self { name: target.name, executable: executable?, package })
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_programs_of_one_crate_are_told_from_all_else_that_cargo_says() {
        let parse = |line: &str| TestProgram::parse(line, Path::new("/w/crates/hub")).map(|program| program.name);
        let line = |package: &str, kind: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/{package}/Cargo.toml","target":{{"kind":["{kind}"],"name":"api"}},"executable":{executable}}}"#
            )
        };
        assert_eq!(parse(&line("hub", "test", r#""/t/api-1""#)).as_deref(), Some("api"));
        assert_eq!(parse(&line("cli", "test", r#""/t/api-1""#)), None);
        assert_eq!(parse(&line("hub", "lib", r#""/t/hub-1""#)), None);
        assert_eq!(parse(&line("hub", "test", "null")), None);
        assert_eq!(parse(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(parse("warning: words"), None);
    }
}
