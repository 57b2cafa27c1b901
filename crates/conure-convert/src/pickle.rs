//! A pickle reader that can only make data.
//!
//! A pickle is a program for a stack machine that may name any Python function and call it. This machine knows the
//! opcodes that `torch.save` writes for a state dict, and eight kinds of global that it replaces by plain records;
//! there is nothing else it could call. Everything else is refused by name. Values live in one list and refer to each
//! other by index, so that a pickle that contains itself neither recurses nor leaks.
//!
//! Layout of pickles: Python's `pickletools`; what torch writes: `torch/_utils.py` (`_rebuild_tensor_v2`).

mod construct;
mod machine;

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

/// Reads a pickled state dict: its tensors by name, in the order of the dictionary. A checkpoint that keeps the
/// state dict under the key `state_dict` is read too. Values that are no tensors are left out.
///
/// # Errors
/// [`PickleError`] for anything but a state dict; see the module.
pub fn state_dict(bytes: &[u8]) -> Result<Vec<(String, TensorRef)>, PickleError> {
    machine::run(bytes).map_err(|(offset, kind)| PickleError { offset, kind })
}

#[cfg(test)]
mod tests {
    use super::PickleErrorKind as Kind;
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
