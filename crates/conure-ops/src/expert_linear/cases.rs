//! Conformance cases of `expert_linear`.

use super::ExpertLinear;
use crate::cases::{Case, Input, Tolerance};
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Rows of x, ids and what they are: unused experts, all rows to one, a row each, many rows of each, none.
    for (what, shape, count, ids) in [
        ("one row", &[1usize, 2][..], 4, &[3, 0][..]),
        ("unused experts", &[2, 3, 2], 6, &[5, 1, 1, 5, 1, 2]),
        ("all to one", &[7, 3], 3, &[1]),
        ("one expert", &[5, 1], 1, &[0]),
        ("each its own", &[4, 1], 4, &[3, 2, 1, 0]),
        ("many", &[70, 3], 5, &[4, 1, 0, 4, 2, 1, 0, 3, 4, 0, 1]),
        ("no rows", &[0, 2], 3, &[0]),
    ] {
        for own in [false, true] {
            for bias in [false, true] {
                let name = format!("{what} own {own} bias {bias}");
                cases.push(case(name, shape, count, ids, (19, 40), DType::F32, own, bias));
            }
        }
    }
    for dtype in DType::ALL.into_iter().filter(|d| !matches!(d, DType::I32 | DType::I64)) {
        let sizes = (37, 2 * dtype.block_len().max(32));
        for own in [false, true] {
            let name = format!("stored {dtype} own {own}");
            cases.push(case(name, &[3, 2], 3, &[2, 0, 0, 2, 2, 0], sizes, dtype, own, own));
        }
    }
    // More rows of one expert than are copied together.
    cases.push(case("long".into(), &[700, 1], 2, &[1], (5, 17), DType::F32, false, true));
    cases
}

#[allow(clippy::too_many_arguments)]
fn case(
    name: String,
    shape: &[usize],
    experts: usize,
    ids: &[i32],
    (n, k): (usize, usize),
    dtype: DType,
    own: bool,
    bias: bool,
) -> Case {
    let rows = if own { shape } else { &shape[..shape.len() - 1] };
    Case::new(name, ExpertLinear { experts, bias })
        .with(Input::f32(&[rows, &[k]].concat()))
        .with(Input::weight(dtype, &[experts, n, k]))
        .with(Input::i32(shape, ids))
        .with_if(bias, Input::weight(if dtype == DType::F16 { dtype } else { DType::F32 }, &[experts, n]))
        .within(Tolerance::LONG_SUMS)
}
