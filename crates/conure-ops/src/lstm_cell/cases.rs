//! Conformance cases of `lstm_cell`.

use super::LstmCell;
use crate::cases::{Case, Input, Tolerance};
use conure_tensor::DType;

/// The cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (b, i, h) in [(1, 1, 1), (1, 7, 5), (2, 16, 16), (3, 17, 33), (1, 64, 64), (5, 31, 65), (17, 8, 12)] {
        for dtype in [DType::F32, DType::F16] {
            cases.push(case(b, i, h, dtype));
            cases.push(projected(b, h, dtype));
        }
    }
    for dtype in [DType::Q8_0, DType::BF16, DType::Q4_0] {
        cases.push(case(2, 64, 32, dtype));
        cases.push(projected(2, 32, dtype));
    }
    cases
}

fn case(b: usize, i: usize, h: usize, dtype: DType) -> Case {
    let small = if dtype == DType::F16 { dtype } else { DType::F32 };
    Case::new(format!("b{b} i{i} h{h} {dtype}"), LstmCell::default())
        .with(Input::f32(&[b, i]))
        .with(Input::f32(&[b, h]))
        .with(Input::f32(&[b, h]))
        .with(Input::weight(dtype, &[4 * h, i]))
        .with(Input::weight(dtype, &[4 * h, h]))
        .with(Input::weight(small, &[4 * h]))
        .with(Input::weight(small, &[4 * h]))
        .within(Tolerance::SUMS)
}

fn projected(b: usize, h: usize, dtype: DType) -> Case {
    let small = if dtype == DType::F16 { dtype } else { DType::F32 };
    Case::new(format!("projected b{b} h{h} {dtype}"), LstmCell { projected: true })
        .with(Input::f32(&[b, 4 * h]))
        .with(Input::f32(&[b, h]))
        .with(Input::f32(&[b, h]))
        .with(Input::weight(dtype, &[4 * h, h]))
        .with(Input::weight(small, &[4 * h]))
        .within(Tolerance::SUMS)
}
