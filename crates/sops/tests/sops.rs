//! Files encrypted by the real SOPS. This crate and SOPS must decrypt them to the same values.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use farwater_bundle::yaml::{Budget, parse};
use farwater_sops::{Decrypted, Identity, SopsError, decrypt};
use farwater_testkit::{Tools, process::bare_command};
use serde_json::{Value, json};

/// Keys of age, and a working folder for SOPS.
struct Rig {
    folder: tempfile::TempDir,
    tools: Tools,
    ours: Identity,
    other: Identity,
}

impl Rig {
    fn new() -> Self {
        let (folder, tools) = (tempfile::tempdir().unwrap(), Tools::find_sops().unwrap());
        let make = |name: &str| {
            let path = folder.path().join(name);
            let made = bare_command(tools.age_keygen()).arg("-o").arg(&path).output().unwrap();
            assert!(made.status.success());
            let text = fs::read_to_string(&path).unwrap();
            let secret = text.lines().find(|line| line.starts_with("AGE-SECRET-KEY-1")).unwrap();
            Identity::new(&scalar(secret)).unwrap()
        };
        let (ours, other) = (make("ours.txt"), make("other.txt"));
        Self {
            folder,
            tools,
            ours,
            other,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn sops(&self) -> Command {
        let mut command = bare_command(self.tools.sops());
        command.current_dir(self.folder.path()).env("HOME", self.folder.path());
        command
            .env("SOPS_AGE_KEY_FILE", self.path("ours.txt"))
            .arg("--disable-version-check");
        command
    }

    /// Uses SOPS's older options, because the command `encrypt` does not support all rules.
    fn run(&self, verb: &str, name: &str, arguments: &[&str]) -> Output {
        self.sops()
            .arg(format!("--{verb}"))
            .args(arguments)
            .arg(name)
            .output()
            .unwrap()
    }

    /// Encrypts the file to our key with SOPS.
    fn encrypt(&self, name: &str, plain: &[u8], arguments: &[&str]) -> Vec<u8> {
        self.try_encrypt(name, plain, arguments).unwrap()
    }

    fn try_encrypt(&self, name: &str, plain: &[u8], arguments: &[&str]) -> Result<Vec<u8>, String> {
        fs::write(self.path(name), plain).unwrap();
        let output = self.run(
            "encrypt",
            name,
            &[&["--age", self.ours.recipient()], arguments].concat(),
        );
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(error)
        }
    }

    /// Decrypts the file with SOPS. None: SOPS refuses it.
    fn ask_sops(&self, name: &str, encrypted: &[u8]) -> Option<Vec<u8>> {
        fs::write(self.path(name), encrypted).unwrap();
        let output = self.run("decrypt", name, &[]);
        output.status.success().then_some(output.stdout)
    }

    fn open(&self, name: &str, encrypted: &[u8]) -> Result<Decrypted, SopsError> {
        decrypt(name, encrypted, std::slice::from_ref(&self.ours)).map(|opened| opened.expect("it is a file of SOPS"))
    }

    fn refuse(&self, name: &str, encrypted: &[u8]) -> SopsError {
        let error = self.open(name, encrypted).expect_err("it was altered");
        for secret in CANARIES {
            assert!(!format!("{error} {error:?}").contains(secret), "{error}");
        }
        error
    }

    /// Encrypts, decrypts, and compares with SOPS.
    fn check(&self, name: &str, plain: &str, arguments: &[&str]) -> Decrypted {
        let encrypted = self.encrypt(name, plain.as_bytes(), arguments);
        let text = String::from_utf8_lossy(&encrypted).into_owned();
        let opened = self
            .open(name, &encrypted)
            .unwrap_or_else(|error| panic!("{error}\n{text}"));
        let theirs = self.ask_sops(name, &encrypted).unwrap();
        assert_eq!(read(name, &opened.bytes), read(name, &theirs), "{arguments:?}\n{text}");
        opened
    }
}

/// The bytes of `AGE-SECRET-KEY-1…`.
fn scalar(secret: &str) -> Vec<u8> {
    const CHARSET: &[u8] = b"QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L";
    let data = secret.trim().strip_prefix("AGE-SECRET-KEY-1").unwrap();
    let groups = data
        .bytes()
        .map(|c| CHARSET.iter().position(|other| *other == c).unwrap());
    let bits: Vec<bool> = groups
        .take(data.len() - 6)
        .flat_map(|group| (0..5).rev().map(move |bit| group >> bit & 1 == 1))
        .collect();
    bits.chunks_exact(8)
        .map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit)))
        .collect()
}

/// A decrypted file as its readers see it: YAML and JSON as values, other formats as text. An infinite number, which no
/// manifest can have, becomes the text of the error.
fn read(name: &str, bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    match Path::new(name).extension().and_then(|extension| extension.to_str()) {
        Some("yaml") => {
            let documents = parse(&text, &Budget::default()).unwrap_or_else(|error| panic!("{error}\n{text}"));
            documents
                .into_iter()
                .map(|document| document.into_json().unwrap_or_else(|error| json!(error.to_string())))
                .filter(|json| *json != json!({}))
                .collect()
        }
        Some("json") => serde_json::from_str(&text).unwrap(),
        _ => json!(bytes),
    }
}

/// Values that must not occur in errors.
const CANARIES: [&str; 2] = ["hunter2-of-the-database", "a-token-that-nobody-sees"];

const MANIFESTS: &str = "\
apiVersion: v1
kind: Secret
metadata:
    name: database
    # of the team
    labels: {app: web, tier: \"1\"}
    annotations: {}
type: Opaque
stringData:
    # a comment that is encrypted too
    password: hunter2-of-the-database
    port: \"5432\"
    empty: \"\"
    many: |
        first line
        second: line

        # no comment
    'no': 'ÄÖÜ \"quoted\" \\ 🚢'
---
apiVersion: example.com/v1
kind: Odd
metadata:
    name: odd
spec:
    token: a-token-that-nobody-sees
    numbers: [1, -2, 1.5, 1e3, 1.0e-7, 0x1f, 0o17, 9007199254740993]
    flags: [true, false, yes, no, null, ~]
    times: [2001-12-14, 2001-12-14t21:59:43.10-05:00, 2001-12-14 21:59:43.10]
    lists:
        # before an item
        - name: a
          items: []
        - - nested
          # between
          - list
    odd keys: {a b: 1, \"true\": x, \"1\": y, a:b: z}
";

#[test]
fn manifests_are_opened_whatever_of_them_is_encrypted() {
    let rig = Rig::new();
    for arguments in [
        &[][..],
        &["--encrypted-regex", "^(data|stringData|token)$"],
        &["--encrypted-suffix", "ata"],
        &["--unencrypted-suffix", "metadata"],
        &["--unencrypted-regex", "^(apiVersion|kind|metadata)$"],
        &["--encrypted-regex", "^(stringData|spec)$", "--mac-only-encrypted"],
        &["--encrypted-comment-regex", "encrypted|before"],
        &["--unencrypted-comment-regex", "of the team"],
    ] {
        let opened = rig.check("manifests.yaml", MANIFESTS, arguments);
        if arguments.is_empty() {
            let secrets: Vec<&str> = opened.secrets.iter().map(|secret| secret.as_str()).collect();
            assert!(CANARIES.iter().all(|canary| secrets.contains(canary)), "{secrets:?}");
            assert_eq!(opened.recipient, rig.ours.recipient());
            assert!(!format!("{opened:?}").contains(CANARIES[0]));
        }
    }
}

#[test]
fn json_dotenv_and_binary_files_are_opened() {
    let rig = Rig::new();
    let json =
        r#"{"kind": "Config", "n": [1, 1.5, 1e2, true, null, "x\n\u00e4"], "deep": {"": {"list": [], "map": {}}}}"#;
    rig.check("config.json", json, &[]);
    rig.check("config.json", json, &["--encrypted-regex", "^deep$"]);
    let env = "# a comment\nUSER=admin\nPASSWORD=hunter2=of\\nthe database\nEMPTY=\n";
    let encrypted = rig.encrypt("web.env", env.as_bytes(), &[]);
    let opened = rig.open("web.env", &encrypted).unwrap();
    assert_eq!(String::from_utf8_lossy(&opened.bytes), env.replace("# a comment\n", ""));
    for (name, plain) in [
        ("key.pem", &b"-----BEGIN\nKEY-----\n"[..]),
        ("random.bin", &[0, 255, 254, 10, 13, 128]),
    ] {
        let encrypted = rig.encrypt(name, plain, &[]);
        assert_eq!(rig.open(name, &encrypted).unwrap().bytes.as_slice(), plain, "{name}");
    }
}

/// Another spelling of an unencrypted value does not change the MAC.
#[test]
fn scalars_are_read_as_sops_reads_them() {
    let rig = Rig::new();
    let spellings = [
        "0",
        "-0",
        "007",
        "0o17",
        "0b101",
        "0x1F",
        "+5",
        "1_000",
        "1__0",
        "1.",
        ".5",
        "1.5e3",
        "1e400",
        "-.inf",
        ".NaN",
        "0.1",
        "123456789012345678901234567890",
        "9223372036854775807",
        "yes",
        "No",
        "on",
        "true",
        "TRUE",
        "tRUE",
        "~",
        "null",
        "",
        "2001-12-14",
        "2001-1-2",
        "2001-02-30",
        "2001-12-14T21:59:43Z",
        "2001-12-14t21:59:43.123456789+02:00",
        "2001-12-14 21:59:43",
        "2001-12-14 21:59:43 -5",
        "12:30:45",
        "1:2",
        "'1'",
        "\"\\u00e4\"",
        "!!str 1",
        "!!float 1",
        "!!int \"3\"",
        "a b",
        "-",
        "--- x",
        "1.2.3",
        "0x",
        "08",
        "1e",
        "=",
    ];
    let mut compared = 0;
    for spelling in spellings {
        let plain = format!("a: {spelling}\nsecret: x\n");
        let Ok(encrypted) = rig.try_encrypt("scalar.yaml", plain.as_bytes(), &["--encrypted-regex", "^secret$"]) else {
            continue;
        };
        let encrypted = String::from_utf8(encrypted).unwrap();
        let written = encrypted.lines().next().unwrap();
        let respelled = encrypted.replacen(written, &format!("a: {spelling}"), 1);
        for text in [&encrypted, &respelled] {
            let (ours, theirs) = (
                rig.open("scalar.yaml", text.as_bytes()),
                rig.ask_sops("scalar.yaml", text.as_bytes()),
            );
            let ours = ours
                .as_ref()
                .map(|opened| read("scalar.yaml", &opened.bytes))
                .map_err(ToString::to_string);
            let theirs = theirs.map(|bytes| read("scalar.yaml", &bytes));
            assert_eq!(ours.as_ref().ok(), theirs.as_ref(), "{spelling}: {written}: {ours:?}");
        }
        compared += 1;
    }
    assert!(compared > 40, "{compared}");
}

#[test]
fn whatever_is_altered_is_refused() {
    let rig = Rig::new();
    let encrypted = rig.encrypt(
        "manifests.yaml",
        MANIFESTS.as_bytes(),
        &["--encrypted-regex", "^(stringData|token)$"],
    );
    let encrypted = String::from_utf8(encrypted).unwrap();
    let line = |start: &str| {
        encrypted
            .lines()
            .find(|line| line.trim_start().starts_with(start))
            .unwrap()
    };
    let (password, port, token) = (line("password:"), line("port:"), line("token:"));
    let value = |line: &str| line.split_once(": ").unwrap().1.to_owned();
    let check = |altered: String| {
        assert_ne!(altered, encrypted);
        assert!(
            rig.ask_sops("altered.yaml", altered.as_bytes()).is_none(),
            "SOPS takes it\n{altered}"
        );
        rig.refuse("altered.yaml", altered.as_bytes())
    };
    // A changed unencrypted value, a removed value, and a value that was decrypted.
    assert_eq!(check(encrypted.replace("name: odd", "name: even")), SopsError::Mac);
    assert_eq!(check(encrypted.replace(&format!("{password}\n"), "")), SopsError::Mac);
    assert_eq!(check(encrypted.replace(&value(password), "guess")), SopsError::Mac);
    // Two swapped values, and a value of another document.
    let swapped = encrypted
        .replace(password, "PLACE")
        .replace(&value(port), &value(password));
    let moved = check(swapped.replace("PLACE", &format!("    password: {}", value(port))));
    assert_eq!(
        moved,
        SopsError::Value {
            path: "stringData.password".to_owned()
        }
    );
    check(encrypted.replace(&value(password), &value(token)));
    // A changed bit in the data, the tag and the nonce.
    for part in ["data:", "tag:", "iv:"] {
        let at = encrypted.find(password).unwrap() + password.find(part).unwrap() + part.len();
        let other = if encrypted.as_bytes()[at] == b'A' { "B" } else { "A" };
        check(format!("{}{other}{}", &encrypted[..at], &encrypted[at + 1..]));
    }
    // The time that the MAC is bound to, and the MAC itself.
    let time = value(line("lastmodified:"));
    assert_eq!(
        check(encrypted.replace(&time, "\"2001-01-01T00:00:00Z\"")),
        SopsError::Mac
    );
    assert_eq!(
        check(encrypted.replace(&value(line("mac:")), &value(password))),
        SopsError::Mac
    );
    // Fewer values than the MAC covers.
    check(encrypted.replace("    mac: ", "    mac_only_encrypted: true\n    mac: "));
    // The data key of another file.
    let other = String::from_utf8(rig.encrypt("other.yaml", b"a: b\n", &[])).unwrap();
    let key = |text: &str| {
        let (from, to) = (text.find("-----BEGIN").unwrap(), text.find("-----END").unwrap());
        text[from..to].to_owned()
    };
    assert!(matches!(
        check(encrypted.replace(&key(&encrypted), &key(&other))),
        SopsError::Value { .. }
    ));
    let broken = key(&encrypted).replacen("YWdl", "YWdm", 1);
    assert!(matches!(
        check(encrypted.replace(&key(&encrypted), &broken)),
        SopsError::DataKey(_)
    ));
}

#[test]
fn with_a_mac_of_encrypted_values_the_rest_may_be_changed() {
    let rig = Rig::new();
    let arguments = ["--encrypted-regex", "^stringData$", "--mac-only-encrypted"];
    let encrypted = String::from_utf8(rig.encrypt("m.yaml", MANIFESTS.as_bytes(), &arguments)).unwrap();
    let changed = encrypted.replace("name: odd", "name: even");
    assert_eq!(
        read("m.yaml", &rig.open("m.yaml", changed.as_bytes()).unwrap().bytes)[1]["metadata"]["name"],
        "even"
    );
    let line = encrypted
        .lines()
        .find(|line| line.trim_start().starts_with("password:"))
        .unwrap();
    assert_eq!(
        rig.refuse("m.yaml", encrypted.replace(&format!("{line}\n"), "").as_bytes()),
        SopsError::Mac
    );
    assert_eq!(
        rig.refuse("m.yaml", encrypted.replace(line, "    password: guess").as_bytes()),
        SopsError::Mac
    );
}

#[test]
fn a_file_is_opened_by_any_key_of_the_cluster_and_by_no_other() {
    let rig = Rig::new();
    let both = format!("{},{}", rig.other.recipient(), rig.ours.recipient());
    fs::write(rig.path("a.yaml"), "a: b\n").unwrap();
    let encrypt = |recipients: &str| rig.run("encrypt", "a.yaml", &["--age", recipients]).stdout;
    let opened = rig.open("a.yaml", &encrypt(&both)).unwrap();
    assert_eq!(opened.recipient, rig.ours.recipient());
    let others = encrypt(rig.other.recipient());
    let error = rig.refuse("a.yaml", &others);
    assert_eq!(error, SopsError::NotOurs(vec![rig.other.recipient().to_owned()]));
    assert!(error.is_for_others() && error.to_string().contains("sops updatekeys"));
    // One former key is enough.
    let (ours, other) = (&rig.ours, &rig.other);
    let identity = |name: &str| {
        let text = fs::read_to_string(rig.path(name)).unwrap();
        Identity::new(&scalar(
            text.lines().find(|line| line.starts_with("AGE-SECRET-KEY-1")).unwrap(),
        ))
        .unwrap()
    };
    let keys = [identity("ours.txt"), identity("other.txt")];
    assert_eq!(
        decrypt("a.yaml", &others, &keys).unwrap().unwrap().recipient,
        other.recipient()
    );
    assert_eq!(
        decrypt("a.yaml", &encrypt(&both), &keys).unwrap().unwrap().recipient,
        ours.recipient()
    );
}

#[test]
fn keys_that_no_cluster_has_are_refused_by_name() {
    let rig = Rig::new();
    let rules = format!(
        "creation_rules:\n- shamir_threshold: 2\n  key_groups:\n  - age: [{}]\n  - age: [{}]\n",
        rig.ours.recipient(),
        rig.other.recipient()
    );
    fs::write(rig.path(".sops.yaml"), rules).unwrap();
    fs::write(rig.path("groups.yaml"), "a: b\n").unwrap();
    let output = rig.run("encrypt", "groups.yaml", &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(rig.refuse("groups.yaml", &output.stdout), SopsError::KeyGroups);
    fs::remove_file(rig.path(".sops.yaml")).unwrap();
    let encrypted = String::from_utf8(rig.encrypt("a.yaml", b"a: b\n", &[])).unwrap();
    let pgp = encrypted.replace("    age:\n", "    pgp:\n");
    assert_eq!(rig.refuse("a.yaml", pgp.as_bytes()), SopsError::NoAge("PGP".to_owned()));
    let ini = rig.encrypt("a.ini", b"[section]\nkey = value\n", &[]);
    assert_eq!(rig.refuse("a.ini", &ini), SopsError::Ini);
}

#[test]
fn what_is_no_file_of_sops_or_shall_stay_encrypted_is_left_alone() {
    let rig = Rig::new();
    let kept = MANIFESTS.replace("annotations: {}", "annotations: {farwater.dev/sops: Keep}");
    let kept = rig.encrypt(
        "kept.yaml",
        kept.as_bytes(),
        &["--encrypted-regex", "^(stringData|token)$"],
    );
    let is_left = |name: &str, bytes: &[u8]| decrypt(name, bytes, std::slice::from_ref(&rig.ours)).unwrap().is_none();
    assert!(is_left("kept.yaml", &kept));
    let encrypted = rig.encrypt("a.yaml", b"a: b\n", &[]);
    let text = String::from_utf8(encrypted).unwrap();
    // A document about SOPS, a value with the text of a SOPS file, and a template of a chart.
    let quoted: String = text.lines().map(|line| format!("  {line}\n")).collect();
    assert!(is_left("README.md", text.as_bytes()));
    assert!(is_left("a.yaml", format!("file: |\n{quoted}").as_bytes()));
    assert!(is_left(
        "a.yaml",
        b"{{ if .Values.sops }}\nmac: ENC[AES256_GCM,\n{{ end }}\n"
    ));
    assert!(is_left("a.json", b"{\"a\": \"ENC[AES256_GCM,\"}"));
    // A damaged SOPS file is an error, and never counts as an unencrypted file.
    assert!(matches!(
        rig.refuse("a.yaml", format!("{text}  broken: [\n").as_bytes()),
        SopsError::Syntax { .. }
    ));
    let alias = text.replacen("a: ", "b: &x 1\nc: *x\na: ", 1);
    assert!(rig.refuse("a.yaml", alias.as_bytes()).to_string().contains("an alias"));
}
