//! Inflating a gzipped archive, with a bound on what it may become.

use crate::section::Section;
use flate2::read::MultiGzDecoder;
use std::io::{self, BufReader, Read, Seek, Write};
use std::path::Path;

/// What any small archive may become without a question.
const FLOOR: u64 = 64 << 20;
/// Float weights shrink to about 0.9, half-precision values in float32 to about 0.5: 20 is far beyond any model.
const MAX_RATIO: u64 = 20;

/// Inflates `packed` into a nameless temporary file in `folder`, which the system removes when it is closed.
///
/// # Errors
/// If the data is no gzip, is cut off or fails its checksum, or becomes larger than 64 MiB and than 20 times its
/// packed size (a "bomb").
pub fn inflate(packed: &Section, folder: &Path) -> io::Result<Section> {
    let limit = packed.len().saturating_mul(MAX_RATIO).max(FLOOR);
    let mut whole = packed.clone();
    whole.rewind()?;
    let mut unpacked = MultiGzDecoder::new(BufReader::new(whole)).take(limit.saturating_add(1));
    let mut file = tempfile::tempfile_in(folder)?;
    let mut total = 0u64;
    let mut buffer = vec![0u8; 256 * 1024];
    loop {
        let n = unpacked.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        total = total.saturating_add(n as u64);
        if total > limit {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{} packed bytes become more than {limit}: a model does not shrink like that, it is refused",
                    packed.len()
                ),
            ));
        }
        file.write_all(&buffer[..n])?;
    }
    file.flush()?;
    Section::of_file(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};

    fn pack(data: &[u8]) -> Vec<u8> {
        let mut e = GzEncoder::new(Vec::new(), Compression::fast());
        e.write_all(data).unwrap();
        e.finish().unwrap()
    }

    #[test]
    fn inflates_and_refuses_bombs() {
        let dir = tempfile::tempdir().unwrap();
        let got = inflate(&Section::of_bytes(pack(b"hello")), dir.path()).unwrap();
        assert_eq!(got.read_all(10).unwrap(), b"hello");

        let bomb = pack(&vec![0u8; 80 << 20]);
        let started = std::time::Instant::now();
        let e = inflate(&Section::of_bytes(bomb), dir.path()).unwrap_err().to_string();
        assert!(e.contains("does not shrink like that"), "{e}");
        assert!(started.elapsed().as_secs() < 2);

        let mut cut = pack(&[5; 1000]);
        cut.truncate(cut.len() - 6);
        assert!(inflate(&Section::of_bytes(cut), dir.path()).is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
