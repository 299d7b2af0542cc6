//! A real node with the shipped images.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use farwater_image::Image;
use farwater_testkit::{
    Site,
    farwater::use_programs_of,
    images::{AGENT, AGENT_NEXT, HUB, Images},
};
use xtask::repository;

use super::{Architecture, Made, agent_image, make};

/// The shipped images for this machine, with the references that tests use.
pub struct Shipped {
    pub made: Made,
    /// The agent's image as the next version.
    next: Image,
}

impl Shipped {
    /// Builds the images. The testkit uses their programs from now on.
    pub fn make() -> Result<Self> {
        eprintln!("building the shipped images");
        let architecture = Architecture::own()?;
        let made = make(architecture, HUB, AGENT, false)?;
        let next = agent_image(architecture, &made.programs, AGENT_NEXT)?;
        let folder = repository::target_directory()?.join("xtask/shipped");
        fs::create_dir_all(&folder)?;
        link(&made.programs.hub, &folder.join("farwater"))?;
        link(&made.programs.agent, &folder.join("farwater-agent"))?;
        use_programs_of(folder);
        Ok(Self { made, next })
    }

    /// Starts a new node that has the images.
    pub async fn site(&self) -> Result<Site> {
        let dir = tempfile::tempdir()?;
        let shipped = |name: &str, image: &Image| -> Result<PathBuf> {
            let path = dir.path().join(name);
            image.write_tar(&path)?;
            Ok(path)
        };
        let images = Images {
            hub: shipped("hub-shipped.tar", &self.made.hub)?,
            agent: shipped("agent-shipped.tar", &self.made.agent)?,
            agent_next: shipped("agent-next-shipped.tar", &self.next)?,
            ..Images::make(dir.path())?
        };
        Site::with(dir, &images).await
    }
}

fn link(program: &Path, name: &Path) -> Result<()> {
    if name.is_symlink() {
        fs::remove_file(name)?;
    }
    symlink(program, name).with_context(|| format!("link {}", name.display()))
}
