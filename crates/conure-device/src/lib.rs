//! Raw access to the machine, safe to call: mapped files, new files, aligned memory, files that are kept for the
//! next start, OpenVINO.
//!
//! Nothing here knows an operation, a model or a file format. The crate is one of the few that may hold `unsafe`
//! code; what it offers is safe.

pub mod arena;
#[cfg(feature = "faulty")]
pub mod faulty;
pub mod map;
pub mod new_file;
pub mod openvino;
pub mod start;
pub mod store;
