use std::io::Write as _;

use proptest::prelude::*;

use super::*;
use crate::closure;

#[derive(Clone, Copy)]
enum Kind<'a> {
    File(&'a [u8]),
    Folder,
    Symlink(&'a str),
    Hard(&'a str),
    Other(tar::EntryType),
}

/// A member with exactly this name, even if it is invalid.
fn member(name: &[u8], kind: Kind<'_>) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    let (entry_type, content, target) = match kind {
        Kind::File(content) => (tar::EntryType::Regular, content, ""),
        Kind::Folder => (tar::EntryType::Directory, &b""[..], ""),
        Kind::Symlink(target) => (tar::EntryType::Symlink, &b""[..], target),
        Kind::Hard(target) => (tar::EntryType::Link, &b""[..], target),
        Kind::Other(kind) => (kind, &b""[..], ""),
    };
    header.set_entry_type(entry_type);
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    let bytes = header.as_mut_bytes();
    bytes[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
    bytes[157..157 + target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    with_data(&header, content)
}

fn with_data(header: &tar::Header, content: &[u8]) -> Vec<u8> {
    let mut out = header.as_bytes().to_vec();
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

fn extension(kind: tar::EntryType, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_cksum();
    with_data(&header, content)
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut data = String::new();
    for (key, value) in records {
        let rest = format!(" {key}={value}\n");
        let mut length = rest.len() + 1;
        while length != rest.len() + length.to_string().len() {
            length = rest.len() + length.to_string().len();
        }
        data.push_str(&format!("{length}{rest}"));
    }
    extension(tar::EntryType::XHeader, data.as_bytes())
}

fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = members.concat();
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn small() -> Limits {
    Limits {
        files: 10,
        total_bytes: 4096,
        file_bytes: 2048,
    }
}

fn paths(members: &Members) -> Vec<String> {
    let closure = closure(&members.tree, &members.root, &RelPath::root(), &Limits::default()).unwrap();
    closure.files.into_keys().map(|path| path.to_string()).collect()
}

#[test]
fn a_tar_is_read_plain_and_compressed_and_is_the_same_tree() {
    let tar = archive(&[
        member(b"./", Kind::Folder),
        member(b"./a/", Kind::Folder),
        member(b"./a/b.yaml", Kind::File(b"x: 1\n")),
        member(b"a-b", Kind::File(b"y")),
        member(b"a/link", Kind::Symlink("b.yaml")),
        member(b"copy", Kind::Hard("./a/b.yaml")),
    ]);
    let plain = read(&tar, Shape::Plain, &Limits::default()).unwrap();
    assert_eq!(paths(&plain), ["a-b", "a/b.yaml", "a/link", "copy"]);
    for compressed in [
        gzip(&tar),
        zstd::bulk::compress(&tar, 3).unwrap(),
        [gzip(&tar[..512]), gzip(&tar[512..])].concat(),
    ] {
        assert_eq!(
            read(&compressed, Shape::Plain, &Limits::default()).unwrap().root,
            plain.root
        );
    }
    assert_eq!(plain.file("copy", 100).unwrap(), b"x: 1\n");
    assert_eq!(plain.file("a", 100), None);
    assert_eq!(plain.file("a/nothing", 100), None);
}

#[test]
fn a_charts_folder_is_left_out_and_there_is_one() {
    let chart = archive(&[
        member(b"web/Chart.yaml", Kind::File(b"name: web")),
        member(b"web/templates/a.yaml", Kind::File(b"a")),
    ]);
    let members = read(&gzip(&chart), Shape::OneFolder, &Limits::default()).unwrap();
    assert_eq!(paths(&members), ["Chart.yaml", "templates/a.yaml"]);
    for other in [&b"Chart.yaml"[..], b"other/a", b"weber/a"] {
        let two = archive(&[
            member(b"web/Chart.yaml", Kind::File(b"x")),
            member(other, Kind::File(b"x")),
        ]);
        assert!(matches!(
            read(&two, Shape::OneFolder, &Limits::default()),
            Err(MembersError::TwoFolders { .. })
        ));
    }
}

#[test]
fn long_names_are_read_in_both_ways() {
    let long = format!("{}/x", "a".repeat(150));
    let posix = archive(&[
        pax(&[("path", &long), ("mtime", "1.5")]),
        member(b"short", Kind::File(b"1")),
    ]);
    let gnu = archive(&[
        extension(tar::EntryType::GNULongName, format!("{long}\0").as_bytes()),
        member(long.as_bytes(), Kind::File(b"1")),
    ]);
    let git = archive(&[
        extension(tar::EntryType::XGlobalHeader, b"19 comment=abcdefg\n"),
        member(b"x", Kind::File(b"1")),
    ]);
    assert_eq!(
        paths(&read(&posix, Shape::Plain, &Limits::default()).unwrap()),
        [long.as_str()]
    );
    assert_eq!(
        paths(&read(&gnu, Shape::Plain, &Limits::default()).unwrap()),
        [long.as_str()]
    );
    assert_eq!(paths(&read(&git, Shape::Plain, &Limits::default()).unwrap()), ["x"]);
}

#[track_caller]
fn refused(members: &[Vec<u8>], expected: &str) {
    let error = read(&archive(members), Shape::Plain, &small())
        .map(|members| paths(&members))
        .unwrap_err()
        .to_string();
    assert!(error.contains(expected), "{error}");
    assert!(!error.contains(char::is_control), "{error}");
}

#[test]
fn hostile_members_are_errors() {
    let file = |name: &[u8]| member(name, Kind::File(b"x"));
    for (name, expected) in [
        (&b"../x"[..], "`.` or `..`"),
        (b"a/../../x", "`.` or `..`"),
        (b"/etc/passwd", "is absolute"),
        (b"a\\..\\b", "backslash"),
        (b"a\nb", "control character"),
        (b"\xff\xfe", "not UTF-8"),
        (b".git/config", "`.git`"),
        (b"a/GIT~1/x", "`.git`"),
        (b"a//b", "empty name"),
        (b"a/./b", "`.` or `..`"),
    ] {
        refused(&[file(name)], expected);
        refused(&[member(name, Kind::Folder)], expected);
        refused(&[member(name, Kind::Symlink("x"))], expected);
    }
    refused(&[file(b"a"), file(b"a")], "a is in the archive twice");
    refused(&[file(b"a"), file(b"./a")], "a is in the archive twice");
    refused(
        &[file(b"a"), file(b"a/b")],
        "a/b lies below something that is no folder",
    );
    refused(
        &[member(b"a", Kind::Symlink("/etc")), file(b"a/passwd")],
        "a/passwd lies below something",
    );
    refused(&[member(b"a", Kind::Hard("/etc/passwd"))], "is absolute");
    refused(&[member(b"a", Kind::Hard("../x"))], "`.` or `..`");
    refused(
        &[member(b"a", Kind::Hard("b")), file(b"b")],
        "a is a link to b, which is not in the archive before it",
    );
    refused(
        &[member(b"a", Kind::Symlink("b")), member(b"c", Kind::Hard("a"))],
        "c is a link to a",
    );
    refused(&[member(b"a", Kind::Symlink(""))], "a is a symlink without a target");
    for (kind, expected) in [
        (tar::EntryType::Char, "a device"),
        (tar::EntryType::Block, "a device"),
        (tar::EntryType::Fifo, "a pipe"),
        (tar::EntryType::GNUSparse, "a sparse file"),
        (tar::EntryType::new(b'Z'), "of an unknown kind"),
    ] {
        refused(&[member(b"a", Kind::Other(kind))], expected);
    }
    refused(&[], "holds no file");
    refused(&[member(b"a", Kind::Folder)], "holds no file");
}

#[test]
fn headers_that_disagree_are_errors() {
    let file = member(b"a", Kind::File(b"x"));
    refused(
        &[pax(&[("size", "512")]), file.clone()],
        "a has two headers that disagree on its size",
    );
    refused(
        &[pax(&[("path", "b"), ("path", "c")]), file.clone()],
        "malformed extended header",
    );
    refused(&[pax(&[("path", "../b")]), file.clone()], "`.` or `..`");
    refused(
        &[pax(&[("GNU.sparse.name", "b")]), file.clone()],
        "malformed extended header",
    );
    let long = extension(tar::EntryType::GNULongName, b"b\0");
    refused(
        &[pax(&[("path", "c")]), long, file.clone()],
        "c has two headers that disagree on its name",
    );
    let both = [
        pax(&[("linkpath", "c")]),
        extension(tar::EntryType::GNULongLink, b"d\0"),
        member(b"a", Kind::Symlink("e")),
    ];
    refused(&both, "a has two headers that disagree on its target");
    refused(
        &[extension(tar::EntryType::XGlobalHeader, b"10 path=b\n"), file.clone()],
        "malformed extended header",
    );
    refused(
        &[extension(tar::EntryType::XHeader, b"99 path=b\n"), file.clone()],
        "malformed extended header",
    );
    let huge = extension(tar::EntryType::XHeader, &vec![b' '; 65 << 10]);
    let limits = Limits::default();
    assert!(matches!(
        read(&archive(&[huge, file.clone()]), Shape::Plain, &limits),
        Err(MembersError::Extended)
    ));
    let mut broken = archive(&[file]);
    broken[0] = b'z';
    assert!(matches!(
        read(&broken, Shape::Plain, &limits),
        Err(MembersError::Tar { .. })
    ));
}

#[test]
fn what_was_cut_is_no_archive() {
    let whole = archive(&[member(b"a", Kind::File(b"x")), member(b"b", Kind::File(&[7; 600]))]);
    let limits = Limits::default();
    for end in 1..whole.len() - BLOCK {
        assert!(read(&whole[..end], Shape::Plain, &limits).is_err(), "cut at {end}");
    }
    let compressed = gzip(&whole);
    for end in 0..compressed.len() {
        assert!(read(&compressed[..end], Shape::Plain, &limits).is_err(), "cut at {end}");
    }
    let mut flipped = compressed.clone();
    let last = flipped.len() - 6;
    flipped[last] ^= 1;
    assert!(matches!(
        read(&flipped, Shape::Plain, &limits),
        Err(MembersError::Decompress { .. })
    ));
}

#[test]
fn sizes_and_counts_are_bounded_before_memory_is_taken() {
    let zeros = vec![0; 200 << 20];
    for bomb in [gzip(&zeros), zstd::bulk::compress(&zeros, 3).unwrap()] {
        let error = read(&bomb, Shape::Plain, &Limits::default()).unwrap_err();
        assert!(
            matches!(error, MembersError::Ratio | MembersError::TooLarge { .. }),
            "{error}"
        );
    }
    let nested = gzip(&gzip(&zeros));
    assert!(read(&nested, Shape::Plain, &Limits::default()).is_err());
    let many: Vec<_> = (0..20)
        .map(|n| member(format!("f{n}").as_bytes(), Kind::File(b"x")))
        .collect();
    refused(&many, "over 10 members");
    let folders: Vec<_> = (0..60)
        .map(|n| member(format!("f{n}").as_bytes(), Kind::Folder))
        .collect();
    refused(&folders, "over 40 members");
    refused(&[member(b"a", Kind::File(&[0; 2049]))], "a is over 2048 bytes");
    let three: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| member(name.as_bytes(), Kind::File(&[0; 2000])))
        .collect();
    refused(&three, "over 4096 bytes");
    let mut header = tar::Header::new_gnu();
    header.set_path("a").unwrap();
    header.set_size(1 << 40);
    header.set_cksum();
    refused(&[header.as_bytes().to_vec()], "a is over 2048 bytes");
    let deep = vec!["a"; 70].join("/");
    refused(
        &[pax(&[("path", &deep)]), member(b"x", Kind::File(b"x"))],
        "deeper than 64 names",
    );
}

#[test]
fn one_file_is_a_tree_too() {
    let members = single("values.yaml", b"a: b", &small()).unwrap();
    assert_eq!(paths(&members), ["values.yaml"]);
    assert!(single("../values.yaml", b"", &small()).is_err());
    assert!(single("big", &[0; 3000], &small()).is_err());
}

proptest! {
    /// Any bytes give an error, or files that a bundle may hold.
    #[test]
    fn no_archive_is_more_than_its_limits(
        names in prop::collection::vec("[a-c./]{1,6}|[a-z]{1,3}(/[a-z]{1,3}){0,2}", 1..8),
        flips in prop::collection::vec((0..4096usize, any::<u8>()), 0..4),
    ) {
        let members: Vec<_> = names.iter().map(|name| member(name.as_bytes(), Kind::File(name.as_bytes()))).collect();
        let mut bytes = archive(&members);
        for (at, byte) in flips {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if let Ok(members) = read(&bytes, Shape::Plain, &small()) {
            let closure = closure(&members.tree, &members.root, &RelPath::root(), &small());
            prop_assert!(closure.is_err() || closure.is_ok_and(|closure| !closure.files.is_empty() && closure.files.len() <= 10));
        }
    }
}
