//! A pickle reader that can only make data.
//!
//! A pickle is a program for a stack machine that may name any Python function and call it. This machine knows the
//! opcodes that `torch.save` writes for a state dict, and eight kinds of global that it replaces by plain records;
//! there is nothing else it could call. Everything else is refused by name. Values live in one list and refer to each
//! other by index, so that a pickle that contains itself neither recurses nor leaks.
//!
//! Layout of pickles: Python's `pickletools`; what torch writes: `torch/_utils.py` (`_rebuild_tensor_v2`).

use std::collections::HashMap;

/// Values one pickle may make; a state dict of a thousand tensors makes twenty thousand.
const MAX_NODES: usize = 1_000_000;
const MAX_STACK: usize = 1_000_000;
const MAX_MARKS: usize = 1_000;
/// Elements that constructors may copy in all: a memoised list could be copied again with every few bytes.
const MAX_COPIES: usize = 4_000_000;
/// Axes of one tensor.
const MAX_RANK: usize = 8;

/// The element type of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ScalarType {
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl ScalarType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            ScalarType::F64 | ScalarType::I64 => 8,
            ScalarType::F32 | ScalarType::I32 => 4,
            ScalarType::F16 | ScalarType::BF16 | ScalarType::I16 => 2,
            ScalarType::I8 | ScalarType::U8 | ScalarType::Bool => 1,
        }
    }
}

/// A storage by its key in the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Name of the archive entry under `data/`.
    pub key: String,
    /// Element type; `None` for an untyped storage, whose length is in bytes.
    pub dtype: Option<ScalarType>,
    /// Number of elements.
    pub len: u64,
}

/// A tensor: a strided window of a storage, checked to lie inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRef {
    /// Where its elements are.
    pub storage: Storage,
    /// Element type.
    pub dtype: ScalarType,
    /// First element.
    pub offset: u64,
    /// Lengths, slowest axis first.
    pub shape: Vec<usize>,
    /// Elements from one index to the next, per axis.
    pub stride: Vec<usize>,
}

impl TensorRef {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the elements lie one after another in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1usize;
        self.shape.iter().zip(&self.stride).rev().all(|(&n, &s)| {
            let fits = n == 1 || s == expected;
            expected = expected.saturating_mul(n);
            fits
        })
    }

    /// Elements from the first to the last, both included.
    pub fn span(&self) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        1 + self.shape.iter().zip(&self.stride).map(|(&n, &s)| (n - 1) * s).sum::<usize>()
    }
}

/// What is wrong, and at which byte of the pickle.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("pickle refused at byte {offset}: {kind}")]
pub struct PickleError {
    /// Byte of the opcode.
    pub offset: usize,
    /// What is wrong.
    pub kind: PickleErrorKind,
}

/// Why a pickle is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleErrorKind {
    /// It ends without STOP or inside an argument.
    #[error("it ends too early")]
    Truncated,
    /// An opcode that this reader does not know.
    #[error("opcode 0x{0:02x} is unknown")]
    UnknownOpcode(u8),
    /// An opcode that a state dict does not need.
    #[error("opcode {0} is not used by a state dict")]
    ForbiddenOpcode(&'static str),
    /// A global that a state dict does not need. Nothing was imported or called.
    #[error(
        "it names the Python object `{module}.{name}`, which no state dict needs (nothing was imported or run); \
         save the weights alone, with NeMo's save_to() or torch.save(model.state_dict())"
    )]
    ForbiddenGlobal {
        /// Its module.
        module: String,
        /// Its name.
        name: String,
    },
    /// A protocol older or newer than those understood.
    #[error("pickle protocol {0} is not read (2 to 4 are)")]
    Protocol(u8),
    /// An operand is missing or of another type.
    #[error("{opcode} expected {expected}")]
    Operand {
        /// The opcode.
        opcode: &'static str,
        /// What it needs.
        expected: &'static str,
    },
    /// A memo entry that was never stored.
    #[error("memo entry {0} does not exist")]
    Memo(u64),
    /// Text that is not UTF-8.
    #[error("a string is not UTF-8")]
    Utf8,
    /// Too much of something.
    #[error("more than {limit} {what}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many are allowed.
        limit: usize,
    },
    /// A storage reference that cannot be true.
    #[error("storage reference: {0}")]
    Storage(String),
    /// A tensor that does not lie in its storage.
    #[error("tensor: {0}")]
    Tensor(String),
    /// The result is no dictionary of tensors.
    #[error("it holds no state dict (a dictionary from names to tensors)")]
    NotAStateDict,
    /// A name comes twice.
    #[error("tensor `{0}` comes twice")]
    DuplicateName(String),
}

use PickleErrorKind as Kind;

type Id = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Global {
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
    fn find(module: &str, name: &str) -> Option<Global> {
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

#[derive(Clone, Debug)]
enum Node {
    None,
    Bool,
    Int(i64),
    Float,
    Bytes,
    Str(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Global),
    Storage(Storage),
    Tensor(Box<TensorRef>),
}

/// Reads a pickled state dict: its tensors by name, in the order of the dictionary. A checkpoint that keeps the
/// state dict under the key `state_dict` is read too. Values that are no tensors are left out.
///
/// # Errors
/// [`PickleError`] for anything but a state dict; see the module.
pub fn state_dict(bytes: &[u8]) -> Result<Vec<(String, TensorRef)>, PickleError> {
    let mut machine = Machine {
        bytes,
        at: 0,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        copies: 0,
    };
    let mut opcode_at = 0;
    machine
        .run(&mut opcode_at)
        .and_then(|root| machine.collect(root))
        .map_err(|kind| PickleError { offset: opcode_at, kind })
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Heights of the stack at each MARK.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
    copies: usize,
}

impl Machine<'_> {
    /// Runs to STOP and gives what is on top of the stack.
    fn run(&mut self, opcode_at: &mut usize) -> Result<Id, Kind> {
        loop {
            *opcode_at = self.at;
            let opcode = self.u8()?;
            if opcode == b'.' {
                return self.pop("STOP");
            }
            self.step(opcode)?;
        }
    }

    fn step(&mut self, opcode: u8) -> Result<(), Kind> {
        match opcode {
            0x80 => match self.u8()? {
                2..=4 => Ok(()),
                other => Err(Kind::Protocol(other)),
            },
            // FRAME: only a hint to buffered readers.
            0x95 => {
                let n = self.u64()?;
                if n > (self.bytes.len() - self.at) as u64 { Err(Kind::Truncated) } else { Ok(()) }
            }
            b'(' => {
                if self.marks.len() >= MAX_MARKS {
                    return Err(Kind::Limit { what: "nested marks", limit: MAX_MARKS });
                }
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => self.pop("POP").map(drop),
            b'1' => self.pop_mark("POP_MARK").map(drop),
            b'2' => {
                let top = self.top("DUP")?;
                self.push_id(top)
            }
            b'N' => self.push(Node::None),
            0x88 | 0x89 => self.push(Node::Bool),
            b'J' | b'K' | b'M' | 0x8a | b'G' => self.number(opcode),
            b'X' | 0x8c | 0x8d | b'T' | b'U' | b'B' | b'C' | 0x8e => self.text(opcode),
            b')' | b't' | 0x85 | 0x86 | 0x87 | b']' | b'l' | b'}' | b'd' => self.container(opcode),
            b'a' | b'e' | b's' | b'u' => self.fill(opcode),
            b'c' | 0x93 => self.global(opcode),
            b'R' => self.reduce(),
            b'b' => self.build(),
            b'Q' => self.persistent_id(),
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.memo_op(opcode),
            other => Err(forbidden(other)),
        }
    }

    fn take(&mut self, n: usize) -> Result<&[u8], Kind> {
        let end = self.at.checked_add(n).ok_or(Kind::Truncated)?;
        let part = self.bytes.get(self.at..end).ok_or(Kind::Truncated)?;
        self.at = end;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Kind> {
        self.take(N)?.try_into().map_err(|_| Kind::Truncated)
    }

    fn u8(&mut self) -> Result<u8, Kind> {
        self.array::<1>().map(|[b]| b)
    }

    fn u32(&mut self) -> Result<u32, Kind> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Kind> {
        self.array().map(u64::from_le_bytes)
    }

    fn line(&mut self) -> Result<String, Kind> {
        let rest = &self.bytes[self.at..];
        let n = rest.iter().take(1024).position(|&b| b == b'\n').ok_or(Kind::Truncated)?;
        let line = std::str::from_utf8(&rest[..n]).map_err(|_| Kind::Utf8)?.to_owned();
        self.at += n + 1;
        Ok(line)
    }

    fn push_id(&mut self, id: Id) -> Result<(), Kind> {
        if self.stack.len() >= MAX_STACK {
            return Err(Kind::Limit { what: "values on the stack", limit: MAX_STACK });
        }
        self.stack.push(id);
        Ok(())
    }

    fn push(&mut self, node: Node) -> Result<(), Kind> {
        if self.nodes.len() >= MAX_NODES {
            return Err(Kind::Limit { what: "values", limit: MAX_NODES });
        }
        self.nodes.push(node);
        self.push_id(self.nodes.len() - 1)
    }

    /// The height below which the current opcode may not reach.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self, opcode: &'static str) -> Result<Id, Kind> {
        if self.stack.len() <= self.floor() {
            return Err(Kind::Operand { opcode, expected: "a value on the stack" });
        }
        self.stack.pop().ok_or(Kind::Operand { opcode, expected: "a value on the stack" })
    }

    fn top(&self, opcode: &'static str) -> Result<Id, Kind> {
        if self.stack.len() <= self.floor() {
            return Err(Kind::Operand { opcode, expected: "a value on the stack" });
        }
        self.stack.last().copied().ok_or(Kind::Operand { opcode, expected: "a value on the stack" })
    }

    fn pop_mark(&mut self, opcode: &'static str) -> Result<Vec<Id>, Kind> {
        let mark = self.marks.pop().ok_or(Kind::Operand { opcode, expected: "a MARK before it" })?;
        Ok(self.stack.split_off(mark))
    }

    fn number(&mut self, opcode: u8) -> Result<(), Kind> {
        let value = match opcode {
            b'J' => i64::from(i32::from_le_bytes(self.array()?)),
            b'K' => i64::from(self.u8()?),
            b'M' => i64::from(u16::from_le_bytes(self.array()?)),
            b'G' => {
                self.take(8)?;
                return self.push(Node::Float);
            }
            _ => {
                // LONG1: little-endian two's complement of up to 255 bytes; a size fits in 8.
                let n = usize::from(self.u8()?);
                let digits = self.take(n)?;
                if n > 8 {
                    return Err(Kind::Operand { opcode: "LONG1", expected: "a number that fits in 64 bits" });
                }
                let fill = if digits.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
                let mut wide = [fill; 8];
                wide[..n].copy_from_slice(digits);
                i64::from_le_bytes(wide)
            }
        };
        self.push(Node::Int(value))
    }

    fn text(&mut self, opcode: u8) -> Result<(), Kind> {
        let n = match opcode {
            b'X' | b'T' | b'B' => u64::from(self.u32()?),
            0x8d | 0x8e => self.u64()?,
            _ => u64::from(self.u8()?),
        };
        let bytes = self.take(usize::try_from(n).map_err(|_| Kind::Truncated)?)?;
        let node = match opcode {
            b'B' | b'C' | 0x8e => Node::Bytes,
            _ => Node::Str(std::str::from_utf8(bytes).map_err(|_| Kind::Utf8)?.to_owned()),
        };
        self.push(node)
    }

    fn container(&mut self, opcode: u8) -> Result<(), Kind> {
        let node = match opcode {
            b')' => Node::Tuple(Vec::new()),
            b']' => Node::List(Vec::new()),
            b'}' => Node::Dict(Vec::new()),
            b't' => Node::Tuple(self.pop_mark("TUPLE")?),
            b'l' => Node::List(self.pop_mark("LIST")?),
            b'd' => Node::Dict(pairs("DICT", &self.pop_mark("DICT")?)?),
            _ => {
                let n = usize::from(opcode - 0x84);
                let mut items = Vec::with_capacity(n);
                for _ in 0..n {
                    items.push(self.pop("TUPLE")?);
                }
                items.reverse();
                Node::Tuple(items)
            }
        };
        self.push(node)
    }

    /// APPEND, APPENDS, SETITEM, SETITEMS.
    fn fill(&mut self, opcode: u8) -> Result<(), Kind> {
        let (name, items) = match opcode {
            b'a' => ("APPEND", vec![self.pop("APPEND")?]),
            b'e' => ("APPENDS", self.pop_mark("APPENDS")?),
            b'u' => ("SETITEMS", self.pop_mark("SETITEMS")?),
            _ => {
                let value = self.pop("SETITEM")?;
                ("SETITEM", vec![self.pop("SETITEM")?, value])
            }
        };
        let target = self.top(name)?;
        match (self.nodes.get_mut(target), opcode) {
            (Some(Node::List(list)), b'a' | b'e') => list.extend(items),
            (Some(Node::Dict(dict)), b's' | b'u') => dict.extend(pairs(name, &items)?),
            (_, b'a' | b'e') => return Err(Kind::Operand { opcode: name, expected: "a list" }),
            _ => return Err(Kind::Operand { opcode: name, expected: "a dictionary" }),
        }
        Ok(())
    }

    fn global(&mut self, opcode: u8) -> Result<(), Kind> {
        let (module, name) = if opcode == b'c' {
            (self.line()?, self.line()?)
        } else {
            let name = self.pop("STACK_GLOBAL")?;
            let module = self.pop("STACK_GLOBAL")?;
            match (self.nodes.get(module), self.nodes.get(name)) {
                (Some(Node::Str(m)), Some(Node::Str(n))) => (m.clone(), n.clone()),
                _ => return Err(Kind::Operand { opcode: "STACK_GLOBAL", expected: "two strings" }),
            }
        };
        let global = Global::find(&module, &name)
            .ok_or_else(|| Kind::ForbiddenGlobal { module: short(&module), name: short(&name) })?;
        self.push(Node::Global(global))
    }

    fn memo_op(&mut self, opcode: u8) -> Result<(), Kind> {
        let index = match opcode {
            b'q' | b'h' => u64::from(self.u8()?),
            b'r' | b'j' => u64::from(self.u32()?),
            _ => self.memo.len() as u64,
        };
        if matches!(opcode, b'h' | b'j') {
            let id = *self.memo.get(&index).ok_or(Kind::Memo(index))?;
            return self.push_id(id);
        }
        if self.memo.len() >= MAX_NODES {
            return Err(Kind::Limit { what: "memo entries", limit: MAX_NODES });
        }
        let top = self.top("PUT")?;
        self.memo.insert(index, top);
        Ok(())
    }

    /// The callables of the allow-list, as what they make.
    fn reduce(&mut self) -> Result<(), Kind> {
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
    fn build(&mut self) -> Result<(), Kind> {
        let state = self.pop("BUILD")?;
        let target = self.top("BUILD")?;
        match (self.nodes.get(target), self.nodes.get(state)) {
            (Some(Node::Dict(_)), Some(Node::Dict(_) | Node::None)) => Ok(()),
            _ => Err(Kind::Operand { opcode: "BUILD", expected: "a dictionary with attributes" }),
        }
    }

    /// `('storage', class, key, location, length)`.
    fn persistent_id(&mut self) -> Result<(), Kind> {
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
    fn collect(&self, root: Id) -> Result<Vec<(String, TensorRef)>, Kind> {
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

fn pairs(opcode: &'static str, items: &[Id]) -> Result<Vec<(Id, Id)>, Kind> {
    if !items.len().is_multiple_of(2) {
        return Err(Kind::Operand { opcode, expected: "a value for every key" });
    }
    Ok(items.chunks_exact(2).map(|p| (p[0], p[1])).collect())
}

fn is_key(key: &str) -> bool {
    !key.is_empty() && key.len() <= 64 && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn short(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_default).collect()
}

/// The error for an opcode outside the list, by its name where Python has one.
fn forbidden(opcode: u8) -> Kind {
    Kind::ForbiddenOpcode(match opcode {
        b'i' => "INST",
        b'o' => "OBJ",
        b'P' => "PERSID",
        b'p' => "PUT",
        b'g' => "GET",
        b'I' => "INT",
        b'L' => "LONG",
        b'F' => "FLOAT",
        b'S' => "STRING",
        b'V' => "UNICODE",
        0x81 => "NEWOBJ",
        0x82 => "EXT1",
        0x83 => "EXT2",
        0x84 => "EXT4",
        0x8b => "LONG4",
        0x8f => "EMPTY_SET",
        0x90 => "ADDITEMS",
        0x91 => "FROZENSET",
        0x92 => "NEWOBJ_EX",
        0x96 => "BYTEARRAY8",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        other => return Kind::UnknownOpcode(other),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `{'w': tensor}` with these pieces as a protocol-2 pickle.
    fn pickle(storage: &str, len: i32, offset: i32, shape: &[i32], stride: &[i32]) -> Vec<u8> {
        let mut p = b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage".to_vec();
        p.extend_from_slice(format!("ctorch\n{storage}\n").as_bytes());
        p.extend_from_slice(b"X\x01\0\0\x000X\x03\0\0\0cpu");
        let int = |p: &mut Vec<u8>, n: i32| {
            p.push(b'J');
            p.extend_from_slice(&n.to_le_bytes());
        };
        int(&mut p, len);
        p.extend_from_slice(b"tQ");
        int(&mut p, offset);
        for list in [shape, stride] {
            p.push(b'(');
            list.iter().for_each(|&n| int(&mut p, n));
            p.push(b't');
        }
        p.extend_from_slice(b"\x89ccollections\nOrderedDict\n)RtRs.");
        p
    }

    #[test]
    fn reads_a_state_dict() {
        let got = state_dict(&pickle("HalfStorage", 12, 2, &[2, 5], &[5, 1])).unwrap();
        assert_eq!(got.len(), 1);
        let (name, t) = &got[0];
        assert_eq!((name.as_str(), t.dtype, t.offset, t.storage.len), ("w", ScalarType::F16, 2, 12));
        assert!(t.is_contiguous());
        assert_eq!((t.elements(), t.span()), (10, 10));
        let (_, t) = &state_dict(&pickle("FloatStorage", 10, 0, &[5, 2], &[1, 5])).unwrap()[0];
        assert!(!t.is_contiguous());
        let (_, t) = &state_dict(&pickle("LongStorage", 1, 0, &[], &[])).unwrap()[0];
        assert_eq!((t.elements(), t.is_contiguous()), (1, true));
    }

    #[test]
    fn reads_protocol_4_and_a_nested_state_dict() {
        let inner = pickle("FloatStorage", 4, 0, &[4], &[1]);
        let inner = &inner[2..inner.len() - 1];
        let mut p = b"\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94\x8c\x0astate_dict\x94".to_vec();
        p.extend_from_slice(inner);
        p.extend_from_slice(b"\x8c\x05epochK\x03\x8c\x0bcollections\x8c\x0bOrderedDict\x93)R0\x94h\x00");
        p.truncate(p.len() - 3);
        p.extend_from_slice(b"ss.");
        // The first `s` sets epoch in the inner dict, the second the inner dict in the outer one.
        let got = state_dict(&p).unwrap();
        assert_eq!(got.len(), 1);
    }

    #[test]
    fn refuses_hostile_pickles() {
        let deep_marks = [vec![b'('; 100_000], b".".to_vec()].concat();
        let many_values = [vec![b'N'; 2_000_000], b".".to_vec()].concat();
        let long_stack = [b"N".to_vec(), vec![b'2'; 2_000_000], b".".to_vec()].concat();
        let huge_string = b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx.".to_vec();
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("`os.system`", b"cos\nsystem\n(S'id'\ntR.".to_vec()),
            ("`posix.system`", b"\x80\x02cposix\nsystem\nX\x02\0\0\0id\x85R.".to_vec()),
            ("`builtins.eval`", b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.".to_vec()),
            ("`torch.storage._load_from_bytes`", b"ctorch.storage\n_load_from_bytes\n.".to_vec()),
            ("`torch._utils._rebuild_tensor`", b"ctorch._utils\n_rebuild_tensor\n.".to_vec()),
            ("`collections.OrderedDict.x`", b"ccollections\nOrderedDict.x\n.".to_vec()),
            (
                "INST",
                b"(S'id'\nios\nsystem\n.".to_vec()[..1].iter().chain(b"ios\nsystem\n.").copied().collect(),
            ),
            ("OBJ", b"(o.".to_vec()),
            ("NEWOBJ", b"ccollections\nOrderedDict\n)\x81.".to_vec()),
            ("NEWOBJ_EX", b"ccollections\nOrderedDict\n)}\x92.".to_vec()),
            ("EXT1", b"\x82\x01.".to_vec()),
            ("EXT4", b"\x84\x01\0\0\0.".to_vec()),
            ("PERSID", b"Pabc\n.".to_vec()),
            ("LONG4", b"\x8b\xff\xff\xff\x7f.".to_vec()),
            ("NEXT_BUFFER", b"\x97.".to_vec()),
            ("0xff", b"\xff.".to_vec()),
            ("protocol 5", b"\x80\x05N.".to_vec()),
            ("protocol 0", b"\x80\x00N.".to_vec()),
            ("constructor of the allow-list", b"ctorch\nFloatStorage\n)R.".to_vec()),
            ("constructor of the allow-list", b"K\x01)R.".to_vec()),
            ("BUILD expected", b"ctorch\nFloatStorage\n}b.".to_vec()),
            ("BUILD expected", b"}K\x01b.".to_vec()),
            ("memo entry 7", b"h\x07.".to_vec()),
            ("no state dict", b"].".to_vec()),
            ("no state dict", b"}.".to_vec()),
            ("too early", b"}".to_vec()),
            ("too early", b"\x80\x02X\xff\xff\xff\xffabc".to_vec()),
            ("too early", huge_string),
            ("UTF-8", b"X\x01\0\0\0\xff.".to_vec()),
            ("value on the stack", b"(0.".to_vec()),
            ("value on the stack", b".".to_vec()),
            ("a MARK", b"t.".to_vec()),
            ("value for every key", b"}(K\x01u.".to_vec()),
            ("a dictionary", b"](K\x01K\x02u.".to_vec()),
            ("64 bits", b"\x8a\x09\x01\0\0\0\0\0\0\0\x01.".to_vec()),
            ("nested marks", deep_marks),
            ("1000000 values", many_values),
            ("values on the stack", long_stack),
            // lists that contain themselves
            ("no state dict", b"]q\x00h\x00a.".to_vec()),
            ("no state dict", b"}q\x00X\x01\0\0\0wh\x00s.".to_vec()),
            ("no state dict", b"}q\x00X\x0a\0\0\0state_dicth\x00s.".to_vec()),
            // a long memoised list copied again and again
            ("copied values", {
                let mut p = b"ccollections\nOrderedDict\nq\x00](".to_vec();
                p.extend_from_slice(&b"NN\x86".repeat(100_000));
                p.extend_from_slice(b"e\x85q\x01");
                p.extend_from_slice(&b"h\x00h\x01R".repeat(100_000));
                p
            }),
            // a bad storage reference
            ("no tuple", b"X\x01\0\0\0xQ.".to_vec()),
            (
                "not ('storage'",
                b"(X\x06\0\0\0modulectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x01tQ.".to_vec(),
            ),
            ("no storage class", b"(X\x07\0\0\0storageNX\x01\0\0\x000X\x03\0\0\0cpuK\x01tQ.".to_vec()),
            (
                "no plain name",
                b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x04\0\0\0../aX\x03\0\0\0cpuK\x01tQ.".to_vec(),
            ),
            (
                "negative",
                b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuJ\xff\xff\xff\xfftQ."
                    .to_vec(),
            ),
            // tensors outside their storage
            ("past its storage", pickle("FloatStorage", 10, 1, &[2, 5], &[5, 1])),
            ("past its storage", pickle("FloatStorage", 10, 0, &[2, 5], &[6, 1])),
            ("past its storage", pickle("FloatStorage", 10, 0, &[i32::MAX, i32::MAX, i32::MAX], &[0, 0, 0])),
            ("past its storage", pickle("FloatStorage", 10, 0, &[11], &[0])),
            ("past its storage", pickle("FloatStorage", 10, 0, &[2, 2], &[i32::MAX, i32::MAX])),
            ("offset is negative", pickle("FloatStorage", 10, -1, &[1], &[1])),
            ("no tuple of at most 8", pickle("FloatStorage", 10, 0, &[-1], &[1])),
            ("no tuple of at most 8", pickle("FloatStorage", 10, 0, &[1; 9], &[1; 9])),
            ("differ in length", pickle("FloatStorage", 10, 0, &[1, 1], &[1])),
            ("`torch.QInt8Storage`", pickle("QInt8Storage", 10, 0, &[1], &[1])),
        ];
        for (want, bytes) in cases {
            let started = std::time::Instant::now();
            let e = state_dict(&bytes).unwrap_err().to_string();
            assert!(e.contains(want), "{want:?}: {e}");
            assert!(started.elapsed().as_secs() < 2, "{want:?} took {:?}", started.elapsed());
        }
    }

    #[test]
    fn a_name_may_come_once() {
        let p = pickle("FloatStorage", 4, 0, &[4], &[1]);
        let body = &p[3..p.len() - 1];
        let twice = [b"}".as_slice(), body, body, b"."].concat();
        assert_eq!(state_dict(&twice).unwrap_err().kind, Kind::DuplicateName("w".into()));
    }
}
