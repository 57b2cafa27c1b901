//! Numbers of the elements of Matroska (RFC 9559) that matter here, and how a block is told from damage.

use crate::ebml::{Head, children, vint};

pub(crate) mod id {
    pub(crate) const EBML: u32 = 0x1a45_dfa3;
    pub(crate) const SEGMENT: u32 = 0x1853_8067;
    pub(crate) const SEEK_HEAD: u32 = 0x114d_9b74;
    pub(crate) const INFO: u32 = 0x1549_a966;
    pub(crate) const TRACKS: u32 = 0x1654_ae6b;
    pub(crate) const CLUSTER: u32 = 0x1f43_b675;
    pub(crate) const CUES: u32 = 0x1c53_bb6b;
    pub(crate) const CHAPTERS: u32 = 0x1043_a770;
    pub(crate) const TAGS: u32 = 0x1254_c367;
    pub(crate) const ATTACHMENTS: u32 = 0x1941_a469;
    pub(crate) const VOID: u32 = 0xec;
    pub(crate) const CRC32: u32 = 0xbf;
    pub(crate) const TIMESTAMP: u32 = 0xe7;
    pub(crate) const SIMPLE_BLOCK: u32 = 0xa3;
    pub(crate) const BLOCK_GROUP: u32 = 0xa0;
    pub(crate) const BLOCK: u32 = 0xa1;
    pub(crate) const DISCARD_PADDING: u32 = 0x75a2;
    pub(crate) const POSITION: u32 = 0xa7;
    pub(crate) const PREV_SIZE: u32 = 0xab;
    pub(crate) const SILENT_TRACKS: u32 = 0x5854;
    pub(crate) const ENCRYPTED_BLOCK: u32 = 0xaf;
}

/// All that may stand in a segment or a cluster. Anything else there is damage (or a future element, whose neighbours
/// are in this list).
pub(crate) const KNOWN: [u32; 18] = [
    id::EBML,
    id::SEGMENT,
    id::SEEK_HEAD,
    id::INFO,
    id::TRACKS,
    id::CLUSTER,
    id::CUES,
    id::CHAPTERS,
    id::TAGS,
    id::ATTACHMENTS,
    id::VOID,
    id::CRC32,
    id::TIMESTAMP,
    id::SIMPLE_BLOCK,
    id::BLOCK_GROUP,
    id::POSITION,
    id::PREV_SIZE,
    id::SILENT_TRACKS,
];

/// A block found behind damage is no larger: it must be looked at whole.
pub(crate) const MAX_FOUND: u64 = 32 << 10;

/// Whether a block of the track stands here, whole and with another element or the end behind it.
pub(crate) fn is_block(head: Head, window: &[u8], track: u64) -> bool {
    let Some(size) = head.size.filter(|&s| s > 4 && s <= MAX_FOUND) else { return false };
    let Some(content) = window.get(head.len..head.len + size as usize) else { return false };
    let block = match head.id {
        id::SIMPLE_BLOCK => Some(content),
        id::BLOCK_GROUP => {
            children(content).take(16).find(|(id, _)| *id == id::BLOCK).map(|(_, block)| block)
        }
        _ => None,
    };
    let next = window.get(head.len + size as usize..).unwrap_or_default();
    block.and_then(vint).is_some_and(|(number, _)| number == Some(track))
        && (next.is_empty() || Head::parse(next).is_some_and(|h| KNOWN.contains(&h.id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks() {
        // A block of track 1 with a known element, the end, or anything else behind it.
        let block = [0xa3u8, 0x85, 0x81, 0, 0, 0x80, 7];
        let is = |tail: &[u8], track| {
            let window = [&block[..], tail].concat();
            is_block(Head::parse(&window).unwrap(), &window, track)
        };
        assert!(is(&[], 1) && is(&block, 1));
        assert!(!is(&[], 2) && !is(&[0x55, 0x81, 0], 1));
        // Cut short.
        assert!(!is_block(Head::parse(&block[..4]).unwrap(), &block[..4], 1));
    }
}
