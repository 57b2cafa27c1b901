//! Conformance cases of `rotary_angles`.

use super::{RopeScaling, RotaryAngles, Sections};
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_tensor::DType;

const TOLERANCE: Tolerance = Tolerance {
    nmse: 1e-12,
    element: 1e-6,
    why: "an angle reduced to one turn is rounded to f32: 2e-7 of up to pi",
};

/// The cases.
pub fn cases() -> Vec<Case> {
    let plain = RotaryAngles {
        turned: 64,
        base: 10_000.0,
        scaling: RopeScaling::None,
        magnitude: 1.0,
        factors: false,
        sections: None,
    };
    let yarn = RopeScaling::Yarn {
        factor: 32.0,
        original: 4096.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        extrapolation: 1.0,
    };
    let ops = [
        ("plain", plain.clone()),
        ("two elements", RotaryAngles { turned: 2, ..plain.clone() }),
        ("none", RotaryAngles { turned: 0, ..plain.clone() }),
        ("linear", RotaryAngles { scaling: RopeScaling::Linear { factor: 8.0 }, base: 1e6, ..plain.clone() }),
        ("yarn", RotaryAngles { scaling: yarn, magnitude: 1.35, base: 150_000.0, ..plain.clone() }),
        ("factors", RotaryAngles { factors: true, ..plain.clone() }),
    ];
    let positions = [0, 1, 5, 511, 32_767, 131_071];
    let mut cases = Vec::new();
    for (name, op) in ops {
        for (b, t) in [(1, 1), (2, 3), (1, 40), (2, 0)] {
            let factors = Input::weight(if b == 1 { DType::F32 } else { DType::F16 }, &[op.turned / 2])
                .filled(Fill::Uniform(1.0, 8.0));
            let case = Case::new(format!("{name} b{b} t{t}"), op.clone())
                .with(Input::i32(&[b, t], &positions))
                .with_if(op.factors, factors);
            cases.push(case.within(TOLERANCE));
        }
    }
    for (sizes, interleaved) in [([8, 12, 12, 0], false), ([11, 11, 10, 0], true), ([12, 10, 10, 0], true)] {
        let op = RotaryAngles { sections: Some(Sections { sizes, interleaved }), ..plain.clone() };
        let case = Case::new(format!("sections {sizes:?} {interleaved}"), op);
        cases.push(case.with(Input::i32(&[4, 2, 3], &positions)).within(TOLERANCE));
    }
    cases
}
