//! Images for real nodes: our programs as tests build them, with this machine's libraries, and busybox.
//!
//! `cargo xtask image` builds the shipped images, with static programs that take minutes to build. Entry points, users
//! and folders are the same.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use farwater_image::{Image, Libraries, Node, Root, Start, USER, add_program};

use crate::{Tools, farwater::program, node::PAUSE, packages, process::bare_command};

pub const HUB: &str = "localhost/farwater/hub:test";
/// The same hub image with another tag.
pub const HUB_NEXT: &str = "localhost/farwater/hub:next";
pub const AGENT: &str = "localhost/farwater/agent:test";
/// The same agent image with another tag.
pub const AGENT_NEXT: &str = "localhost/farwater/agent:next";
/// An image of the agent's repository with a program that ends at once.
pub const AGENT_BROKEN: &str = "localhost/farwater/agent:broken";
/// The agent image with the address of a hub that does not exist.
pub const AGENT_LOST: &str = "localhost/farwater/agent:lost";
pub const BUSYBOX: &str = "localhost/farwater/busybox:test";
/// An image with a plugin's program, as in `examples/jsonnet`.
pub const JSONNET: &str = "localhost/farwater/jsonnet:test";
const ARCHITECTURE: &str = "amd64";
/// Variable with the folder of the images that all tests of a run share.
pub const FOLDER: &str = "FARWATER_IMAGES";

/// Tar files of images.
#[derive(Clone, Debug)]
pub struct Images {
    pub pause: PathBuf,
    pub busybox: PathBuf,
    pub hub: PathBuf,
    pub agent: PathBuf,
    pub agent_next: PathBuf,
    pub agent_broken: PathBuf,
    pub agent_lost: PathBuf,
}

impl Images {
    /// Images of the test run, which the first test that needs them builds. Without a test run, builds all of them in
    /// `dir`.
    pub fn of_run(dir: &Path) -> Result<Self> {
        let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else {
            return Self::make(dir);
        };
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let lock = File::create(folder.join("lock")).context("create the images' lock file")?;
        lock.lock().context("wait for another test that builds the images")?;
        let made = folder.join("made");
        if made.exists() {
            return Ok(Self::in_folder(&folder));
        }
        let images = Self::make(&folder)?;
        File::create(&made).context("record that the images are built")?;
        Ok(images)
    }

    fn in_folder(dir: &Path) -> Self {
        let path = |name: &str| dir.join(name).with_extension("tar");
        Self {
            pause: path("pause"),
            busybox: path("busybox"),
            hub: path("hub"),
            agent: path("agent"),
            agent_next: path("agent-next"),
            agent_broken: path("agent-broken"),
            agent_lost: path("agent-lost"),
        }
    }

    /// Builds all images in a folder.
    pub fn make(dir: &Path) -> Result<Self> {
        let write = |name: &str, reference: &str, root: &Root, start: &Start| write(dir, name, reference, root, start);
        let small = small()?;
        let agent_root = agent(dir)?;
        Ok(Self {
            pause: write("pause", PAUSE, &small, &start(&["/bin/sleep", "2147483647"]))?,
            busybox: write("busybox", BUSYBOX, &small, &start(&["/bin/sh"]))?,
            hub: write("hub", HUB, &hub(dir)?, &start(&HUB_COMMAND))?,
            agent: write("agent", AGENT, &agent_root, &start(&["/usr/bin/farwater-agent"]))?,
            agent_next: write(
                "agent-next",
                AGENT_NEXT,
                &agent_root,
                &start(&["/usr/bin/farwater-agent"]),
            )?,
            agent_lost: write(
                "agent-lost",
                AGENT_LOST,
                &agent_root,
                &start(&["/usr/bin/farwater-agent", "--hub", "https://127.0.0.1:1"]),
            )?,
            agent_broken: write(
                "agent-broken",
                AGENT_BROKEN,
                &small,
                &start(&["/bin/sh", "-c", "echo this version is broken >&2; exit 7"]),
            )?,
        })
    }

    /// [`HUB_NEXT`], for a running node.
    pub fn make_next_hub(dir: &Path) -> Result<PathBuf> {
        write(dir, "hub-next", HUB_NEXT, &hub(dir)?, &start(&HUB_COMMAND))
    }

    /// [`JSONNET`], for a running node.
    pub fn make_jsonnet(dir: &Path) -> Result<PathBuf> {
        let mut root = small()?;
        root.add(
            "programs/jsonnet",
            Node::program(fs::read(Tools::find_all()?.jsonnet())?),
        );
        write(dir, "jsonnet", JSONNET, &root, &start(&["/bin/sh"]))
    }

    pub fn all(&self) -> [&Path; 7] {
        let Self {
            pause,
            busybox,
            hub,
            agent,
            agent_next,
            agent_broken,
            agent_lost,
        } = self;
        [pause, busybox, hub, agent, agent_next, agent_broken, agent_lost]
    }
}

const HUB_COMMAND: [&str; 6] = [
    "/usr/bin/farwater",
    "hub",
    "--data-dir",
    "/var/lib/farwater",
    "--listen",
    "0.0.0.0:8443",
];

fn write(dir: &Path, name: &str, reference: &str, root: &Root, start: &Start) -> Result<PathBuf> {
    let path = dir.join(name).with_extension("tar");
    Image::new(reference, ARCHITECTURE, root, start)?.write_tar(&path)?;
    Ok(path)
}

fn small() -> Result<Root> {
    packages::require(&packages::NODE)?;
    let busybox = fs::read("/bin/busybox").context("read busybox, of the Debian package busybox-static")?;
    let mut root = Root::default();
    root.add("bin/busybox", Node::program(busybox));
    for name in ["sh", "sleep", "cat", "cp", "echo", "wc", "wget", "test"] {
        root.add(
            format!("bin/{name}"),
            Node::Link {
                target: "busybox".into(),
            },
        );
    }
    Ok(root)
}

fn hub(dir: &Path) -> Result<Root> {
    let mut root = ground("var/lib/farwater");
    add(&mut root, "usr/bin/farwater", &stripped(dir, &program("farwater")?)?)?;
    for (path, from) in [
        ("usr/bin/git", "/usr/bin/git"),
        (REMOTE_HTTP, "/usr/lib/git-core/git-remote-http"),
    ] {
        add(&mut root, path, Path::new(from))?;
    }
    root.add(
        "usr/lib/git-core/git-remote-https",
        Node::Link {
            target: "git-remote-http".into(),
        },
    );
    Ok(root)
}

const REMOTE_HTTP: &str = "usr/lib/git-core/git-remote-http";

fn agent(dir: &Path) -> Result<Root> {
    let mut root = ground("var/lib/farwater-agent");
    add(
        &mut root,
        "usr/bin/farwater-agent",
        &stripped(dir, &program("farwater-agent")?)?,
    )?;
    add(&mut root, "usr/bin/farwater-render", &Tools::find_all()?.renderer())?;
    Ok(root)
}

fn ground(state: &str) -> Root {
    let mut root = Root::default();
    root.add(
        "etc/passwd",
        Node::text(format!("root:x:0:0::/:/\nnonroot:x:{USER}:{USER}::/{state}:/\n")),
    );
    root.add(
        state,
        Node::Folder {
            mode: 0o700,
            owner: USER,
        },
    );
    root.add("tmp", Node::Folder { mode: 0o1777, owner: 0 });
    root
}

fn start(entrypoint: &[&str]) -> Start {
    Start {
        entrypoint: entrypoint.iter().map(|part| (*part).to_owned()).collect(),
        environment: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        working_folder: "/".to_owned(),
        ..Start::default()
    }
}

/// A copy without debug information, which is most of a program in test builds.
fn stripped(dir: &Path, program: &Path) -> Result<PathBuf> {
    let copy = dir.join(program.file_name().context("a program has a name")?);
    let mut strip = bare_command("strip");
    strip.arg("-o").arg(&copy).arg(program);
    let status = strip.status().context("run strip")?;
    ensure!(status.success(), "strip {}: {status}", program.display());
    Ok(copy)
}

/// A program with the libraries that this machine's loader would use.
fn add(root: &mut Root, path: &str, program: &Path) -> Result<()> {
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut libraries = Libraries::new();
    // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, and a line with only the path of the loader.
    for line in text.lines() {
        let place = line
            .rsplit("=> ")
            .next()
            .and_then(|rest| rest.trim().split(" (").next());
        let Some(place) = place.filter(|place| place.starts_with('/')) else {
            continue;
        };
        let name = Path::new(place)
            .file_name()
            .context("a library has a name")?
            .to_string_lossy()
            .into_owned();
        let content = fs::read(place).with_context(|| format!("read {place}"))?;
        libraries.insert(name, (place.trim_start_matches('/').into(), content));
    }
    add_program(root, path, fs::read(program)?, &libraries).with_context(|| format!("gather {}", program.display()))
}
