//! Conformance cases of `scale`.

use super::Scale;
use crate::cases::{Case, Fill, Input, Tolerance};

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [&[usize]; 6] = [&[1], &[2, 3, 5], &[16], &[17], &[40, 1031], &[0, 3]];
    let mut cases = Vec::new();
    for factor in [0.5, 22.627_417] {
        let op = Scale { factor };
        for shape in shapes {
            let case = Case::new(format!("{factor} {shape:?}"), op.clone());
            cases.push(case.with(Input::f32(shape)).within(Tolerance::ROUNDED));
        }
        let special = Input::f32(&[113]).filled(Fill::Special);
        cases.push(Case::new(format!("{factor} special"), op).with(special).within(Tolerance::ROUNDED));
    }
    cases
}
