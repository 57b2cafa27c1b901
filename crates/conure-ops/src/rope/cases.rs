//! Conformance cases of `rope`.

use super::Rope;
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_kernels::rotary::Pairs;

const TOLERANCE: Tolerance = Tolerance {
    nmse: 1e-13,
    element: 4e-7,
    why: "two products of numbers around 1, which may cancel, rounded and added",
};

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [([usize; 4], usize); 7] = [
        ([1, 1, 1, 2], 2),
        ([2, 3, 2, 64], 64),
        ([1, 5, 3, 70], 66),
        ([1, 40, 4, 128], 128),
        ([3, 1, 2, 96], 48),
        ([1, 2, 1, 6], 0),
        ([1, 0, 2, 8], 8),
    ];
    let mut cases = Vec::new();
    for pairs in [Pairs::Adjacent, Pairs::Halves] {
        for ([b, t, h, k], r) in shapes {
            let case = Case::new(format!("{pairs:?} b{b} t{t} h{h} k{k} r{r}"), Rope { pairs })
                .with(Input::f32(&[b, t, h, k]))
                .with(Input::f32(&[b, t, r]).filled(Fill::Uniform(-1.0, 1.0)));
            cases.push(case.within(TOLERANCE));
        }
    }
    cases
}
