//! The slow way to run an op on the CPU: its reference.

use crate::op::{CpuCall, CpuInput, Op, OpError};
use conure_tensor::TensorView;
use smallvec::SmallVec;

/// Runs the reference of `op` for a call whose inputs are all as stored.
pub(crate) fn run(op: &dyn Op, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
    let mut inputs: SmallVec<[TensorView<'_>; 8]> = SmallVec::new();
    for (i, input) in call.inputs.iter().enumerate() {
        match input {
            CpuInput::Tensor(view) => inputs.push(view.clone()),
            other => {
                let what = format!("input {i} should be a tensor, is {other:?}");
                return Err(OpError::Kernel { op: op.name(), what });
            }
        }
    }
    op.reference(&inputs, call.outputs)
}
