//! Ops taken apart mean what they meant.

use crate::run::{compare, output_types, reference, types_of};
use conure_ops::cases::{Fill, Tolerance};
use conure_ops::{Decomposition, Part, ValueType, all};
use conure_tensor::{Bindings, Tensor, TensorMut, TensorView};

/// The outputs of a decomposition, each step computed by the reference of its op.
fn run_steps(d: &Decomposition, inputs: &[Tensor]) -> Vec<Tensor> {
    let mut made: Vec<Vec<Tensor>> = Vec::new();
    let get = |part: Part, made: &[Vec<Tensor>]| match part {
        Part::Input(i) => inputs[i].clone(),
        Part::Constant(i) => d.constants[i].as_ref().clone(),
        Part::Step(s, i) => made[s][i].clone(),
    };
    for step in &d.steps {
        let mut inputs: Vec<Tensor> = step.inputs.iter().map(|&p| get(p, &made)).collect();
        // The walk knows shapes by number only: a reshape says the shape, nothing else does.
        for (input, &part) in inputs.iter_mut().zip(&step.inputs) {
            let shape = d.ty(part).unwrap().shape.eval(&Bindings::new()).unwrap();
            *input = Tensor::from_view(&input.view().reshape(&shape).unwrap());
        }
        let mut outputs: Vec<Tensor> = step
            .types
            .iter()
            .map(|t| Tensor::zeros(t.dtype, &t.shape.eval(&Bindings::new()).unwrap()).unwrap())
            .collect();
        let views: Vec<TensorView<'_>> = inputs.iter().map(Tensor::view).collect();
        let mut muts: Vec<TensorMut<'_>> = outputs.iter_mut().map(Tensor::view_mut).collect();
        step.op.reference(&views, &mut muts).unwrap_or_else(|e| panic!("{}: {e}", step.op.name()));
        made.push(outputs);
    }
    d.outputs.iter().map(|&p| get(p, &made)).collect()
}

/// Between steps numbers are rounded to f32, and sums of squares, of exponentials and of products are of some hundred.
const STEPS: Tolerance =
    Tolerance { nmse: 1e-11, element: 2e-5, why: "every step is rounded to f32 (measured: 5e-6)" };

#[test]
fn decompositions_mean_what_their_ops_mean() {
    let mut taken_apart = std::collections::BTreeSet::new();
    for entry in all() {
        for case in (entry.cases)() {
            // 1e30 squared is an infinity in f32, and not in the reference's f64.
            let special = case.inputs.iter().any(|i| matches!(i.fill, Fill::Special | Fill::Except(_)));
            let types = types_of(&case);
            let refs: Vec<&ValueType> = types.iter().collect();
            let steps =
                case.op.decompose(&refs).unwrap_or_else(|e| panic!("{} {}: {e}", entry.name, case.name));
            let (Some(steps), false) = (steps, special) else { continue };
            assert!(steps.steps.iter().all(|s| s.op.name() != entry.name || entry.name == "linear"));
            let tensors = case.tensors().unwrap();
            let outputs = output_types(&case, &types);
            let expected = reference(&case, &tensors, &outputs);
            let found = run_steps(&steps, &tensors);
            let case = case.within(STEPS);
            for ((found, expected), (dtype, shape)) in found.iter().zip(&expected).zip(&outputs) {
                assert_eq!((found.dtype(), found.shape()), (*dtype, shape.as_slice()), "{}", case.name);
                compare(case.tolerance, found.view().bytes(), expected)
                    .unwrap_or_else(|e| panic!("{} [{}]: {e}", entry.name, case.name));
            }
            taken_apart.insert(entry.name);
        }
    }
    let expected = [
        "batch_norm",
        "conv2d",
        "depthwise_conv1d",
        "glu",
        "layer_norm",
        "linear",
        "lstm_cell",
        "rel_pos_attention",
        "rel_pos_projection",
        "sdpa",
    ];
    assert_eq!(taken_apart.into_iter().collect::<Vec<_>>(), expected);
}
