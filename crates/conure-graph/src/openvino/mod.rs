//! OpenVINO as a device: graphs become its models, whole or in the pieces that it takes.
//!
//! One model serves any length: lengths that runs decide are left open in it, and what a model needs to know of them (the
//! shape of a reshape, the end of a slice) comes in as small inputs. Inputs and outputs are the session's own memory, states
//! are inputs and outputs that the execution keeps. What lengths alone decide and costs much (the positions that attention
//! meets) is left to a small model beside it, which runs when lengths change (`kept.rs`).

mod cache;
mod cache_layers;
mod caches;
mod compile;
mod emit;
mod execution;
mod fixed;
mod kept;
mod lower;
mod options;
mod self_test;
mod variables;
mod weights;

pub use options::{Notices, OpenVinoOptions, OpenVinoPrecision};
pub use variables::VariableError;

use crate::backend::{Backend, Compilations, Compiled, Execution};
use crate::device::DeviceInfo;
use crate::error::GraphError;
use crate::graph::{Def, Graph, Node, NodeOp};
use conure_device::openvino::{CompiledModel, Runtime};
use conure_kernels::Cpu;
use conure_ops::ValueType;
use conure_tensor::{Bindings, DType};
use execution::OpenVinoExecution;
use fixed::FixedPiece;
use lower::Lowered;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// A device of OpenVINO.
#[derive(Clone, Debug)]
pub struct OpenVino {
    info: DeviceInfo,
    /// OpenVINO's own name for it.
    device: String,
    options: OpenVinoOptions,
    runtime: Arc<Runtime>,
    /// OpenVINO's description of the device and what it can do: a compiled model is of no use on another.
    identity: String,
    counts: Arc<Counts>,
}

/// Pieces compiled, and taken from the cache.
#[derive(Debug, Default)]
struct Counts {
    compiled: AtomicUsize,
    cached: AtomicUsize,
    /// The precisions that they are in, a bit each.
    precisions: AtomicU8,
}

impl OpenVino {
    /// The device of this name in OpenVINO's own spelling: `CPU`, `GPU.1`, `NPU`.
    ///
    /// # Errors
    /// That there is no OpenVINO, or no such device.
    pub fn new(device: &str, options: OpenVinoOptions) -> Result<OpenVino, GraphError> {
        let name = format!("openvino:{device}");
        let failed = |what: String| GraphError::Device { device: name.clone(), what };
        let runtime = Runtime::get().map_err(|e| failed(e.to_string()))?;
        let description = runtime.property(device, "FULL_DEVICE_NAME").map_err(|e| failed(e.to_string()))?;
        let capabilities = runtime.property(device, "OPTIMIZATION_CAPABILITIES").unwrap_or_default();
        let kind = match device {
            "NPU" => "npu",
            d if d.starts_with("GPU") => {
                let kind = runtime.property(device, "DEVICE_TYPE").unwrap_or_default();
                if kind.eq_ignore_ascii_case("discrete") { "gpu" } else { "integrated-gpu" }
            }
            _ => "cpu",
        };
        if device == "CPU" {
            let (key, value) = KERNELS_KEPT;
            runtime.prefer(device, key, value).map_err(|e| failed(e.to_string()))?;
        }
        let identity = format!("{description} {capabilities}");
        let memory = runtime.property(device, "GPU_DEVICE_TOTAL_MEM_SIZE").ok().and_then(|m| m.parse().ok());
        let info = DeviceInfo {
            name: name.clone(),
            kind,
            description: format!("{description}, OpenVINO {}", short(runtime.version())),
            capabilities: capabilities.split_whitespace().map(str::to_ascii_lowercase).collect(),
            memory,
            threads: conure_kernels::Threads::default_count(),
            unavailable: None,
        };
        // On the processor its fused attention reads long prompts at a third of the rate of products (`docs/openvino.md`).
        let stateful = Some(options.stateful.unwrap_or(false));
        // An NPU compiles nothing else.
        let fixed = Some(options.fixed.unwrap_or(device == "NPU"));
        let options = OpenVinoOptions { stateful, fixed, ..options };
        let (device, runtime) = (device.to_owned(), runtime.clone());
        Ok(OpenVino { info, device, options, runtime, identity, counts: Arc::default() })
    }

    /// All devices of OpenVINO on this machine. Without OpenVINO, or where it fails, what stands for them in the list of
    /// devices, with the reason.
    pub fn probe(options: &OpenVinoOptions) -> (Vec<OpenVino>, Vec<DeviceInfo>) {
        let devices = match Runtime::get() {
            Ok(runtime) => runtime.devices().map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match devices {
            Err(why) => (Vec::new(), vec![unavailable("openvino:CPU", "cpu", why)]),
            Ok(names) => {
                let (mut found, mut lacking) = (Vec::new(), Vec::new());
                for name in names {
                    match OpenVino::new(&name, options.clone()) {
                        Ok(device) => found.push(device),
                        Err(e) => {
                            lacking.push(unavailable(&format!("openvino:{name}"), "cpu", e.to_string()))
                        }
                    }
                }
                (found, lacking)
            }
        }
    }
}

/// How many kernels the processor's plugin keeps that were made for lengths of earlier runs. Its own bound is 5000: over
/// recordings of random lengths memory grows by 0.7 to 1.0 MB with each (`conure bench lengths embedded --device openvino:CPU
/// --decoder ctc`), to gigabytes on a server. With 16 it stays where it was after some hundred; a length that was not the
/// one before then costs kernels of its own, which takes a third of the time of recordings of 10 s with the small model
/// (33.7 s of processor time for 400, against 25.6 s with 5000 and 50.0 s with none), and nothing where lengths are equal.
const KERNELS_KEPT: (&str, &str) = ("CPU_RUNTIME_CACHE_CAPACITY", "16");

pub(crate) fn unavailable(name: &str, kind: &'static str, why: String) -> DeviceInfo {
    DeviceInfo {
        name: name.to_owned(),
        kind,
        description: "OpenVINO".into(),
        capabilities: Vec::new(),
        memory: None,
        threads: 0,
        unavailable: Some(why),
    }
}

/// `2026.4.1` of `2026.4.1-22109-...`.
fn short(version: &str) -> &str {
    version.split('-').next().unwrap_or(version)
}

impl OpenVino {
    fn is_fixed(&self) -> bool {
        self.options.fixed.unwrap_or(false)
    }

    /// The piece, for runs of these lengths or for any.
    fn make(&self, piece: &Graph, fixed: Option<&Bindings>) -> Result<OpenVinoPiece, GraphError> {
        let made = compile::safest(&self.options, |options| self.compile_for(piece, options, fixed))
            .map_err(|what| GraphError::Device { device: self.info.name.clone(), what })?;
        self.counts.precisions.fetch_or(made.options.precision.bit(), Ordering::Relaxed);
        Ok(made)
    }
}

impl Backend for OpenVino {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn supports(&self, graph: &Graph, node: &Node) -> Result<(), String> {
        supports(graph, node)
    }

    fn compile(&self, piece: &Graph) -> Result<Arc<dyn Compiled>, GraphError> {
        if self.is_fixed() {
            return Ok(Arc::new(FixedPiece::new(self.clone(), piece.clone())));
        }
        Ok(Arc::new(self.make(piece, None)?))
    }

    fn chunk(&self) -> Option<usize> {
        self.is_fixed().then(|| self.options.chunk())
    }

    fn precision(&self) -> Option<String> {
        Some(OpenVinoPrecision::names(self.counts.precisions.load(Ordering::Relaxed), self.options.precision))
    }

    fn compilations(&self) -> Compilations {
        Compilations {
            compiled: self.counts.compiled.load(Ordering::Relaxed),
            cached: self.counts.cached.load(Ordering::Relaxed),
        }
    }
}

/// Whether the node can be written as layers.
fn supports(graph: &Graph, node: &Node) -> Result<(), String> {
    let types: Option<Vec<&ValueType>> = node.inputs.iter().map(|v| graph.value(*v).map(|v| &v.ty)).collect();
    let types = types.ok_or("an input is not of this graph")?;
    let is_fixed = |v: &crate::graph::ValueId| {
        matches!(graph.value(*v).map(|v| &v.def), Some(Def::Weight(_) | Def::Constant(_)))
    };
    let fixed: Vec<bool> = node.inputs.iter().map(is_fixed).collect();
    for (ty, fixed) in types.iter().zip(&fixed) {
        if ty.dtype.is_quantised() && !fixed {
            return Err(format!("{} that is computed", ty.dtype));
        }
    }
    let outputs = node.outputs.iter().filter_map(|v| graph.value(*v).map(|v| &v.ty));
    if types.iter().any(|ty| ty.dtype == DType::I64) {
        return Err("integers of 64 bits, which the device narrows to 32".into());
    }
    if types.iter().copied().chain(outputs).any(is_empty) {
        return Err("a tensor of no elements, which OpenVINO does not survive".into());
    }
    match &node.op {
        NodeOp::Op(op) => match op.openvino() {
            Some(lowering) => lowering.supports(&types, &fixed),
            None => Err("there is no OpenVINO form of it".into()),
        },
        NodeOp::TileTime(tile) => tile
            .body
            .nodes()
            .iter()
            .try_for_each(|n| supports(&tile.body, n).map_err(|e| format!("{}: {e}", n.path))),
        NodeOp::Append(state) => match graph.states().get(*state).map(|s| s.ty.dtype) {
            Some(DType::F32 | DType::F16 | DType::BF16 | DType::I32) => Ok(()),
            Some(dtype) => Err(format!("a state of {dtype} cannot be written to")),
            None => Err("the state is not of this graph".into()),
        },
        NodeOp::Piece(_) => Err("it is placed already".into()),
    }
}

/// Whether a tensor has no elements whatever a run binds.
fn is_empty(ty: &ValueType) -> bool {
    ty.shape.iter().any(|(_, d)| d.as_constant() == Some(0))
}

/// What a piece is compiled to.
#[derive(Clone, Debug)]
struct Models {
    main: Arc<CompiledModel>,
    /// Makes of lengths what the other takes besides the piece's inputs.
    kept: Option<Arc<CompiledModel>>,
}

/// A piece compiled by OpenVINO.
#[derive(Debug)]
struct OpenVinoPiece {
    models: Models,
    lowered: Arc<Lowered>,
    graph: Graph,
    device: String,
    options: OpenVinoOptions,
}

impl OpenVinoPiece {
    fn execution(&self) -> Result<OpenVinoExecution, GraphError> {
        let (lowered, device) = (self.lowered.clone(), self.device.clone());
        OpenVinoExecution::new(&self.models, lowered, &self.graph, device, &self.options)
    }
}

impl Compiled for OpenVinoPiece {
    fn start(&self, _cpu: &Arc<Cpu>) -> Result<Box<dyn Execution>, GraphError> {
        Ok(Box::new(self.execution()?))
    }
}
