//! What an op is: a meaning, a shape rule, a slow reference that defines it, and a kernel per device.

use crate::decompose::Decomposition;
use crate::openvino::OpenVinoOp;
use conure_kernels::Cpu;
use conure_tensor::{Axis, DType, Dim, Shape, TensorError, TensorMut, TensorView};
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Type and shape of a value in a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueType {
    /// Element type.
    pub dtype: DType,
    /// Named axes, slowest first.
    pub shape: Shape,
}

impl ValueType {
    /// A value of this type and shape.
    pub fn new(dtype: DType, shape: Shape) -> ValueType {
        ValueType { dtype, shape }
    }

    /// An f32 value of this shape.
    pub fn f32(shape: Shape) -> ValueType {
        ValueType { dtype: DType::F32, shape }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)
    }
}

/// The types of an op's outputs; nearly always one.
pub type Outputs = SmallVec<[ValueType; 2]>;

/// Why an op cannot be applied, or failed. The graph adds where: the path of the node.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OpError {
    /// The op takes another number of inputs.
    #[error("{op}: takes {expected} inputs, got {found}")]
    Arity {
        /// Name of the op.
        op: &'static str,
        /// How many it takes, in words.
        expected: String,
        /// How many there were.
        found: usize,
    },
    /// Two lengths that must agree do not.
    #[error("{op}: {axis} differs ({left} vs {right})")]
    Differs {
        /// Name of the op.
        op: &'static str,
        /// The axis that both have.
        axis: Axis,
        /// Length on the one side.
        left: String,
        /// Length on the other.
        right: String,
    },
    /// An input has a type or rank that the op does not take.
    #[error("{op}: input {input} is {found}, expected {expected}")]
    Input {
        /// Name of the op.
        op: &'static str,
        /// Which input, from 0.
        input: usize,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// An attribute has a value that makes no sense.
    #[error("{op}: {what}")]
    Attribute {
        /// Name of the op.
        op: &'static str,
        /// What is wrong and what was expected.
        what: String,
    },
    /// The kernel refused or failed.
    #[error("{op}: {what}")]
    Kernel {
        /// Name of the op.
        op: &'static str,
        /// What it said.
        what: String,
    },
    /// A tensor's bytes are not what the plan says.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// An attribute of an op, for drawings and for the structural hash of a graph.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // a few per node, read when a graph is drawn or hashed
pub enum Attr {
    /// An integer.
    Int(i64),
    /// A real number.
    Float(f32),
    /// A word.
    Text(&'static str),
    /// A list of lengths or indices.
    Ints(Vec<i64>),
    /// A symbolic shape.
    Shape(Shape),
}

/// An op: its attributes are the fields of the type that implements this.
///
/// Every op is a folder of this crate: `mod.rs` holds the type with this trait, `cpu.rs` its [`CpuOp::run`], `openvino.rs` its [`OpenVinoOp::lower`],
/// `cases.rs` the conformance cases.
pub trait Op: fmt::Debug + Send + Sync + 'static {
    /// The name of its folder.
    fn name(&self) -> &'static str;

    /// Its attributes: ops of one name with equal attributes mean the same.
    fn attrs(&self) -> Vec<(&'static str, Attr)>;

    /// The types of the outputs for inputs of these types.
    ///
    /// # Errors
    /// What does not fit, naming the axis or the input.
    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError>;

    /// The definition: slow, obvious, in f64 where it matters. `outputs` have the shapes that [`Op::infer`] gives.
    ///
    /// # Errors
    /// Only if the tensors are not of the inferred types.
    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError>;

    /// Nominal floating-point operations on inputs and outputs of these lengths: what the definition asks for, whatever
    /// a kernel does. A multiplication and an addition are two, a function of one number (exponential, sigmoid) is one.
    /// 0 for an op that only moves data.
    fn flops(&self, _inputs: &[&[usize]], _outputs: &[&[usize]]) -> f64 {
        0.0
    }

    /// The same in simpler ops, for a device that lacks this one; `None` if there is no simpler way, or not for these types.
    ///
    /// # Errors
    /// A step that does not fit: a fault of the op's own code.
    fn decompose(&self, _inputs: &[&ValueType]) -> Result<Option<Decomposition>, OpError> {
        Ok(None)
    }

    /// Bytes that must move at least where the operands have so many bytes; an input that is overwritten in place counts as
    /// 0. By default all of them.
    fn moves(&self, inputs: &[u64], outputs: &[u64]) -> u64 {
        inputs.iter().chain(outputs).sum()
    }

    /// The products of an input's rows with a weight that it makes: places of x `[..., K]` and of w `[N, K]` among the inputs.
    fn products(&self) -> &'static [(usize, usize)] {
        &[]
    }

    /// Its CPU side, if it has one.
    fn cpu(&self) -> Option<&dyn CpuOp> {
        None
    }

    /// Its OpenVINO side, if it has one.
    fn openvino(&self) -> Option<&dyn OpenVinoOp> {
        None
    }

    /// Whether output 0 is the bytes of input 0 under another shape, so that nothing is computed.
    fn is_view(&self) -> bool {
        false
    }

    /// For passes that look for ops of one type.
    fn as_any(&self) -> &dyn Any;
}

/// A weight in the layout that an op's CPU kernel wants, made once per weight and layout.
pub type Packed = Arc<dyn Any + Send + Sync>;

/// One input of a CPU kernel call.
#[derive(Clone, Debug)]
pub enum CpuInput<'a> {
    /// A tensor as it is.
    Tensor(TensorView<'a>),
    /// A weight in the layout that [`CpuOp::pack`] gave.
    Packed(&'a Packed),
    /// This input is output 0: the kernel overwrites it in place.
    InPlace,
}

/// What a CPU kernel gets for one call. Everything in it was planned: a kernel allocates nothing.
#[derive(Debug)]
pub struct CpuCall<'a, 'b> {
    /// Inputs in the order of the op.
    pub inputs: &'b [CpuInput<'a>],
    /// Outputs in the order of the op, with their concrete shapes. Their old content is arbitrary, except output 0
    /// of a call in place.
    pub outputs: &'b mut [TensorMut<'a>],
    /// As many bytes as [`CpuOp::scratch`] asked for, aligned to 64, of arbitrary content.
    pub scratch: &'b mut [u8],
    /// The instruction set and the threads to use.
    pub cpu: &'b Cpu,
}

impl<'a, 'b> CpuCall<'a, 'b> {
    /// Input `i` as a tensor.
    ///
    /// # Errors
    /// If there is no such input or it was packed or is in place: a fault of the op's own code.
    pub fn tensor(&self, op: &'static str, i: usize) -> Result<&'b TensorView<'a>, OpError> {
        match self.inputs.get(i) {
            Some(CpuInput::Tensor(view)) => Ok(view),
            other => Err(OpError::Kernel { op, what: format!("input {i} should be a tensor, is {other:?}") }),
        }
    }

    /// Input `i` as plain elements.
    ///
    /// # Errors
    /// As [`CpuCall::tensor`], or if the elements are of another type.
    pub fn slice<T: conure_tensor::Element>(&self, op: &'static str, i: usize) -> Result<&'a [T], OpError> {
        Ok(self.tensor(op, i)?.as_slice::<T>()?)
    }

    /// Input `i` as the packed form of type `P`.
    ///
    /// # Errors
    /// If it is not: a fault of the op's own code.
    pub fn packed<P: Any>(&self, op: &'static str, i: usize) -> Result<&'a P, OpError> {
        match self.inputs.get(i) {
            Some(CpuInput::Packed(p)) => p.downcast_ref::<P>(),
            _ => None,
        }
        .ok_or_else(|| OpError::Kernel { op, what: format!("input {i} is not packed as expected") })
    }
}

/// The CPU side of an op.
pub trait CpuOp {
    /// Whether the kernel can run on inputs of these types; `stored` says of each whether it is a weight or a constant, which
    /// is [packed](CpuOp::pack_key) first. What is computed lies as it is.
    ///
    /// # Errors
    /// Why not, for the placement's report.
    fn supports(&self, inputs: &[&ValueType], stored: &[bool]) -> Result<(), String> {
        self.fits(inputs)?;
        for (i, ty) in inputs.iter().enumerate() {
            let packed = stored.get(i).copied().unwrap_or(false) && self.pack_key(i, ty).is_some();
            if !packed && !self.reads(i, ty.dtype) {
                let why = "the kernel reads it in this type only where it is a weight, which is packed";
                let why =
                    if self.pack_key(i, ty).is_some() { why } else { "the kernel does not read this type" };
                return Err(format!("input {i} is {}: {why}", ty.dtype));
            }
        }
        Ok(())
    }

    /// Whether the kernel takes these shapes and attributes.
    ///
    /// # Errors
    /// Why not.
    fn fits(&self, _inputs: &[&ValueType]) -> Result<(), String> {
        Ok(())
    }

    /// Whether the kernel reads input `i` of this type where it lies. By default plain f32 and i32, of which the op's shape
    /// rule takes one or the other.
    fn reads(&self, _input: usize, dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::I32)
    }

    /// Bytes of scratch that a call on these concrete shapes needs, for `threads` threads.
    fn scratch(&self, _inputs: &[&[usize]], _outputs: &[&[usize]], _threads: usize) -> usize {
        0
    }

    /// The inputs that output 0 may overwrite (same byte size; the kernel then gets [`CpuInput::InPlace`]).
    fn in_place(&self) -> &'static [usize] {
        &[]
    }

    /// The layout in which the kernel wants input `i` when that is a weight: a key that says which, so that ops which
    /// want the same share it. `None`: as stored.
    fn pack_key(&self, _input: usize, _weight: &ValueType) -> Option<&'static str> {
        None
    }

    /// Makes the layout that [`CpuOp::pack_key`] names, for the best instruction set that this machine has (or that
    /// `CONURE_ISA` names).
    ///
    /// # Errors
    /// What is wrong with the weight.
    fn pack(&self, input: usize, weight: &TensorView<'_>) -> Result<Packed, OpError> {
        let cpu = Cpu::detect(Some(1)).map_err(|e| OpError::Kernel { op: "pack", what: e.to_string() })?;
        self.pack_on(&cpu, input, weight)
    }

    /// As [`CpuOp::pack`], for the instruction set of `cpu` and with its threads. Some layouts depend on the
    /// instruction set; a kernel then computes with that of its weights.
    ///
    /// # Errors
    /// What is wrong with the weight.
    fn pack_on(&self, _cpu: &Cpu, input: usize, _weight: &TensorView<'_>) -> Result<Packed, OpError> {
        Err(OpError::Kernel { op: "pack", what: format!("input {input} has no packed form") })
    }

    /// Runs the kernel.
    ///
    /// # Errors
    /// What the kernel refused.
    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError>;
}

/// Checks the number of inputs.
pub(crate) fn arity(op: &'static str, inputs: &[&ValueType], expected: usize) -> Result<(), OpError> {
    if inputs.len() == expected {
        return Ok(());
    }
    Err(OpError::Arity { op, expected: expected.to_string(), found: inputs.len() })
}

/// Checks that two lengths agree.
pub(crate) fn same(op: &'static str, axis: Axis, left: &Dim, right: &Dim) -> Result<(), OpError> {
    if left == right {
        return Ok(());
    }
    Err(OpError::Differs { op, axis, left: left.to_string(), right: right.to_string() })
}
