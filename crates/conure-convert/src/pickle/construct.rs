//! What the allow-listed globals make: dictionaries, storages and tensors, never a call.

use super::machine::{Id, Machine, Node, short};
use super::{PickleErrorKind as Kind, ScalarType, Storage, TensorRef};

/// Elements that constructors may copy in all: a memoised list could be copied again with every few bytes.
const MAX_COPIES: usize = 4_000_000;
/// Axes of one tensor.
const MAX_RANK: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    RebuildTensor2,
    RebuildTensor3,
    RebuildParameter,
    Size,
    Storage(ScalarType),
    UntypedStorage,
    Dtype(ScalarType),
}

impl Global {
    /// The allow-list. Python 2 module names come from protocol-2 pickles.
    pub(super) fn find(module: &str, name: &str) -> Option<Global> {
        use ScalarType as S;
        Some(match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor2,
            ("torch._utils", "_rebuild_tensor_v3") => Global::RebuildTensor3,
            ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
            ("torch", "Size") => Global::Size,
            ("torch.storage", "UntypedStorage") | ("torch", "UntypedStorage") => Global::UntypedStorage,
            ("torch", "DoubleStorage") => Global::Storage(S::F64),
            ("torch", "FloatStorage") => Global::Storage(S::F32),
            ("torch", "HalfStorage") => Global::Storage(S::F16),
            ("torch", "BFloat16Storage") => Global::Storage(S::BF16),
            ("torch", "LongStorage") => Global::Storage(S::I64),
            ("torch", "IntStorage") => Global::Storage(S::I32),
            ("torch", "ShortStorage") => Global::Storage(S::I16),
            ("torch", "CharStorage") => Global::Storage(S::I8),
            ("torch", "ByteStorage") => Global::Storage(S::U8),
            ("torch", "BoolStorage") => Global::Storage(S::Bool),
            ("torch", "float64") => Global::Dtype(S::F64),
            ("torch", "float32") => Global::Dtype(S::F32),
            ("torch", "float16") => Global::Dtype(S::F16),
            ("torch", "bfloat16") => Global::Dtype(S::BF16),
            ("torch", "int64") => Global::Dtype(S::I64),
            ("torch", "int32") => Global::Dtype(S::I32),
            ("torch", "int16") => Global::Dtype(S::I16),
            ("torch", "int8") => Global::Dtype(S::I8),
            ("torch", "uint8") => Global::Dtype(S::U8),
            ("torch", "bool") => Global::Dtype(S::Bool),
            _ => return None,
        })
    }
}

impl Machine<'_> {
    /// The callables of the allow-list, as what they make.
    pub(super) fn reduce(&mut self) -> Result<(), Kind> {
        let args = self.pop("REDUCE")?;
        let callable = self.pop("REDUCE")?;
        let Some(Node::Tuple(args)) = self.nodes.get(args) else {
            return Err(Kind::Operand { opcode: "REDUCE", expected: "a tuple of arguments" });
        };
        let inner = match args.first().and_then(|&a| self.nodes.get(a)) {
            Some(Node::Tuple(items) | Node::List(items)) => items.len(),
            _ => 0,
        };
        self.copies = self.copies.saturating_add(args.len()).saturating_add(inner);
        if self.copies > MAX_COPIES {
            return Err(Kind::Limit { what: "copied values", limit: MAX_COPIES });
        }
        let args = args.clone();
        let node = match self.nodes.get(callable) {
            Some(Node::Global(Global::OrderedDict)) => Node::Dict(self.ordered_dict(&args)?),
            Some(Node::Global(Global::RebuildTensor2)) => self.tensor(&args, false)?,
            Some(Node::Global(Global::RebuildTensor3)) => self.tensor(&args, true)?,
            Some(Node::Global(Global::RebuildParameter)) => {
                match args.first().and_then(|&a| self.nodes.get(a)) {
                    Some(tensor @ Node::Tensor(_)) => tensor.clone(),
                    _ => {
                        return Err(Kind::Operand {
                            opcode: "REDUCE",
                            expected: "a tensor for _rebuild_parameter",
                        });
                    }
                }
            }
            Some(Node::Global(Global::Size)) => match args.first().and_then(|&a| self.nodes.get(a)) {
                Some(Node::Tuple(sizes) | Node::List(sizes)) => Node::Tuple(sizes.clone()),
                _ => return Err(Kind::Operand { opcode: "REDUCE", expected: "a tuple for torch.Size" }),
            },
            _ => return Err(Kind::Operand { opcode: "REDUCE", expected: "a constructor of the allow-list" }),
        };
        self.push(node)
    }

    fn ordered_dict(&self, args: &[Id]) -> Result<Vec<(Id, Id)>, Kind> {
        let bad =
            Kind::Operand { opcode: "REDUCE", expected: "no argument or a list of pairs for OrderedDict" };
        let items = match (args.len(), args.first().and_then(|&a| self.nodes.get(a))) {
            (0, _) => return Ok(Vec::new()),
            (1, Some(Node::List(items) | Node::Tuple(items))) => items,
            _ => return Err(bad),
        };
        let mut out = Vec::with_capacity(items.len());
        for &item in items {
            match self.nodes.get(item) {
                Some(Node::Tuple(pair) | Node::List(pair)) if pair.len() == 2 => out.push((pair[0], pair[1])),
                _ => return Err(bad),
            }
        }
        Ok(out)
    }

    /// BUILD sets attributes. Only dictionaries get any (`_metadata` of a state dict), and they are not kept.
    pub(super) fn build(&mut self) -> Result<(), Kind> {
        let state = self.pop("BUILD")?;
        let target = self.top("BUILD")?;
        match (self.nodes.get(target), self.nodes.get(state)) {
            (Some(Node::Dict(_)), Some(Node::Dict(_) | Node::None)) => Ok(()),
            _ => Err(Kind::Operand { opcode: "BUILD", expected: "a dictionary with attributes" }),
        }
    }

    /// `('storage', class, key, location, length)`.
    pub(super) fn persistent_id(&mut self) -> Result<(), Kind> {
        let id = self.pop("BINPERSID")?;
        let bad = |reason: &str| Kind::Storage(reason.to_owned());
        let Some(Node::Tuple(parts)) = self.nodes.get(id) else {
            return Err(bad("it is no tuple"));
        };
        let part = |i: usize| parts.get(i).and_then(|&p| self.nodes.get(p));
        if parts.len() != 5 || !matches!(part(0), Some(Node::Str(s)) if s == "storage") {
            return Err(bad("it is not ('storage', class, key, location, length)"));
        }
        let dtype = match part(1) {
            Some(Node::Global(Global::Storage(t))) => Some(*t),
            Some(Node::Global(Global::UntypedStorage)) => None,
            _ => return Err(bad("its class is no storage class")),
        };
        let key = match part(2) {
            Some(Node::Str(key)) if is_key(key) => key.clone(),
            _ => return Err(bad("its key is no plain name")),
        };
        if !matches!(part(3), Some(Node::Str(_))) {
            return Err(bad("its location is no string"));
        }
        let len = match part(4) {
            Some(Node::Int(n)) => u64::try_from(*n).map_err(|_| bad("its length is negative"))?,
            _ => return Err(bad("its length is no number")),
        };
        self.push(Node::Storage(Storage { key, dtype, len }))
    }

    /// `(storage, offset, size, stride, requires_grad, hooks[, dtype][, metadata])`.
    fn tensor(&self, args: &[Id], typed: bool) -> Result<Node, Kind> {
        let bad = |reason: &str| Kind::Tensor(reason.to_owned());
        let arg = |i: usize| args.get(i).and_then(|&a| self.nodes.get(a));
        let fixed = if typed { 7 } else { 6 };
        if args.len() < fixed || args.len() > fixed + 1 {
            return Err(bad("wrong number of arguments"));
        }
        let Some(Node::Storage(storage)) = arg(0) else {
            return Err(bad("its first argument is no storage"));
        };
        let Some(Node::Int(offset)) = arg(1) else {
            return Err(bad("its offset is no number"));
        };
        let offset = u64::try_from(*offset).map_err(|_| bad("its offset is negative"))?;
        let shape = self.lengths(arg(2)).ok_or_else(|| bad("its size is no tuple of at most 8 lengths"))?;
        let stride = self.lengths(arg(3)).ok_or_else(|| bad("its stride is no tuple of at most 8 steps"))?;
        let dtype = match (typed, arg(6), storage.dtype) {
            (true, Some(Node::Global(Global::Dtype(t))), _) => *t,
            (false, _, Some(t)) => t,
            _ => return Err(bad("its element type is not stated")),
        };
        let tensor = TensorRef { storage: storage.clone(), dtype, offset, shape, stride };
        check_inside(&tensor)?;
        Ok(Node::Tensor(Box::new(tensor)))
    }

    fn lengths(&self, node: Option<&Node>) -> Option<Vec<usize>> {
        let (Node::Tuple(items) | Node::List(items)) = node? else {
            return None;
        };
        if items.len() > MAX_RANK {
            return None;
        }
        items
            .iter()
            .map(|&i| match self.nodes.get(i) {
                Some(Node::Int(n)) => usize::try_from(*n).ok(),
                _ => None,
            })
            .collect()
    }

    /// The tensors of the dictionary `root`, or of its `state_dict`.
    pub(super) fn collect(&self, root: Id) -> Result<Vec<(String, TensorRef)>, Kind> {
        let Some(Node::Dict(mut entries)) = self.nodes.get(root).cloned() else {
            return Err(Kind::NotAStateDict);
        };
        let inner = entries.iter().find_map(|&(k, v)| match (self.nodes.get(k), self.nodes.get(v)) {
            (Some(Node::Str(key)), Some(Node::Dict(inner))) if key == "state_dict" => Some(inner.clone()),
            _ => None,
        });
        entries = inner.unwrap_or(entries);
        let mut out = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for (key, value) in entries {
            if let (Some(Node::Str(name)), Some(Node::Tensor(tensor))) =
                (self.nodes.get(key), self.nodes.get(value))
            {
                if !seen.insert(name.as_str()) {
                    return Err(Kind::DuplicateName(short(name)));
                }
                out.push((name.clone(), tensor.as_ref().clone()));
            }
        }
        if out.is_empty() { Err(Kind::NotAStateDict) } else { Ok(out) }
    }
}

/// Whether the window lies in its storage and has no more elements than it.
fn check_inside(tensor: &TensorRef) -> Result<(), Kind> {
    let bad = |reason: String| Kind::Tensor(reason);
    let size = tensor.dtype.size() as u64;
    let storage = match tensor.storage.dtype {
        Some(stored) if stored != tensor.dtype => {
            return Err(bad(format!("it reads a storage of {stored:?} as {:?}", tensor.dtype)));
        }
        Some(_) => tensor.storage.len,
        None => tensor.storage.len / size,
    };
    if tensor.shape.len() != tensor.stride.len() {
        return Err(bad(format!("size {:?} and stride {:?} differ in length", tensor.shape, tensor.stride)));
    }
    let elements = tensor.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
    let last = if elements == Some(0) {
        Some(tensor.offset)
    } else {
        tensor
            .shape
            .iter()
            .zip(&tensor.stride)
            .try_fold(tensor.offset, |at, (&n, &s)| at.checked_add((n as u64 - 1).checked_mul(s as u64)?))
    };
    let inside = match (elements, last) {
        (Some(0), Some(last)) => last <= storage,
        (Some(n), Some(last)) => n <= storage && last < storage,
        _ => false,
    };
    if inside {
        return Ok(());
    }
    Err(bad(format!(
        "size {:?}, stride {:?}, offset {} reach past its storage `{}` of {storage} elements",
        tensor.shape, tensor.stride, tensor.offset, tensor.storage.key
    )))
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.len() <= 64 && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
