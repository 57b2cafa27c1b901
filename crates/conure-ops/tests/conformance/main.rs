//! The conformance walk: every op on every case, on every instruction set, with one thread and with two, with weights
//! packed and as stored, in place and not, against the reference that defines the op. No call may allocate memory.
#![allow(clippy::unwrap_used, clippy::panic)] // a test says what is wrong by panicking

mod decompositions;
mod grids;
mod run;
mod types;

use conure_ops::all;
use conure_ops::cases::{Case, Tolerance};
use conure_tensor::{DType, Tensor, TensorView};
use run::{Guarded, Variant, compare, cpus, output_types, run, types_of, walk};

#[test]
fn every_kernel_agrees_with_its_reference() {
    let cpus = cpus();
    let mut failures = Vec::new();
    for entry in all() {
        let cases = (entry.cases)();
        assert!(!cases.is_empty(), "{} has no cases", entry.name);
        for case in &cases {
            assert_eq!(case.op.name(), entry.name);
            assert!(walk(case, &cpus, &mut failures) > 0, "{} [{}] was not run", entry.name, case.name);
        }
    }
    let shown: Vec<&str> = failures.iter().take(40).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} failures, the first:\n{}", failures.len(), shown.join("\n"));
}

#[test]
fn what_a_query_does_not_see_cannot_spoil_it() {
    let cpus = cpus();
    let mut failures = Vec::new();
    let attention = [conure_ops::rel_pos_attention::cases::hidden(), conure_ops::sdpa::cases::hidden()];
    for case in attention.iter().flatten() {
        walk(case, &cpus, &mut failures);
    }
    let shown: Vec<&str> = failures.iter().take(40).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} failures, the first:\n{}", failures.len(), shown.join("\n"));
}

/// An op says what it costs, unless it only moves data.
#[test]
fn every_op_that_computes_counts_its_operations() {
    const MOVERS: [&str; 12] = [
        "broadcast",
        "cast",
        "concat",
        "conv_length",
        "embedding",
        "im2col",
        "mask_scores",
        "mask_time",
        "rel_shift",
        "reshape",
        "slice",
        "transpose",
    ];
    for entry in all() {
        let flops = |case: &Case| {
            let types = types_of(case);
            let inputs: Vec<&[usize]> = case.inputs.iter().map(|i| i.shape.as_slice()).collect();
            let outputs = output_types(case, &types);
            let outputs: Vec<&[usize]> = outputs.iter().map(|(_, shape)| shape.as_slice()).collect();
            case.op.flops(&inputs, &outputs)
        };
        let most = (entry.cases)().iter().map(flops).fold(0.0, f64::max);
        assert_eq!(most == 0.0, MOVERS.contains(&entry.name), "{}: {most}", entry.name);
    }
}

#[test]
fn operations_are_those_of_the_definition() {
    let linear = conure_ops::Linear { activation: conure_ops::Activation::Silu, bias: true, residual: None };
    let conv = |groups| conure_ops::Conv2d {
        stride: [2, 2],
        pad: [1; 4],
        dilation: [1, 1],
        groups,
        activation: conure_ops::Activation::None,
        bias: false,
    };
    type Lengths<'a> = &'a [&'a [usize]];
    let cases: [(&dyn conure_ops::Op, Lengths<'_>, Lengths<'_>, f64); 4] = [
        (&linear, &[&[2, 5, 7], &[3, 7], &[3]], &[&[2, 5, 3]], 2.0 * 10.0 * 7.0 * 3.0),
        (&conv(1), &[&[1, 9, 8, 4], &[6, 4, 3, 3]], &[&[1, 5, 4, 6]], 2.0 * 120.0 * 36.0),
        (&conv(4), &[&[1, 9, 8, 4], &[4, 1, 3, 3]], &[&[1, 5, 4, 4]], 2.0 * 80.0 * 9.0),
        (
            &conure_ops::RelPosAttention { heads: 2, mask: conure_ops::AttentionMask::Full, context: 0 },
            &[&[1, 10, 8]],
            &[&[1, 10, 8]],
            100.0 * (6.0 * 8.0 + 10.0),
        ),
    ];
    for (op, inputs, outputs, expected) in cases {
        assert_eq!(op.flops(inputs, outputs), expected, "{}", op.name());
    }
}

#[test]
fn bytes_are_those_that_must_move() {
    type Sizes<'a> = &'a [u64];
    let in_place = 0;
    let experts = conure_ops::ExpertLinear { experts: 8, bias: false };
    let cases: [(&dyn conure_ops::Op, Sizes<'_>, Sizes<'_>, u64); 7] = [
        // Two ids of eight experts, and more ids than experts.
        (&experts, &[10, 8000, 8], &[20], 2038),
        (&experts, &[10, 8000, 400], &[20], 8430),
        (&conure_ops::Glu, &[80], &[40], 120),
        (&conure_ops::Embedding, &[8, 1_000_000], &[400], 808),
        (&conure_ops::Slice { axis: 0, start: 0, end: conure_tensor::Dim::from(1) }, &[1000], &[10], 20),
        (&conure_ops::MaskTime, &[in_place, 8], &[1000], 8),
        (&conure_ops::MaskTime, &[1000, 8], &[1000], 2008),
    ];
    for (op, inputs, outputs, expected) in cases {
        assert_eq!(op.moves(inputs, outputs), expected, "{}", op.name());
    }
}

#[test]
fn the_list_names_every_folder() {
    let src = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders: Vec<String> = std::fs::read_dir(src)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        // What the ops' OpenVINO sides share.
        .filter(|name| name != "openvino")
        .collect();
    folders.sort();
    let listed: Vec<&str> = all().iter().map(|entry| entry.name).collect();
    assert_eq!(folders, listed);
}

#[test]
fn a_wrong_kernel_would_be_seen() {
    let expected = Tensor::from_slice(&[3], &[1f32, f32::NAN, f32::INFINITY]).unwrap();
    let check = |values: [f32; 3]| compare(Tolerance::FUNCTION, bytemuck::cast_slice(&values), &expected);
    assert_eq!(check([1.0, f32::NAN, f32::INFINITY]), Ok(()));
    assert!(check([1.0 + 1e-5, f32::NAN, f32::INFINITY]).is_err());
    assert!(check([1.0, 0.0, f32::INFINITY]).is_err());
    assert!(check([1.0, f32::NAN, f32::MAX]).is_err());
    assert!(check([f32::NAN, f32::NAN, f32::INFINITY]).is_err());
    let mut memory = Guarded::new(8, 4);
    assert!(memory.intact());
    memory.words[0] = 0;
    assert!(!memory.intact());
}

#[test]
fn an_id_outside_the_table_is_an_error_and_not_a_row() {
    let case = Case::new("", conure_ops::Embedding)
        .with(conure_ops::cases::Input::i32(&[2], &[1, 9]))
        .with(conure_ops::cases::Input::weight(DType::F32, &[3, 4]));
    let outputs = output_types(&case, &types_of(&case));
    let cpu = &cpus()[0][0];
    let variant = Variant { packed: false, in_place: None, aligned: true };
    let kernel = case.op.cpu().unwrap();
    let error = run(&case, kernel, cpu, &case.tensors().unwrap(), &outputs, variant).unwrap_err();
    assert_eq!(error, "embedding: id 9 is outside the table of 3 rows (and is not -1, the row of zeros)");
}

#[test]
fn an_id_outside_the_experts_is_an_error_of_kernel_and_reference() {
    for id in [3, -1] {
        let case = Case::new("", conure_ops::ExpertLinear { experts: 3, bias: false })
            .with(conure_ops::cases::Input::f32(&[2, 4]))
            .with(conure_ops::cases::Input::weight(DType::F32, &[3, 5, 4]))
            .with(conure_ops::cases::Input::i32(&[2, 1], &[1, id]));
        let outputs = output_types(&case, &types_of(&case));
        let variant = Variant { packed: true, in_place: None, aligned: true };
        let (tensors, cpu) = (case.tensors().unwrap(), &cpus()[0][0]);
        let error = run(&case, case.op.cpu().unwrap(), cpu, &tensors, &outputs, variant).unwrap_err();
        assert!(error.ends_with(&format!("id {id} is outside the 3 experts")), "{error}");
        let views: Vec<TensorView<'_>> = tensors.iter().map(Tensor::view).collect();
        let mut out = Tensor::zeros(DType::F32, &outputs[0].1).unwrap();
        let error = case.op.reference(&views, &mut [out.view_mut()]).unwrap_err().to_string();
        assert!(error.ends_with(&format!("id {id} is outside the 3 experts")), "{error}");
    }
}
