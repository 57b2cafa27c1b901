//! The model that is part of the library.

/// The embedded GGUF file, if this build has one.
#[cfg(feature = "embedded")]
pub(crate) static MODEL: Option<&'static [u8]> =
    Some(conure_device::include_aligned!("../model/parakeet-tiny-en-12m-tdt_ctc.gguf"));

/// The embedded GGUF file, if this build has one.
#[cfg(not(feature = "embedded"))]
pub(crate) static MODEL: Option<&'static [u8]> = None;
