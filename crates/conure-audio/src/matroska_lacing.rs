//! Blocks of Matroska that hold several frames (RFC 9559, 10.3).

use crate::ebml::vint;

/// Splits a block into its frames (RFC 9559, 10.3). `None` if the lengths do not fit.
pub(crate) fn unlace(lacing: u8, body: &[u8]) -> Option<Vec<&[u8]>> {
    if lacing == 0 {
        return Some(vec![body]);
    }
    let count = usize::from(*body.first()?) + 1;
    let mut rest = body.get(1..)?;
    let mut sizes: Vec<usize> = Vec::with_capacity(count);
    match lacing {
        1 => {
            for _ in 1..count {
                let mut size = 0;
                loop {
                    let (&b, next) = rest.split_first()?;
                    rest = next;
                    size += usize::from(b);
                    if b < 255 {
                        break;
                    }
                }
                sizes.push(size);
            }
        }
        3 if count > 1 => {
            let (first, n) = vint(rest)?;
            rest = rest.get(n..)?;
            let mut size = i64::try_from(first?).ok()?;
            sizes.push(usize::try_from(size).ok()?);
            for _ in 2..count {
                // The difference to the size before, biased to be unsigned.
                let (difference, n) = vint(rest)?;
                rest = rest.get(n..)?;
                let bias = (1i64 << (7 * n - 1)) - 1;
                size = size.checked_add(i64::try_from(difference?).ok()? - bias)?;
                sizes.push(usize::try_from(size).ok()?);
            }
        }
        2 => sizes = vec![rest.len() / count; count - 1],
        _ => {}
    }
    let mut frames = Vec::with_capacity(count);
    for size in sizes {
        let (frame, next) = rest.split_at_checked(size)?;
        frames.push(frame);
        rest = next;
    }
    frames.push(rest);
    Some(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lacing() {
        let body = [2u8, 1, 2, 7, 8, 8, 9, 9, 9];
        assert_eq!(unlace(0, &body), Some(vec![&body[..]]));
        assert_eq!(unlace(1, &body), Some(vec![&[7u8][..], &[8, 8], &[9, 9, 9]]));
        assert_eq!(unlace(2, &[1, 7, 7, 8, 8]), Some(vec![&[7u8, 7][..], &[8, 8]]));
        // EBML: the first size 1, then a difference of +1 (0x81 + 63 - 0x80 = 0xc0).
        assert_eq!(unlace(3, &[2, 0x81, 0xc0, 7, 8, 8, 9]), Some(vec![&[7u8][..], &[8, 8], &[9]]));
        assert_eq!(unlace(1, &[2, 200, 2, 7]), None);
        assert_eq!(unlace(3, &[255]), None);
        assert_eq!(unlace(1, &[]), None);
        // A negative size.
        assert_eq!(unlace(3, &[2, 0x81, 0x80, 7]), None);
    }
}
