//! `route` on the CPU.

use super::{NAME, Route};
use crate::kernel::{last, out_f32, refused, rows};
use crate::op::{CpuCall, CpuOp, OpError};
use conure_kernels::route::route;

impl CpuOp for Route {
    fn run(&self, call: &mut CpuCall<'_, '_>) -> Result<(), OpError> {
        let logits = call.tensor(NAME, 0)?;
        let sizes = [rows(logits.shape()), last(logits.shape()), self.used];
        let Some((experts, weights)) = call.outputs.split_first_mut() else {
            return Err(OpError::Kernel { op: NAME, what: "there are no outputs".into() });
        };
        let (experts, weights) = (experts.as_mut_slice::<i32>()?, out_f32(NAME, weights, 0)?);
        route(call.cpu, self.routing, logits.as_slice::<f32>()?, sizes, experts, weights)
            .map_err(refused(NAME))
    }
}
