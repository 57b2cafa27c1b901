//! One case on one kernel, compared with the reference of its op.

use conure_kernels::{Cpu, Isa, Precision, Threads};
use conure_ops::cases::{Case, Tolerance};
use conure_ops::{CpuCall, CpuInput, CpuOp, Packed, ValueType};
use conure_tensor::{Bindings, DType, Shape, Tensor, TensorMut, TensorView, tensor_bytes};

/// Bytes before and after every output and scratch that nobody may touch.
pub const GUARD: usize = 64;
/// What outputs and scratch hold before a call: as f32, an odd NaN.
pub const OLD: u8 = 0xff;
pub const SENTINEL: u8 = 0xa5;

/// Memory between guards.
pub struct Guarded {
    pub words: Vec<u64>,
    start: usize,
    len: usize,
}

impl Guarded {
    /// `len` bytes at an address that is a multiple of `align` and no more, where that is under 64.
    pub fn new(len: usize, align: usize) -> Guarded {
        let mut words = vec![0u64; (len + 4 * GUARD).div_ceil(8)];
        let bytes = bytemuck::cast_slice_mut::<u64, u8>(&mut words);
        bytes.fill(SENTINEL);
        let base = bytes.as_ptr() as usize;
        let start = GUARD + (base + GUARD).next_multiple_of(64) - (base + GUARD) + align % 64;
        bytes[start..start + len].fill(OLD);
        Guarded { words, start, len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.words)[self.start..self.start + self.len]
    }

    pub fn intact(&self) -> bool {
        let bytes = bytemuck::cast_slice::<u64, u8>(&self.words);
        let (before, rest) = bytes.split_at(self.start);
        before.iter().chain(&rest[self.len..]).all(|&b| b == SENTINEL)
    }
}

/// How a kernel is called.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub packed: bool,
    pub in_place: Option<usize>,
    /// Whether tensors lie on whole cache lines, as a plan lays them, or anywhere.
    pub aligned: bool,
}

pub fn types_of(case: &Case) -> Vec<ValueType> {
    case.inputs.iter().map(|i| ValueType::new(i.dtype, Shape::fixed(&i.shape))).collect()
}

pub fn output_types(case: &Case, types: &[ValueType]) -> Vec<(DType, Vec<usize>)> {
    let refs: Vec<&ValueType> = types.iter().collect();
    let outputs = case.op.infer(&refs).unwrap_or_else(|e| panic!("{} {}: {e}", case.op.name(), case.name));
    outputs.iter().map(|o| (o.dtype, o.shape.eval(&Bindings::new()).unwrap().to_vec())).collect()
}

pub fn reference(case: &Case, tensors: &[Tensor], outputs: &[(DType, Vec<usize>)]) -> Vec<Tensor> {
    let mut out: Vec<Tensor> = outputs.iter().map(|(d, s)| Tensor::zeros(*d, s).unwrap()).collect();
    let views: Vec<TensorView<'_>> = tensors.iter().map(Tensor::view).collect();
    let mut muts: Vec<TensorMut<'_>> = out.iter_mut().map(Tensor::view_mut).collect();
    case.op.reference(&views, &mut muts).unwrap_or_else(|e| panic!("{} {}: {e}", case.op.name(), case.name));
    out
}

/// The variants that a plan may choose for this case.
pub fn variants(
    case: &Case,
    kernel: &dyn CpuOp,
    types: &[ValueType],
    outputs: &[(DType, Vec<usize>)],
) -> Vec<Variant> {
    let wants_packing = |i: usize| case.inputs[i].weight && kernel.pack_key(i, &types[i]).is_some();
    let packs = (0..types.len()).any(wants_packing);
    // A plan that is only measured packs nothing, and what is computed cannot be packed.
    let as_stored = (0..types.len()).all(|i| !wants_packing(i) || kernel.reads(i, types[i].dtype));
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
pub fn run(
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
pub fn compare(tolerance: Tolerance, found: &[u8], expected: &Tensor) -> Result<(), String> {
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
pub fn cpus() -> Vec<[Cpu; 2]> {
    let two = Threads::new(2).unwrap();
    let with = |isa, precision| {
        [Threads::single(), two.clone()].map(|t| Cpu::new(isa, t).unwrap().with_precision(precision))
    };
    Isa::available().flat_map(|isa| Precision::ALL.map(|precision| with(isa, precision))).collect()
}

/// The tolerance of a case in a precision; `None` where that is of no account for it.
pub fn tolerance(case: &Case, precision: Precision) -> Option<Tolerance> {
    match precision {
        Precision::Exact => Some(case.tolerance),
        // Embeddings and small weights are decoded, in any precision: their tolerance stands.
        Precision::Fast => case.inputs.iter().any(|i| i.weight && i.dtype.is_quantised()).then_some(
            if case.tolerance.nmse > 0.0 { Tolerance::ROUNDED_ACTIVATIONS } else { case.tolerance },
        ),
        Precision::Int8 => case
            .inputs
            .iter()
            .any(|i| i.weight && !matches!(i.dtype, DType::I32 | DType::I64))
            .then_some(if case.tolerance.nmse > 0.0 { Tolerance::ROUNDED_ROWS } else { case.tolerance }),
    }
}

pub fn walk(case: &Case, cpus: &[[Cpu; 2]], failures: &mut Vec<String>) -> usize {
    let types = types_of(case);
    let outputs = output_types(case, &types);
    let tensors = case.tensors().unwrap();
    let expected = reference(case, &tensors, &outputs);
    let kernel = case.op.cpu().unwrap_or_else(|| panic!("{} has no CPU kernel", case.op.name()));
    let refs: Vec<&ValueType> = types.iter().collect();
    let stored: Vec<bool> = case.inputs.iter().map(|i| i.weight).collect();
    kernel.supports(&refs, &stored).unwrap_or_else(|e| panic!("{} {}: {e}", case.op.name(), case.name));
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
