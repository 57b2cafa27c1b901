//! The members of a tar archive by offset. Nothing is ever unpacked: a name is only a name.
//!
//! A `.nemo` file is a tar of a few plain files. Links, devices, sparse files, paths that leave the archive, sizes
//! that two headers state differently and repeated names have no place in one, and readers disagree about them, so
//! each is refused by name.

use crate::section::Section;
use std::collections::HashSet;
use std::io;
use tar::{EntryType, Header};

const BLOCK: u64 = 512;
/// A `.nemo` has about ten members.
const MAX_MEMBERS: usize = 4096;
const MAX_NAME: usize = 512;
const MAX_EXTENDED: u64 = 64 * 1024;

/// A plain file in the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name without a leading `./`.
    pub name: String,
    /// Where its bytes start.
    pub offset: u64,
    /// How many there are.
    pub size: u64,
}

/// Why an archive is refused.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The file could not be read.
    #[error("cannot read the archive: {0}")]
    Io(#[from] io::Error),
    /// It ends early.
    #[error(
        "the archive ends inside {what} (it has {len} bytes, {needed} are needed): the file is cut off, fetch it again"
    )]
    Cut {
        /// The member or header.
        what: String,
        /// Bytes there are.
        len: u64,
        /// Bytes there should be.
        needed: u64,
    },
    /// A header is not one.
    #[error("the tar header at byte {offset} is damaged: {reason}")]
    Header {
        /// Where it starts.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A name that points out of the archive or is no name.
    #[error("member `{name}` is refused: {reason}")]
    Name {
        /// The name, escaped.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Not a plain file.
    #[error("member `{name}` is refused: it is a {kind}, and a model holds plain files only")]
    Kind {
        /// The name.
        name: String,
        /// What it is.
        kind: String,
    },
    /// Two headers state two sizes.
    #[error("member `{name}` is refused: its tar header says {header} bytes, its PAX header {pax}")]
    SizeMismatch {
        /// The name.
        name: String,
        /// Size in the tar header.
        header: u64,
        /// Size in the PAX header.
        pax: u64,
    },
    /// A name comes twice.
    #[error("member `{name}` comes twice, and which one counts is unclear")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// Too much of something.
    #[error("the archive has more than {limit} {what}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many are allowed.
        limit: u64,
    },
}

#[derive(Default)]
struct Extended {
    name: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Lists the members of the archive in `section`, in their order.
///
/// # Errors
/// [`TarError`] for anything but plain files and directories with plain names; see the module.
pub fn members(section: &Section) -> Result<Vec<Member>, TarError> {
    let mut out: Vec<Member> = Vec::new();
    let mut seen = HashSet::new();
    let mut extended = Extended::default();
    let mut at = 0u64;
    let mut headers = 0usize;
    while at < section.len() {
        let mut block = [0u8; BLOCK as usize];
        check_end(section, at, BLOCK, || format!("the tar header at byte {at}"))?;
        section.read_at(at, &mut block)?;
        if block.iter().all(|&b| b == 0) {
            break;
        }
        headers += 1;
        if headers > MAX_MEMBERS {
            return Err(TarError::Limit { what: "members", limit: MAX_MEMBERS as u64 });
        }
        let header = Header::from_byte_slice(&block);
        let size = check_header(header, &block, at)?;
        let data = at.saturating_add(BLOCK);
        let kind = header.entry_type();
        let raw_name = extended.name.clone().unwrap_or_else(|| header.path_bytes().into_owned());
        check_end(section, data, size, || format!("member `{}`", raw_name.escape_ascii()))?;
        match kind {
            EntryType::XHeader | EntryType::GNULongName => {
                let bytes = extended_bytes(section, data, size)?;
                if kind == EntryType::GNULongName {
                    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
                    extended.name = Some(bytes[..end].to_vec());
                } else {
                    read_pax(&bytes, at, &mut extended)?;
                }
            }
            EntryType::XGlobalHeader => {
                let mut global = Extended::default();
                read_pax(&extended_bytes(section, data, size)?, at, &mut global)?;
                if global.name.is_some() || global.size.is_some() {
                    return Err(header_error(at, "a global PAX header sets a name or size"));
                }
            }
            _ => {
                let name = plain_name(&raw_name, kind == EntryType::Directory)?;
                if let Some(pax) = extended.size.filter(|&pax| pax != size) {
                    return Err(TarError::SizeMismatch { name, header: size, pax });
                }
                extended = Extended::default();
                match kind {
                    EntryType::Directory if size == 0 => {}
                    EntryType::Regular => {
                        if !seen.insert(name.clone()) {
                            return Err(TarError::Duplicate { name });
                        }
                        out.push(Member { name, offset: data, size });
                    }
                    other => return Err(TarError::Kind { name, kind: kind_name(other) }),
                }
            }
        }
        at = size
            .checked_next_multiple_of(BLOCK)
            .and_then(|padded| data.checked_add(padded))
            .ok_or_else(|| header_error(at, "its size overflows"))?;
    }
    if extended.name.is_some() || extended.size.is_some() {
        return Err(header_error(at, "an extended header describes no member"));
    }
    Ok(out)
}

fn header_error(offset: u64, reason: impl Into<String>) -> TarError {
    TarError::Header { offset, reason: reason.into() }
}

fn check_end(section: &Section, at: u64, size: u64, what: impl Fn() -> String) -> Result<(), TarError> {
    let needed = at.saturating_add(size);
    if needed > section.len() {
        return Err(TarError::Cut { what: what(), len: section.len(), needed });
    }
    Ok(())
}

/// Checks the header's sum and gives its size.
fn check_header(header: &Header, block: &[u8], at: u64) -> Result<u64, TarError> {
    let stated = header.cksum().map_err(|e| header_error(at, format!("its checksum is no number ({e})")))?;
    // The sum is over the header with its own field (bytes 148 to 155) as spaces; old writers summed signed bytes.
    let sum = |signed: bool| -> i64 {
        block
            .iter()
            .enumerate()
            .map(|(i, &b)| match i {
                148..156 => 32,
                _ if signed => i64::from(b as i8),
                _ => i64::from(b),
            })
            .sum()
    };
    let stated = i64::from(stated);
    if stated != sum(false) && stated != sum(true) {
        return Err(header_error(at, "its checksum is wrong, so this is no tar archive or a damaged one"));
    }
    header.entry_size().map_err(|e| header_error(at, format!("its size is no number ({e})")))
}

fn extended_bytes(section: &Section, at: u64, size: u64) -> Result<Vec<u8>, TarError> {
    if size > MAX_EXTENDED {
        return Err(TarError::Limit { what: "bytes in an extended header", limit: MAX_EXTENDED });
    }
    let mut bytes = vec![0; size as usize];
    section.read_at(at, &mut bytes)?;
    Ok(bytes)
}

/// Reads `length key=value\n` records.
fn read_pax(mut bytes: &[u8], at: u64, out: &mut Extended) -> Result<(), TarError> {
    let bad = || header_error(at, "its PAX records are malformed");
    while !bytes.is_empty() && bytes[0] != 0 {
        let space = bytes.iter().position(|&b| b == b' ').ok_or_else(bad)?;
        let length = parse_decimal(&bytes[..space]).and_then(|n| usize::try_from(n).ok()).ok_or_else(bad)?;
        let record = bytes.get(space + 1..length).ok_or_else(bad)?;
        let record = record.strip_suffix(b"\n").ok_or_else(bad)?;
        let equals = record.iter().position(|&b| b == b'=').ok_or_else(bad)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => out.name = Some(value.to_vec()),
            b"size" => out.size = Some(parse_decimal(value).ok_or_else(bad)?),
            _ if key.starts_with(b"GNU.sparse") => {
                let name = out.name.clone().unwrap_or_default();
                return Err(TarError::Kind {
                    name: name.escape_ascii().to_string(),
                    kind: "sparse file".into(),
                });
            }
            _ => {}
        }
        bytes = &bytes[length..];
    }
    Ok(())
}

fn parse_decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The name without `./`, if it stays inside the archive.
fn plain_name(raw: &[u8], directory: bool) -> Result<String, TarError> {
    let shown = || {
        let shown = raw[..raw.len().min(80)].escape_ascii().to_string();
        if raw.len() > 80 { format!("{shown}...") } else { shown }
    };
    let refuse = |reason| Err(TarError::Name { name: shown(), reason });
    if raw.len() > MAX_NAME {
        return refuse("its name is longer than 512 bytes");
    }
    let Ok(name) = std::str::from_utf8(raw) else {
        return refuse("its name is not UTF-8");
    };
    if name.contains(['\0', '\\']) || name.chars().any(char::is_control) {
        return refuse("its name has a backslash or control characters");
    }
    if name.starts_with('/') || name.get(1..2) == Some(":") {
        return refuse("its name is an absolute path");
    }
    if name.split('/').any(|part| part == "..") {
        return refuse("its name leaves the archive with `..`");
    }
    let parts: Vec<&str> = name.split('/').filter(|p| !p.is_empty() && *p != ".").collect();
    if parts.is_empty() && !directory {
        return refuse("it has no name");
    }
    Ok(parts.join("/"))
}

fn kind_name(kind: EntryType) -> String {
    match kind {
        EntryType::Symlink => "symbolic link".into(),
        EntryType::Link => "hard link".into(),
        EntryType::Char | EntryType::Block => "device".into(),
        EntryType::Fifo => "pipe".into(),
        EntryType::GNUSparse => "sparse file".into(),
        EntryType::Directory => "directory with contents of its own".into(),
        other => format!("member of type {:?}", char::from(other.as_byte())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &[u8], kind: EntryType, size: u64) -> Vec<u8> {
        let mut h = Header::new_ustar();
        h.as_mut_bytes()[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
        h.set_entry_type(kind);
        h.set_size(size);
        h.set_cksum();
        h.as_bytes().to_vec()
    }

    fn entry(name: &[u8], kind: EntryType, body: &[u8]) -> Vec<u8> {
        let mut out = header(name, kind, body.len() as u64);
        out.extend_from_slice(body);
        out.resize(out.len().next_multiple_of(512), 0);
        out
    }

    fn list(parts: &[Vec<u8>]) -> Result<Vec<Member>, TarError> {
        let mut bytes = parts.concat();
        bytes.resize(bytes.len() + 1024, 0);
        members(&Section::of_bytes(bytes))
    }

    fn pax(records: &[(&str, &str)]) -> Vec<u8> {
        let mut body = String::new();
        for (k, v) in records {
            let rest = format!(" {k}={v}\n");
            let mut n = rest.len() + 1;
            while n.to_string().len() + rest.len() != n {
                n += 1;
            }
            body.push_str(&format!("{n}{rest}"));
        }
        entry(b"PaxHeader", EntryType::XHeader, body.as_bytes())
    }

    #[test]
    fn lists_plain_members() {
        let got = list(&[
            entry(b"./", EntryType::Directory, b""),
            entry(b"./a.yaml", EntryType::Regular, b"hello"),
            pax(&[("mtime", "1.5"), ("size", "3"), ("path", "long.ckpt")]),
            entry(b"x", EntryType::Regular, b"abc"),
            entry(b"././@LongLink", EntryType::GNULongName, b"longer.txt\0"),
            entry(b"y", EntryType::Regular, &[1; 600]),
        ])
        .unwrap();
        let names: Vec<_> = got.iter().map(|m| (m.name.as_str(), m.size)).collect();
        assert_eq!(names, [("a.yaml", 5), ("long.ckpt", 3), ("longer.txt", 600)]);
        assert_eq!(got[0].offset, 1024);
    }

    #[test]
    fn refuses_what_no_model_holds() {
        let plain = EntryType::Regular;
        let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
            ("`..`", vec![entry(b"a/../../etc/passwd", plain, b"x")]),
            ("absolute", vec![entry(b"/etc/passwd", plain, b"x")]),
            ("absolute", vec![entry(b"C:/x", plain, b"x")]),
            ("backslash", vec![entry(b"C:\\x", plain, b"x")]),
            ("backslash or control", vec![pax(&[("path", "a\0b")]), entry(b"x", plain, b"x")]),
            ("512 bytes", vec![pax(&[("path", &"n".repeat(4096))]), entry(b"x", plain, b"x")]),
            ("UTF-8", vec![entry(b"\xff\xfe", plain, b"x")]),
            ("no name", vec![entry(b"./", plain, b"x")]),
            ("symbolic link", vec![entry(b"l", EntryType::Symlink, b"")]),
            ("hard link", vec![entry(b"l", EntryType::Link, b"")]),
            ("device", vec![entry(b"l", EntryType::Char, b"")]),
            ("pipe", vec![entry(b"l", EntryType::Fifo, b"")]),
            ("sparse", vec![entry(b"l", EntryType::GNUSparse, b"")]),
            ("sparse", vec![pax(&[("GNU.sparse.size", "1099511627776")]), entry(b"l", plain, b"")]),
            ("PAX header 9", vec![pax(&[("size", "9")]), entry(b"m", plain, b"abc")]),
            ("twice", vec![entry(b"m", plain, b"abc"), entry(b"./m", plain, b"abd")]),
            ("ends inside member `m`", vec![header(b"m", plain, 1 << 40)]),
            ("describes no member", vec![pax(&[("size", "9")])]),
            ("malformed", vec![entry(b"p", EntryType::XHeader, b"99 path=a\n")]),
            ("malformed", vec![entry(b"p", EntryType::XHeader, b"-1 path=a\n")]),
            ("extended header", vec![header(b"p", EntryType::XHeader, 100_000), vec![0; 102_400]]),
            ("4096 members", (0..5000).map(|i| entry(format!("f{i}").as_bytes(), plain, b"")).collect()),
        ];
        for (want, parts) in cases {
            let e = list(&parts).unwrap_err().to_string();
            assert!(e.contains(want), "{want:?}: {e}");
        }
        // A size near 2^64 in base 256.
        let mut huge = header(b"m", plain, 0);
        huge[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        let sum: u32 = huge
            .iter()
            .enumerate()
            .map(|(i, &b)| if (148..156).contains(&i) { 32 } else { u32::from(b) })
            .sum();
        huge[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let e = list(&[huge]).unwrap_err().to_string();
        assert!(e.contains("ends inside"), "{e}");
        let mut damaged = entry(b"m", plain, b"abc");
        damaged[0] ^= 1;
        assert!(list(&[damaged]).unwrap_err().to_string().contains("checksum"));
        let e = members(&Section::of_bytes(vec![b'<'; 700])).unwrap_err().to_string();
        assert!(e.contains("checksum"), "{e}");
    }
}
