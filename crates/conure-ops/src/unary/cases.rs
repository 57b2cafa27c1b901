//! Conformance cases of `unary`.

use super::{Unary, UnaryKind};
use crate::cases::{Case, Fill, Input, Tolerance};

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [&[usize]; 7] = [&[1], &[7], &[2, 3, 5], &[15], &[16], &[17], &[40, 1031]];
    let mut cases = Vec::new();
    for kind in UnaryKind::ALL {
        for shape in shapes {
            let fill = match kind {
                UnaryKind::Log | UnaryKind::Sqrt => Fill::Uniform(1e-3, 30.0),
                _ => Fill::Normal(4.0),
            };
            cases.push(case(format!("{} {shape:?}", kind.name()), kind, shape, fill));
        }
        cases.push(case(format!("{} special", kind.name()), kind, &[113], Fill::Special));
        cases.push(case(format!("{} empty", kind.name()), kind, &[0, 3], Fill::Normal(1.0)));
    }
    cases
}

fn case(name: String, kind: UnaryKind, shape: &[usize], fill: Fill) -> Case {
    let tolerance = match kind {
        UnaryKind::Relu | UnaryKind::Neg => Tolerance::EXACT,
        UnaryKind::Sqrt => Tolerance::ROUNDED,
        _ => Tolerance::FUNCTION,
    };
    Case::new(name, Unary { kind }).with(Input::f32(shape).filled(fill)).within(tolerance)
}
