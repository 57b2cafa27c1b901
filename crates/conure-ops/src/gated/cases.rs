//! Conformance cases of `gated`.

use super::Gated;
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_kernels::gated::Gate;

const TOLERANCE: Tolerance = Tolerance {
    nmse: 1e-12,
    element: 5e-6,
    why: "1 + tanh loses digits where gelu is nearly 0, times an ungated value of up to 30",
};

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [&[usize]; 6] = [&[1], &[2, 3, 5], &[16], &[17], &[40, 1031], &[0, 3]];
    let mut cases = Vec::new();
    for kind in [Gate::Silu, Gate::GeluTanh, Gate::ClampedSwiglu(7.0)] {
        for shape in shapes {
            let case = Case::new(format!("{kind:?} {shape:?}"), Gated { kind })
                .with(Input::f32(shape).filled(Fill::Normal(4.0)))
                .with(Input::f32(shape).filled(Fill::Normal(4.0)));
            cases.push(case.within(TOLERANCE));
        }
    }
    cases
}
