use std::{fs, path::Path};

use farwater_api::protocol::{ClusterIdentity, JoinAnswer};
use farwater_bundle::{Limits, MemoryTree, archive, closure};
use farwater_testkit::{Tools, process::bare_command};
use serde_json::json;

use super::*;
use crate::identity::Keys;

fn identity() -> Identity {
    let answer = JoinAnswer {
        cluster: ClusterIdentity {
            uid: "c".into(),
            namespace: "n".into(),
            name: "c".into(),
        },
        installation: "i".into(),
        signing_keys: Vec::new(),
        authorities: Vec::new(),
        position: Default::default(),
        ca: String::new(),
        hub_time: 0,
    };
    Identity::new("https://hub", None, "id", Keys::generate().unwrap(), answer)
}

fn recipient(identity: &Identity) -> String {
    identity.sops_keys().unwrap()[0].recipient().to_owned()
}

/// Encrypts a file with SOPS.
fn encrypt(name: &str, plain: &str, recipient: &str, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(Path::new(name).file_name().unwrap());
    fs::write(&file, plain).unwrap();
    let mut command = bare_command(Tools::find_sops().unwrap().sops());
    command
        .env("HOME", folder.path())
        .args(["--disable-version-check", "encrypt", "--age", recipient]);
    let output = command.args(arguments).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn bundle(files: &[(&str, &str)]) -> Archive {
    let mut tree = MemoryTree::default();
    let root = tree.add_files(files.iter().copied());
    let limits = Limits::default();
    let found = closure(&tree, &root, &RelPath::root(), &limits).unwrap();
    Archive::read(archive::pack(&tree, &found, &limits).unwrap(), &limits).unwrap()
}

/// The objects of a bundle that are applied, the errors, and the veil.
fn read(archive: Archive, identity: &Identity) -> (Vec<Value>, Vec<String>, Veil) {
    let opened = open(archive, identity).unwrap();
    let manifests = farwater_bundle::manifests::read(&opened.archive, &RelPath::root(), "web");
    let objects = manifests.objects().iter();
    let objects = objects.map(|m| RenderedObject {
        origin: m.origin.to_string(),
        manifest: m.value.clone(),
    });
    let errors = manifests.errors().iter().map(ToString::to_string);
    let mut render = Render {
        objects: objects.collect(),
        errors: errors.collect(),
    };
    opened.check(&mut render);
    (
        render.objects.into_iter().map(|object| object.manifest).collect(),
        render.errors,
        opened.veil,
    )
}

const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: db}\nstringData: {password: hunter2-of-db}\n";
const PLAIN: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain}\n";
const ARGUMENTS: [&str; 2] = ["--encrypted-regex", "^(data|stringData)$"];

#[test]
fn what_is_for_this_cluster_is_applied_in_the_clear_and_known_as_secret() {
    let identity = identity();
    let file = encrypt("db.yaml", SECRET, &recipient(&identity), &ARGUMENTS);
    let (objects, errors, veil) = read(bundle(&[("db.yaml", &file), ("plain.yaml", PLAIN)]), &identity);
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(objects[0]["stringData"], json!({"password": "hunter2-of-db"}));
    assert_eq!((objects[0].get("sops"), objects.len()), (None, 2));
    assert!(veil.hides(&json!("postgres://:hunter2-of-db@db")));
}

#[test]
fn keys_of_before_and_the_next_one_open_too() {
    let old = identity();
    let file = encrypt("db.yaml", SECRET, &recipient(&old), &ARGUMENTS);
    let next = old.prepare_keys().unwrap();
    let to_next = encrypt("db.yaml", SECRET, next.sops_keys().unwrap()[1].recipient(), &ARGUMENTS);
    for identity in [&old, &next, &next.promote_keys().unwrap()] {
        assert!(read(bundle(&[("db.yaml", &file)]), identity).1.is_empty());
    }
    for identity in [&next, &next.promote_keys().unwrap()] {
        assert!(read(bundle(&[("db.yaml", &to_next)]), identity).1.is_empty());
    }
}

#[test]
fn what_does_not_open_is_named_and_never_applied() {
    let (ours, other) = (identity(), identity());
    let check = |files: &[(&str, &str)], applied: usize, expected: &[&str]| {
        let (objects, errors, _) = read(bundle(files), &ours);
        assert_eq!((objects.len(), errors.len()), (applied, expected.len()), "{errors:?}");
        for (error, expected) in errors.iter().zip(expected) {
            assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
        }
    };
    let good = encrypt("db.yaml", SECRET, &recipient(&ours), &ARGUMENTS);
    let foreign = encrypt("db.yaml", SECRET, &recipient(&other), &ARGUMENTS);
    let altered = good.replace("name: db", "name: bd");
    check(
        &[("db.yaml", &altered), ("plain.yaml", PLAIN)],
        1,
        &["db.yaml is encrypted with SOPS: its MAC does not match its values"],
    );
    // A file for other keys is an error if its objects would be applied, and none if nothing reads it.
    check(
        &[("db.yaml", &foreign), ("plain.yaml", PLAIN)],
        1,
        &["and to no key of this cluster"],
    );
    check(
        &[
            (
                "values-other.env",
                &encrypt("a.env", "A=hunter2\n", &recipient(&other), &[]),
            ),
            ("plain.yaml", PLAIN),
        ],
        1,
        &[],
    );
    // A file whose metadata was removed.
    let bare = good.split("sops:").next().unwrap();
    check(
        &[("db.yaml", bare)],
        0,
        &["db.yaml:1 (document 1): .stringData.password is still encrypted by SOPS"],
    );
    // Encrypted values in the output of a template and of a generator.
    let url = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {url: 'db://ENC[AES256_GCM,data:x,iv:y,tag:z,type:str]@db'}\n";
    check(
        &[("a.yaml", url)],
        0,
        &["a.yaml:1 (document 1): .data.url is still encrypted by SOPS"],
    );
    let told = url.replace(",iv:y,tag:z,type:str", ",…");
    check(&[("a.yaml", &told)], 1, &[]);
    let encoded = STANDARD.encode(&foreign);
    let whole = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: a}}\ndata: {{file: {encoded}}}\n");
    check(
        &[("a.yaml", &whole)],
        0,
        &["a.yaml:1 (document 1): .data.file is still encrypted by SOPS"],
    );
    // A file that another program in the cluster decrypts.
    let kept = SECRET.replace("{name: db}", "{name: db, annotations: {farwater.dev/sops: Keep}}");
    check(
        &[("db.yaml", &encrypt("db.yaml", &kept, &recipient(&other), &ARGUMENTS))],
        1,
        &[],
    );
}
