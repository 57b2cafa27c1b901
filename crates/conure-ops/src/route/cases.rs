//! Conformance cases of `route`.

use super::Route;
use crate::cases::{Case, Fill, Input, Tolerance};
use conure_kernels::route::Routing;

const TOLERANCE: Tolerance =
    Tolerance { nmse: 1e-12, element: 2e-6, why: "up to 20000 exponentials summed in f32, in another order" };

/// The cases.
pub fn cases() -> Vec<Case> {
    let shapes: [(&[usize], usize); 7] =
        [(&[1], 1), (&[8], 2), (&[2, 3, 32], 4), (&[5, 128], 8), (&[300, 60], 6), (&[0, 4], 2), (&[3, 5], 5)];
    let mut cases = Vec::new();
    for routing in [Routing::SoftmaxOfAll, Routing::SoftmaxOfChosen] {
        for (shape, used) in shapes {
            for (what, fill) in [
                ("normal", Fill::Normal(2.0)),
                ("far apart", Fill::Normal(60.0)),
                ("equal", Fill::Uniform(1.0, 1.0)),
                ("special", Fill::Special),
            ] {
                let case = Case::new(format!("{routing:?} {shape:?} {used} {what}"), Route { routing, used })
                    .with(Input::f32(shape).filled(fill));
                cases.push(case.within(TOLERANCE));
            }
        }
        // So many that the chosen's share is below what it is divided by at least.
        let many = Case::new(format!("{routing:?} many equal"), Route { routing, used: 1 })
            .with(Input::f32(&[20_000]).filled(Fill::Uniform(0.5, 0.5)));
        cases.push(many.within(TOLERANCE));
    }
    cases
}
