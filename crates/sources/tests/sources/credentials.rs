//! Credentials that are minted, printed by a program or sent to a proxy, with real servers.

use std::{os::unix::fs::PermissionsExt as _, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use farwater_sources::{
    Git, GitError, GitLimits, GitReason, Program, ProgramRule, Reference, Remote, Retry, SecretData, Synced,
};
use farwater_testkit::{
    app_api::{APP, AppApi, INSTALLATION},
    git::{Auth, GitServer},
    squid::{Options, Squid},
};

/// Timeout for calls that must succeed, also on a machine that is busy with other tests.
const TIMEOUT: Duration = Duration::from_secs(240);

struct Bench {
    server: GitServer,
    git: Git,
    dir: tempfile::TempDir,
}

impl Bench {
    fn with(server: GitServer) -> Self {
        server.create("r").unwrap().commit("main", &[("a.yaml", "1")]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let git = Git::new(GitLimits::default(), crate::near(), &dir.path().join("home")).unwrap();
        Self { server, git, dir }
    }

    async fn sync(&self, remote: &Remote) -> Result<Synced, GitError> {
        self.git
            .sync(
                remote,
                &Reference::parse(None).unwrap(),
                &self.dir.path().join("mirror"),
                TIMEOUT,
            )
            .await
    }

    fn token(&self, n: usize) {
        self.server.set_auth(Auth::Basic {
            username: "x-access-token".into(),
            password: AppApi::token(n),
        });
    }
}

fn secret(data: &[(&str, &str)]) -> SecretData {
    data.iter()
        .map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec()))
        .collect()
}

fn of_app(url: &str, api: &AppApi) -> Remote {
    let base = api.url();
    let data = [
        ("githubAppID", APP),
        ("githubAppInstallationID", INSTALLATION),
        ("githubAppPrivateKey", api.key()),
        ("githubAppBaseURL", &base),
    ];
    Remote::new(url, Some(&secret(&data))).unwrap()
}

#[tokio::test]
async fn an_apps_token_is_minted_once_and_anew_when_it_was_taken_back() {
    let (bench, api) = (
        Bench::with(GitServer::start().await.unwrap()),
        AppApi::start().await.unwrap(),
    );
    let remote = of_app(&bench.server.url("r"), &api);
    bench.token(1);
    for _ in 0..3 {
        bench.sync(&remote).await.unwrap();
    }
    assert_eq!((api.given(), api.refused()), (1, Vec::new()));
    bench.token(2);
    let error = bench.sync(&remote).await.unwrap_err();
    assert_eq!(error.reason, GitReason::Unauthorized);
    assert!(!error.to_string().contains(&AppApi::token(1)), "{error}");
    bench.sync(&remote).await.unwrap();
    assert_eq!(api.given(), 2);
}

#[tokio::test]
async fn an_api_that_mints_nothing_is_told_apart_from_the_server() {
    let (bench, api) = (
        Bench::with(GitServer::start().await.unwrap()),
        AppApi::start().await.unwrap(),
    );
    let remote = of_app(&bench.server.url("r"), &api);
    for (status, reason, retry) in [
        (401, GitReason::Unauthorized, Retry::AfterChange),
        (404, GitReason::NotFound, Retry::AfterChange),
        (503, GitReason::ServerError, Retry::Later),
    ] {
        api.set_status(Some(status));
        let error = bench.sync(&remote).await.unwrap_err();
        assert_eq!(
            (&error.reason, error.retry(), error.what),
            (&reason, retry, "mint a token for"),
            "{error}"
        );
    }
    assert_eq!(bench.server.counts().requests, 0, "nobody asks without a token");
    let other = [
        ("githubAppID", APP),
        ("githubAppInstallationID", INSTALLATION),
        ("githubAppPrivateKey", "no key"),
    ];
    let error = bench
        .sync(&Remote::new(&bench.server.url("r"), Some(&secret(&other))).unwrap())
        .await
        .unwrap_err();
    assert!(matches!(error.reason, GitReason::KeyUnusable(_)), "{error}");
}

#[tokio::test]
async fn a_program_says_the_credentials_of_the_prefix_that_it_was_given() {
    let bench = Bench::with(GitServer::start_tls().await.unwrap());
    let ca = secret(&[("ca.crt", bench.server.ca().unwrap())]);
    let (program, log) = (bench.dir.path().join("helper"), bench.dir.path().join("log"));
    let say = |password: &str| {
        let script = format!(
            "#!/bin/sh\ncat >>{}\necho username=u; echo password={password}\n",
            log.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let rule: ProgramRule = format!("{} {} team-a", bench.server.origin(), program.display())
        .parse()
        .unwrap();
    let url = bench.server.url("r");
    let remote = |namespace: &str| {
        let remote = Remote::new(&url, Some(&ca)).unwrap();
        match Program::choose(std::slice::from_ref(&rule), &url, namespace, "admins") {
            Some(program) => remote.with_program(program),
            None => remote,
        }
    };
    bench.server.set_auth(Auth::Basic {
        username: "u".into(),
        password: "one".into(),
    });
    say("one");
    bench.sync(&remote("team-a")).await.unwrap();
    bench.sync(&remote("team-a")).await.unwrap();
    let asked = std::fs::read_to_string(&log).unwrap();
    assert_eq!(asked.matches("namespace=team-a").count(), 1, "{asked}");
    assert_eq!(
        bench.sync(&remote("team-b")).await.unwrap_err().reason,
        GitReason::CredentialsMissing
    );
    // The password that the program printed was revoked.
    bench.server.set_auth(Auth::Basic {
        username: "u".into(),
        password: "two".into(),
    });
    say("two");
    let error = bench.sync(&remote("team-a")).await.unwrap_err();
    assert!(
        error.reason == GitReason::Unauthorized && !error.to_string().contains("one\""),
        "{error}"
    );
    bench.sync(&remote("team-a")).await.unwrap();
    let sent = bench.server.authorizations();
    let basic = |password: &str| format!("Basic {}", STANDARD.encode(format!("u:{password}")));
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(sent.contains(&basic("one")) && sent.contains(&basic("two")), "{sent:?}");
}

#[tokio::test]
async fn a_proxy_is_asked_with_its_own_credentials_and_finds_the_name_itself() {
    let bench = Bench::with(GitServer::start_tls().await.unwrap());
    let credentials = Some(("p".to_owned(), "pa:ss/word".to_owned()));
    let squid = Squid::start(&Options {
        names: vec!["localhost".into()],
        credentials,
        ..Options::default()
    })
    .await
    .unwrap();
    let address = squid.url("");
    let url = bench.server.url("r").replace("127.0.0.1", "localhost");
    let through = |password: &str| {
        let proxy = secret(&[("address", &address), ("username", "p"), ("password", password)]);
        let own = secret(&[
            ("ca.crt", bench.server.ca().unwrap()),
            ("username", "u"),
            ("password", "mine"),
        ]);
        Remote::new(&url, Some(&own)).unwrap().with_proxy(&proxy).unwrap()
    };
    bench.server.set_auth(Auth::Basic {
        username: "u".into(),
        password: "mine".into(),
    });
    bench
        .sync(&through("pa:ss/word"))
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", squid.tail()));
    assert!(
        squid.access_log().contains("CONNECT localhost:"),
        "{}",
        squid.access_log()
    );
    let sent = bench.server.authorizations();
    assert!(
        sent.iter()
            .all(|one| *one == format!("Basic {}", STANDARD.encode("u:mine"))),
        "{sent:?}"
    );
    let error = bench.sync(&through("wrong-password")).await.unwrap_err();
    assert_eq!(error.reason, GitReason::ProxyRefused, "{error}");
    assert!(!error.to_string().contains("wrong-password"), "{error}");
}

#[tokio::test]
async fn tokens_are_minted_through_the_proxy_of_the_source() {
    let (bench, api) = (
        Bench::with(GitServer::start().await.unwrap()),
        AppApi::start().await.unwrap(),
    );
    let credentials = Some(("p".to_owned(), "word".to_owned()));
    let squid = Squid::start(&Options {
        credentials,
        ..Options::default()
    })
    .await
    .unwrap();
    let address = squid.url("");
    let through = |password: &str| {
        let proxy = secret(&[("address", &address), ("username", "p"), ("password", password)]);
        of_app(&bench.server.url("r"), &api).with_proxy(&proxy).unwrap()
    };
    let error = bench.sync(&through("wrong")).await.unwrap_err();
    assert_eq!((error.reason, api.given()), (GitReason::ProxyRefused, 0));
    bench.token(1);
    bench
        .sync(&through("word"))
        .await
        .unwrap_or_else(|error| panic!("{error}\n{}", squid.tail()));
    let place = api.url().replace("http://", "").replace("/api/v3", "");
    assert!(
        squid.access_log().contains(&format!("CONNECT {place}")),
        "{}",
        squid.access_log()
    );
}
