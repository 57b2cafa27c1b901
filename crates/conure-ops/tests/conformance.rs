//! The conformance walk: every op on every case, on every instruction set, with one thread and with two, with weights
//! packed and as stored, in place and not, against the reference that defines the op. No call may allocate memory.
#![allow(clippy::unwrap_used, clippy::panic)] // a test says what is wrong by panicking

use conure_kernels::{Cpu, Isa, Precision, Threads};
use conure_ops::cases::{Case, Fill, Tolerance};
use conure_ops::{CpuCall, CpuInput, CpuOp, Decomposition, Packed, Part, ValueType, all};
use conure_tensor::{Bindings, DType, Shape, Tensor, TensorMut, TensorView, tensor_bytes};

/// Bytes before and after every output and scratch that nobody may touch.
const GUARD: usize = 64;
/// What outputs and scratch hold before a call: as f32, an odd NaN.
const OLD: u8 = 0xff;
const SENTINEL: u8 = 0xa5;

/// Memory between guards.
struct Guarded {
    words: Vec<u64>,
    start: usize,
    len: usize,
}

impl Guarded {
    /// `len` bytes at an address that is a multiple of `align` and no more, where that is under 64.
    fn new(len: usize, align: usize) -> Guarded {
        let mut words = vec![0u64; (len + 4 * GUARD).div_ceil(8)];
        let bytes = bytemuck::cast_slice_mut::<u64, u8>(&mut words);
        bytes.fill(SENTINEL);
        let base = bytes.as_ptr() as usize;
        let start = GUARD + (base + GUARD).next_multiple_of(64) - (base + GUARD) + align % 64;
        bytes[start..start + len].fill(OLD);
        Guarded { words, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.words)[self.start..self.start + self.len]
    }

    fn intact(&self) -> bool {
        let bytes = bytemuck::cast_slice::<u64, u8>(&self.words);
        let (before, rest) = bytes.split_at(self.start);
        before.iter().chain(&rest[self.len..]).all(|&b| b == SENTINEL)
    }
}

/// How a kernel is called.
#[derive(Clone, Copy, Debug)]
struct Variant {
    packed: bool,
    in_place: Option<usize>,
    /// Whether tensors lie on whole cache lines, as a plan lays them, or anywhere.
    aligned: bool,
}

fn types_of(case: &Case) -> Vec<ValueType> {
    case.inputs.iter().map(|i| ValueType::new(i.dtype, Shape::fixed(&i.shape))).collect()
}

fn output_types(case: &Case, types: &[ValueType]) -> Vec<(DType, Vec<usize>)> {
    let refs: Vec<&ValueType> = types.iter().collect();
    let outputs = case.op.infer(&refs).unwrap_or_else(|e| panic!("{} {}: {e}", case.op.name(), case.name));
    outputs.iter().map(|o| (o.dtype, o.shape.eval(&Bindings::new()).unwrap().to_vec())).collect()
}

fn reference(case: &Case, tensors: &[Tensor], outputs: &[(DType, Vec<usize>)]) -> Vec<Tensor> {
    let mut out: Vec<Tensor> = outputs.iter().map(|(d, s)| Tensor::zeros(*d, s).unwrap()).collect();
    let views: Vec<TensorView<'_>> = tensors.iter().map(Tensor::view).collect();
    let mut muts: Vec<TensorMut<'_>> = out.iter_mut().map(Tensor::view_mut).collect();
    case.op.reference(&views, &mut muts).unwrap_or_else(|e| panic!("{} {}: {e}", case.op.name(), case.name));
    out
}

/// The variants that a plan may choose for this case.
fn variants(
    case: &Case,
    kernel: &dyn CpuOp,
    types: &[ValueType],
    outputs: &[(DType, Vec<usize>)],
) -> Vec<Variant> {
    let wants_packing = |i: usize| case.inputs[i].weight && kernel.pack_key(i, &types[i]).is_some();
    let packs = (0..types.len()).any(wants_packing);
    // A computed operand is f32 as stored; tables are read as they are.
    let as_stored = (0..types.len()).all(|i| !wants_packing(i) || types[i].dtype == DType::F32);
    let mut out = Vec::new();
    for packed in [true, false] {
        if (packed && !packs) || (!packed && !as_stored) {
            continue;
        }
        for aligned in [true, false] {
            out.push(Variant { packed, in_place: None, aligned });
        }
        for &i in kernel.in_place() {
            let size = tensor_bytes(case.inputs[i].dtype, &case.inputs[i].shape);
            if !case.inputs[i].weight && size == tensor_bytes(outputs[0].0, &outputs[0].1) {
                out.push(Variant { packed, in_place: Some(i), aligned: true });
            }
        }
    }
    out
}

/// Runs the kernel; the outputs' bytes, and how often it allocated on this thread.
fn run(
    case: &Case,
    kernel: &dyn CpuOp,
    cpu: &Cpu,
    tensors: &[Tensor],
    outputs: &[(DType, Vec<usize>)],
    variant: Variant,
) -> Result<(Vec<Vec<u8>>, u64), String> {
    let types = types_of(case);
    let align = |dtype: DType| if variant.aligned { 64 } else { dtype.block_bytes().min(8) };
    let mut stored: Vec<Guarded> = Vec::new();
    for t in tensors {
        let mut memory = Guarded::new(t.view().bytes().len(), align(t.dtype()));
        memory.bytes().copy_from_slice(t.view().bytes());
        stored.push(memory);
    }
    let packed: Vec<Option<Packed>> = (0..tensors.len())
        .map(|i| {
            let wanted = variant.packed && case.inputs[i].weight && kernel.pack_key(i, &types[i]).is_some();
            wanted.then(|| kernel.pack_on(cpu, i, &tensors[i].view())).transpose()
        })
        .collect::<Result<_, _>>()
        .map_err(|e| format!("packing: {e}"))?;
    let mut results: Vec<Guarded> = outputs
        .iter()
        .map(|(dtype, shape)| Guarded::new(tensor_bytes(*dtype, shape).unwrap(), align(*dtype)))
        .collect();
    if let Some(i) = variant.in_place {
        results[0].bytes().copy_from_slice(tensors[i].view().bytes());
    }
    let in_dims: Vec<&[usize]> = tensors.iter().map(Tensor::shape).collect();
    let out_dims: Vec<&[usize]> = outputs.iter().map(|(_, s)| s.as_slice()).collect();
    let mut scratch = Guarded::new(kernel.scratch(&in_dims, &out_dims, cpu.threads().count()), 64);
    let allocations = {
        let inputs: Vec<CpuInput<'_>> = stored
            .iter_mut()
            .enumerate()
            .map(|(i, memory)| match &packed[i] {
                _ if variant.in_place == Some(i) => CpuInput::InPlace,
                Some(p) => CpuInput::Packed(p),
                None => {
                    let view = TensorView::new(tensors[i].dtype(), tensors[i].shape(), memory.bytes());
                    CpuInput::Tensor(view.unwrap())
                }
            })
            .collect();
        let mut muts: Vec<TensorMut<'_>> = results
            .iter_mut()
            .zip(outputs)
            .map(|(memory, (dtype, shape))| TensorMut::new(*dtype, shape, memory.bytes()).unwrap())
            .collect();
        let mut call = CpuCall { inputs: &inputs, outputs: &mut muts, scratch: scratch.bytes(), cpu };
        let mut result = Ok(());
        let counted = allocation_counter::measure(|| result = kernel.run(&mut call));
        result.map_err(|e| e.to_string())?;
        counted.count_total
    };
    if !results.iter().chain([&scratch]).chain(&stored).all(Guarded::intact) {
        return Err("wrote outside its output or scratch".into());
    }
    Ok((results.iter_mut().map(|r| r.bytes().to_vec()).collect(), allocations))
}

/// Holds one output to the reference.
fn compare(tolerance: Tolerance, found: &[u8], expected: &Tensor) -> Result<(), String> {
    if expected.dtype() != DType::F32 {
        return if found == expected.view().bytes() {
            Ok(())
        } else {
            Err("other bytes than the reference".into())
        };
    }
    let found: Vec<f32> = found.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
    let expected = expected.as_slice::<f32>().unwrap();
    let (mut error, mut size) = (0f64, 0f64);
    for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
        if !e.is_finite() {
            // NaN may come out as an infinity (silu of -inf, which is -inf * 0), never as a number.
            let fits = if e.is_nan() { !f.is_finite() } else { f == e };
            if !fits {
                return Err(format!("element {i} is {f}, the reference {e}"));
            }
            continue;
        }
        let difference = (f64::from(f) - f64::from(e)).abs();
        let allowed = tolerance.element * (1.0 + f64::from(e).abs());
        if difference.is_nan() || difference > allowed {
            return Err(format!(
                "element {i} is {f}, the reference {e}: off by {difference:e}, allowed {allowed:e}"
            ));
        }
        error += difference * difference;
        size += f64::from(e) * f64::from(e);
    }
    let nmse = if error == 0.0 { 0.0 } else { error / size };
    if nmse > tolerance.nmse {
        return Err(format!("normalised squared error {nmse:e}, allowed {:e}", tolerance.nmse));
    }
    Ok(())
}

/// Every instruction set that this machine has in each precision, each with one thread and with two.
fn cpus() -> Vec<[Cpu; 2]> {
    let two = Threads::new(2).unwrap();
    let with = |isa, precision| {
        [Threads::single(), two.clone()].map(|t| Cpu::new(isa, t).unwrap().with_precision(precision))
    };
    Isa::available().flat_map(|isa| Precision::ALL.map(|precision| with(isa, precision))).collect()
}

/// The tolerance of a case in a precision; `None` where that is of no account for it.
fn tolerance(case: &Case, precision: Precision) -> Option<Tolerance> {
    match precision {
        Precision::Exact => Some(case.tolerance),
        // Embeddings and small weights are decoded, in any precision: their tolerance stands.
        Precision::Fast => case.inputs.iter().any(|i| i.weight && i.dtype.is_quantised()).then_some(
            if case.tolerance.nmse > 0.0 { Tolerance::ROUNDED_ACTIVATIONS } else { case.tolerance },
        ),
    }
}

fn walk(case: &Case, cpus: &[[Cpu; 2]], failures: &mut Vec<String>) -> usize {
    let types = types_of(case);
    let outputs = output_types(case, &types);
    let tensors = case.tensors().unwrap();
    let expected = reference(case, &tensors, &outputs);
    let kernel = case.op.cpu().unwrap_or_else(|| panic!("{} has no CPU kernel", case.op.name()));
    let refs: Vec<&ValueType> = types.iter().collect();
    kernel.supports(&refs).unwrap_or_else(|e| panic!("{} {}: {e}", case.op.name(), case.name));
    let mut runs = 0;
    for variant in variants(case, kernel, &types, &outputs) {
        for pair in cpus {
            let Some(tolerance) = tolerance(case, pair[0].precision()) else { continue };
            let results = pair.each_ref().map(|cpu| run(case, kernel, cpu, &tensors, &outputs, variant));
            runs += 2;
            // A thread's own scratch grows to its high-water mark the first time.
            let again = run(case, kernel, &pair[0], &tensors, &outputs, variant);
            let mut fail = |what: String| {
                failures.push(format!(
                    "{} [{}] {variant:?} {} {}: {what}",
                    case.op.name(),
                    case.name,
                    pair[0].isa(),
                    pair[0].precision()
                ));
            };
            if let Ok((_, allocations @ 1..)) = again {
                fail(format!("allocates memory {allocations} times"));
            }
            match &results {
                [Ok((one, _)), Ok((two, _))] => {
                    if one != two {
                        fail("one thread and two give different bytes".into());
                    }
                    for (found, expected) in one.iter().zip(&expected) {
                        compare(tolerance, found, expected).unwrap_or_else(&mut fail);
                    }
                }
                [one, two] => [one, two].into_iter().flat_map(|r| r.as_ref().err()).cloned().for_each(fail),
            }
        }
    }
    runs
}

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
    let cases: [(&dyn conure_ops::Op, Sizes<'_>, Sizes<'_>, u64); 5] = [
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
            let special = case.inputs.iter().any(|i| matches!(i.fill, Fill::Special));
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
    ];
    assert_eq!(taken_apart.into_iter().collect::<Vec<_>>(), expected);
}
