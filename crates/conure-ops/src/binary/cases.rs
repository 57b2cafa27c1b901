//! Conformance cases of `binary`.

use super::{Binary, BinaryKind};
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_tensor::DType;

/// Right sides with axes of 1 where the left has longer ones.
const SPREAD: [(&[usize], &[usize]); 6] = [
    (&[2, 3, 5, 7], &[3, 1, 1]),
    (&[2, 3, 17], &[2, 3, 1]),
    (&[2, 3, 17], &[2, 1, 17]),
    (&[2, 3, 17], &[2, 1, 1]),
    (&[2, 1, 33], &[1, 1, 33]),
    (&[3, 4, 2, 5], &[3, 1, 2, 1]),
];

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [(&[usize], usize); 9] = [
        (&[1], 1),
        (&[2, 3, 17], 3),
        (&[2, 3, 17], 2),
        (&[2, 3, 17], 1),
        (&[5, 16], 1),
        (&[4, 33], 2),
        (&[2, 3], 0),
        (&[40, 1031], 1),
        (&[0, 3], 2),
    ];
    let mut cases = Vec::new();
    for kind in BinaryKind::ALL {
        for (shape, axes) in shapes {
            let right = &shape[shape.len() - axes..];
            let name = format!("{} {shape:?} {right:?}", kind.name());
            let case = Case::new(name.clone(), Binary { kind }).with(Input::f32(shape));
            cases.push(case.clone().with(Input::f32(right)).within(Tolerance::ROUNDED));
            let stored = Input::weight(DType::F16, right).filled(Fill::Uniform(0.5, 2.0));
            cases.push(Case { name: format!("{name} f16"), ..case }.with(stored).within(Tolerance::ROUNDED));
        }
        for (shape, right) in SPREAD {
            let name = format!("{} {shape:?} {right:?}", kind.name());
            let case = Case::new(name.clone(), Binary { kind }).with(Input::f32(shape));
            cases.push(case.clone().with(Input::f32(right)).within(Tolerance::ROUNDED));
            let stored = Input::weight(DType::F16, right).filled(Fill::Uniform(0.5, 2.0));
            cases.push(Case { name: format!("{name} f16"), ..case }.with(stored).within(Tolerance::ROUNDED));
        }
        let case = Case::new(format!("{} special", kind.name()), Binary { kind })
            .with(Input::f32(&[5, 83]).filled(Fill::Special))
            .with(Input::f32(&[5, 83]).filled(Fill::Special))
            .within(Tolerance::ROUNDED);
        cases.push(case);
    }
    cases
}
