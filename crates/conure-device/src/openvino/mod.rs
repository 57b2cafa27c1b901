//! OpenVINO: its C library found and opened at run time, models given to it as text, and the calls that run them.
//!
//! Nothing is linked: a program starts on a machine without OpenVINO and says so when it is asked for a device of it. Only
//! the calls that Conure needs are there. Nothing here knows an operation; models are written with [`ir`].

mod error;
mod ffi;
pub mod ir;
mod locate;
mod request;
mod runtime;

pub use error::OpenVinoError;
pub use locate::VARIABLE;
pub use request::{HostInput, HostOutput, Profile, Request};
pub use runtime::{CompiledModel, Runtime};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// Truth values, one byte each.
    Boolean,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// IEEE 754 binary32.
    F32,
    /// Signed 4-bit integers, two to a byte, the lower half first.
    I4,
    /// Signed 8-bit integers.
    I8,
    /// Signed 32-bit integers.
    I32,
    /// Signed 64-bit integers.
    I64,
    /// Unsigned 4-bit integers, two to a byte, the lower half first.
    U4,
    /// Unsigned 8-bit integers.
    U8,
}

impl Element {
    /// Its name in a model's text.
    pub const fn name(self) -> &'static str {
        match self {
            Element::Boolean => "boolean",
            Element::Bf16 => "bf16",
            Element::F16 => "f16",
            Element::F32 => "f32",
            Element::I4 => "i4",
            Element::I8 => "i8",
            Element::I32 => "i32",
            Element::I64 => "i64",
            Element::U4 => "u4",
            Element::U8 => "u8",
        }
    }

    /// Its number in the C API (`ov_element_type_e` since 2025.1).
    const fn code(self) -> i32 {
        match self {
            Element::Boolean => 1,
            Element::Bf16 => 2,
            Element::F16 => 3,
            Element::F32 => 4,
            Element::I4 => 6,
            Element::I8 => 7,
            Element::I32 => 9,
            Element::I64 => 10,
            Element::U4 => 14,
            Element::U8 => 16,
        }
    }

    /// Bits of one element.
    const fn bits(self) -> usize {
        match self {
            Element::I4 | Element::U4 => 4,
            Element::Boolean | Element::I8 | Element::U8 => 8,
            Element::Bf16 | Element::F16 => 16,
            Element::F32 | Element::I32 => 32,
            Element::I64 => 64,
        }
    }

    /// Bytes of a tensor of this shape; `None` if they are more than fit in memory.
    pub fn bytes(self, shape: &[usize]) -> Option<usize> {
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
        Some(elements.checked_mul(self.bits())?.div_ceil(8))
    }
}
