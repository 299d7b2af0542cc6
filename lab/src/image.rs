//! `cargo xtask image`: OCI images of hub and agent.
//!
//! The agent's image has its static program and the renderer. The hub's image has its static program, and the git
//! program from pinned Debian packages, which fetches sources. A commit gives the same digests on every machine.

mod architecture;
mod debian;
mod programs;
mod shipped;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use farwater_image::{Image, Node, Root, Start, USER, add_program};
use xtask::repository;

pub use self::{architecture::Architecture, programs::Programs, shipped::Shipped};

/// Build OCI images of hub and agent, as layouts and tar files, without a container engine
#[derive(clap::Args)]
pub struct Arguments {
    /// Prefix of the image references: a registry and a path, before `/hub:VERSION` and `/agent:VERSION`
    #[arg(long, default_value = "localhost/farwater")]
    repository: String,
    /// Architectures to build for; Rust's target for another architecture than this machine's is installed
    #[arg(long = "arch", value_enum, default_value = "amd64")]
    architectures: Vec<Architecture>,
    /// Folder for the images, with a subfolder for each architecture [default: `images` in the target directory]
    #[arg(long)]
    output: Option<PathBuf>,
    /// Use the current versions of the Debian packages, and pin them in deploy/images/debian-ARCH.lock
    #[arg(long)]
    refresh: bool,
}

/// Makes glibc return freed memory beyond 64 KiB to the system. Without it, glibc raises this threshold with the
/// largest block that was freed, and keeps ever more memory.
pub const AGENT_ENVIRONMENT: [(&str, &str); 1] = [("MALLOC_TRIM_THRESHOLD_", "65536")];

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let output = match &arguments.output {
        Some(folder) => folder.clone(),
        None => repository::target_directory()?.join("images"),
    };
    let reference = |name: &str| format!("{}/{name}:{VERSION}", arguments.repository);
    for architecture in &arguments.architectures {
        let Made { hub, agent, .. } = make(*architecture, &reference("hub"), &reference("agent"), arguments.refresh)?;
        let folder = output.join(architecture.name());
        fs::create_dir_all(&folder)?;
        for (name, image) in [("agent", agent), ("hub", hub)] {
            write(&folder, name, &image)?;
        }
    }
    eprintln!("wrote layouts and tar files to {}", output.display());
    Ok(ExitCode::SUCCESS)
}

fn write(folder: &Path, name: &str, image: &Image) -> Result<()> {
    let layout = folder.join(name);
    if layout.exists() {
        fs::remove_dir_all(&layout)?;
    }
    image
        .write_layout(&layout)
        .with_context(|| format!("write {}", layout.display()))?;
    image.write_tar(&folder.join(format!("{name}.tar")))?;
    println!(
        "{:<34} {}  {}  {:5.1} MB, {:5.1} MB unpacked",
        image.reference,
        folder.file_name().unwrap_or_default().to_string_lossy(),
        image.digest,
        image.compressed as f64 / 1e6,
        image.unpacked as f64 / 1e6
    );
    Ok(())
}

pub struct Made {
    pub hub: Image,
    pub agent: Image,
    /// Programs in the images.
    pub programs: Programs,
}

/// Builds the shipped images, with these references.
pub fn make(architecture: Architecture, hub_reference: &str, agent_reference: &str, refresh: bool) -> Result<Made> {
    let git = debian::Packages::get(architecture, refresh)?;
    let programs = programs::build(architecture)?;
    let (root, start) = hub(fs::read(&programs.hub)?, &git)?;
    Ok(Made {
        hub: Image::new(hub_reference, architecture.name(), &root, &start)?,
        agent: agent_image(architecture, &programs, agent_reference)?,
        programs,
    })
}

fn agent_image(architecture: Architecture, programs: &Programs, reference: &str) -> Result<Image> {
    let (root, start) = agent(fs::read(&programs.agent)?, fs::read(&programs.renderer)?);
    Ok(Image::new(reference, architecture.name(), &root, &start)?)
}

fn agent(program: Vec<u8>, renderer: Vec<u8>) -> (Root, Start) {
    let mut root = ground("/var/lib/farwater-agent");
    root.add("usr/bin/farwater-agent", Node::program(program));
    root.add("usr/bin/farwater-render", Node::program(renderer));
    let mut start = start("agent", &["/usr/bin/farwater-agent"]);
    start
        .environment
        .extend(AGENT_ENVIRONMENT.map(|(name, value)| (name.to_owned(), value.to_owned())));
    (root, start)
}

fn hub(program: Vec<u8>, git: &debian::Packages) -> Result<(Root, Start)> {
    let mut root = ground("/var/lib/farwater");
    root.add("usr/bin/farwater", Node::program(program));
    let libraries = git.libraries()?;
    for path in ["usr/bin/git", "usr/bin/ssh", "usr/lib/git-core/git-remote-http"] {
        add_program(&mut root, path, git.file(path)?, &libraries)?;
    }
    root.add(
        "usr/lib/git-core/git-remote-https",
        Node::Link {
            target: "git-remote-http".into(),
        },
    );
    root.add("etc/ssl/certs/ca-certificates.crt", Node::text(git.authorities()?));
    let entrypoint = [
        "/usr/bin/farwater",
        "hub",
        "--data-dir",
        "/var/lib/farwater",
        "--listen",
        "0.0.0.0:8443",
    ];
    Ok((root, start("hub", &entrypoint)))
}

/// Files for the image's user. Some programs fail without a user name, and the home folder is for files outside
/// volumes.
fn ground(state: &str) -> Root {
    let mut root = Root::default();
    root.add(
        "etc/passwd",
        Node::text(format!("root:x:0:0::/:/\nnonroot:x:{USER}:{USER}::{state}:/\n")),
    );
    root.add("etc/group", Node::text(format!("root:x:0:\nnonroot:x:{USER}:\n")));
    root.add(
        state.trim_start_matches('/'),
        Node::Folder {
            mode: 0o700,
            owner: USER,
        },
    );
    root.add("tmp", Node::Folder { mode: 0o1777, owner: 0 });
    root
}

fn start(name: &str, entrypoint: &[&str]) -> Start {
    let label = |name: &str, value: &str| (format!("org.opencontainers.image.{name}"), value.to_owned());
    Start {
        entrypoint: entrypoint.iter().map(|part| (*part).to_owned()).collect(),
        environment: BTreeMap::from([("PATH".to_owned(), "/usr/bin".to_owned())]),
        working_folder: "/".to_owned(),
        labels: [
            label("title", &format!("farwater-{name}")),
            label("version", VERSION),
            label("licenses", "Apache-2.0"),
        ]
        .into(),
    }
}
