//! Conformance cases of `softmax`.

use super::Softmax;
use crate::cases::{Case, Fill, Input, Tolerance};

const TOLERANCE: Tolerance =
    Tolerance { nmse: 1e-13, element: 5e-7, why: "exponentials are within 2 units, their sum is in f32" };

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [&[usize]; 9] =
        [&[1], &[3, 1], &[2, 7], &[2, 3, 15], &[5, 16], &[5, 17], &[3, 1025], &[40, 130], &[0, 4]];
    let mut cases: Vec<Case> = shapes
        .iter()
        .map(|shape| Case::new(format!("{shape:?}"), Softmax).with(Input::f32(shape)).within(TOLERANCE))
        .collect();
    for (name, fill) in [("wide", Fill::Normal(40.0)), ("large", Fill::Uniform(9000.0, 9001.0))] {
        cases.push(Case::new(name, Softmax).with(Input::f32(&[4, 50]).filled(fill)).within(TOLERANCE));
    }
    cases
}
