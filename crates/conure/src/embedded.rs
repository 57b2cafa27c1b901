//! The model that is part of the library.

/// Bytes aligned as a mapped file's are.
#[cfg(feature = "embedded")]
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

#[cfg(feature = "embedded")]
static BYTES: &Aligned<[u8]> = &Aligned(*include_bytes!("../model/parakeet-tiny-en-12m-tdt_ctc.gguf"));

/// The embedded GGUF file, if this build has one.
#[cfg(feature = "embedded")]
pub(crate) const MODEL: Option<&'static [u8]> = Some(&BYTES.0);

/// The embedded GGUF file, if this build has one.
#[cfg(not(feature = "embedded"))]
pub(crate) const MODEL: Option<&'static [u8]> = None;
