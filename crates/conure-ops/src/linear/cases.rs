//! Conformance cases of `linear`.

use super::Linear;
use crate::activation::Activation;
use crate::cases::{Case, Input, Tolerance};
use conure_tensor::DType;

const STORED: [DType; 13] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ4_NL,
    DType::MXFP4,
];

/// Rows, columns and inner lengths around the tiles of the product (up to 16 rows, 64 columns, 512 inner).
const SHAPES: [(&[usize], usize, usize); 11] = [
    (&[1], 1, 1),
    (&[1], 7, 33),
    (&[5], 3, 1),
    (&[2, 3], 17, 31),
    (&[1, 13], 65, 64),
    (&[7], 63, 127),
    (&[2, 17], 96, 257),
    (&[33], 49, 511),
    (&[6], 129, 513),
    (&[16], 16, 16),
    (&[0], 4, 8),
];

/// The cases.
pub fn cases() -> Vec<Case> {
    let plain = Linear { activation: Activation::None, bias: false, residual: None };
    let mut cases = Vec::new();
    for (rows, n, k) in SHAPES {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let op = Linear { bias: true, ..plain.clone() };
            cases.push(case(format!("{rows:?} n{n} k{k} {dtype}"), op, rows, n, k, dtype));
        }
    }
    for dtype in STORED {
        let k = 2 * dtype.block_len().max(32);
        cases.push(case(format!("stored {dtype}"), plain.clone(), &[3, 5], 37, k, dtype));
        cases.push(case(format!("one row, stored {dtype}"), plain.clone(), &[1], 37, k, dtype));
    }
    for activation in Activation::ELEMENTWISE.into_iter().chain([Activation::Glu]) {
        for bias in [false, true] {
            for residual in [None, Some(1.0), Some(0.5)] {
                let op = Linear { activation, bias, residual };
                let name = format!("{} bias {bias} residual {residual:?}", activation.name());
                let n = if activation == Activation::Glu { 46 } else { 23 };
                cases.push(case(name, op, &[2, 9], n, 40, DType::F32));
            }
        }
    }
    // Gated halves that do not fill their panels, one that spans several, and few rows.
    for (rows, n, dtype) in
        [(1, 2, DType::F32), (2, 130, DType::F32), (20, 66, DType::F16), (3, 64, DType::Q8_0)]
    {
        let op = Linear { activation: Activation::Glu, bias: true, residual: None };
        cases.push(case(format!("gated {rows} rows n{n} {dtype}"), op, &[rows], n, 64, dtype));
    }
    let pointwise = Case::new("pointwise convolution", plain)
        .with(Input::f32(&[2, 5, 12]))
        .with(Input::weight(DType::F32, &[24, 12, 1]))
        .within(Tolerance::SUMS);
    cases.push(pointwise);
    cases
}

fn case(name: String, op: Linear, rows: &[usize], n: usize, k: usize, dtype: DType) -> Case {
    let to = |last: usize| [rows, &[last]].concat();
    Case::new(name, op.clone())
        .with(Input::f32(&to(k)))
        .with(Input::weight(dtype, &[n, k]))
        .with_if(op.bias, Input::weight(if dtype == DType::F16 { dtype } else { DType::F32 }, &[n]))
        .with_if(
            op.residual.is_some(),
            Input::f32(&to(if op.activation == Activation::Glu { n / 2 } else { n })),
        )
        .within(Tolerance::LONG_SUMS)
}
