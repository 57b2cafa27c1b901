//! Ops in terms of simpler ops, for a device that lacks them.

use crate::op::{Op, OpError, Outputs, ValueType};
use conure_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// A value in a [`Decomposition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// An input of the op that is taken apart.
    Input(usize),
    /// A fixed tensor, by number.
    Constant(usize),
    /// An output of a step: the step's number, and which.
    Step(usize, usize),
}

/// One op of a [`Decomposition`].
#[derive(Clone, Debug)]
pub struct Step {
    /// The op.
    pub op: Arc<dyn Op>,
    /// What it is applied to.
    pub inputs: SmallVec<[Part; 6]>,
    /// The types of its outputs.
    pub types: Outputs,
}

/// What an op is made of: steps in the order in which they run.
#[derive(Clone, Debug)]
pub struct Decomposition {
    inputs: Vec<ValueType>,
    /// Fixed tensors that steps read.
    pub constants: Vec<Arc<Tensor>>,
    /// The steps.
    pub steps: Vec<Step>,
    /// The outputs of the op, in its order.
    pub outputs: Vec<Part>,
}

impl Decomposition {
    /// No steps yet, of an op on these types.
    pub fn new(inputs: &[&ValueType]) -> Decomposition {
        let inputs = inputs.iter().map(|&t| t.clone()).collect();
        Decomposition { inputs, constants: Vec::new(), steps: Vec::new(), outputs: Vec::new() }
    }

    /// The type of a value.
    ///
    /// # Errors
    /// If there is no such value: a fault of the op's own code.
    pub fn ty(&self, part: Part) -> Result<ValueType, OpError> {
        let found = match part {
            Part::Input(i) => self.inputs.get(i).cloned(),
            Part::Constant(i) => {
                self.constants.get(i).map(|t| ValueType::new(t.dtype(), Shape::fixed(t.shape())))
            }
            Part::Step(s, i) => self.steps.get(s).and_then(|s| s.types.get(i)).cloned(),
        };
        found.ok_or(OpError::Kernel { op: "decompose", what: format!("there is no {part:?}") })
    }

    /// A fixed f32 tensor.
    ///
    /// # Errors
    /// Another number of elements than the shape has.
    pub fn constant(&mut self, shape: &[usize], data: &[f32]) -> Result<Part, OpError> {
        self.constants.push(Arc::new(Tensor::from_slice(shape, data)?));
        Ok(Part::Constant(self.constants.len() - 1))
    }

    /// Applies an op; its first output.
    ///
    /// # Errors
    /// What does not fit.
    pub fn apply(&mut self, op: impl Op, inputs: &[Part]) -> Result<Part, OpError> {
        let owned = inputs.iter().map(|&p| self.ty(p)).collect::<Result<SmallVec<[ValueType; 6]>, _>>()?;
        let types = op.infer(&owned.iter().collect::<SmallVec<[&ValueType; 6]>>())?;
        self.steps.push(Step { op: Arc::new(op), inputs: SmallVec::from_slice(inputs), types });
        Ok(Part::Step(self.steps.len() - 1, 0))
    }

    /// The shape of a value.
    ///
    /// # Errors
    /// As [`Decomposition::ty`].
    pub fn shape(&self, part: Part) -> Result<Shape, OpError> {
        Ok(self.ty(part)?.shape)
    }

    /// The same, complete.
    pub fn done(mut self, outputs: &[Part]) -> Option<Decomposition> {
        self.outputs = outputs.to_vec();
        Some(self)
    }
}

/// Whether an element type is one that moves and products of computed tensors take.
pub(crate) fn is_plain(ty: &ValueType) -> bool {
    matches!(ty.dtype, DType::F32 | DType::F16)
}
