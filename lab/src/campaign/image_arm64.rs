//! The images for 64-bit ARM. Their programs run in an emulator, so that this works on any machine.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use farwater_image::Image;
use farwater_testkit::{
    Tools,
    farwater::use_programs_of,
    packages::{self, Package},
};
use serde_json::{Value, json};

use super::Round;
use crate::{
    demo,
    image::{self, Architecture},
};

const EMULATOR: Package = Package {
    program: "qemu-aarch64-static",
    debian: "qemu-user-static",
};

/// Counts 1 if a hub and two agents from the images have followed a repository.
pub async fn round(seed: u64) -> Result<Round> {
    packages::require(&[EMULATOR, packages::GIT])?;
    Tools::build()?;
    let made = image::make(
        Architecture::Arm64,
        "localhost/farwater/hub:arm64",
        "localhost/farwater/agent:arm64",
        false,
    )?;
    let dir = tempfile::tempdir()?;
    let hub = unpack(&made.hub, &dir.path().join("hub"))?;
    let agent = unpack(&made.agent, &dir.path().join("agent"))?;
    let programs = dir.path().join("programs");
    fs::create_dir(&programs)?;
    let farwater = emulate(&hub, "usr/bin/farwater", &programs)?;
    let farwater_agent = emulate(&agent, "usr/bin/farwater-agent", &programs)?;
    // git and its https helper are linked to libraries of the image.
    let git = emulate(&hub, "usr/bin/git", dir.path())?;
    let git_remote = emulate(&hub, "usr/lib/git-core/git-remote-http", dir.path())?;
    let versions = [
        says(
            &farwater,
            &["--version"],
            concat!("farwater ", env!("CARGO_PKG_VERSION")),
        )?,
        says(
            &farwater_agent,
            &["--version"],
            concat!("farwater-agent ", env!("CARGO_PKG_VERSION")),
        )?,
        says(&git, &["--version"], "git version ")?,
        // Without a repository it prints its usage.
        says(&git_remote, &[], "usage: git remote-curl ")?,
    ];
    use_programs_of(programs);
    let followed = demo::follow_a_commit().await;
    let image = |image: &Image| json!({"digest": image.digest, "bytes": image.compressed, "unpacked": image.unpacked});
    let figures = json!({
        "seed": seed, "hub": image(&made.hub), "agent": image(&made.agent), "programs": versions,
    });
    Ok(Round {
        count: 1,
        failures: followed.err().map(|error| format!("{error:#}")).into_iter().collect(),
        figures,
    })
}

/// Unpacks an image's files from its layout, as a node does.
fn unpack(image: &Image, folder: &Path) -> Result<PathBuf> {
    let layout = folder.join("layout");
    image.write_layout(&layout)?;
    let blob = |digest: &Value| {
        Ok::<_, anyhow::Error>(
            layout
                .join("blobs")
                .join(digest.as_str().context("no digest")?.replace(':', "/")),
        )
    };
    let read = |path: &Path| Ok::<Value, anyhow::Error>(serde_json::from_slice(&fs::read(path)?)?);
    let index = read(&layout.join("index.json"))?;
    let entry = &index["manifests"][0];
    ensure!(
        entry["platform"]["architecture"] == "arm64",
        "{} is for {}",
        image.reference,
        entry["platform"]
    );
    let manifest = read(&blob(&entry["digest"])?)?;
    let root = folder.join("root");
    fs::create_dir(&root)?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--gzip").arg("--directory").arg(&root);
    let status = tar
        .arg("--file")
        .arg(blob(&manifest["layers"][0]["digest"])?)
        .status()
        .context("run tar")?;
    ensure!(status.success(), "unpack {}: {status}", image.reference);
    Ok(root)
}

/// Creates a script in `dir` with the program's name. It runs the program from an image's files with their libraries.
fn emulate(root: &Path, program: &str, dir: &Path) -> Result<PathBuf> {
    let script = dir.join(Path::new(program).file_name().context("a path of a program")?);
    let (emulator, root) = (EMULATOR.program, root.display());
    fs::write(
        &script,
        format!("#!/bin/sh\nexec {emulator} -L {root} {root}/{program} \"$@\"\n"),
    )?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

/// The first output line of a program. It must contain `expected`.
fn says(program: &Path, arguments: &[&str], expected: &str) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("run {}", program.display()))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().next().unwrap_or_default();
    ensure!(
        line.contains(expected),
        "{}: {}: {said}",
        program.display(),
        output.status
    );
    Ok(line.to_owned())
}
