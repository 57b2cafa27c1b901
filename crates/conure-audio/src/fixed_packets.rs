//! Packets of one length, back to back.

use std::io::Read;

use crate::packets::{Packet, PacketSource, SourceError};
use crate::riff::Counted;

pub(crate) struct FixedPackets {
    reader: Counted<Box<dyn Read + Send>>,
    bytes: usize,
    frames: u64,
    /// Bytes still to read, if that is known.
    left: Option<u64>,
    at: i64,
}

impl FixedPackets {
    /// `bytes` were checked to be plausible.
    pub(crate) fn new(
        reader: Box<dyn Read + Send>,
        bytes: usize,
        frames: u64,
        left: Option<u64>,
    ) -> FixedPackets {
        FixedPackets { reader: Counted::new(reader), bytes, frames, left, at: 0 }
    }
}

impl PacketSource for FixedPackets {
    fn next_packet(&mut self) -> Result<Option<Packet>, SourceError> {
        let want = self.left.map_or(self.bytes, |left| left.min(self.bytes as u64) as usize);
        let data = self.reader.up_to(want).map_err(SourceError::Read)?;
        if let Some(left) = &mut self.left {
            *left -= data.len() as u64;
        }
        if data.is_empty() {
            return match self.left {
                Some(left) if left > 0 => {
                    Err(SourceError::Truncated("the end of the file is missing".into()))
                }
                _ => Ok(None),
            };
        }
        if data.len() < self.bytes {
            return Err(SourceError::Truncated("the file ends within a packet".into()));
        }
        let at = self.at;
        self.at = self.at.saturating_add_unsigned(self.frames);
        Ok(Some(Packet { data, at: Some(at), duration: self.frames, ..Packet::default() }))
    }
}
