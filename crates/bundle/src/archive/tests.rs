use std::io::Read;

use proptest::prelude::*;

use super::*;
use crate::{closure::closure, tree::MemoryTree};

fn archive(files: &[(&str, &str)], path: &str) -> Vec<u8> {
    let mut tree = MemoryTree::default();
    let root = tree.add_files(files.iter().copied());
    let limits = Limits::default();
    let closure = closure(&tree, &root, &RelPath::parse_folder(path).unwrap(), &limits).unwrap();
    pack(&tree, &closure, &limits).unwrap()
}

fn open(bytes: Vec<u8>) -> Result<Archive, ArchiveError> {
    Archive::read(bytes, &Limits::default())
}

#[test]
fn the_digest_of_known_content_never_changes() {
    let bytes = archive(
        &[("apps/web/a.yaml", "kind: A\n"), ("apps/web/l", "-> a.yaml"), ("z", "")],
        ".",
    );
    let digest = "sha256:7333b0e594f9e9f081f92e1aeb99d264df3bc2e686e797283e594361ec66ea2f";
    assert_eq!(Digest::of(&bytes).to_string(), digest);
}

#[test]
fn any_tar_program_reads_it() {
    let deep = format!("{}/ü.yaml", "d".repeat(120));
    let bytes = archive(&[("a", "1"), ("l", "-> a"), (&deep, "2")], ".");
    let mut names = Vec::new();
    for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert_eq!((entry.header().mtime().unwrap(), entry.header().uid().unwrap()), (0, 0));
        names.push((entry.path().unwrap().to_str().unwrap().to_owned(), text));
    }
    assert_eq!(
        names,
        [
            ("a".into(), "1".into()),
            (deep, "2".into()),
            ("l".to_owned(), String::new())
        ]
    );
}

#[test]
fn files_and_links_are_read_back_through_each_other() {
    let files = [
        ("x/a.yaml", "A"),
        ("x/l.yaml", "-> ../y/b"),
        ("x/d", "-> ../y"),
        ("y/b", "B"),
    ];
    let archive = open(archive(&files, ".")).unwrap();
    let path = |p| RelPath::parse(p).unwrap();
    assert_eq!(archive.file(&path("x/l.yaml")).unwrap(), b"B");
    assert_eq!(archive.file(&path("x/d/b")).unwrap(), b"B");
    assert_eq!(archive.folder(&path("x/d")).unwrap(), path("y"));
    assert_eq!(archive.files().count(), 2);
    assert_eq!(
        archive.links().collect::<Vec<_>>(),
        [(&path("x/d"), "../y"), (&path("x/l.yaml"), "../y/b")]
    );
    assert!(archive.file(&path("x")).is_err());
}

#[test]
fn files_take_the_place_of_others() {
    let files = [
        ("x/a.yaml.liquid", "A {{ b }}"),
        ("x/l", "-> ../z"),
        ("x/c", "C"),
        ("z", "Z"),
    ];
    let before = open(archive(&files, ".")).unwrap();
    let path = |p| RelPath::parse(p).unwrap();
    let made = BTreeMap::from([(path("x/a.yaml"), b"A B".to_vec()), (path("x/c"), b"D".to_vec())]);
    let after = before
        .replace(&BTreeSet::from([path("x/a.yaml.liquid")]), &made, &Limits::default())
        .unwrap();
    let expected = open(archive(
        &[("x/a.yaml", "A B"), ("x/l", "-> ../z"), ("x/c", "D"), ("z", "Z")],
        ".",
    ))
    .unwrap();
    assert_eq!(after.digest(), expected.digest());
    // The link's target would be missing.
    assert!(
        before
            .replace(&BTreeSet::from([path("z")]), &BTreeMap::new(), &Limits::default())
            .is_err()
    );
}

#[test]
fn the_empty_archive_is_one() {
    assert_eq!(open(vec![0; 1024]).unwrap().files().count(), 0);
    assert!(open(vec![0; 512]).is_err());
    assert!(open(Vec::new()).is_err());
    assert!(open(vec![0; 1536]).is_err());
}

/// Builds archives with a usual tar library that our writer never produces.
fn foreign(change: impl Fn(&mut tar::Header)) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_path("a").unwrap();
    header.set_size(1);
    header.set_mode(0o644);
    change(&mut header);
    header.set_cksum();
    builder.append(&header, &b"x"[..]).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn foreign_and_hostile_archives_are_refused() {
    for (what, bytes) in [
        ("a time", foreign(|h| h.set_mtime(1))),
        ("an owner", foreign(|h| h.set_uid(1))),
        ("a setuid bit", foreign(|h| h.set_mode(0o4755))),
        ("a device", foreign(|h| h.set_entry_type(tar::EntryType::Char))),
        ("a folder", foreign(|h| h.set_entry_type(tar::EntryType::Directory))),
        ("a hard link", foreign(|h| h.set_entry_type(tar::EntryType::Link))),
        ("dots", foreign(|h| h.as_mut_bytes()[..4].copy_from_slice(b"../a"))),
        ("absolute", foreign(|h| h.as_mut_bytes()[..2].copy_from_slice(b"/a"))),
        (
            "a huge size",
            foreign(|h| h.as_mut_bytes()[124..136].copy_from_slice(b"77777777777\0")),
        ),
        ("binary size", foreign(|h| h.as_mut_bytes()[124] = 0x80)),
    ] {
        assert!(open(bytes).is_err(), "{what}");
    }
    let path = |p| RelPath::parse(p).unwrap();
    let build = |write: &dyn Fn(&mut Writer)| {
        let mut writer = Writer::default();
        write(&mut writer);
        open(writer.finish())
    };
    assert!(build(&|w| w.file(&path("a"), b"", false)).is_ok());
    let order = build(&|w| {
        w.file(&path("b"), b"", false);
        w.file(&path("a"), b"", false);
    });
    assert!(order.unwrap_err().to_string().contains("not in order"));
    let twice = build(&|w| (0..2).for_each(|_| w.file(&path("a"), b"", false)));
    assert!(twice.unwrap_err().to_string().contains("not in order"));
    let both = build(&|w| {
        w.file(&path("a"), b"", false);
        w.file(&path("a-b"), b"", false);
        w.file(&path("a/b"), b"", false);
    });
    assert!(both.unwrap_err().to_string().contains("a file and a folder"));
    for target in ["../x", "/etc/passwd", "missing", "l", "a\nb"] {
        assert!(build(&|w| w.link(&path("l"), target)).is_err(), "{target}");
    }
}

#[test]
fn a_changed_byte_anywhere_is_noticed() {
    let bytes = archive(&[("a", "1"), ("b", "2")], ".");
    let digest = Digest::of(&bytes);
    let compressed = compress(&bytes).unwrap();
    let limits = Limits::default();
    assert_eq!(Archive::open(&compressed, &digest, &limits).unwrap().files().count(), 2);
    for at in 0..compressed.len() {
        let mut broken = compressed.clone();
        broken[at] ^= 0x55;
        if let Ok(archive) = Archive::open(&broken, &digest, &limits) {
            assert_eq!(archive.bytes, bytes, "byte {at}");
        }
    }
    assert!(Archive::open(&compressed[..compressed.len() - 3], &digest, &limits).is_err());
    let other = compress(&archive(&[("a", "other")], ".")).unwrap();
    assert!(matches!(
        Archive::open(&other, &digest, &limits),
        Err(ArchiveError::Digest { .. })
    ));
}

#[test]
fn bombs_stop_at_the_limits() {
    let zeros = vec![0; 32 << 20];
    assert!(matches!(compress(&zeros), Err(PackError::Ratio)));
    let bomb = zstd::bulk::compress(&zeros, 3).unwrap();
    assert!(matches!(
        decompress(&bomb, &Digest::of(&zeros), &Limits::default()),
        Err(ArchiveError::Ratio)
    ));
    let limits = Limits {
        total_bytes: 1000,
        files: 2,
        file_bytes: 100,
    };
    let noise: Vec<u8> = (0..40_000u32)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    let large = zstd::bulk::compress(&noise, 3).unwrap();
    assert!(matches!(
        decompress(&large, &Digest::of(&noise), &limits),
        Err(ArchiveError::TooLarge { .. })
    ));
    let many = archive(&[("a", "1"), ("b", "2"), ("c", "3")], ".");
    assert!(matches!(
        Archive::read(many, &limits),
        Err(ArchiveError::TooMany { limit: 2 })
    ));
}

#[test]
fn files_over_the_limits_are_not_packed() {
    let mut tree = MemoryTree::default();
    let root = tree.add_files([("a", "12345"), ("b", "12345")]);
    let limits = Limits {
        file_bytes: 4,
        ..Limits::default()
    };
    let found = closure(&tree, &root, &RelPath::root(), &limits).unwrap();
    assert!(matches!(
        pack(&tree, &found, &limits),
        Err(PackError::FileTooLarge { size: 5, limit: 4, .. })
    ));
    let limits = Limits {
        total_bytes: 9,
        ..Limits::default()
    };
    assert!(matches!(
        pack(&tree, &found, &limits),
        Err(PackError::TooLarge { limit: 9 })
    ));
}

proptest! {
    #[test]
    fn what_is_packed_is_read_back(
        files in proptest::collection::btree_map("[a-cü]{1,3}(/[a-c]{1,60}){0,3}", proptest::collection::vec(any::<u8>(), 0..1200), 0..12)
    ) {
        let files: BTreeMap<RelPath, Vec<u8>> = files
            .iter()
            .filter(|(p, _)| !files.keys().any(|o| o.starts_with(&format!("{p}/"))))
            .map(|(p, b)| (RelPath::parse(p).unwrap(), b.clone()))
            .collect();
        let mut writer = Writer::default();
        for (path, bytes) in &files {
            writer.file(path, bytes, bytes.len() % 2 == 0);
        }
        let bytes = writer.finish();
        let digest = Digest::of(&bytes);
        let archive = Archive::open(&compress(&bytes).unwrap(), &digest, &Limits::default()).unwrap();
        let read: BTreeMap<RelPath, Vec<u8>> = archive.files().map(|(p, b)| (p.clone(), b.to_vec())).collect();
        prop_assert_eq!(&read, &files);
        for (path, bytes) in &files {
            prop_assert_eq!(archive.is_executable(path), bytes.len() % 2 == 0);
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..3000), cut in 0usize..2000) {
        let mut valid = { let mut w = Writer::default(); w.file(&RelPath::parse("a/b").unwrap(), b"hello", false); w.finish() };
        let _ = open(bytes.clone());
        bytes.truncate(600);
        let at = cut % valid.len();
        let n = bytes.len().min(valid.len() - at);
        valid[at..at + n].copy_from_slice(&bytes[..n]);
        let _ = open(valid);
    }
}
