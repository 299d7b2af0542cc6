//! Files from pinned Debian packages. apt downloads the packages; they are verified and never installed.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use farwater_image::Libraries;
use sha2::{Digest as _, Sha256};
use xtask::repository;

use super::Architecture;

/// Packages with the git program, its helpers for http, https and ssh, their libraries, and public CA certificates.
const PACKAGES: &[&str] = &[
    "ca-certificates",
    "git",
    "libbrotli1",
    "libc6",
    "libcom-err2",
    "libcurl3-gnutls",
    "libffi8",
    "libgmp10",
    "libgnutls30",
    "libgssapi-krb5-2",
    "libhogweed6",
    "libidn2-0",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "libldap-2.5-0",
    "libnettle8",
    "libnghttp2-14",
    "libp11-kit0",
    "libpcre2-8-0",
    "libpsl5",
    "librtmp1",
    "libsasl2-2",
    "libselinux1",
    "libssh2-1",
    "libssl3",
    "libtasn1-6",
    "libunistring2",
    "libzstd1",
    "openssh-client",
    "zlib1g",
];

const AUTHORITIES: &str = "usr/share/ca-certificates/mozilla";

/// A line of the lock file.
struct Pinned {
    name: String,
    version: String,
    sha256: String,
}

/// Content of all packages by path.
pub struct Packages {
    architecture: Architecture,
    files: BTreeMap<PathBuf, Vec<u8>>,
    links: BTreeMap<PathBuf, PathBuf>,
}

impl Packages {
    pub fn get(architecture: Architecture, refresh: bool) -> Result<Self> {
        let lock = repository::root()?.join(format!("deploy/images/debian-{}.lock", architecture.name()));
        let cache = cache()?;
        let apt = Apt::new(architecture, &cache);
        let pinned = if refresh { apt.present()? } else { read_lock(&lock)? };
        let mut packages = Self {
            architecture,
            files: BTreeMap::new(),
            links: BTreeMap::new(),
        };
        for pin in &pinned {
            packages.unpack(&apt.download(pin, &cache)?)?;
        }
        if refresh {
            let lines: String = pinned
                .iter()
                .map(|pin| format!("{} {} {}\n", pin.name, pin.version, pin.sha256))
                .collect();
            fs::write(&lock, lines).with_context(|| format!("write {}", lock.display()))?;
        }
        Ok(packages)
    }

    fn unpack(&mut self, package: &Path) -> Result<()> {
        let mut dpkg = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(package)
            .stdout(Stdio::piped())
            .spawn()
            .context("start dpkg-deb, which unpacks Debian packages")?;
        let stream = dpkg.stdout.take().context("dpkg-deb has no output")?;
        for entry in tar::Archive::new(stream).entries()? {
            let mut entry = entry?;
            let path = clean(&entry.path()?);
            match entry.header().entry_type() {
                tar::EntryType::Regular => {
                    let mut content = Vec::new();
                    entry.read_to_end(&mut content)?;
                    self.files.insert(path, content);
                }
                tar::EntryType::Symlink => {
                    let target = entry
                        .link_name()?
                        .with_context(|| format!("{} is a link without a target", path.display()))?;
                    let from = path.parent().unwrap_or(Path::new("")).to_owned();
                    let target = if target.is_absolute() {
                        clean(&target)
                    } else {
                        clean(&from.join(target))
                    };
                    self.links.insert(path, target);
                }
                _ => {}
            }
        }
        let status = dpkg.wait()?;
        ensure!(
            status.success(),
            "dpkg-deb --fsys-tarfile {}: {status}",
            package.display()
        );
        Ok(())
    }

    fn find(&self, path: &Path) -> Option<&Vec<u8>> {
        // At most two links: from a name without a version, and to a file of another package.
        let once = self.links.get(path).map_or(path, PathBuf::as_path);
        let twice = self.links.get(once).map_or(once, PathBuf::as_path);
        self.files.get(twice)
    }

    pub fn file(&self, path: &str) -> Result<Vec<u8>> {
        self.find(Path::new(path))
            .cloned()
            .with_context(|| format!("no package has {path}"))
    }

    pub fn libraries(&self) -> Result<Libraries> {
        let mut libraries = Libraries::new();
        for path in self.files.keys().chain(self.links.keys()) {
            let folder = path.parent().and_then(Path::to_str).unwrap_or_default();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if !self.architecture.libraries().contains(&folder) || !name.contains(".so") {
                continue;
            }
            let content = self
                .find(path)
                .with_context(|| format!("{} links to a file that no package has", path.display()))?;
            // Keep the path too: each program contains that of the dynamic linker.
            libraries.insert(name.to_owned(), (path.clone(), content.clone()));
        }
        Ok(libraries)
    }

    /// One file with all CA certificates, as Debian creates it when the package is installed.
    pub fn authorities(&self) -> Result<Vec<u8>> {
        let all: Vec<&Vec<u8>> = self
            .files
            .iter()
            .filter(|(path, _)| path.starts_with(AUTHORITIES))
            .map(|(_, content)| content)
            .collect();
        ensure!(
            !all.is_empty(),
            "the package ca-certificates has no files in {AUTHORITIES}"
        );
        Ok(all.into_iter().flatten().copied().collect())
    }
}

/// The path without `.`, `..` and a leading slash.
fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            std::path::Component::Normal(part) => cleaned.push(part),
            std::path::Component::ParentDir => {
                cleaned.pop();
            }
            _ => {}
        }
    }
    cleaned
}

fn read_lock(path: &Path) -> Result<Vec<Pinned>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let pin = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [name, version, sha256] => Ok(Pinned {
            name: name.to_owned(),
            version: version.to_owned(),
            sha256: sha256.to_owned(),
        }),
        _ => bail!("{}: {line:?} is not NAME VERSION SHA256", path.display()),
    };
    text.lines().map(pin).collect()
}

/// apt for one architecture, with its own package lists. The machine's lists may be old or of another architecture.
struct Apt {
    options: Vec<String>,
    lists: PathBuf,
    has_lists: Cell<bool>,
}

impl Apt {
    fn new(architecture: Architecture, cache: &Path) -> Self {
        let (state, name) = (cache.join(format!("apt-{}", architecture.name())), architecture.name());
        let options = [
            "APT::Sandbox::User=root".to_owned(),
            format!("APT::Architecture={name}"),
            format!("APT::Architectures={name}"),
            format!("Dir::State={}", state.display()),
            format!("Dir::Cache={}", state.display()),
            "Dir::State::status=/dev/null".to_owned(),
        ];
        Self {
            options: options.into(),
            lists: state.join("lists"),
            has_lists: Cell::new(false),
        }
    }

    /// Packages that apt would download now. It prints `'URL' NAME_VERSION_ARCHITECTURE.deb SIZE SHA256:HEX`.
    fn present(&self) -> Result<Vec<Pinned>> {
        let answer = self.get(&[&["download", "--print-uris"], PACKAGES].concat(), Path::new("/"))?;
        let mut pinned = Vec::new();
        for line in answer.lines() {
            let fields: Vec<_> = line.split(' ').collect();
            let [_, file, _, sum] = fields[..] else {
                bail!("apt-get printed {line:?}")
            };
            let mut parts = file.split('_');
            let (Some(name), Some(version), Some(sha256)) = (parts.next(), parts.next(), sum.strip_prefix("SHA256:"))
            else {
                bail!("apt-get printed {line:?}")
            };
            let (name, version, sha256) = (name.to_owned(), version.replace("%3a", ":"), sha256.to_owned());
            pinned.push(Pinned { name, version, sha256 });
        }
        ensure!(
            pinned.len() == PACKAGES.len(),
            "apt found {} of {} packages",
            pinned.len(),
            PACKAGES.len()
        );
        pinned.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pinned)
    }

    /// The package's file, from the cache or downloaded by apt.
    fn download(&self, pin: &Pinned, cache: &Path) -> Result<PathBuf> {
        let kept = cache.join(format!("{}.deb", pin.sha256));
        if !kept.exists() {
            let folder = tempfile::tempdir_in(cache)?;
            let wanted = format!("{}={}", pin.name, pin.version);
            self.get(&["download", &wanted], folder.path()).with_context(|| {
                format!("download {wanted}: if Debian has a newer version, pin it with cargo xtask image --refresh")
            })?;
            let file = fs::read_dir(folder.path())?
                .next()
                .with_context(|| format!("apt-get downloaded no file for {wanted}"))??;
            fs::rename(file.path(), &kept)?;
        }
        let sum = hex::encode(Sha256::digest(fs::read(&kept)?));
        if sum != pin.sha256 {
            fs::remove_file(&kept)?;
            bail!(
                "{} {}: its sha256 is {sum}, but {} is pinned",
                pin.name,
                pin.version,
                pin.sha256
            );
        }
        Ok(kept)
    }

    fn get(&self, arguments: &[&str], folder: &Path) -> Result<String> {
        if !self.has_lists.get() {
            fs::create_dir_all(self.lists.join("partial"))?;
            self.run(&["update"], Path::new("/"))?;
            self.has_lists.set(true);
        }
        self.run(arguments, folder)
    }

    fn run(&self, arguments: &[&str], folder: &Path) -> Result<String> {
        let output = Command::new("apt-get")
            .arg("-q")
            .args(self.options.iter().flat_map(|option| ["-o", option]))
            .args(arguments)
            .current_dir(folder)
            .stderr(Stdio::inherit())
            .output()
            .context("start apt-get, which downloads the packages of git")?;
        ensure!(
            output.status.success(),
            "apt-get {}: {}",
            arguments.join(" "),
            output.status
        );
        Ok(String::from_utf8(output.stdout)?)
    }
}

fn cache() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder = base
        .context("neither XDG_CACHE_HOME nor HOME is set")?
        .join("farwater/debian");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
