//! Hostile archives and charts. The first of each kind is a good one.

use std::{io::Write as _, path::Path};

use farwater_testkit::registry::gzip;

/// The content of a file that no archive may reach.
pub const CANARY: &str = "a canary outside of every archive";

const BLOCK: usize = 512;
pub const NAMES: [&[u8]; 16] = [
    b"../x",
    b"a/../../x",
    b"./../x",
    b"/etc/passwd",
    b"//x",
    b"a\\..\\b",
    b"C:\\x",
    b"a\nb",
    b"a\x1b[2Jb",
    b"\xff\xfe",
    b".git/config",
    b"a/GIT~1/x",
    b"a//b",
    b"a/./b",
    b"..",
    b"a/..",
];

/// A member with exactly this name and kind, which no tool would write.
fn member(name: &[u8], kind: u8, target: &[u8], content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    let bytes = header.as_mut_bytes();
    bytes[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
    bytes[157..157 + target.len().min(100)].copy_from_slice(&target[..target.len().min(100)]);
    header.set_cksum();
    let mut out = header.as_bytes().to_vec();
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

fn file(name: &str, content: &str) -> Vec<u8> {
    member(name.as_bytes(), b'0', b"", content.as_bytes())
}

fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = members.concat();
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    bytes
}

fn pax(records: &str) -> Vec<u8> {
    member(b"pax", b'x', b"", records.as_bytes())
}

/// A generator of numbers that gives the same ones in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// Layers of artifacts. `outside`: a folder with a canary.
pub fn archives(outside: &Path) -> Vec<Vec<u8>> {
    let good = archive(&[
        file("kustomization.yaml", "resources: [a.yaml]\n"),
        file("a.yaml", "kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\n"),
        member(b"link", b'2', b"a.yaml", b""),
    ]);
    let mut all = vec![gzip(&good).unwrap()];
    all.extend(odd_names());
    all.extend(links(outside));
    all.extend(disagreements());
    all.extend(bombs());
    // Cut and changed at many places.
    let packed = gzip(&good).unwrap();
    all.extend((1..16).map(|n| packed[..packed.len() * n / 16].to_vec()));
    all.extend((1..10).map(|n| good[..good.len() * n / 10].to_vec()));
    let mut numbers = Numbers(0x5eed);
    for n in 0..40 {
        let mut changed = if n % 2 == 0 { good.clone() } else { packed.clone() };
        for _ in 0..=numbers.below(4) {
            let at = numbers.below(changed.len());
            changed[at] ^= 1 << numbers.below(8);
        }
        all.push(changed);
    }
    all
}

fn odd_names() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for name in NAMES {
        let usual = file("a.yaml", "a: b\n");
        all.push(archive(&[member(name, b'0', b"", b"x"), usual.clone()]));
        all.push(gzip(&archive(&[member(name, b'5', b"", b""), usual.clone()])).unwrap());
        all.push(archive(&[member(name, b'2', b"a.yaml", b""), usual.clone()]));
        all.push(archive(&[usual.clone(), member(b"b", b'1', name, b"")]));
        let long = format!("path={}\n", String::from_utf8_lossy(name));
        all.push(archive(&[pax(&format!("{} {long}", long.len() + 3)), usual]));
    }
    for kind in [b'3', b'4', b'6', b'S', b'Z', b'V'] {
        all.push(archive(&[member(b"a", kind, b"/dev/sda", b"")]));
    }
    all
}

/// Targets of links.
pub fn targets(outside: &Path) -> Vec<String> {
    let canary = outside.join("canary").display().to_string();
    let up = format!("{}{}", "../".repeat(20), canary.trim_start_matches('/'));
    let long = "x/".repeat(50);
    let plain = [
        "/etc/passwd",
        "..",
        "../..",
        "a/../../..",
        "/",
        "/proc/self/environ",
        "l",
        "./l/l",
        "",
        "a\nb",
    ];
    [canary, up, long].into_iter().chain(plain.map(str::to_owned)).collect()
}

fn links(outside: &Path) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for target in targets(outside) {
        let link = member(b"l", b'2', target.as_bytes(), b"");
        all.push(archive(&[link.clone(), file("a.yaml", "a: b\n")]));
        all.push(archive(&[link.clone(), file("l/written", "x")]));
        all.push(archive(&[
            link,
            file("kustomization.yaml", "resources: [l/a.yaml, l]\n"),
        ]));
        all.push(archive(&[
            member(b"h", b'1', target.as_bytes(), b""),
            file("a.yaml", "a: b\n"),
        ]));
        let kustomization = format!("resources: ['{}']\n", target.escape_default());
        all.push(archive(&[file("kustomization.yaml", &kustomization)]));
    }
    for length in [30, 300, 3000] {
        let mut chain: Vec<_> = (0..length)
            .map(|n| member(format!("l{n}").as_bytes(), b'2', format!("l{}", n + 1).as_bytes(), b""))
            .collect();
        chain.push(file(&format!("l{length}"), "end"));
        all.push(gzip(&archive(&chain)).unwrap());
    }
    // Each folder has two links to the next one, which makes 2^40 paths.
    let mut doubled: Vec<_> = (0..40)
        .flat_map(|n| {
            let next = format!("../d{}", n + 1);
            ["a", "b"].map(|name| member(format!("d{n}/{name}").as_bytes(), b'2', next.as_bytes(), b""))
        })
        .collect();
    doubled.push(file("d40/x", "end"));
    all.push(archive(&doubled));
    all
}

fn disagreements() -> Vec<Vec<u8>> {
    let usual = file("a", "x");
    let mut all: Vec<_> = [
        "12 size=512\n",
        "10 size=0\n",
        "27 size=99999999999999999\n",
        "10 path=b\n10 path=c\n",
        "14 path=../b\n",
        "99 path=b\n",
        "9 path=\n",
        "22 GNU.sparse.major=1\n",
        "30 GNU.sparse.realsize=1000000\n",
        "-1 path=b\n",
        "99999999999999999999 path=b\n",
        "",
        "\u{0}",
    ]
    .iter()
    .map(|records| archive(&[pax(records), usual.clone()]))
    .collect();
    for kind in [b'L', b'K', b'g'] {
        for content in ["../b\0", "", "10 path=b\n", "c\0"] {
            let extension = member(b"e", kind, b"", content.as_bytes());
            all.push(archive(&[pax("10 path=d\n"), extension, usual.clone()]));
        }
    }
    for (a, b) in [("a", "a"), ("a", "./a"), ("a", "a/b"), ("a/b", "a"), ("A/../a", "a")] {
        all.push(archive(&[file(a, "1"), file(b, "2")]));
    }
    let mut huge = tar::Header::new_gnu();
    huge.set_path("a").unwrap();
    huge.set_size(1 << 60);
    huge.set_cksum();
    all.push(huge.as_bytes().to_vec());
    huge.as_mut_bytes()[124..136].copy_from_slice(&[0xff; 12]);
    huge.set_cksum();
    all.push(huge.as_bytes().to_vec());
    all
}

fn bombs() -> Vec<Vec<u8>> {
    let zeros = vec![0; 32 << 20];
    let mut zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    for _ in 0..16 {
        zstd.write_all(&zeros).unwrap();
    }
    let once = gzip(&zeros).unwrap();
    let twice = gzip(&once).unwrap();
    let thrice = gzip(&twice).unwrap();
    let layers = once.repeat(64);
    // 10^6 empty files: half a GB of headers.
    let mut million = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    let mut header = member(b"0000000", b'0', b"", b"");
    header[148..156].fill(b' ');
    let sum: u32 = header[7..].iter().map(|byte| u32::from(*byte)).sum();
    for n in 0..1_000_000 {
        let name = format!("{n:07}");
        let sum = sum + name.bytes().map(u32::from).sum::<u32>();
        header[..7].copy_from_slice(name.as_bytes());
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        million.write_all(&header).unwrap();
    }
    let folders: Vec<_> = (0..50_000)
        .map(|n| member(format!("d{n}/").as_bytes(), b'5', b"", b""))
        .collect();
    let deep = "a/".repeat(45);
    let noise: Vec<u8> = {
        let mut numbers = Numbers(7);
        (0..1 << 20)
            .map(|_| u8::try_from(numbers.below(256)).unwrap())
            .collect()
    };
    let large: Vec<_> = (0..80)
        .map(|n| member(format!("f{n}").as_bytes(), b'0', b"", &noise))
        .collect();
    vec![
        zstd.finish().unwrap(),
        once,
        twice,
        thrice,
        layers,
        million.finish().unwrap(),
        gzip(&archive(&folders)).unwrap(),
        archive(&[file(&format!("{deep}x"), "x"), file("a.yaml", "a: b\n")]),
        archive(&large),
        vec![0],
        vec![0; 10_240],
        b"<html>".to_vec(),
        vec![0x1f, 0x8b],
        vec![0x28, 0xb5, 0x2f, 0xfd],
    ]
}

pub struct Repository {
    pub index: String,
    pub archive: Vec<u8>,
}

const INDEX: &str = "apiVersion: v1\nentries:\n  web:\n  - {name: web, version: 1.0.0, urls: [web.tgz]}\n";
const CHART: &str = "apiVersion: v2\nname: web\nversion: 1.0.0\n";

/// Repositories with one chart.
pub fn repositories() -> Vec<Repository> {
    let chart = |text: &str| {
        let members = [
            file("web/Chart.yaml", text),
            file("web/templates/a.yaml", "a: b\n"),
            file("web/lib/x", "x"),
        ];
        Repository {
            index: INDEX.to_owned(),
            archive: gzip(&archive(&members)).unwrap(),
        }
    };
    let mut all = vec![chart(CHART)];
    let depends = |fields: &str| format!("{CHART}dependencies:\n- {{{fields}}}\n");
    for name in [
        "../x", "..", ".", "/abs", "a/b", "a\\b", ".git", "x\u{1b}", "GIT~1", "a: b", "",
    ] {
        all.push(chart(&depends(&format!(
            "name: {name:?}, version: 1.0.0, repository: 'https://h.example.com'"
        ))));
        let stated = format!("apiVersion: v2\nname: {name:?}\nversion: 1.0.0\n");
        all.push(chart(&stated));
    }
    let up = "../".repeat(30);
    for path in [
        "../../etc",
        "/etc",
        "",
        ".",
        "..",
        "../",
        &up,
        "lib/../..",
        "a\\b",
        "lib\u{0}",
        "~",
        "%2e%2e/x",
    ] {
        all.push(chart(&depends(&format!(
            "name: x, version: '*', repository: {:?}",
            format!("file://{path}")
        ))));
    }
    for version in [
        "../../x",
        "9".repeat(300).as_str(),
        "1.0.0; rm",
        ">",
        "||||||",
        "{{ .Values }}",
        "\u{0}",
    ] {
        let range = depends(&format!(
            "name: x, version: {version:?}, repository: 'https://h.example.com'"
        ));
        all.push(chart(&range));
        let index = format!("entries: {{web: [{{name: web, version: {version:?}, urls: [web.tgz]}}]}}\n");
        all.push(Repository {
            index,
            archive: chart(CHART).archive,
        });
    }
    let bomb = |tail: &str| {
        let list = |name: &str| format!("[{}]", format!("*{name},").repeat(60));
        let (b, c, d) = (list("a"), list("b"), list("c"));
        format!("a: &a [{}]\nb: &b {b}\nc: &c {c}\nd: &d {d}\n{tail}", "x,".repeat(60))
    };
    let deep = format!("{CHART}annotations: {}", "{a: ".repeat(10_000));
    let many = format!(
        "{CHART}dependencies:\n{}",
        "- {name: a, version: 1, repository: 'https://h'}\n".repeat(5000)
    );
    for text in [
        &bomb(CHART),
        &deep,
        &many,
        "",
        "[]",
        "\u{0}",
        "name: web\nname: web\n",
        "!!binary x",
        "%YAML 9.9\n---\n",
    ] {
        all.push(chart(text));
    }
    let entry = |urls: &str| format!("entries: {{web: [{{name: web, version: 1.0.0, urls: [{urls}]}}]}}\n");
    for urls in [
        "",
        "'file:///etc/passwd'",
        "'../../../../../../etc/passwd'",
        "'http://127.0.0.1:1/latest'",
        "'oci://../../x'",
        "'oci://127.0.0.1:1/a/../../b:c'",
        "'gopher://h/x'",
        "'http://user:secret@127.0.0.1:1/x'",
        "'\\\\h\\x'",
        "'http://[::1'",
    ] {
        all.push(Repository {
            index: entry(urls),
            archive: chart(CHART).archive,
        });
    }
    for index in [
        bomb("entries: *d\n"),
        format!("entries: {}", "[".repeat(100_000)),
        "entries: &a {web: *a}".to_owned(),
    ] {
        all.push(Repository {
            index,
            archive: chart(CHART).archive,
        });
    }
    for name in NAMES {
        let mut path = b"web/".to_vec();
        path.extend_from_slice(name);
        let members = [file("web/Chart.yaml", CHART), member(&path, b'0', b"", b"x")];
        all.push(Repository {
            index: INDEX.to_owned(),
            archive: gzip(&archive(&members)).unwrap(),
        });
    }
    all
}
