//! Laws for all values, and examples of typical writes.

mod laws;
mod writes;
