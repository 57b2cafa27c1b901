//! The stack machine: opcodes, the allow-list of globals, and the limits.

use super::construct::Global;
use super::{PickleErrorKind as Kind, Storage, TensorRef};
use std::collections::HashMap;

/// Values one pickle may make; a state dict of a thousand tensors makes twenty thousand.
const MAX_NODES: usize = 1_000_000;
const MAX_STACK: usize = 1_000_000;
const MAX_MARKS: usize = 1_000;

pub(super) type Id = usize;

#[derive(Clone, Debug)]
pub(super) enum Node {
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

/// Runs a pickle and collects the tensors it made; an error comes with the byte of its opcode.
pub(super) fn run(bytes: &[u8]) -> Result<Vec<(String, TensorRef)>, (usize, Kind)> {
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
    let result = machine.run(&mut opcode_at).and_then(|root| machine.collect(root));
    result.map_err(|kind| (opcode_at, kind))
}

pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    pub(super) nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Heights of the stack at each MARK.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
    /// Elements copied by constructors so far.
    pub(super) copies: usize,
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

    pub(super) fn push(&mut self, node: Node) -> Result<(), Kind> {
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

    pub(super) fn pop(&mut self, opcode: &'static str) -> Result<Id, Kind> {
        if self.stack.len() <= self.floor() {
            return Err(Kind::Operand { opcode, expected: "a value on the stack" });
        }
        self.stack.pop().ok_or(Kind::Operand { opcode, expected: "a value on the stack" })
    }

    pub(super) fn top(&self, opcode: &'static str) -> Result<Id, Kind> {
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
}

fn pairs(opcode: &'static str, items: &[Id]) -> Result<Vec<(Id, Id)>, Kind> {
    if !items.len().is_multiple_of(2) {
        return Err(Kind::Operand { opcode, expected: "a value for every key" });
    }
    Ok(items.chunks_exact(2).map(|p| (p[0], p[1])).collect())
}

pub(super) fn short(text: &str) -> String {
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
