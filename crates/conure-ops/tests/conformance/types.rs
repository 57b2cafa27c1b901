//! What a kernel says it supports, it runs: every op, every element type of every input, stored and computed.

use crate::run::{Variant, compare, cpus, output_types, reference, run, types_of};
use conure_ops::cases::{Case, Input, Tolerance};
use conure_ops::{
    Activation, AttentionMask, BatchNorm, Binary, BinaryKind, Conv2d, DepthwiseConv1d, Embedding, LayerNorm,
    Linear, LstmCell, RelPosAttention, RelPosEncoding, RelPosProjection, RmsNorm, Sdpa, SdpaKeys, ValueType,
    all,
};
use conure_tensor::DType;
use std::collections::BTreeMap;

/// The most elements of a case's inputs, and the most cases of an op: types matter here, not shapes.
const SMALL: usize = 4_000;
const CASES: usize = 4;

/// Weights tried in other types are of other values, and sums are longer.
const TOLERANCE: Tolerance = Tolerance { nmse: 1e-9, element: 1e-4, why: "only types are looked at" };

/// Ops whose own cases are too narrow for blocks of 256, on weights that such blocks fill.
fn wide() -> Vec<Case> {
    let w = |shape: &[usize]| Input::weight(DType::F32, shape);
    let x = Input::f32;
    let encoding = RelPosEncoding { d_model: 256, window: None, context: 0 };
    let conv = Conv2d {
        stride: [1, 1],
        pad: [0; 4],
        dilation: [1, 1],
        groups: 1,
        activation: Activation::None,
        bias: false,
    };
    let depthwise = DepthwiseConv1d {
        pad_before: 255,
        pad_after: 0,
        bias: true,
        scale_shift: true,
        activation: Activation::None,
    };
    let attention = Sdpa { scale: 0.1, keys: SdpaKeys::Cached, window: None, cap: None, sinks: true };
    vec![
        Case::new("wide", BatchNorm { eps: 1.0 })
            .with(x(&[2, 256]))
            .with(w(&[256]))
            .with(w(&[256]))
            .with(w(&[256]))
            .with(w(&[256]).filled(conure_ops::cases::Fill::Uniform(1.0, 2.0))),
        Case::new("wide", Binary { kind: BinaryKind::Add }).with(x(&[3, 256])).with(w(&[256])),
        Case::new("wide", conv).with(x(&[1, 2, 300, 1])).with(w(&[3, 1, 1, 256])),
        Case::new("wide", depthwise)
            .with(x(&[1, 2, 256]))
            .with(w(&[256, 1, 256]))
            .with(w(&[256]))
            .with(w(&[256]))
            .with(w(&[256])),
        Case::new("wide", Embedding).with(Input::i32(&[2], &[3, 0])).with(w(&[5, 256])),
        Case::new("wide", LayerNorm { eps: 1e-5 }).with(x(&[3, 256])).with(w(&[256])).with(w(&[256])),
        Case::new("wide", LstmCell::default())
            .with(x(&[1, 256]))
            .with(x(&[1, 64]))
            .with(x(&[1, 64]))
            .with(w(&[256, 256]))
            .with(w(&[256, 64]))
            .with(w(&[256]))
            .with(w(&[256])),
        Case::new("wide", Linear { activation: Activation::None, bias: true, residual: None })
            .with(x(&[2, 256]))
            .with(w(&[256, 256]))
            .with(w(&[256])),
        Case::new("wide", RelPosAttention { heads: 1, mask: AttentionMask::Full, context: 0 })
            .with(x(&[1, 2, 256]))
            .with(x(&[1, 2, 256]))
            .with(x(&[1, 2, 256]))
            .with(x(&[3, 256]))
            .with(w(&[1, 256]))
            .with(w(&[1, 256]))
            .with(Input::i32(&[1], &[2])),
        Case::new("wide", RelPosProjection { encoding }).with(x(&[1, 3, 2])).with(w(&[8, 256])),
        Case::new("wide", RmsNorm { eps: 1e-5, residual: false }).with(x(&[3, 256])).with(w(&[256])),
        Case::new("wide", attention.clone())
            .with(x(&[1, 2, 256, 256]))
            .with(x(&[1, 3, 1, 256]))
            .with(x(&[1, 3, 1, 256]))
            .with(Input::i32(&[1], &[0]))
            .with(w(&[256])),
        // Heads too wide for the kernel, and rows that a block format does not fill.
        Case::new("too wide", Sdpa { sinks: false, ..attention })
            .with(x(&[1, 2, 1, 513]))
            .with(x(&[1, 3, 1, 513]))
            .with(x(&[1, 3, 1, 513]))
            .with(Input::i32(&[1], &[0])),
    ]
}

/// The same with input `i` of another type, stored or computed.
fn changed(case: &Case, i: usize, dtype: DType, stored: bool) -> Case {
    let mut case = case.clone();
    case.inputs[i].dtype = dtype;
    case.inputs[i].weight = stored;
    case.within(TOLERANCE)
}

#[test]
fn what_is_supported_runs() {
    let cpu = &cpus().pop().unwrap()[0].clone().with_precision(conure_kernels::Precision::Exact);
    let variant = Variant { packed: true, in_place: None, aligned: true };
    let mut found: BTreeMap<(&str, usize, DType, bool), bool> = BTreeMap::new();
    let mut failures = Vec::new();
    for entry in all() {
        let own = (entry.cases)().into_iter().filter(|c| {
            let sizes = c.inputs.iter().map(|i| i.shape.iter().product::<usize>());
            sizes.sum::<usize>() <= SMALL && c.inputs.iter().all(|i| !i.shape.contains(&0))
        });
        let mut cases: Vec<Case> = own.take(CASES).collect();
        cases.extend(wide().into_iter().filter(|c| c.op.name() == entry.name));
        for case in &cases {
            let kernel = case.op.cpu().unwrap();
            for i in 0..case.inputs.len() {
                for (dtype, stored) in DType::ALL.into_iter().flat_map(|d| [(d, true), (d, false)]) {
                    let case = changed(case, i, dtype, stored);
                    let types = types_of(&case);
                    let refs: Vec<&ValueType> = types.iter().collect();
                    let stored_at: Vec<bool> = case.inputs.iter().map(|i| i.weight).collect();
                    let (Ok(_), Ok(tensors)) = (case.op.infer(&refs), case.tensors()) else { continue };
                    let key = (entry.name, i, dtype, stored);
                    if let Err(why) = kernel.supports(&refs, &stored_at) {
                        assert!(!why.is_empty());
                        found.entry(key).or_insert(false);
                        continue;
                    }
                    if found.insert(key, true) == Some(true) && case.name != "wide" {
                        continue;
                    }
                    let outputs = output_types(&case, &types);
                    let name = format!("{} [{}] input {i} {dtype} stored {stored}", entry.name, case.name);
                    match run(&case, kernel, cpu, &tensors, &outputs, variant) {
                        Err(e) => failures.push(format!("{name}: supported, but {e}")),
                        Ok((bytes, _)) => {
                            for (bytes, expected) in bytes.iter().zip(reference(&case, &tensors, &outputs)) {
                                if let Err(e) = compare(TOLERANCE, bytes, &expected) {
                                    failures.push(format!("{name}: {e}"));
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    // That both answers occur, and where they matter.
    for (op, input, dtype, stored, expected) in [
        ("linear", 1, DType::F16, true, true),
        ("linear", 1, DType::F16, false, false),
        ("linear", 1, DType::Q4_K, true, true),
        ("linear", 2, DType::F16, false, false),
        ("binary", 1, DType::F16, true, true),
        ("binary", 1, DType::F16, false, false),
        ("conv2d", 1, DType::F16, false, false),
        ("lstm_cell", 3, DType::Q6_K, true, true),
        ("lstm_cell", 3, DType::BF16, false, false),
        ("matmul", 1, DType::F16, false, true),
        ("embedding", 1, DType::Q5_K, false, true),
        ("sdpa", 1, DType::Q8_0, false, true),
        ("sdpa", 1, DType::Q4_0, false, false),
        ("sdpa", 4, DType::F16, false, false),
        ("transpose", 0, DType::I64, false, true),
    ] {
        assert_eq!(found.get(&(op, input, dtype, stored)), Some(&expected), "{op} {input} {dtype} {stored}");
    }
}
