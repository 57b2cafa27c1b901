//! Conformance cases of `sdpa`.

use super::Sdpa;
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_tensor::DType;

const TOLERANCE: Tolerance = Tolerance {
    nmse: 1e-11,
    element: 8e-6,
    why: "scores of up to 20 are rounded in f32 before their exponential is taken",
};

/// A name, B T H K, C0 C G J, and the rows where the items stand.
type Shapes = (&'static str, [usize; 4], [usize; 4], &'static [i32]);

/// The cases.
pub fn cases() -> Vec<Case> {
    let plain = Sdpa { scale: 0.125, window: None, cap: None, sinks: false };
    let shapes: [Shapes; 9] = [
        ("first token", [1, 1, 4, 32], [1, 8, 1, 32], &[0]),
        ("one token, blocks", [1, 1, 4, 64], [1, 700, 1, 64], &[600]),
        ("items of their own", [3, 1, 4, 32], [3, 300, 2, 64], &[0, 299, 255]),
        ("more items than used", [1, 2, 2, 64], [4, 40, 2, 64], &[7]),
        ("many heads on one", [1, 1, 16, 32], [1, 64, 1, 32], &[63]),
        ("a prompt", [1, 40, 4, 64], [1, 64, 2, 64], &[0]),
        ("a long prompt further on", [2, 70, 4, 32], [2, 600, 1, 96], &[0, 500]),
        ("no group", [1, 9, 3, 32], [1, 20, 3, 32], &[11]),
        ("no tokens", [1, 0, 2, 32], [1, 8, 1, 32], &[3]),
    ];
    let mut cases = Vec::new();
    for (name, q, cache, at) in shapes {
        let variants = [
            ("", plain.clone()),
            ("window", Sdpa { window: Some(20), ..plain.clone() }),
            ("cap and sinks", Sdpa { cap: Some(4.0), sinks: true, ..plain.clone() }),
        ];
        for (variant, op) in variants {
            for dtype in [DType::F32, DType::F16, DType::Q8_0] {
                cases.push(case(format!("{name} {variant} {dtype}"), op.clone(), q, cache, dtype, at));
            }
        }
        cases.push(case(format!("{name} bf16"), plain.clone(), q, cache, DType::BF16, at));
    }
    cases
}

fn case(name: String, op: Sdpa, q: [usize; 4], [c0, c, g, j]: [usize; 4], dtype: DType, at: &[i32]) -> Case {
    let sinks = Input::weight(DType::F32, &[q[2]]).filled(Fill::Normal(2.0));
    let with_sinks = op.sinks;
    Case::new(name, op)
        .with(Input::f32(&q))
        .with(Input::f32(&[c0, c, g, q[3]]).typed(dtype))
        .with(Input::f32(&[c0, c, g, j]).typed(dtype))
        .with(Input::i32(&[q[0]], at))
        .with_if(with_sinks, sinks)
        .within(TOLERANCE)
}
