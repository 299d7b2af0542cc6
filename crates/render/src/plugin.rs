//! Plugins: foreign programs that make objects from a folder. Named in the agent's configuration, never by a
//! repository.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use farwater_bundle::{
    Collector, RelPath,
    manifests::Origin,
    yaml::{self, Budget},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
};

use crate::{files::Files, helper::fingerprint, limits::Limits};

/// Time beyond the plugin's own limit, in which its watcher reports why it ended.
const GRACE: Duration = Duration::from_secs(5);
/// Longest text that is kept of a plugin's messages.
const MAX_WORDS: usize = 4 << 10;
/// Exit codes of `farwater-render confine`: a limit was reached; the program could not be started.
const BEYOND: i32 = 121;
const NOT_BEGUN: i32 = 122;
/// Most files and folders of a plugin's `read` that are checked for changes.
const MAX_READ_FILES: usize = 10_000;
/// Folders of a run: the service's files, and the folder that the plugin may write to.
const INPUT: &str = "input";
const SCRATCH: &str = "scratch";

/// One plugin, as the agent's configuration has it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Plugin {
    /// The name that services use.
    pub name: String,
    /// The program's path and arguments. Placeholders: `{parameters}` is the path of a JSON file with the parameters,
    /// `{folder}` the renderer's folder and `{scratch}` a folder to write to.
    pub command: Vec<String>,
    #[serde(default, rename = "type")]
    pub kind: PluginType,
    /// Folders that it may read besides its own, the system's and its input files.
    #[serde(default)]
    pub read: Vec<PathBuf>,
    /// Limit below that of the agent. None: the agent's.
    #[serde(default)]
    pub timeout_seconds: Option<u64>,
    #[serde(default)]
    pub memory_mebibytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum PluginType {
    /// Gets the parameters as JSON on standard input, and prints YAML.
    #[default]
    Exec,
    /// A KRM function. It gets a ResourceList on standard input, with the folder's manifests as items and the
    /// parameters as its `functionConfig`, and prints a ResourceList.
    #[serde(rename = "KRMFunction")]
    KrmFunction,
}

/// An error in the configuration.
#[derive(Debug, thiserror::Error)]
pub enum PluginsError {
    #[error("line {line}: {problem}")]
    Yaml { line: u32, problem: String },
    #[error("{0}")]
    Content(serde_json::Error),
    #[error("plugin {0:?} is there twice")]
    Twice(String),
    #[error("plugin {0:?} has no command, or one that is no absolute path")]
    Command(String),
}

/// All plugins of an agent.
#[derive(Clone, Debug, Default)]
pub struct Plugins {
    by_name: BTreeMap<String, Plugin>,
}

impl Plugins {
    /// From YAML or JSON: `{plugins: [{name: …, command: […]}]}`.
    pub fn parse(text: &str) -> Result<Self, PluginsError> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Configuration {
            #[serde(default)]
            plugins: Vec<Plugin>,
        }
        let read = yaml::parse(text, &Budget::default()).and_then(|mut documents| match documents.len() {
            0 => Ok(json!({})),
            _ => documents.swap_remove(0).into_json(),
        });
        let value = read.map_err(|error| PluginsError::Yaml {
            line: error.line,
            problem: error.reason.to_string(),
        })?;
        let value = if value.is_null() { json!({}) } else { value };
        let configuration: Configuration = serde_json::from_value(value).map_err(PluginsError::Content)?;
        let mut by_name = BTreeMap::new();
        for plugin in configuration.plugins {
            if !plugin.command.first().is_some_and(|path| path.starts_with('/')) {
                return Err(PluginsError::Command(plugin.name));
            }
            if let Some(twice) = by_name.insert(plugin.name.clone(), plugin) {
                return Err(PluginsError::Twice(twice.name));
            }
        }
        Ok(Self { by_name })
    }

    pub fn get(&self, name: &str) -> Option<&Plugin> {
        self.by_name.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }
}

impl Plugin {
    /// Fingerprint of its configuration, its program and the files that it may read. None: there are too many files.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        let mut parts: Vec<String> = self.command.iter().map(|word| fingerprint(word)).collect();
        let mut left = MAX_READ_FILES;
        for place in &self.read {
            add_fingerprints(Path::new(place), &mut parts, &mut left)?;
        }
        Some(format!("{parts:?} {:?} {:?}", self.kind, self.read))
    }
}

/// Adds the fingerprint of a file, or of everything in a folder. Links to files are followed, links to folders are not.
fn add_fingerprints(place: &Path, parts: &mut Vec<String>, left: &mut usize) -> Option<()> {
    *left = left.checked_sub(1)?;
    parts.push(fingerprint(&place.to_string_lossy()));
    if !place.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Some(());
    }
    let mut entries: Vec<PathBuf> = std::fs::read_dir(place)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    entries.sort();
    entries
        .iter()
        .try_for_each(|entry| add_fingerprints(entry, parts, left))
}

/// Why a plugin made no objects.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    #[error("lay out its files")]
    Files(#[source] io::Error),
    #[error("start {program} to watch over it: {source}")]
    Start { program: String, source: io::Error },
    #[error("could not be started: {0}")]
    NotBegun(String),
    #[error("was ended: {0}")]
    Beyond(String),
    #[error("failed with exit code {code}{}", said(.words))]
    Failed { code: i32, words: String },
    #[error("took over {} s", .0.as_secs())]
    Time(Duration),
    #[error("printed over {0} bytes")]
    Output(usize),
    #[error("read its output")]
    Read(#[source] io::Error),
    #[error("its output is no ResourceList: {0}")]
    ResourceList(String),
    #[error("reports an error: {0}")]
    Result(String),
    #[error("needs the manifests of its folder, and they can't be read: {0}")]
    Manifests(String),
}

fn said(words: &str) -> String {
    if words.is_empty() {
        String::new()
    } else {
        format!(": {words}")
    }
}

/// The input of one run.
pub(crate) struct Run<'a> {
    pub plugin: &'a Plugin,
    /// The helper program, which also watches over plugins.
    pub watcher: &'a str,
    /// The agent's folder in which each run gets a folder.
    pub work: &'a Path,
    pub limits: Limits,
    pub files: &'a Files<'a>,
    pub folder: &'a RelPath,
    pub parameters: &'a Map<String, Value>,
    /// The folder's manifests, for a KRM function.
    pub manifests: &'a [Value],
}

impl Run<'_> {
    /// Runs the plugin, and gives its objects to the collector.
    pub async fn run(&self, collector: &mut Collector<'_>) -> Result<(), PluginError> {
        let output = self.output().await?;
        match self.plugin.kind {
            PluginType::Exec => collector.add_text(self.folder, &output),
            PluginType::KrmFunction => {
                for (n, item) in items(&output)?.into_iter().enumerate() {
                    let document = u32::try_from(n).unwrap_or(u32::MAX).saturating_add(1);
                    collector.add_rendered(
                        &Origin {
                            file: self.folder.clone(),
                            line: 0,
                            document,
                        },
                        item,
                    );
                }
            }
        }
        Ok(())
    }

    async fn output(&self) -> Result<Vec<u8>, PluginError> {
        // If the agent is root, plugins run as another user, who can't access the agent's own folders.
        let is_root = rustix::process::geteuid().is_root();
        let parent = if is_root {
            std::env::temp_dir()
        } else {
            self.work.to_owned()
        };
        let place = tempfile::Builder::new()
            .prefix("farwater-plugin-")
            .tempdir_in(parent)
            .map_err(PluginError::Files)?;
        let (input, scratch) = (place.path().join(INPUT), place.path().join(SCRATCH));
        let folder = input.join(self.folder.as_str());
        let parameters = scratch.join("parameters.json");
        self.lay_out(&input, &scratch, &parameters)
            .map_err(PluginError::Files)?;
        let stdin = match self.plugin.kind {
            PluginType::Exec => Value::Object(self.parameters.clone()),
            PluginType::KrmFunction => self.resource_list(),
        };
        let mut running = self.start(place.path(), &folder, &parameters)?;
        let time = self.time() + GRACE;
        tokio::time::timeout(time, running.finish(stdin.to_string().as_bytes(), self.limits.output))
            .await
            .map_err(|_| PluginError::Time(self.time()))?
    }

    fn lay_out(&self, input: &Path, scratch: &Path, parameters: &Path) -> io::Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        fs::create_dir_all(scratch)?;
        fs::create_dir_all(input.join(self.folder.as_str()))?;
        fs::write(parameters, Value::Object(self.parameters.clone()).to_string())?;
        for (path, file) in self.files {
            let to = input.join(path.as_str());
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(&to, file.bytes)?;
            // Read-only, in case the kernel can't prevent writing.
            fs::set_permissions(
                &to,
                fs::Permissions::from_mode(if file.executable { 0o500 } else { 0o400 }),
            )?;
        }
        Ok(())
    }

    fn start(&self, place: &Path, folder: &Path, parameters: &Path) -> Result<Running, PluginError> {
        let (input, scratch) = (place.join(INPUT), place.join(SCRATCH));
        let mut command = Command::new(self.watcher);
        command
            .arg("confine")
            .arg("--seconds")
            .arg(self.time().as_secs_f64().to_string());
        command
            .arg("--cpu-seconds")
            .arg(self.limits.cpu.as_secs().max(1).to_string());
        command.arg("--memory-bytes").arg(self.memory().to_string());
        command.arg("--processes").arg(self.limits.processes.to_string());
        command
            .arg("--place")
            .arg(place)
            .arg("--read")
            .arg(&input)
            .arg("--write")
            .arg(&scratch);
        for folder in &self.plugin.read {
            command.arg("--read").arg(folder);
        }
        command.arg("--");
        let text = |path: &Path| path.to_string_lossy().into_owned();
        for word in &self.plugin.command {
            let word = word.replace("{parameters}", &text(parameters));
            command.arg(
                word.replace("{folder}", &text(folder))
                    .replace("{scratch}", &text(&scratch)),
            );
        }
        command
            .env_clear()
            .env("HOME", &scratch)
            .env("TMPDIR", &scratch)
            .current_dir(folder);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let start = |source| PluginError::Start {
            program: self.watcher.to_owned(),
            source,
        };
        Ok(Running(Some(command.spawn().map_err(start)?)))
    }

    fn time(&self) -> Duration {
        let own = self.plugin.timeout_seconds.map_or(Duration::MAX, Duration::from_secs);
        self.limits.time.min(own)
    }

    fn memory(&self) -> u64 {
        let own = self
            .plugin
            .memory_mebibytes
            .map_or(u64::MAX, |mebibytes| mebibytes << 20);
        self.limits.foreign().min(own)
    }

    fn resource_list(&self) -> Value {
        json!({
            "apiVersion": "config.kubernetes.io/v1",
            "kind": "ResourceList",
            "functionConfig": {
                "apiVersion": "farwater.dev/v1alpha1",
                "kind": "Parameters",
                "metadata": {"name": self.plugin.name},
                "spec": self.parameters,
            },
            "items": self.manifests,
        })
    }
}

/// A plugin and its watcher. Dropping it ends both.
struct Running(Option<Child>);

impl Running {
    /// Its output, if it succeeded.
    async fn finish(&mut self, input: &[u8], most: usize) -> Result<Vec<u8>, PluginError> {
        let Some(child) = &mut self.0 else {
            return Ok(Vec::new());
        };
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A plugin that doesn't read its input may still succeed.
                let _ = stdin.write_all(input).await;
            }
        };
        let ((), output, words) = tokio::join!(write, read(stdout, most + 1), read_words(stderr));
        let output = output.map_err(PluginError::Read)?;
        if output.len() > most {
            return Err(PluginError::Output(most));
        }
        let status = child.wait().await.map_err(PluginError::Read)?;
        self.0 = None;
        match status.code() {
            Some(0) => Ok(output),
            Some(BEYOND) => Err(PluginError::Beyond(words)),
            Some(NOT_BEGUN) => Err(PluginError::NotBegun(words)),
            code => Err(PluginError::Failed {
                code: code.unwrap_or(-1),
                words,
            }),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let Some(pid) = child
            .id()
            .and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()))
        else {
            return;
        };
        // The watcher ends everything that the plugin has started, and then itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
                    let _ = child.kill().await;
                }
            });
        }
    }
}

/// Reads at most `most` bytes, then closes the pipe.
async fn read(from: Option<impl AsyncRead + Unpin>, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(most as u64).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// The end of the plugin's messages. Earlier output is read and dropped, so that the plugin doesn't block.
async fn read_words(from: Option<impl AsyncRead + Unpin>) -> String {
    let (mut words, mut is_cut) = (Vec::new(), false);
    if let Some(mut from) = from {
        let mut chunk = [0; 4096];
        while let Ok(read) = from.read(&mut chunk).await
            && read > 0
        {
            words.extend_from_slice(&chunk[..read]);
            let excess = words.len().saturating_sub(MAX_WORDS);
            words.drain(..excess);
            is_cut |= excess > 0;
        }
    }
    let kept = if is_cut { whole_lines(&words) } else { &words };
    String::from_utf8_lossy(kept).trim().to_owned()
}

/// Drops the partial first line of cut output, because a cut secret could not be recognized.
fn whole_lines(words: &[u8]) -> &[u8] {
    let end = words.iter().position(|byte| *byte == b'\n');
    end.map_or(&[], |end| &words[end + 1..])
}

/// The beginning of a text up to the last complete word, for the same reason.
fn whole_words(text: &str) -> &str {
    match text.char_indices().nth(MAX_WORDS) {
        Some((end, _)) => text[..end]
            .rsplit_once(char::is_whitespace)
            .map_or("", |(whole, _)| whole),
        None => text,
    }
}

/// The items of a ResourceList.
fn items(output: &[u8]) -> Result<Vec<Value>, PluginError> {
    let fail = |problem: String| PluginError::ResourceList(problem);
    let text = std::str::from_utf8(output).map_err(|_| fail("it is not UTF-8 text".to_owned()))?;

    // Enough for ten thousand objects.
    let budget = Budget {
        nodes: 5_000_000,
        bytes: 64 << 20,
        ..Budget::default()
    };
    let mut documents =
        yaml::parse(text, &budget).map_err(|error| fail(format!("line {}: {}", error.line, error.reason)))?;
    documents.retain(|document| !document.is_null());
    let Some(list) = (documents.len() == 1).then(|| documents.swap_remove(0)) else {
        return Err(fail(format!("it has {} documents, not one", documents.len())));
    };
    let mut list = list
        .into_json()
        .map_err(|error| fail(format!("line {}: {}", error.line, error.reason)))?;
    if list["kind"] != "ResourceList" {
        return Err(fail(format!("its kind is {}", list["kind"])));
    }

    let errors = list["results"].as_array().into_iter().flatten();
    let errors: Vec<&str> = errors
        .filter(|result| result["severity"] == "error")
        .map(|result| result["message"].as_str().unwrap_or("without a message"))
        .collect();
    if !errors.is_empty() {
        return Err(PluginError::Result(whole_words(&errors.join("; ")).to_owned()));
    }
    match list["items"].take() {
        Value::Array(items) => Ok(items),
        Value::Null => Ok(Vec::new()),
        _ => Err(fail("its items are no list".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_leaves_no_part_of_a_word() {
        assert_eq!(whole_lines(b"nter2 is wrong\nand so on\n"), b"and so on\n");
        assert_eq!(whole_lines(b"nter2 is wrong"), b"");
        assert_eq!(whole_words("hunter2 is wrong"), "hunter2 is wrong");
        let long = format!("{} hunter2", "x".repeat(MAX_WORDS - 4));
        assert_eq!(whole_words(&long), "x".repeat(MAX_WORDS - 4));
    }

    #[test]
    fn plugins_are_configured_by_name() {
        let plugins = Plugins::parse(
            "plugins:\n- name: jsonnet\n  command: [/bin/jsonnet, main.jsonnet]\n- {name: f, command: [/f], type: KRMFunction}\n",
        )
        .unwrap();
        assert_eq!(plugins.names().collect::<Vec<_>>(), ["f", "jsonnet"]);
        assert_eq!(plugins.get("f").unwrap().kind, PluginType::KrmFunction);
        assert_eq!(Plugins::parse("").unwrap().names().count(), 0);
        let refused = |text| Plugins::parse(text).unwrap_err().to_string();
        assert_eq!(
            refused("plugins: [{name: a, command: [sh]}]"),
            "plugin \"a\" has no command, or one that is no absolute path"
        );
        assert!(refused("plugins: [{name: a, command: [/a], shell: true}]").contains("unknown field `shell`"));
        let twice = "plugins: [{name: a, command: [/a]}, {name: a, command: [/b]}]";
        assert_eq!(refused(twice), "plugin \"a\" is there twice");
        assert!(refused("plugins: [\n  a: b").starts_with("line "));
    }

    #[test]
    fn a_functions_results_can_be_errors() {
        let list = |rest: &str| format!("kind: ResourceList\n{rest}");
        let check = |text: &str| {
            items(text.as_bytes())
                .map(|items| items.len())
                .map_err(|error| error.to_string())
        };
        assert_eq!(check(&list("items: [{a: 1}, {b: 2}]")), Ok(2));
        assert_eq!(check(&list("")), Ok(0));
        assert_eq!(
            check(&list(
                "results: [{severity: warning, message: w}, {severity: error, message: no such thing}]"
            )),
            Err("reports an error: no such thing".to_owned())
        );
        assert!(
            check("kind: List\nitems: []")
                .unwrap_err()
                .contains("its kind is \"List\"")
        );
        assert!(check("a: 1\n---\nb: 1\n").unwrap_err().contains("2 documents"));
        assert!(check("a: [").is_err());
    }
}
