//! The hub's credentials for sources: first wrong, then right, and then refused by all servers.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use farwater_api::{REQUESTED_AT, ServiceDeployment};
use farwater_e2e::{Fleet, condition, config_map};
use farwater_testkit::{
    Helm, Origin, Registry, Tools,
    app_api::{APP, AppApi, INSTALLATION},
    authority::Authority,
    git::{Auth, GitServer, Repository},
    helm::{borrowed, chart},
    lfs::pointer,
    origin::Seen,
    registry::{LOGIN, SignIn},
    squid::{Options, Squid},
    ssh::{Key, SshServer},
};
use serde_json::{Value, json};

use super::{
    canary::{Marks, canary, right, wrong},
    objects::{change_secret, create, put_secret, reconcile, until},
};

const FILE: &str = "app/a.yaml";
const USER: &str = "hub";
/// An address without a server.
const NOWHERE: &str = "http://127.0.0.1:1";

pub struct Sources {
    folder: tempfile::TempDir,
    ssh: SshServer,
    /// Keys: one with a passphrase, one without, and one that the server doesn't know.
    keys: [Key; 3],
    over_ssh: Repository,
    app: AppApi,
    of_app: GitServer,
    squid: Squid,
    registry: Registry,
    charts: Charts,
    /// Git server whose credentials a program prints.
    said: GitServer,
    /// A server with LFS files, also for the repository over ssh.
    files: GitServer,
    large: Repository,
}

struct Charts {
    origin: Origin,
    /// The authority that the hub trusts there, and the hub's client certificate.
    certificates: Value,
}

/// A source and its credentials.
struct Login {
    kind: &'static str,
    name: &'static str,
    spec: Value,
    /// Wrong and right Secrets.
    secrets: Vec<(&'static str, Value, Value)>,
    /// Result with the wrong Secret.
    refused: &'static str,
}

fn basic(password: &str) -> Auth {
    Auth::Basic {
        username: USER.to_owned(),
        password: password.to_owned(),
    }
}

fn login(password: &str) -> Value {
    json!({"username": USER, "password": password})
}

fn app_login(token: &str) -> Auth {
    Auth::Basic {
        username: "x-access-token".to_owned(),
        password: token.to_owned(),
    }
}

async fn start_registry(marks: &mut Marks) -> Result<Registry> {
    let registry = Registry::start(SignIn::Token).await?;
    registry
        .push_files("apps", "latest", &[("a.yaml", &config_map("a", "artifact"))])
        .await?;
    marks.add(LOGIN.1);
    // Prefix of its tokens.
    let token = registry.token("apps")?.context("it has a token service")?;
    marks.add(token.get(60..90).context("a token")?);
    Ok(registry)
}

impl Charts {
    async fn start(marks: &mut Marks, folder: PathBuf) -> Result<Self> {
        let authority = Authority::new("authority of a repository of charts")?;
        let (server, client) = (
            authority.issue(&["127.0.0.1"], 24)?,
            authority.issue(&["hub.test"], 24)?,
        );
        marks.add_key(&client.key);
        let helm = Helm::new(&Tools::find_renderers()?)?;
        helm.package(&borrowed(&chart("web", "1.0.0")), &folder)?;
        helm.index(&folder, None)?;
        let mut origin = Origin::of_folder(&folder, Some(&server)).await?;
        origin.ask_for_certificates(&server, &authority).await?;
        origin.set_auth(basic(&right("chart")));
        let certificates = json!({"ca.crt": authority.pem(), "tls.crt": client.certificate, "tls.key": client.key});
        Ok(Self { origin, certificates })
    }
}

impl Sources {
    pub async fn start(marks: &mut Marks) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let keys = [
            Key::make("ed25519", &right("phrase"), "")?,
            Key::make("rsa-2048", "", "PEM")?,
            Key::make("ed25519", "", "")?,
        ];
        keys.iter().for_each(|key| marks.add_key(&key.private));
        let ssh = SshServer::start(&[&keys[0], &keys[1]]).await?;
        let app = AppApi::start().await?;
        marks.add_key(app.key());
        (1..=2).for_each(|n| marks.add(&AppApi::token(n)));
        let credentials = Some((USER.to_owned(), right("proxy")));
        let squid = Squid::start(&Options {
            credentials,
            ..Options::default()
        })
        .await?;
        let (of_app, said, files) = (
            GitServer::start().await?,
            GitServer::start_tls().await?,
            GitServer::start().await?,
        );
        for (server, auth) in [(&of_app, app_login(&AppApi::token(1))), (&said, basic(&right("said")))] {
            server
                .create("infra")?
                .commit("main", &[(FILE, &config_map("a", "one"))])?;
            server.set_auth(auth);
        }
        let (large, over_ssh) = (files.create("large")?, ssh.create("infra")?);
        let registry = start_registry(marks).await?;
        let charts = Charts::start(marks, folder.path().join("charts")).await?;
        let all = Self {
            folder,
            ssh,
            keys,
            over_ssh,
            app,
            of_app,
            squid,
            registry,
            charts,
            said,
            files,
            large,
        };
        all.put_files()?;
        all.say(&wrong("said"))?;
        Ok(all)
    }

    /// An LFS file, and the credentials that the hub must send for it: with the file, in its address, and over ssh.
    fn put_files(&self) -> Result<()> {
        let pointer = self.files.lfs(|lfs| {
            lfs.header = Some(("x-token".to_owned(), canary("lfs", 0)));
            lfs.query = format!("?sig={}", canary("lfs", 1));
            lfs.put(config_map("a", "large").as_bytes())
        });
        for repository in [&self.large, &self.over_ssh] {
            repository.commit("main", &[(FILE, &pointer)])?;
        }
        let header = json!({"authorization": format!("RemoteAuth {}", canary("lfs", 2))});
        let place = format!("{}/info/lfs", self.files.url("large"));
        self.ssh
            .set_lfs_answer(&json!({"href": place, "header": header}).to_string())
    }

    /// The rule for the source whose credentials a program prints.
    pub fn program(&self) -> String {
        format!("{} {}", self.said.origin(), self.script().display())
    }

    fn script(&self) -> PathBuf {
        self.folder.path().join("say")
    }

    fn say(&self, password: &str) -> Result<()> {
        self.write_script(&format!("echo username={USER}; echo password={password}"))
    }

    fn write_script(&self, script: &str) -> Result<()> {
        fs::write(self.script(), format!("#!/bin/sh\ncat >/dev/null\n{script}\n"))?;
        Ok(fs::set_permissions(self.script(), fs::Permissions::from_mode(0o755))?)
    }

    fn with_passphrase(&self) -> Login {
        let (key, hosts) = (&self.keys[0].private, self.ssh.known_hosts());
        let secret = |phrase: &str| json!({"identity": key, "password": phrase, "known_hosts": hosts});
        Login {
            kind: "GitRepository",
            name: "ssh",
            spec: json!({"url": self.ssh.url("infra"), "secretRef": {"name": "ssh"}, "lfs": true}),
            secrets: vec![("ssh", secret(&wrong("phrase")), secret(&right("phrase")))],
            refused: "SecretInvalid",
        }
    }

    fn with_key(&self) -> Login {
        let secret = |key: &Key| json!({"identity": key.private, "known_hosts": self.ssh.known_hosts()});
        Login {
            kind: "GitRepository",
            name: "plain",
            spec: json!({"url": self.ssh.url("infra"), "secretRef": {"name": "plain"}}),
            secrets: vec![("plain", secret(&self.keys[2]), secret(&self.keys[1]))],
            refused: "AuthenticationFailed",
        }
    }

    fn through_proxy(&self) -> Login {
        let app = json!({
            "githubAppID": APP, "githubAppInstallationID": INSTALLATION,
            "githubAppPrivateKey": self.app.key(), "githubAppBaseURL": self.app.url(),
        });
        let proxy = |password: &str| json!({"address": self.squid.url(""), "username": USER, "password": password});
        let references = json!({"name": "app"});
        Login {
            kind: "GitRepository",
            name: "app",
            spec: json!({"url": self.of_app.url("infra"), "secretRef": references, "proxySecretRef": {"name": "proxy"}}),
            secrets: vec![
                ("app", app.clone(), app),
                ("proxy", proxy(&wrong("proxy")), proxy(&right("proxy"))),
            ],
            refused: "ProxyRefused",
        }
    }

    fn by_program(&self) -> Login {
        let authority = json!({"ca.crt": self.said.ca()});
        Login {
            kind: "GitRepository",
            name: "said",
            spec: json!({"url": self.said.url("infra"), "secretRef": {"name": "said"}}),
            secrets: vec![("said", authority.clone(), authority)],
            refused: "AuthenticationFailed",
        }
    }

    fn of_registry(&self) -> Login {
        let secret = |password: &str| {
            let host = json!({"username": LOGIN.0, "password": password});
            json!({".dockerconfigjson": json!({"auths": {self.registry.host(): host}}).to_string()})
        };
        Login {
            kind: "OCIRepository",
            name: "apps",
            spec: json!({"url": self.registry.url("apps"), "insecure": true, "secretRef": {"name": "docker"}}),
            secrets: vec![("docker", secret(&wrong("docker")), secret(LOGIN.1))],
            refused: "AuthenticationFailed",
        }
    }

    fn of_charts(&self) -> Login {
        let Charts { origin, certificates } = &self.charts;
        let references = [json!({"name": "charts"}), json!({"name": "certificates"})];
        Login {
            kind: "HelmRepository",
            name: "charts",
            spec: json!({"url": origin.url(), "secretRef": references[0], "certSecretRef": references[1]}),
            secrets: vec![
                ("charts", login(&wrong("chart")), login(&right("chart"))),
                ("certificates", certificates.clone(), certificates.clone()),
            ],
            refused: "AuthenticationFailed",
        }
    }

    /// Checks that no server accepts the hub before the Secrets are right, and that all do after that.
    pub async fn sign_in(&self, fleet: &Fleet, marks: &Marks) -> Result<()> {
        let logins = [
            self.with_passphrase(),
            self.with_key(),
            self.through_proxy(),
            self.by_program(),
            self.of_registry(),
            self.of_charts(),
        ];
        for Login {
            kind,
            name,
            spec,
            secrets,
            ..
        } in &logins
        {
            for (secret, wrong, _) in secrets {
                put_secret(fleet, secret, wrong).await?;
            }
            create(fleet, kind, name, spec.clone()).await?;
        }
        create(
            fleet,
            "GitRepository",
            "large",
            json!({"url": self.files.url("large"), "lfs": true}),
        )
        .await?;
        for Login {
            kind, name, refused, ..
        } in &logins
        {
            until(fleet, marks, kind, name, &format!("False/{refused}")).await?;
        }
        self.say(&right("said"))?;
        for Login {
            kind, name, secrets, ..
        } in &logins
        {
            for (secret, _, right) in secrets {
                change_secret(fleet, secret, right).await?;
            }
            reconcile(fleet, kind, name).await?;
        }
        for Login { kind, name, .. } in &logins {
            until(fleet, marks, kind, name, "True/Fetched").await?;
        }
        Ok(())
    }

    /// Checks that the content of each source gets to the cluster.
    pub async fn deliver(&self, fleet: &Fleet) -> Result<()> {
        let git = |name: &'static str| (name, "app", json!({"kind": "GitRepository", "name": name}));
        let apps = ("apps", "", json!({"kind": "OCIRepository", "name": "apps"}));
        let of_git = ["ssh", "app", "said", "large"].map(git);
        for (name, path, source) in of_git.into_iter().chain([apps]) {
            fleet
                .deploy_with(&format!("of-{name}"), "east", name, path, json!({"sourceRef": source}))
                .await?;
        }
        let chart = json!({"sourceRef": {"kind": "HelmRepository", "name": "charts"}, "chart": {"name": "web"}});
        fleet.deploy_with("of-charts", "east", "charts", "", chart).await?;
        let is_ready = |service: &ServiceDeployment| {
            service
                .status
                .as_ref()
                .is_some_and(|status| condition(&status.conditions, "Ready") == Some("True"))
        };
        for name in ["ssh", "app", "said", "large", "apps", "charts"] {
            fleet.until_service(&format!("of-{name}"), "be ready", is_ready).await?;
        }
        self.check_sent()
    }

    /// Checks that the hub sent the given headers back and showed its certificate.
    fn check_sent(&self) -> Result<()> {
        let seen = self.files.lfs(|lfs| std::mem::take(&mut lfs.downloads));
        let has_token =
            |headers: &http::HeaderMap| headers.get("x-token").is_some_and(|value| *value == *canary("lfs", 0));
        ensure!(
            seen.len() >= 2 && seen.iter().all(|(_, headers)| has_token(headers)),
            "{seen:?}"
        );
        let sent = format!("RemoteAuth {}", canary("lfs", 2));
        ensure!(
            self.files.authorizations().contains(&sent),
            "{:?}",
            self.files.authorizations()
        );
        let is_certified = |seen: &Seen| seen.is_certified && seen.status == 200;
        ensure!(self.charts.origin.seen().iter().any(is_certified));
        Ok(())
    }

    /// All servers lack the requested content, or refuse the hub.
    pub async fn refuse(&mut self, fleet: &Fleet, marks: &Marks) -> Result<()> {
        self.lack_files(fleet, marks).await?;
        self.ssh.stop();
        self.ssh.change_host_key()?;
        self.ssh.resume().await?;
        self.of_app.set_auth(app_login(&AppApi::token(2)));
        self.app.set_status(Some(500));
        self.charts.origin.set_auth(basic("another"));
        self.said.set_auth(basic("another"));
        let secret = canary("said", 1);
        self.write_script(&format!("echo token {secret}; echo no more {secret} >&2; exit 1"))?;
        let refused = [
            ("GitRepository", "ssh", "HostKeyNotTrusted"),
            ("GitRepository", "plain", "HostKeyNotTrusted"),
            ("GitRepository", "app", "AuthenticationFailed"),
            ("GitRepository", "said", "AuthenticationFailed"),
            ("HelmRepository", "charts", "AuthenticationFailed"),
        ];
        for (kind, name, _) in refused {
            reconcile(fleet, kind, name).await?;
        }
        for (kind, name, why) in refused {
            until(fleet, marks, kind, name, &format!("False/{why}")).await?;
        }
        // Refused credentials are forgotten, and there are no others.
        for (name, why) in [("app", "ServerError"), ("said", "CredentialsUnavailable")] {
            reconcile(fleet, "GitRepository", name).await?;
            until(fleet, marks, "GitRepository", name, &format!("False/{why}")).await?;
        }
        self.app.set_status(None);
        reconcile(fleet, "GitRepository", "app").await?;
        until(fleet, marks, "GitRepository", "app", "True/Fetched").await?;
        ensure!(self.app.given() == 2, "{:?}", self.app.refused());
        let sent = self.of_app.authorizations();
        ensure!(
            sent.len() == 2 && sent.iter().all(|sent| marks.find(sent.as_bytes()).is_some()),
            "{sent:?}"
        );
        Ok(())
    }

    async fn lack_files(&self, fleet: &Fleet, marks: &Marks) -> Result<()> {
        let fails = async |name: &str, why: &str| {
            fleet
                .annotate(name, REQUESTED_AT, &jiff::Timestamp::now().to_string())
                .await?;
            let service = fleet.until_condition(name, "Ready", "False", why).await?;
            marks.check(name, &serde_json::to_string(&service)?)
        };
        let gone = self.files.lfs(|lfs| {
            lfs.elsewhere = Some(NOWHERE.to_owned());
            lfs.put(config_map("a", "elsewhere").as_bytes())
        });
        self.large.change("main", &[(FILE, Some(&gone))])?;
        reconcile(fleet, "GitRepository", "large").await?;
        fails("of-large", "can't be reached").await?;
        let unknown = pointer(b"nobody has it");
        self.over_ssh.change("main", &[(FILE, Some(&unknown))])?;
        reconcile(fleet, "GitRepository", "ssh").await?;
        fails("of-ssh", "no such object").await?;
        self.ssh
            .set_lfs_answer(&json!({"header": {"authorization": canary("lfs", 3)}}).to_string())?;
        fails("of-ssh", "git-lfs-authenticate").await?;
        Ok(())
    }
}
