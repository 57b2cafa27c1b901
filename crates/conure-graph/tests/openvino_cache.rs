//! Compiled models of OpenVINO kept on disk: a second start computes the same without compiling, and whatever is wrong with
//! what is kept costs a line of notice and a compilation, never a result.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use conure_device::store::Store;
use conure_graph::openvino::{Notices, OpenVino, OpenVinoOptions, OpenVinoPrecision};
use conure_graph::{Compilations, Device, GraphBuilder, MemoryWeights, Program, Session, Weights};
use conure_kernels::Cpu;
use conure_ops::cases::Input;
use conure_ops::{
    Activation, AttentionMask, Embedding, LayerNorm, Linear, RelPosAttention, RelPosEncoding, ValueType,
};
use conure_tensor::{Axis, Bindings, DType, Dim, Shape, Symbol, Tensor, TensorView};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const T: Symbol = Symbol::new("T");

/// Two layers, weights as they are and in blocks, a table, and a norm. `seed` makes other weights.
fn program(seed: u64) -> Arc<Program> {
    let tensor = |input: Input, n: u64| input.tensor(seed * 100 + n).unwrap();
    let weights = MemoryWeights::new()
        .with("table", tensor(Input::f32(&[50, 64]), 0))
        .with("up", tensor(Input::weight(DType::F16, &[96, 64]), 1))
        .with("down", tensor(Input::weight(DType::Q4_K, &[32, 256]), 2))
        .with("wide", tensor(Input::weight(DType::Q8_0, &[256, 96]), 3))
        .with("gamma", tensor(Input::f32(&[32]), 4))
        .with("beta", tensor(Input::f32(&[32]), 5));
    let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
    let frames = Shape::new([(Axis::T, Dim::from(T))]);
    let ids = g.input("ids", ValueType::new(DType::I32, frames));
    let mut x = g.weight("table", &[50, 64]).and_then(|t| g.apply(Embedding, &[ids, t])).unwrap();
    for (name, shape) in [("up", [96, 64]), ("wide", [256, 96]), ("down", [32, 256])] {
        let w = g.weight(name, &shape).unwrap();
        x = g.apply(Linear { activation: Activation::Silu, bias: false, residual: None }, &[x, w]).unwrap();
    }
    let (gamma, beta) = (g.weight("gamma", &[32]).unwrap(), g.weight("beta", &[32]).unwrap());
    let y = g.apply(LayerNorm { eps: 1e-5 }, &[x, gamma, beta]).unwrap();
    g.output("y", y);
    Program::new(g.finish().unwrap())
}

/// A device that begins anew, as a second process does, and what it says.
fn device(folder: &Path, precision: OpenVinoPrecision) -> (Device, Arc<Mutex<Vec<String>>>) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let to = said.clone();
    let options = OpenVinoOptions {
        precision,
        threads: Some(2),
        cache: Some(Store::new(folder, 1 << 30)),
        self_test: true,
        notices: Notices::new(move |line| to.lock().unwrap().push(line.to_owned())),
        ..Default::default()
    };
    let device = OpenVino::new("CPU", options);
    let device = device.unwrap_or_else(|e| panic!("{e}\n`cargo xtask setup` installs it for the tests"));
    (Device::new(Arc::new(device)), said)
}

fn run(program: &Arc<Program>, device: &Device, frames: usize) -> Vec<f32> {
    let mut session = Session::on(program.clone(), device, Arc::new(Cpu::detect(Some(1)).unwrap())).unwrap();
    let ids: Vec<i32> = (0..frames).map(|i| (i * 7 % 50) as i32).collect();
    let ids = Tensor::from_slice(&[frames], &ids).unwrap();
    let inputs: [(&str, TensorView<'_>); 1] = [("ids", ids.view())];
    let outputs = session.run(&Bindings::new().with(T, frames), &inputs).unwrap();
    outputs.get("y").unwrap().as_slice::<f32>().unwrap().to_vec()
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    all.filter(|p| p.extension().is_some_and(|e| e == ending)).collect()
}

const COMPILED: Compilations = Compilations { compiled: 1, cached: 0 };
const CACHED: Compilations = Compilations { compiled: 0, cached: 1 };

#[test]
fn a_second_start_computes_the_same_without_compiling() {
    let dir = tempfile::tempdir().unwrap();
    let mut of_precision = Vec::new();
    for precision in OpenVinoPrecision::ALL {
        let (first, said) = device(dir.path(), precision);
        let expected = run(&program(1), &first, 9);
        assert_eq!((first.compilations(), said.lock().unwrap().len()), (COMPILED, 0), "{precision:?}");
        let (second, said) = device(dir.path(), precision);
        let found = run(&program(1), &second, 9);
        assert_eq!((second.compilations(), said.lock().unwrap().len()), (CACHED, 0), "{precision:?}");
        assert_eq!(found, expected, "{precision:?}");
        // One model serves any length, also one that was kept.
        assert_eq!(run(&program(1), &second, 3), run(&program(1), &first, 3));
        of_precision.push(found);
    }
    assert_ne!(of_precision[0], of_precision[1], "exact and fast are not the same");
    // Other weights, the same graph.
    let (other, _) = device(dir.path(), OpenVinoPrecision::Exact);
    let found = run(&program(2), &other, 9);
    assert_eq!(other.compilations(), COMPILED);
    assert_ne!(found, of_precision[0]);
}

/// Attention with positions, whose projection lengths alone decide: a model of its own makes it.
fn positions() -> Arc<Program> {
    const B: Symbol = Symbol::new("B");
    let tensor = |shape: &[usize], n: u64| Input::f32(shape).tensor(n).unwrap();
    let weights = MemoryWeights::new()
        .with("projection", tensor(&[16, 16], 1))
        .with("u", tensor(&[2, 8], 2))
        .with("v", tensor(&[2, 8], 3));
    let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
    let axes = [(Axis::B, Dim::from(B)), (Axis::T, Dim::from(T)), (Axis::D, 16.into())];
    let x = g.input("x", ValueType::new(DType::F32, Shape::new(axes)));
    let lengths = g.input("lengths", ValueType::new(DType::I32, Shape::new([(Axis::B, Dim::from(B))])));
    let p = g.apply(RelPosEncoding { d_model: 16, window: None, context: 0 }, &[x]).unwrap();
    let w = g.weight("projection", &[16, 16]).unwrap();
    let p = g.apply(Linear { activation: Activation::None, bias: false, residual: None }, &[p, w]).unwrap();
    let (u, v) = (g.weight("u", &[2, 8]).unwrap(), g.weight("v", &[2, 8]).unwrap());
    let op = RelPosAttention { heads: 2, mask: AttentionMask::Full, context: 0 };
    let y = g.apply(op, &[x, x, x, p, u, v, lengths]).unwrap();
    g.output("y", y);
    Program::new(g.finish().unwrap())
}

#[test]
fn what_lengths_decide_follows_them_and_is_cached_with_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let cpu = || Arc::new(Cpu::detect(Some(1)).unwrap());
    let mut on_cpu = Session::new(positions(), cpu()).unwrap();
    let mut check = |expected: Compilations, lines: usize| {
        let (device, said) = device(dir.path(), OpenVinoPrecision::Exact);
        let mut session = Session::on(positions(), &device, cpu()).unwrap();
        for (batch, frames) in [(1, 9), (1, 9), (1, 4), (2, 4), (1, 1), (2, 37), (1, 9)] {
            let x = Input::f32(&[batch, frames, 16]).tensor(frames as u64).unwrap();
            let lengths = Tensor::from_slice(&[batch], &[frames as i32, 3][..batch]).unwrap();
            let inputs = [("x", x.view()), ("lengths", lengths.view())];
            let bindings = Bindings::new().with(T, frames).with(Symbol::new("B"), batch);
            let [found, expected] = [&mut session, &mut on_cpu].map(|session| {
                let outputs = session.run(&bindings, &inputs).unwrap();
                outputs.get("y").unwrap().as_slice::<f32>().unwrap().to_vec()
            });
            let same = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(
                same && found.len() == expected.len(),
                "{batch} of {frames}: {found:?}, not {expected:?}"
            );
            if frames == 37 {
                session.shrink();
            }
        }
        let said = said.lock().unwrap().clone();
        assert_eq!((device.compilations(), said.len()), (expected, lines), "{said:?}");
    };
    check(COMPILED, 0);
    assert_eq!(files(dir.path(), "entry").len(), 2);
    check(CACHED, 0);
    // Either is of no use without the other.
    for (damage, lines) in [(true, 1), (false, 0)] {
        for n in 0..2 {
            Store::new(dir.path(), 0).clear().unwrap();
            check(COMPILED, 0);
            let mut all = files(dir.path(), if damage { "blob" } else { "entry" });
            all.sort();
            match damage {
                true => std::fs::write(&all[n], b"noise").unwrap(),
                false => std::fs::remove_file(&all[n]).unwrap(),
            }
            check(COMPILED, lines);
            check(CACHED, 0);
        }
    }
}

#[test]
fn what_is_damaged_is_made_anew_with_a_line_of_notice() {
    let dir = tempfile::tempdir().unwrap();
    let exact = OpenVinoPrecision::Exact;
    let expected = run(&program(1), &device(dir.path(), exact).0, 5);
    let other = tempfile::tempdir().unwrap();
    run(&program(2), &device(other.path(), exact).0, 5);
    let foreign = std::fs::read(&files(other.path(), "blob")[0]).unwrap();

    type Change<'a> = Box<dyn Fn(&Path, &Path) + 'a>;
    let edit = |f: fn(&mut Vec<u8>)| -> Change<'_> {
        Box::new(move |blob, _| {
            let mut bytes = std::fs::read(blob).unwrap();
            f(&mut bytes);
            std::fs::write(blob, bytes).unwrap();
        })
    };
    // Under a right entry, as if the writer had been given it.
    let folder = dir.path();
    let kept_as_right = |bytes: Vec<u8>| -> Change<'_> {
        Box::new(move |_, entry| {
            let key = entry.file_stem().unwrap().to_str().unwrap();
            let tested = [("self-test".to_owned(), "passed".to_owned())];
            let store = Store::new(folder, 1 << 30);
            store.save(key, &tested, |p| std::fs::write(p, &bytes).map_err(|e| e.to_string())).unwrap();
        })
    };
    let truncated = std::fs::read(&files(dir.path(), "blob")[0]).unwrap();
    let truncated = truncated[..truncated.len() * 2 / 3].to_vec();
    let cases: [(&str, Change<'_>); 8] = [
        (
            "a flipped bit",
            edit(|b| {
                let at = b.len() / 2;
                b[at] ^= 1
            }),
        ),
        ("cut off", edit(|b| b.truncate(b.len() - 1))),
        ("noise", edit(|b| b.iter_mut().enumerate().for_each(|(i, b)| *b = (i * 31) as u8))),
        ("no blob", Box::new(|blob, _| std::fs::remove_file(blob).unwrap())),
        ("an entry cut off", Box::new(|_, entry| std::fs::write(entry, b"conure store 1\nkey").unwrap())),
        ("the blob of another", Box::new(|blob, _| std::fs::write(blob, &foreign).unwrap())),
        ("noise that was kept", kept_as_right(vec![7; 5000])),
        ("half of it that was kept", kept_as_right(truncated)),
    ];
    for (name, change) in cases {
        let (blob, entry) = (files(dir.path(), "blob").remove(0), files(dir.path(), "entry").remove(0));
        change(&blob, &entry);
        let (device, said) = device_of(dir.path());
        assert_eq!(run(&program(1), &device, 5), expected, "{name}");
        assert_eq!(device.compilations(), COMPILED, "{name}");
        let said = said.lock().unwrap();
        assert!(said.len() == 1 && said[0].contains("made anew"), "{name}: {said:?}");
        let (again, said) = device_of(dir.path());
        assert_eq!(run(&program(1), &again, 5), expected, "{name}");
        assert_eq!((again.compilations(), said.lock().unwrap().len()), (CACHED, 0), "{name}");
    }
}

fn device_of(folder: &Path) -> (Device, Arc<Mutex<Vec<String>>>) {
    device(folder, OpenVinoPrecision::Exact)
}

#[test]
fn a_place_that_cannot_be_written_or_is_too_small_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let (device, said) = device_of(&file.join("below"));
    let expected = run(&program(1), &device, 4);
    assert_eq!(device.compilations(), COMPILED);
    let lines = said.lock().unwrap().clone();
    assert!(lines.len() == 1 && lines[0].contains("not kept for the next start"), "{lines:?}");

    let options = OpenVinoOptions { cache: Some(Store::new(dir.path(), 100)), ..Default::default() };
    let small = Device::new(Arc::new(OpenVino::new("CPU", options).unwrap()));
    assert_eq!(run(&program(1), &small, 4), expected);
    assert!(files(dir.path(), "blob").is_empty());
}

/// Sessions that start at once, as two processes would, on devices of their own.
#[test]
fn many_at_once_keep_one_and_all_are_right() {
    let dir = tempfile::tempdir().unwrap();
    let expected = run(&program(1), &device_of(dir.path()).0, 6);
    Store::new(dir.path(), 1 << 30).clear().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (device, said) = device_of(dir.path());
                assert_eq!(run(&program(1), &device, 6), expected);
                assert_eq!(*said.lock().unwrap(), Vec::<String>::new());
            });
        }
    });
    assert_eq!(files(dir.path(), "entry").len(), 1);
    let (after, _) = device_of(dir.path());
    assert_eq!(run(&program(1), &after, 6), expected);
    assert_eq!(after.compilations(), CACHED);
}

#[test]
fn watched_values_tell_their_range() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let to = said.clone();
    let options = OpenVinoOptions {
        debug_nodes: vec!["middle".into(), "none of this name".into()],
        notices: Notices::new(move |line| to.lock().unwrap().push(line.to_owned())),
        ..Default::default()
    };
    let device = Device::new(Arc::new(OpenVino::new("CPU", options).unwrap()));
    let weights =
        MemoryWeights::new().with("w", Tensor::from_slice(&[2, 2], &[1f32, 0.0, 0.0, 2.0]).unwrap());
    let mut g = GraphBuilder::new(Weights::new(Arc::new(weights)));
    let x = g.input(
        "x",
        ValueType::new(DType::F32, Shape::new([(Axis::T, Dim::from(T)), (Axis::D, Dim::from(2))])),
    );
    let w = g.weight("w", &[2, 2]).unwrap();
    let linear = || Linear { activation: Activation::None, bias: false, residual: None };
    let middle = g.apply(linear(), &[x, w]).unwrap();
    g.name(middle, "middle");
    let y = g.apply(linear(), &[middle, w]).unwrap();
    g.output("y", y);
    let program = Program::new(g.finish().unwrap());
    let mut session = Session::on(program, &device, Arc::new(Cpu::detect(Some(1)).unwrap())).unwrap();
    let x = Tensor::from_slice(&[1, 2], &[3f32, -4.0]).unwrap();
    session.run(&Bindings::new().with(T, 1), &[("x", x.view())]).unwrap();
    let line = "openvino:CPU: middle: f32 [1, 2], -8 to 3, mean -2.500000, 0 not finite";
    assert_eq!(*said.lock().unwrap(), [line]);
}
