//! Hostile Git repositories, as branches of one. The first is a good one.

use std::path::Path;

use farwater_testkit::{
    git::{GitServer, Repository},
    lfs::pointer,
};

use super::inputs::{NAMES, targets};

/// A large file of the good branch, which uses everything that can be fetched.
const LARGE: &[u8] = b"a large file";
/// Size of a file that compresses to nearly nothing: 128 MiB.
const ZEROS: usize = 128 << 20;
const MILLION: usize = 1_000_000;

struct Trees<'a> {
    repository: &'a Repository,
    /// A blob of the right kind.
    blob: String,
    branches: Vec<String>,
}

type Entry<'a> = (&'a str, &'a [u8], &'a str);

impl Trees<'_> {
    fn text(&self, text: impl AsRef<[u8]>) -> String {
        self.repository.write_object("blob", text.as_ref()).unwrap()
    }

    /// A tree in Git's order, because these tests aren't about the order.
    fn tree(&self, entries: &[Entry<'_>]) -> String {
        let mut sorted = entries.to_vec();
        // Git compares a folder's name with a slash after it.
        sorted.sort_by_key(|(mode, name, _)| {
            let mut name = name.to_vec();
            name.extend((*mode == "40000").then_some(b'/'));
            name
        });
        self.repository.write_tree(&sorted).unwrap()
    }

    fn commit(&mut self, tree: &str) {
        let branch = format!("case-{}", self.branches.len());
        self.repository.commit_tree(&branch, tree).unwrap();
        self.branches.push(branch);
    }

    fn add(&mut self, entries: &[Entry<'_>]) {
        let tree = self.tree(entries);
        self.commit(&tree);
    }

    /// Adds files at the root, with the other entries there.
    fn add_files(&mut self, files: &[(&str, &[u8])], more: &[Entry<'_>]) {
        let blobs: Vec<_> = files
            .iter()
            .map(|(name, content)| (*name, self.text(content)))
            .collect();
        let mut entries: Vec<Entry<'_>> = blobs
            .iter()
            .map(|(name, id)| ("100644", name.as_bytes(), id.as_str()))
            .collect();
        entries.extend(more);
        self.add(&entries);
    }
}

/// Makes the branches, and returns their names. `outside`: a folder with a canary.
pub fn trees(server: &GitServer, outside: &Path) -> Vec<String> {
    let (repository, module) = (server.create("r").unwrap(), server.create("m").unwrap());
    let module = module.commit("main", &[("m.yaml", "kind: M\n")]).unwrap();
    let blob = repository.write_object("blob", b"kind: A\n").unwrap();
    let mut trees = Trees {
        repository: &repository,
        blob,
        branches: Vec::new(),
    };
    good(&mut trees, &module, &server.lfs(|lfs| lfs.put(LARGE)));
    names(&mut trees);
    links(&mut trees, outside);
    forms(&mut trees);
    sizes(&mut trees);
    modules(&mut trees, &module, outside);
    attributes(&mut trees, outside);
    pointers(&mut trees);
    trees.branches
}

fn good(trees: &mut Trees<'_>, module: &str, large: &str) {
    let link = trees.text("a.yaml");
    let listed = b"[submodule \"m\"]\n\tpath = m\n\turl = ../m.git\n";
    let files: [(&str, &[u8]); 4] = [
        (".gitmodules", listed),
        ("a.yaml", b"kind: A\n"),
        ("kustomization.yaml", b"resources: [a.yaml]\n"),
        ("large", large.as_bytes()),
    ];
    trees.add_files(&files, &[("120000", b"l", &link), ("160000", b"m", module)]);
}

fn names(trees: &mut Trees<'_>) {
    let blob = trees.blob.clone();
    let more: [&[u8]; 5] = [b".git", b".GIT", b"git~1", b".g\xe2\x80\x8cit", b""];
    for name in NAMES.into_iter().chain(more) {
        trees.add(&[("100644", name, &blob), ("100644", b"z.yaml", &blob)]);
        let folder = trees.tree(&[("100644", b"a.yaml", &blob)]);
        trees.add(&[("40000", name, &folder), ("100644", b"z.yaml", &blob)]);
    }
}

fn links(trees: &mut Trees<'_>, outside: &Path) {
    let blob = trees.blob.clone();
    for target in targets(outside) {
        let link = trees.text(&target);
        trees.add(&[("120000", b"l", &link), ("100644", b"a.yaml", &blob)]);
        let kustomization = trees.text("resources: [l/a.yaml, l]\n");
        trees.add(&[
            ("120000", b"l", &link),
            ("100644", b"kustomization.yaml", &kustomization),
        ]);
    }
    let chain: Vec<_> = (0..3000).map(|n| format!("l{n:04}")).collect();
    let targets: Vec<_> = (1..=chain.len()).map(|n| trees.text(format!("l{n:04}"))).collect();
    let entries: Vec<Entry<'_>> = chain
        .iter()
        .zip(&targets)
        .map(|(name, target)| ("120000", name.as_bytes(), target.as_str()))
        .collect();
    trees.add(&entries);
    // Each folder has two links to the next one, which makes 2^40 paths.
    let folders: Vec<_> = (0..40)
        .map(|n| {
            let next = trees.text(format!("../d{:02}", n + 1));
            (
                format!("d{n:02}"),
                trees.tree(&[("120000", b"a", &next), ("120000", b"b", &next)]),
            )
        })
        .collect();
    let end = trees.tree(&[("100644", b"x", &blob)]);
    let mut entries: Vec<Entry<'_>> = folders
        .iter()
        .map(|(name, id)| ("40000", name.as_bytes(), id.as_str()))
        .collect();
    entries.push(("40000", b"d40", &end));
    trees.add(&entries);
}

/// Modes that don't fit the object, duplicate entries, and objects that are not trees.
fn forms(trees: &mut Trees<'_>) {
    let (blob, nothing) = (trees.blob.clone(), "0".repeat(40));
    let folder = trees.tree(&[("100644", b"a.yaml", &blob)]);
    for (mode, id) in [
        ("100755", &blob),
        ("100664", &blob),
        ("100000", &blob),
        ("40000", &blob),
        ("160000", &blob),
        ("100644", &folder),
        ("120000", &folder),
        ("20000", &blob),
        ("60644", &blob),
        ("0", &blob),
        ("777777", &blob),
        ("99999999999999999999", &blob),
        ("100644", &nothing),
        ("40000", &nothing),
        ("160000", &nothing),
    ] {
        trees.add(&[(mode, b"a", id), ("100644", b"z.yaml", &blob)]);
    }
    for (a, b) in [("a", "a"), ("A", "a"), ("b", "a")] {
        let tree = trees
            .repository
            .write_tree(&[("100644", a.as_bytes(), &blob), ("40000", b.as_bytes(), &folder)]);
        trees.commit(&tree.unwrap());
    }
    for body in [&b"100644 a"[..], b"\0", b"100644 a\0short", b"a tree"] {
        let tree = trees.repository.write_object("tree", body).unwrap();
        trees.commit(&tree);
    }
}

fn sizes(trees: &mut Trees<'_>) {
    let blob = trees.blob.clone();
    let id = hex::decode(&blob).unwrap();
    let mut million = Vec::with_capacity(MILLION * 35);
    for n in 0..MILLION {
        million.extend_from_slice(format!("100644 {n:07}\0").as_bytes());
        million.extend_from_slice(&id);
    }
    let tree = trees.repository.write_object("tree", &million).unwrap();
    trees.commit(&tree);
    // The same folder ten times on each of ten levels: 10^10 files from ten objects.
    let mut folder = trees.tree(&[("100644", b"x", &blob)]);
    for _ in 0..10 {
        let names: Vec<_> = (0..10).map(|n| format!("d{n}")).collect();
        let entries: Vec<Entry<'_>> = names
            .iter()
            .map(|name| ("40000", name.as_bytes(), folder.as_str()))
            .collect();
        folder = trees.tree(&entries);
    }
    trees.commit(&folder);
    let mut deep = trees.tree(&[("100644", b"x", &blob)]);
    for _ in 0..60 {
        deep = trees.tree(&[("40000", &[b'n'; 200], &deep)]);
    }
    trees.commit(&deep);
    let zeros = trees.text(vec![0; ZEROS]);
    trees.add(&[("100644", b"zeros", &zeros), ("100644", b"a.yaml", &blob)]);
}

fn modules(trees: &mut Trees<'_>, module: &str, outside: &Path) {
    let (blob, canary) = (trees.blob.clone(), outside.join("canary").display().to_string());
    let listed = |path: &str, url: &str| format!("[submodule \"m\"]\n\tpath = {path}\n\turl = {url}\n");
    let mut files: Vec<String> = [
        "../x",
        "/etc",
        ".git",
        "a/../../x",
        "",
        "\"m\\\\x\"",
        "\"a\\nb\"",
        "m/../m",
        ".",
    ]
    .iter()
    .map(|path| listed(path, "../m.git"))
    .collect();
    let urls = [
        &canary,
        "file:///etc",
        "/etc/passwd",
        "../../../../../../etc",
        "..",
        "ext::sh -c id",
        "\"ext::sh -c touch% /tmp/x\"",
        "ssh://-oProxyCommand=id/x",
        "-oProxyCommand=id:x",
        "git@-oProxyCommand=id:x",
        "--upload-pack=id",
        "-u",
        "http://127.0.0.1:1/x.git",
        "http://user:secret@127.0.0.1:1/x.git",
        "\"http://127.0.0.1:1/\\na\\tb\"",
        "gopher://127.0.0.1:1/x",
        "../r.git",
        "",
    ];
    files.extend(urls.iter().map(|url| listed("m", url)));
    files.extend([
        format!("{}\tupdate = !touch /tmp/x\n\tbranch = -x\n", listed("m", "../m.git")),
        format!("[include]\n\tpath = {canary}\n{}", listed("m", "../m.git")),
        format!(
            "[core]\n\tfsmonitor = id\n\tsshCommand = id\n{}",
            listed("m", "../m.git")
        ),
        "[submodule \"../../x\"]\n\tpath = m\n\turl = ../m.git\n".to_owned(),
        "[submodule \"m\n\u{1b}[2J".to_owned(),
        "\u{1b}[31m\u{0}".to_owned(),
        listed("m", "../m.git").repeat(20_000),
        (0..200)
            .map(|n| format!("[submodule \"{n}\"]\n\tpath = m\n\turl = http://127.0.0.1:1/{n}.git\n"))
            .collect(),
    ]);
    for file in &files {
        trees.add_files(
            &[(".gitmodules", file.as_bytes())],
            &[("160000", b"m", module), ("100644", b"z", &blob)],
        );
    }
    let link = trees.text(&canary);
    trees.add(&[
        ("120000", b".gitmodules", &link),
        ("160000", b"m", module),
        ("100644", b"z", &blob),
    ]);
    let folder = trees.tree(&[("100644", b"a", &blob)]);
    trees.add(&[
        ("40000", b".gitmodules", &folder),
        ("160000", b"m", module),
        ("100644", b"z", &blob),
    ]);
    // A commit that the other repository doesn't have.
    let listed = listed("m", "../m.git");
    trees.add_files(
        &[(".gitmodules", listed.as_bytes())],
        &[("160000", b"m", &"1".repeat(40))],
    );
}

fn attributes(trees: &mut Trees<'_>, outside: &Path) {
    let canary = outside.join("canary").display().to_string();
    let filters = "* filter=evil diff=evil merge=evil text eol=crlf working-tree-encoding=UTF-16 ident export-subst\n";
    let own = "[filter \"evil\"]\n\tsmudge = touch /tmp/x\n[lfs]\n\turl = http://127.0.0.1:1/\n";
    let long = format!("* {}\n", "a".repeat(300_000));
    for file in [
        filters,
        "[attr]a -a\n* a a a\n",
        &long,
        "\u{0}\u{1b}[2J",
        "* export-ignore\n",
    ] {
        trees.add_files(
            &[(".gitattributes", file.as_bytes()), (".lfsconfig", own.as_bytes())],
            &[],
        );
    }
    let (link, blob) = (trees.text(&canary), trees.blob.clone());
    trees.add(&[("120000", b".gitattributes", &link), ("100644", b"a.yaml", &blob)]);
    trees.add(&[("120000", b".lfsconfig", &link), ("100644", b"a.yaml", &blob)]);
    trees.add_files(
        &[
            (".gitignore", b"*\n"),
            (".mailmap", b"\x1b[2J"),
            ("a.yaml", b"kind: A\n"),
        ],
        &[],
    );
}

fn pointers(trees: &mut Trees<'_>) {
    let first = "version https://git-lfs.github.com/spec/v1\n";
    let oid = "a".repeat(64);
    let good = pointer(LARGE);
    let many: String = (0..20).map(|n| format!("oid sha256:{n:064x}\nsize {n}\n")).collect();
    for text in [
        format!("{first}oid sha256:{oid}\nsize 1\n"),
        format!("{first}oid sha256:{oid}\nsize 18446744073709551615\n"),
        format!("{first}oid sha256:{oid}\nsize 18446744073709551616\n"),
        format!("{first}oid sha256:{oid}\nsize -1\n"),
        format!("{first}oid sha256:{oid}\nsize 1e3\n"),
        format!("{first}oid sha256:../../../../../../etc/passwd\nsize 1\n"),
        format!("{first}oid sha256:/etc/passwd{}\nsize 1\n", "a".repeat(53)),
        format!("{first}oid md5:{oid}\nsize 1\n"),
        format!("{first}oid sha256:{}\nsize 1\n", "A".repeat(64)),
        format!("{first}ext-0-evil sha256:{oid}\noid sha256:{oid}\nsize 1\n"),
        format!("{first}{many}"),
        first.to_owned(),
        format!("{first}\u{1b}[2J\n"),
        // One byte more and one byte less than the file has.
        good.replace(&format!("size {}", LARGE.len()), &format!("size {}", LARGE.len() + 1)),
        good.replace(&format!("size {}", LARGE.len()), &format!("size {}", LARGE.len() - 1)),
    ] {
        trees.add_files(&[("a.yaml", text.as_bytes()), ("b.yaml", b"kind: B\n")], &[]);
    }
}
