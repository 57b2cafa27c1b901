//! What can go wrong with OpenVINO.

use std::path::PathBuf;

/// Why OpenVINO cannot be used, or what it refused.
#[derive(Debug, thiserror::Error)]
pub enum OpenVinoError {
    /// There is no library on this machine.
    #[error(
        "OpenVINO is not installed; `pip install openvino` is all it takes, or set {} to where it is",
        super::locate::VARIABLE
    )]
    NotFound,
    /// The environment variable names a place without the library.
    #[error(
        "there is no OpenVINO in {} (from {}); it should be a Python environment, a toolkit, or the file of the C library",
        dir.display(), super::locate::VARIABLE
    )]
    NotInDir {
        /// The place.
        dir: PathBuf,
    },
    /// The library cannot be opened.
    #[error("{} cannot be opened: {source}", path.display())]
    Open {
        /// The library.
        path: PathBuf,
        /// Why not.
        #[source]
        source: libloading::Error,
    },
    /// The library lacks a function.
    #[error(
        "{} has no {symbol}: it is of an older release; Conure needs OpenVINO 2026.4 or later (`pip install -U openvino`)",
        path.display()
    )]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// The library is too old.
    #[error(
        "{} is OpenVINO {found}; Conure needs 2025.1 or later (`pip install -U openvino`)",
        path.display()
    )]
    Version {
        /// The library.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// A call was refused.
    #[error("OpenVINO {call}: {message}")]
    Call {
        /// What was called.
        call: &'static str,
        /// What it said.
        message: String,
    },
    /// A tensor has another size than its shape asks for.
    #[error("a tensor of shape {shape:?} needs {expected} bytes and has {found}")]
    Size {
        /// Its lengths.
        shape: Vec<usize>,
        /// Bytes by the shape.
        expected: usize,
        /// Bytes there are.
        found: usize,
    },
    /// A name or text holds a zero byte.
    #[error("{what} holds a zero byte")]
    Zero {
        /// What holds it.
        what: &'static str,
    },
}
