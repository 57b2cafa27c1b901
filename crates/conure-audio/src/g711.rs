//! A-law and mu-law, as ITU-T G.711 defines them.

/// One A-law byte as a 16-bit sample.
///
/// G.711 gives 13 bits; they stand in the upper bits of the 16 (shifted left by 3), as everywhere.
pub fn alaw_to_s16(byte: u8) -> i16 {
    // Even bits are sent inverted (G.711 table 1a, note 2).
    let code = byte ^ 0x55;
    let segment = u32::from(code >> 4 & 0x07);
    let mantissa = i32::from(code & 0x0f);
    // The value in the middle of the quantising interval, in units of 1/4096 of full scale, times 8.
    let magnitude = match segment {
        0 => mantissa * 16 + 8,
        s => (mantissa * 16 + 0x108) << (s - 1),
    };
    // The sign bit is 1 for positive values.
    let value = if code & 0x80 != 0 { magnitude } else { -magnitude };
    value as i16 // at most 32256 in magnitude
}

/// One mu-law byte as a 16-bit sample (14 bits of G.711, shifted left by 2).
pub fn mulaw_to_s16(byte: u8) -> i16 {
    // All bits are sent inverted.
    let code = !byte;
    let segment = u32::from(code >> 4 & 0x07);
    let mantissa = i32::from(code & 0x0f);
    // The chord's bias of 33 (14-bit units), times 4, is added before and taken out after the shift.
    let magnitude = ((mantissa * 8 + 0x84) << segment) - 0x84;
    let value = if code & 0x80 != 0 { -magnitude } else { magnitude };
    value as i16 // at most 32124 in magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_the_recommendation() {
        // G.711 tables 1a and 2a: decoder output values y_n in 13- and 14-bit units, as (code as sent, value).
        // A-law: +1, +4032 (y_128), -1, first value of each segment.
        for (byte, y13) in [
            (0xd5u8, 1i32),
            (0x55, -1),
            (0xaa, 4032),
            (0x2a, -4032),
            (0xc5, 33),
            (0xf5, 66),
            (0xe5, 132),
            (0x95, 264),
            (0x85, 528),
            (0xb5, 1056),
            (0xa5, 2112),
        ] {
            assert_eq!(i32::from(alaw_to_s16(byte)), y13 * 8, "A-law {byte:#x}");
        }
        for (byte, y14) in [
            (0xffu8, 0i32),
            (0x7f, 0),
            (0xfe, 2),
            (0x80, 8031),
            (0x00, -8031),
            (0xef, 33),
            (0xdf, 99),
            (0xcf, 231),
            (0xbf, 495),
            (0xaf, 1023),
            (0x9f, 2079),
            (0x8f, 4191),
        ] {
            assert_eq!(i32::from(mulaw_to_s16(byte)), y14 * 4, "mu-law {byte:#x}");
        }
    }

    #[test]
    fn odd_symmetry_and_order() {
        for code in 0u8..128 {
            assert_eq!(mulaw_to_s16(code), -mulaw_to_s16(code | 0x80));
            assert_eq!(alaw_to_s16(code), -alaw_to_s16(code | 0x80));
        }
        let mut all: Vec<i16> = (0..=255u8).map(alaw_to_s16).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 256);
    }
}
