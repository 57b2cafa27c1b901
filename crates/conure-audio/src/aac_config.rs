//! AudioSpecificConfig of AAC (ISO 14496-3, 1.6.2.1), read far enough to name what cannot be decoded.

/// What the setup data of an AAC track say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AacConfig {
    /// Audio object type: 2 is LC, 5 SBR (HE-AAC), 29 parametric stereo (HE-AAC v2), 42 USAC (xHE-AAC).
    pub(crate) object_type: u32,
    /// 0 means that the channels are told elsewhere.
    pub(crate) channel_config: u32,
    /// In Hz, if the index is a valid one.
    pub(crate) rate: Option<u32>,
}

/// Sample rates by index (ISO 14496-3, table 1.18).
pub(crate) const RATES: [u32; 13] =
    [96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350];

struct Bits<'a> {
    data: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, n: usize) -> Option<u32> {
        let mut value = 0;
        for _ in 0..n {
            let byte = *self.data.get(self.at / 8)?;
            value = value << 1 | u32::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        Some(value)
    }
}

impl AacConfig {
    pub(crate) fn parse(data: &[u8]) -> Option<AacConfig> {
        let mut bits = Bits { data, at: 0 };
        let object_type = match bits.take(5)? {
            31 => 32 + bits.take(6)?,
            t => t,
        };
        let rate = match bits.take(4)? {
            15 => Some(bits.take(24)?),
            index => RATES.get(index as usize).copied(),
        };
        Some(AacConfig { object_type, channel_config: bits.take(4)?, rate: rate.filter(|&r| r > 0) })
    }

    /// The name of what is not decoded, if this is not.
    pub(crate) fn unsupported_name(&self) -> Option<String> {
        let name = match (self.object_type, self.channel_config) {
            (5, _) => "HE-AAC (AAC+, SBR)".to_owned(),
            (29, _) => "HE-AAC v2 (parametric stereo)".to_owned(),
            (42, _) => "xHE-AAC (USAC)".to_owned(),
            (23 | 39, _) => "AAC-LD or AAC-ELD".to_owned(),
            (1, _) => "AAC Main profile".to_owned(),
            (3, _) => "AAC SSR profile".to_owned(),
            (4, _) => "AAC LTP profile".to_owned(),
            (36, _) => "MPEG-4 ALS".to_owned(),
            (2, 0) => "AAC with its channels in a program config element".to_owned(),
            (2, 1..=2) => return None,
            (2, 7 | 12) => "AAC with 8 channels".to_owned(),
            (2, n) => format!("AAC with {n} channels"),
            (n, _) => format!("MPEG-4 audio of object type {n}"),
        };
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs() {
        for (bytes, object_type, channel_config, named) in [
            (&[0x12u8, 0x10][..], 2, 2, None),                 // LC, 44.1 kHz, stereo
            (&[0x11, 0x88], 2, 1, None),                       // LC, 48 kHz, mono
            (&[0x11, 0xb0], 2, 6, Some("6 channels")),         // LC, 48 kHz, 5.1
            (&[0x2b, 0x92, 0x08, 0x00], 5, 2, Some("HE-AAC")), // SBR
            (&[0xeb, 0x8a, 0x08, 0x00], 29, 1, Some("HE-AAC v2")),
            (&[0xf9, 0x46, 0x40], 42, 2, Some("xHE-AAC")),
            (&[0x0a, 0x10], 1, 2, Some("Main")),
        ] {
            let config = AacConfig::parse(bytes).unwrap();
            assert_eq!(
                (config.object_type, config.channel_config),
                (object_type, channel_config),
                "{bytes:02x?}"
            );
            match (config.unsupported_name(), named) {
                (None, None) => {}
                (Some(name), Some(word)) => assert!(name.contains(word), "{name}"),
                other => panic!("{bytes:02x?}: {other:?}"),
            }
        }
        assert_eq!(AacConfig::parse(&[0x12]), None);
        assert_eq!(AacConfig::parse(&[]), None);
    }
}
