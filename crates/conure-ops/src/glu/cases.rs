//! Conformance cases of `glu`.

use super::Glu;
use crate::cases::{Case, Fill, Input, Tolerance};

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [&[usize]; 7] = [&[2], &[3, 14], &[2, 3, 30], &[5, 32], &[7, 34], &[90, 1026], &[0, 4]];
    let mut cases: Vec<Case> = shapes
        .iter()
        .map(|shape| Case::new(format!("{shape:?}"), Glu).with(Input::f32(shape)).within(Tolerance::FUNCTION))
        .collect();
    let special = Input::f32(&[3, 74]).filled(Fill::Special);
    cases.push(Case::new("special", Glu).with(special).within(Tolerance::FUNCTION));
    cases
}
