//! The decisions, as pure functions of plain data: no sockets, files, clocks or runtime.

pub mod access;
