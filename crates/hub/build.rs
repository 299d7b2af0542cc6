//! Embeds the built page (`web/dist`), where there is one, as a table of (path, content).

use std::{
    env, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=FARWATER_WEB_DIST");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or(io::ErrorKind::NotFound)?);
    let dist = env::var_os("FARWATER_WEB_DIST").map_or_else(|| root.join("../../web/dist"), PathBuf::from);
    let mut files = Vec::new();
    // A path that doesn't exist would make Cargo run this at every build.
    if dist.join("index.html").is_file() {
        println!("cargo:rerun-if-changed={}", dist.display());
        collect(&dist, &mut files)?;
        files.sort();
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?).join("web.rs");
    let mut table = fs::File::create(out)?;
    writeln!(table, "pub static FILES: &[(&str, &[u8])] = &[")?;
    for file in files {
        let file = file.canonicalize()?;
        let name = file.strip_prefix(dist.canonicalize()?).map_err(io::Error::other)?;
        let name = name
            .to_str()
            .ok_or_else(|| io::Error::other("a name in web/dist is no UTF-8"))?;
        writeln!(
            table,
            "    ({name:?}, include_bytes!({:?})),",
            file.display().to_string()
        )?;
    }
    writeln!(table, "];")
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
