//! Packages, indexes and pushes charts with the real Helm.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use anyhow::{Context as _, Result, bail};

use crate::{Tools, process::bare_command, temporary_folder};

/// `helm`, with its own home.
pub struct Helm {
    program: PathBuf,
    home: tempfile::TempDir,
}

impl Helm {
    pub fn new(tools: &Tools) -> Result<Self> {
        Ok(Self {
            program: tools.helm(),
            home: temporary_folder("farwater-helm-")?,
        })
    }

    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = bare_command(&self.program);
        command.env("HOME", self.home.path()).args(arguments);
        let output = command.output().context("run helm")?;
        if !output.status.success() {
            bail!(
                "helm {}: {}\n{}",
                arguments.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(output)
    }

    /// Packages a chart of these files into a folder. Returns the archive.
    pub fn package(&self, files: &[(&str, &str)], into: &Path) -> Result<PathBuf> {
        let folder = temporary_folder("farwater-chart-")?;
        write_files(folder.path(), files)?;
        self.package_folder(folder.path(), into)
    }

    pub fn package_folder(&self, chart: &Path, into: &Path) -> Result<PathBuf> {
        fs::create_dir_all(into).with_context(|| format!("make {}", into.display()))?;
        let output = self.run(&[
            "package",
            &chart.to_string_lossy(),
            "--destination",
            &into.to_string_lossy(),
        ])?;
        // "Successfully packaged chart and saved it to: PATH"
        let said = String::from_utf8(output.stdout)?;
        let path = said.trim().rsplit(": ").next().map(PathBuf::from);
        path.filter(|path| path.is_file())
            .with_context(|| format!("helm package printed no path of an archive: {said:?}"))
    }

    /// Writes the `index.yaml` for a folder of archives.
    pub fn index(&self, folder: &Path, url: Option<&str>) -> Result<()> {
        let folder = folder.to_string_lossy();
        let mut arguments = vec!["repo", "index", &folder];
        arguments.extend(url.iter().flat_map(|url| ["--url", url]));
        self.run(&arguments).map(drop)
    }

    /// Pushes an archive to a path of a registry over plain HTTP: `127.0.0.1:5000/charts`.
    pub fn push(&self, archive: &Path, place: &str, login: Option<(&str, &str)>) -> Result<()> {
        let (archive, place) = (archive.to_string_lossy(), format!("oci://{place}"));
        let mut arguments = vec!["push", &archive, &place, "--plain-http"];
        if let Some((username, password)) = login {
            arguments.extend(["--username", username, "--password", password]);
        }
        self.run(&arguments).map(drop)
    }
}

pub fn write_files(folder: &Path, files: &[(&str, &str)]) -> Result<()> {
    for (path, content) in files {
        let path = folder.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, content).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Files of a small chart: a ConfigMap with the chart's version.
pub fn chart(name: &str, version: &str) -> Vec<(String, String)> {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-NAME\ndata:\n  version: \"VERSION\"\n  greeting: {{ .Values.greeting | quote }}\n";
    vec![
        (
            "Chart.yaml".to_owned(),
            format!("apiVersion: v2\nname: {name}\nversion: {version}\n"),
        ),
        ("values.yaml".to_owned(), "greeting: hello\n".to_owned()),
        (
            "templates/map.yaml".to_owned(),
            map.replace("NAME", name).replace("VERSION", version),
        ),
    ]
}

/// The files as borrowed values, which functions take.
pub fn borrowed(files: &[(String, String)]) -> Vec<(&str, &str)> {
    files
        .iter()
        .map(|(path, content)| (path.as_str(), content.as_str()))
        .collect()
}
