//! The lengths of Vorbis packets (Vorbis I, 4.2 and 4.3.1), without decoding them.

/// What the headers say about block sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VorbisBlocks {
    pub(crate) rate: u32,
    pub(crate) channels: u8,
    /// Lengths of short and long blocks, in samples.
    sizes: [u64; 2],
    /// For each mode, whether its blocks are long.
    long: Vec<bool>,
    /// Bits of the mode number in a packet.
    mode_bits: u32,
    /// The length of the block before.
    previous: Option<u64>,
}

/// Bits of one mode in the setup header: block flag, window type, transform type, mapping.
const MODE_BITS: usize = 1 + 16 + 16 + 8;

impl VorbisBlocks {
    /// From the identification and setup headers; `None` if they break the rules.
    pub(crate) fn parse(identification: &[u8], setup: &[u8]) -> Option<VorbisBlocks> {
        if !identification.starts_with(b"\x01vorbis\0\0\0\0") || !setup.starts_with(b"\x05vorbis") {
            return None;
        }
        let channels = *identification.get(11)?;
        let rate = u32::from_le_bytes(identification.get(12..16)?.try_into().ok()?);
        let exponents = *identification.get(28)?;
        let sizes = [exponents & 0x0f, exponents >> 4];
        let valid = sizes.iter().all(|e| (6..=13).contains(e)) && sizes[0] <= sizes[1];
        if !valid || channels == 0 || rate == 0 {
            return None;
        }
        let long = modes(setup)?;
        let mode_bits = usize::BITS - (long.len() - 1).leading_zeros();
        Some(VorbisBlocks { rate, channels, sizes: sizes.map(|e| 1 << e), long, mode_bits, previous: None })
    }

    /// Forgets the block before, after a gap.
    pub(crate) fn reset(&mut self) {
        self.previous = None;
    }

    /// Samples that a packet adds, in order; the first one adds none. `None` for what is no sound packet.
    pub(crate) fn duration(&mut self, packet: &[u8]) -> Option<u64> {
        let first = *packet.first()?;
        if first & 1 != 0 {
            return None;
        }
        let mode = usize::from(first >> 1) & ((1 << self.mode_bits) - 1);
        let size = *self.sizes.get(usize::from(*self.long.get(mode)?))?;
        let previous = self.previous.replace(size);
        Some(previous.map_or(0, |p| (p + size) / 4))
    }
}

/// The modes stand at the very end of the setup header, behind codebooks that would take long to read. So they are
/// found from the end: window and transform types are zero by rule, and the count in front of them must agree.
fn modes(setup: &[u8]) -> Option<Vec<bool>> {
    // Bits count from the least significant one of each byte.
    let bit = |i: usize| setup.get(i / 8).map(|b| b >> (i % 8) & 1);
    let field = |at: usize, n: usize| (0..n).try_fold(0u32, |v, i| Some(v | u32::from(bit(at + i)?) << i));
    // The framing bit is the last bit that is set.
    let last = setup.iter().rposition(|&b| b != 0)?;
    let end = last * 8 + 7 - setup.get(last)?.leading_zeros() as usize;
    let mut found = None;
    for count in 1..=64usize {
        let Some(start) = end.checked_sub(count * MODE_BITS) else { break };
        if field(start + 1, 16)? != 0 || field(start + 17, 16)? != 0 || field(start + 33, 8)? > 63 {
            break;
        }
        if start >= 6 && field(start - 6, 6)? as usize + 1 == count {
            found = Some(count);
        }
    }
    let count = found?;
    (0..count).map(|i| bit(end - (count - i) * MODE_BITS).map(|b| b == 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A setup header with some rubbish in front and these modes at its end.
    fn setup(modes: &[(bool, u8)]) -> Vec<u8> {
        let mut bits: Vec<bool> =
            b"\x05vorbis\xa5\x5a\xff".iter().flat_map(|b| (0..8).map(move |i| b >> i & 1 == 1)).collect();
        let mut put = |value: usize, n: usize| bits.extend((0..n).map(|i| value >> i & 1 == 1));
        put(modes.len() - 1, 6);
        for &(long, mapping) in modes {
            put(usize::from(long), 1);
            put(0, 32);
            put(usize::from(mapping), 8);
        }
        put(1, 1);
        bits.chunks(8).map(|c| c.iter().enumerate().fold(0, |b, (i, &v)| b | u8::from(v) << i)).collect()
    }

    #[test]
    fn lengths() {
        let mut id = b"\x01vorbis\0\0\0\0\x02".to_vec();
        id.extend(44_100u32.to_le_bytes());
        id.extend([0; 12]);
        id.extend([0xb8, 1]); // 256 and 2048
        let mut blocks = VorbisBlocks::parse(&id, &setup(&[(false, 0), (true, 1)])).unwrap();
        assert_eq!((blocks.rate, blocks.channels, blocks.long.clone()), (44_100, 2, vec![false, true]));
        for (packet, expected) in [
            (&[0u8][..], Some(0)),
            (&[0], Some(128)),
            (&[2], Some(576)),
            (&[2], Some(1024)),
            (&[1], None), // a header
            (&[], None),
            (&[0], Some(576)),
        ] {
            assert_eq!(blocks.duration(packet), expected);
        }
        assert_eq!(VorbisBlocks::parse(&id, &setup(&[(true, 0)])).unwrap().mode_bits, 0);
        assert_eq!(VorbisBlocks::parse(&id, b"\x05vorbis"), None);
        assert_eq!(VorbisBlocks::parse(&id[..20], &setup(&[(true, 0)])), None);
    }
}
