//! OpenVINO's CPU device held to the ops' references: every conformance case, and whole graphs of any length.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure_graph::openvino::{OpenVino, OpenVinoOptions, OpenVinoPrecision};
use conure_graph::{Device, GraphBuilder, MemoryWeights, Program, Session, Weights};
use conure_kernels::Cpu;
use conure_ops::cases::Case;
use conure_ops::{Op, OpError, Outputs, ValueType, all};
use conure_tensor::{Bindings, DType, Shape, Tensor, TensorMut, TensorView};
use std::any::Any;
use std::sync::Arc;

fn device(precision: OpenVinoPrecision) -> Device {
    let options = OpenVinoOptions { precision, threads: Some(2), ..Default::default() };
    let device = OpenVino::new("CPU", options);
    Device::new(Arc::new(
        device.unwrap_or_else(|e| panic!("{e}\n`cargo xtask setup` installs it for the tests")),
    ))
}

/// An op held by an [`Arc`].
#[derive(Debug)]
struct Held(Arc<dyn Op>);

impl Op for Held {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn attrs(&self) -> Vec<(&'static str, conure_ops::Attr)> {
        self.0.attrs()
    }
    fn infer(&self, inputs: &[&ValueType]) -> Result<Outputs, OpError> {
        self.0.infer(inputs)
    }
    fn reference(&self, inputs: &[TensorView<'_>], outputs: &mut [TensorMut<'_>]) -> Result<(), OpError> {
        self.0.reference(inputs, outputs)
    }
    fn openvino(&self) -> Option<&dyn conure_ops::openvino::OpenVinoOp> {
        self.0.openvino()
    }
    fn as_any(&self) -> &dyn Any {
        self.0.as_any()
    }
}

/// Cases as one graph, since every model compiled costs tens of milliseconds: weights in the model, the rest inputs.
fn program(cases: &[(&Case, Vec<Tensor>)]) -> Arc<Program> {
    let mut weights = MemoryWeights::new();
    for (c, (case, tensors)) in cases.iter().enumerate() {
        for (i, (input, tensor)) in case.inputs.iter().zip(tensors).enumerate() {
            if input.weight {
                weights = weights.with(&format!("w{c}.{i}"), tensor.clone());
            }
        }
    }
    let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
    for (c, (case, _)) in cases.iter().enumerate() {
        let values: Vec<_> = (case.inputs.iter().enumerate())
            .map(|(i, input)| match input.weight {
                true => g.weight(&format!("w{c}.{i}"), &input.shape).unwrap(),
                false => {
                    g.input(&format!("x{c}.{i}"), ValueType::new(input.dtype, Shape::fixed(&input.shape)))
                }
            })
            .collect();
        let outputs = g.apply_all(Held(case.op.clone()), &values).unwrap();
        for (i, &value) in outputs.iter().enumerate() {
            g.output(&format!("y{c}.{i}"), value);
        }
    }
    Program::new(g.finish().unwrap())
}

fn reference(case: &Case, tensors: &[Tensor]) -> Vec<Tensor> {
    let types: Vec<ValueType> =
        case.inputs.iter().map(|i| ValueType::new(i.dtype, Shape::fixed(&i.shape))).collect();
    let outputs = case.op.infer(&types.iter().collect::<Vec<_>>()).unwrap();
    let mut out: Vec<Tensor> = outputs
        .iter()
        .map(|o| Tensor::zeros(o.dtype, &o.shape.eval(&Bindings::new()).unwrap()).unwrap())
        .collect();
    let views: Vec<TensorView<'_>> = tensors.iter().map(Tensor::view).collect();
    let mut muts: Vec<TensorMut<'_>> = out.iter_mut().map(Tensor::view_mut).collect();
    case.op.reference(&views, &mut muts).unwrap();
    out
}

/// Holds an output to the reference: what is finite within the case's tolerance, or `nmse` if that is more; what is not
/// finite is not finite.
fn compare(case: &Case, found: &TensorView<'_>, expected: &Tensor, nmse: f64) -> Result<(), String> {
    if expected.dtype() != DType::F32 {
        let same = found.bytes() == expected.view().bytes();
        return if same { Ok(()) } else { Err("other bytes than the reference".into()) };
    }
    let (mut error, mut size) = (0f64, 0f64);
    let expected = expected.as_slice::<f32>().unwrap();
    for (i, (&f, &e)) in found.as_slice::<f32>().unwrap().iter().zip(expected).enumerate() {
        let (f, e) = (f64::from(f), f64::from(e));
        if !e.is_finite() {
            if f.is_finite() && !drops_nan(case) {
                return Err(format!("element {i} is {f}, the reference {e}"));
            }
            continue;
        }
        let allowed = case.tolerance.element.max(FUNCTIONS) * (1.0 + e.abs());
        if nmse == 0.0 && ((f - e).abs() > allowed || f.is_nan()) {
            return Err(format!(
                "element {i} is {f}, the reference {e}: off by {:e}, allowed {allowed:e}",
                (f - e).abs()
            ));
        }
        error += (f - e).powi(2);
        size += e * e;
    }
    let (found, allowed) =
        (if error == 0.0 { 0.0 } else { error / size }, case.tolerance.nmse.max(1e-12).max(nmse));
    if found > allowed || found.is_nan() {
        return Err(format!("normalised squared error {found:e}, allowed {allowed:e}"));
    }
    Ok(())
}

/// The least that one element may be off by: OpenVINO's functions are polynomials of its own.
const FUNCTIONS: f64 = 2e-6;

/// OpenVINO's relu of NaN is 0.
fn drops_nan(case: &Case) -> bool {
    case.op.name() == "unary" && case.name.starts_with("relu")
}

/// Ops that have no form for OpenVINO yet: the CPU runs them, or the parts that they are taken apart into are lowered.
const CUT_OUT: [&str; 5] = ["causal_conv1d", "expert_linear", "gated_delta", "rel_pos_projection", "route"];

/// Whether the device leaves a case to the CPU: tensors of no elements, integers of 64 bits, and what its lowering says.
fn is_left(case: &Case) -> bool {
    let types: Vec<ValueType> =
        case.inputs.iter().map(|i| ValueType::new(i.dtype, Shape::fixed(&i.shape))).collect();
    let outputs = case.op.infer(&types.iter().collect::<Vec<_>>()).unwrap();
    let empty = |t: &ValueType| t.shape.eval(&Bindings::new()).unwrap().contains(&0);
    let fixed: Vec<bool> = case.inputs.iter().map(|i| i.weight).collect();
    let Some(lowering) = case.op.openvino() else {
        assert!(
            CUT_OUT.contains(&case.op.name()),
            "{} has no OpenVINO form and is not listed",
            case.op.name()
        );
        return true;
    };
    let computed_blocks = case.inputs.iter().any(|i| i.dtype.is_quantised() && !i.weight);
    computed_blocks
        || outputs.iter().chain(&types).any(empty)
        || types.iter().any(|t| t.dtype == DType::I64)
        || lowering.supports(&types.iter().collect::<Vec<_>>(), &fixed).is_err()
}

/// Runs cases on a device; what failed, and how many ran.
fn walk(cases: &[Case], device: &Device, nmse: f64) -> (Vec<String>, usize) {
    let (left, taken): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|c| is_left(c));
    let mut failures = Vec::new();
    for case in left {
        let program = program(&[(case, case.tensors().unwrap())]);
        let placed = program.placed(device, &[]).unwrap();
        if placed.placement().refused.len() != 1 {
            failures.push(format!("{} [{}] was not left to the CPU", case.op.name(), case.name));
        }
    }
    if taken.is_empty() {
        return (failures, 0);
    }
    let taken: Vec<(&Case, Vec<Tensor>)> = taken.into_iter().map(|c| (c, c.tensors().unwrap())).collect();
    let program = program(&taken);
    let placed = program.placed(device, &[]).unwrap_or_else(|e| panic!("{e}"));
    assert!(placed.placement().is_whole() && placed.placement().pieces.len() == 1, "{}", placed.placement());
    let mut session = Session::on(program, device, Arc::new(Cpu::detect(Some(1)).unwrap())).unwrap();
    let mut inputs = Vec::new();
    for (c, (case, tensors)) in taken.iter().enumerate() {
        for (i, (input, tensor)) in
            case.inputs.iter().zip(tensors).enumerate().filter(|(_, (i, _))| !i.weight)
        {
            let _ = input;
            inputs.push((format!("x{c}.{i}"), tensor.view()));
        }
    }
    let inputs: Vec<(&str, TensorView<'_>)> = inputs.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
    let outputs = session.run(&Bindings::new(), &inputs).unwrap_or_else(|e| panic!("{e}"));
    for (c, (case, tensors)) in taken.iter().enumerate() {
        for (i, expected) in reference(case, tensors).iter().enumerate() {
            let found = outputs.get(&format!("y{c}.{i}")).unwrap();
            if let Err(what) = compare(case, &found, expected, nmse) {
                failures.push(format!("{} [{}]: {what}", case.op.name(), case.name));
            }
        }
    }
    (failures, taken.len())
}

#[test]
fn every_op_agrees_with_its_reference() {
    let device = device(OpenVinoPrecision::Exact);
    let (mut failures, mut taken, mut total) = (Vec::new(), 0, 0);
    for entry in all() {
        // Compiling takes more than twice as long for twice the layers.
        for cases in (entry.cases)().chunks(16) {
            let (failed, ran) = walk(cases, &device, 0.0);
            failures.extend(failed);
            taken += ran;
            total += cases.iter().filter(|c| c.op.openvino().is_some()).count();
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    assert!(taken * 5 > total * 4, "{taken} of {total} cases ran");
}

/// The forms of attention that are not the usual ones.
#[test]
fn attention_is_right_in_every_form() {
    use conure_ops::openvino::Choices;
    let cases = all().iter().find(|e| e.name == "sdpa").map(|e| (e.cases)()).unwrap();
    for (slice_cache, manual_attention) in [(false, Some(true)), (true, Some(false))] {
        let choices = Choices { slice_cache, manual_attention, ..Choices::default() };
        let options = OpenVinoOptions { threads: Some(2), choices, ..Default::default() };
        let device = Device::new(Arc::new(OpenVino::new("CPU", options).unwrap()));
        for cases in cases.chunks(16) {
            let (failures, _) = walk(cases, &device, 0.0);
            assert!(failures.is_empty(), "{choices:?}:\n{}", failures.join("\n"));
        }
    }
}

/// Image patches as one operation give what slices give.
#[test]
fn patches_are_those_of_im2col() {
    use conure_ops::openvino::Choices;
    let cases = all().iter().find(|e| e.name == "im2col").map(|e| (e.cases)()).unwrap();
    let choices = Choices { extract_patches: true, ..Choices::default() };
    let options = OpenVinoOptions { threads: Some(2), choices, ..Default::default() };
    let device = Device::new(Arc::new(OpenVino::new("CPU", options).unwrap()));
    let mut ran = 0;
    for cases in cases.chunks(16) {
        let (failures, taken) = walk(cases, &device, 0.0);
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        ran += taken;
    }
    assert!(ran > 0, "no case ran");
}

/// Weights in every stored form, exactly and along the path that production takes for speed.
#[test]
fn weights_of_every_format_are_multiplied() {
    use conure_ops::cases::Input;
    use conure_ops::{Activation, Embedding, Linear};
    let op = || Linear { activation: Activation::None, bias: true, residual: None };
    let floats = DType::ALL.into_iter().filter(|d| !matches!(d, DType::I32 | DType::I64));
    let cases: Vec<Case> = floats
        .flat_map(|dtype| {
            let linear = Case::new(format!("{dtype}"), op())
                .with(Input::f32(&[3, 5, 512]))
                .with(Input::weight(dtype, &[48, 512]))
                .with(Input::weight(DType::F32, &[48]));
            let rows = Case::new(format!("rows of {dtype}"), Embedding)
                .with(Input::i32(&[4], &[0, 7, -1, 11]))
                .with(Input::weight(dtype, &[12, 256]));
            let tolerance = conure_ops::cases::Tolerance::SUMS;
            [
                linear.within(conure_ops::cases::Tolerance { element: 3e-5, ..tolerance }),
                rows.within(tolerance),
            ]
        })
        .collect();
    let (failures, _) = walk(&cases, &device(OpenVinoPrecision::Exact), 0.0);
    assert!(failures.is_empty(), "exact:\n{}", failures.join("\n"));
    // Activations in 8 bits for each 32 of a normal distribution cost some 2e-5, values in 256 steps of their range as much, and one
    // scale for a row up to 1.5e-4.
    let (failures, _) = walk(&cases, &device(OpenVinoPrecision::Fast), 2e-4);
    assert!(failures.is_empty(), "fast:\n{}", failures.join("\n"));
    // Eight bits of a significand: products are off by 2^-9 of their size at most, sums of them by as much.
    for precision in [OpenVinoPrecision::Bf16, OpenVinoPrecision::F16] {
        let (failures, _) = walk(&cases, &device(precision), 3e-4);
        assert!(failures.is_empty(), "{precision:?}:\n{}", failures.join("\n"));
    }
}

/// A cache of keys and values, a sum that is assigned, and a window that is rolled: the states of all kinds, in step with the
/// CPU over runs of several lengths, and saved and restored.
#[test]
fn states_are_those_of_the_cpu() {
    use conure_ops::{Binary, BinaryKind, Concat, Sdpa, SdpaKeys, Slice};
    use conure_tensor::{Axis, Dim, Symbol};
    let (b, t) = (Symbol::new("B"), Symbol::new("T"));
    // The device may see rows as they were before they were rounded to the cache's type, in the run that appends them.
    for (cache, tolerance) in [(DType::F32, 1e-5), (DType::F16, 3e-3), (DType::BF16, 3e-2)] {
        let program = || {
            let mut g = GraphBuilder::new(Weights::new(Arc::new(MemoryWeights::new())));
            let rows = |heads: usize| {
                let axes = [
                    (Axis::B, Dim::from(b)),
                    (Axis::T, Dim::from(t)),
                    (Axis::H, heads.into()),
                    (Axis::K, 32.into()),
                ];
                ValueType::new(DType::F32, Shape::new(axes))
            };
            let (q, k, v) = (g.input("q", rows(4)), g.input("k", rows(2)), g.input("v", rows(2)));
            let at = g.input("at", ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(b))])));
            let held = || ValueType::new(cache, Shape::fixed(&[3, 16, 2, 32]));
            let (keys, values) = (g.state("keys", held()), g.state("values", held()));
            let (keys, values) = (g.append(keys, k, at).unwrap(), g.append(values, v, at).unwrap());
            let op = Sdpa { scale: 0.2, keys: SdpaKeys::Cached, window: Some(5), cap: None, sinks: false };
            let y = g.apply(op, &[q, keys, values, at]).unwrap();
            g.output("y", y);
            let one = g.input("one", ValueType::new(DType::F32, Shape::fixed(&[1, 2, 3])));
            let sum = g.state("sum", ValueType::new(DType::F32, Shape::fixed(&[1, 2, 3])));
            let before = g.read_state(sum).unwrap();
            let after = g.apply(Binary { kind: BinaryKind::Add }, &[before, one]).unwrap();
            g.assign(sum, after).unwrap();
            let window = g.state("window", ValueType::new(DType::F32, Shape::fixed(&[1, 4, 3])));
            let kept = g.read_state(window).unwrap();
            let all = g.apply(Concat { axis: 1 }, &[kept, after]).unwrap();
            let last = g.apply(Slice { axis: 1, start: 3, end: 6.into() }, &[all]).unwrap();
            g.output("last", last);
            g.roll(window, after).unwrap();
            Program::new(g.finish().unwrap())
        };
        let cpu = || Arc::new(Cpu::detect(Some(1)).unwrap());
        let program = program();
        let keeps = |stateful| {
            let options =
                OpenVinoOptions { stateful: Some(stateful), threads: Some(2), ..Default::default() };
            Device::new(Arc::new(OpenVino::new("CPU", options).unwrap()))
        };
        let mut sessions = [Device::cpu(), keeps(true), keeps(false)]
            .map(|device| Session::on(program.clone(), &device, cpu()).unwrap());
        let mut saved = Vec::new();
        for (step, (items, tokens, at)) in [
            (2, 5, [0, 3]),
            (2, 1, [5, 8]),
            (1, 4, [6, 0]),
            (2, 1, [10, 9]),
            (2, 2, [11, 10]),
            (2, 3, [9, 4]),
        ]
        .into_iter()
        .enumerate()
        {
            let seed = step as u64 * 10;
            let q = conure_ops::cases::Input::f32(&[items, tokens, 4, 32]).tensor(seed).unwrap();
            let [k, v] = [1, 2]
                .map(|i| conure_ops::cases::Input::f32(&[items, tokens, 2, 32]).tensor(seed + i).unwrap());
            let one = conure_ops::cases::Input::f32(&[1, 2, 3]).tensor(seed + 3).unwrap();
            let at = Tensor::from_slice(&[items], &at[..items]).unwrap();
            let inputs =
                [("q", q.view()), ("k", k.view()), ("v", v.view()), ("at", at.view()), ("one", one.view())];
            let bindings = Bindings::new().with(b, items).with(t, tokens);
            let found = sessions.each_mut().map(|session| {
                let outputs = session.run(&bindings, &inputs).unwrap();
                ["y", "last"].map(|n| outputs.get(n).unwrap().as_slice::<f32>().unwrap().to_vec())
            });
            for (form, found_there) in ["stateful", "stateless"].iter().zip(&found[1..]) {
                for (of_cpu, of_device) in found[0].iter().zip(found_there) {
                    let off = of_cpu.iter().zip(of_device).map(|(a, b)| (a - b).abs());
                    let worst = off.fold(0f32, f32::max);
                    assert!(worst < tolerance, "{cache} step {step}, {form}: off by {worst}");
                }
            }
            if step == 1 {
                saved = sessions.iter_mut().map(|s| s.save_states().unwrap()).collect();
            }
            if step == 3 {
                for (session, saved) in sessions.iter_mut().zip(&saved) {
                    session.restore_states(saved).unwrap();
                }
            }
        }
    }
}
