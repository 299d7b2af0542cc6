//! A real sshd on loopback that serves the repositories of one folder, and keys from `ssh-keygen`.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    Process,
    git::Repository,
    packages::{self, Package},
    ports,
    process::{bare_command, wait_ready},
    temporary_folder,
};

pub const SSH: [Package; 3] = [
    Package {
        program: "/usr/sbin/sshd",
        debian: "openssh-server",
    },
    Package {
        program: "ssh",
        debian: "openssh-client",
    },
    Package {
        program: "ssh-keygen",
        debian: "openssh-client",
    },
];
const READY: Duration = Duration::from_secs(30);
/// Folder that Debian's sshd needs for its start.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// A key pair, as files of `ssh-keygen`.
#[derive(Clone, Debug)]
pub struct Key {
    pub private: String,
    pub public: String,
}

impl Key {
    /// `kind` is `ed25519`, `ecdsa`, `rsa`, or a kind with a size: `ecdsa-384`. `form` is `""` (OpenSSH's), `PEM` or
    /// `PKCS8`.
    pub fn make(kind: &str, passphrase: &str, form: &str) -> Result<Self> {
        packages::require(&SSH)?;
        let folder = temporary_folder("farwater-ssh-key-")?;
        let path = folder.path().join("key");
        let (kind, bits) = kind.split_once('-').unwrap_or((kind, ""));
        let mut command = bare_command("ssh-keygen");
        command
            .args(["-q", "-t", kind, "-N", passphrase, "-C", "test"])
            .arg("-f")
            .arg(&path);
        if !bits.is_empty() {
            command.args(["-b", bits]);
        }
        if !form.is_empty() {
            command.args(["-m", form]);
        }
        let output = command.output().context("run ssh-keygen")?;
        if !output.status.success() {
            bail!("ssh-keygen: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(Self {
            private: fs::read_to_string(&path)?,
            public: fs::read_to_string(path.with_extension("pub"))?,
        })
    }
}

/// A running server. Ends when dropped.
#[derive(Debug)]
pub struct SshServer {
    port: u16,
    user: String,
    folder: tempfile::TempDir,
    host_key: Key,
    process: Option<Process>,
}

impl SshServer {
    /// Accepts all clients with one of these keys.
    pub async fn start(keys: &[&Key]) -> Result<Self> {
        packages::require(&SSH)?;
        if packages::is_root() {
            fs::create_dir_all(PRIVILEGE_SEPARATION).context("make sshd's folder")?;
        }
        let folder = temporary_folder("farwater-sshd-")?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        fs::create_dir(folder.path().join("repositories"))?;
        let host_key = Key::make("ed25519", "", "")?;
        let user = bare_command("id")
            .arg("-un")
            .output()
            .context("get the name of the current user")?
            .stdout;
        let user = String::from_utf8(user)?.trim().to_owned();
        let mut server = Self {
            port: ports::free()?,
            user,
            folder,
            host_key,
            process: None,
        };
        let authorized: String = keys.iter().map(|key| key.public.clone()).collect();
        server.write("authorized_keys", &authorized, 0o600)?;
        server.write("serve", SERVE, 0o755)?;
        server.write("host_key", &server.host_key.private, 0o600)?;
        let config = server.configuration();
        server.write("sshd_config", &config, 0o644)?;
        server.resume().await?;
        Ok(server)
    }

    fn configuration(&self) -> String {
        let place = self.folder.path().display();
        format!(
            "Port {}\nListenAddress 127.0.0.1\nHostKey {place}/host_key\nAuthorizedKeysFile {place}/authorized_keys\n\
             UsePAM no\nStrictModes no\nPidFile none\nPermitRootLogin prohibit-password\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nAcceptEnv GIT_PROTOCOL\nForceCommand {place}/serve\nLogLevel VERBOSE\n",
            self.port
        )
    }

    /// Listens again on the same port.
    pub async fn resume(&mut self) -> Result<()> {
        let place = self.folder.path();
        let mut command = bare_command("/usr/sbin/sshd");
        command.args(["-D", "-e", "-f"]).arg(place.join("sshd_config"));
        let mut process = Process::spawn("sshd", command, &place.join("sshd.log"))?;
        let port = self.port;
        let probe = || async {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            Ok(())
        };
        wait_ready(&mut [&mut process], READY, probe)
            .await
            .context("start sshd")?;
        self.process = Some(process);
        Ok(())
    }

    /// Stops listening and ends running connections.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Accepts connections but sends nothing.
    pub fn pause(&self) -> Result<()> {
        self.process.as_ref().context("sshd doesn't run")?.pause()
    }

    pub fn unpause(&self) -> Result<()> {
        self.process.as_ref().context("sshd doesn't run")?.resume()
    }

    /// Uses another host key from the next start on.
    pub fn change_host_key(&mut self) -> Result<()> {
        self.host_key = Key::make("ed25519", "", "")?;
        self.write("host_key", &self.host_key.private, 0o600)
    }

    /// Creates an empty bare repository.
    pub fn create(&self, name: &str) -> Result<Repository> {
        Repository::create(&self.root().join(format!("{name}.git")))
    }

    /// Folder of the repositories.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("repositories")
    }

    /// `ssh://USER@127.0.0.1:PORT/…/NAME.git`.
    pub fn url(&self, name: &str) -> String {
        let root = self.root();
        format!(
            "ssh://{}@127.0.0.1:{}{}/{name}.git",
            self.user,
            self.port,
            root.display()
        )
    }

    /// The server's key as a line for known_hosts.
    pub fn known_hosts(&self) -> String {
        let key: Vec<_> = self.host_key.public.split_whitespace().take(2).collect();
        format!("[127.0.0.1]:{} {}\n", self.port, key.join(" "))
    }

    /// Sets the answer of `git-lfs-authenticate`, as JSON.
    pub fn set_lfs_answer(&self, json: &str) -> Result<()> {
        self.write("lfs.json", json, 0o644)
    }

    /// Executed commands, one per line, each with its GIT_PROTOCOL.
    pub fn commands(&self) -> String {
        fs::read_to_string(self.folder.path().join("commands")).unwrap_or_default()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("sshd.log")).unwrap_or_default()
    }

    fn write(&self, name: &str, text: &str, mode: u32) -> Result<()> {
        let path = self.folder.path().join(name);
        write(&path, text, mode)
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    // Replace a read-only file, because it can't be overwritten.
    let _ = fs::remove_file(path);
    fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(())
}

/// Script that allows only the commands of a Git host's account: read and write repositories, find large files.
const SERVE: &str = r#"#!/bin/sh
place=$(dirname "$0")
echo "$GIT_PROTOCOL $SSH_ORIGINAL_COMMAND" >>"$place/commands"
case "$SSH_ORIGINAL_COMMAND" in
  "git-upload-pack "*) eval "exec git -c safe.directory='*' upload-pack ${SSH_ORIGINAL_COMMAND#git-upload-pack }" ;;
  "git-receive-pack "*) eval "exec git -c safe.directory='*' receive-pack ${SSH_ORIGINAL_COMMAND#git-receive-pack }" ;;
  "git-lfs-authenticate "*) exec cat "$place/lfs.json" ;;
  *) echo "no such command" >&2; exit 1 ;;
esac
"#;
