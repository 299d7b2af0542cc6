//! The name under which the program was started: its own, or that of kubectl's plugin.

use std::{ffi::OsStr, path::Path};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Farwater,
    /// Started as `kubectl-farwater`, as `kubectl farwater` does.
    Plugin,
}

impl Program {
    pub fn from_argv0(argv0: Option<&OsStr>) -> Self {
        let stem = argv0.map(Path::new).and_then(Path::file_stem).and_then(OsStr::to_str);
        if stem == Some("kubectl-farwater") {
            Self::Plugin
        } else {
            Self::Farwater
        }
    }

    /// The command that the user types to start the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Farwater => "farwater",
            Self::Plugin => "kubectl farwater",
        }
    }
}
