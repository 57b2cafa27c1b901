//! Values of options that are more than a word.

/// A number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    let n = text.trim().parse::<usize>().ok().filter(|n| (1..=1024).contains(n));
    n.ok_or_else(|| "expected a number from 1 to 1024".to_owned())
}

/// Seconds: `90`, `1.5`, `1:30`, `0:01:30.5`.
pub fn seconds(text: &str) -> Result<f64, String> {
    let expected = || "expected seconds or hours:minutes:seconds, such as 90, 1.5 or 0:01:30".to_owned();
    let parts: Vec<&str> = text.trim().split(':').collect();
    let (last, before) = parts.split_last().ok_or_else(expected)?;
    let plain = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if before.len() > 2 || !plain(last) {
        return Err(expected());
    }
    let mut total = 0.0;
    for part in before {
        let n: u32 = part.parse().map_err(|_| expected())?;
        total = (total + f64::from(n)) * 60.0;
    }
    let last: f64 = last.parse().map_err(|_| expected())?;
    let total: f64 = total + last;
    if !total.is_finite() || (!before.is_empty() && last >= 60.0) {
        return Err(expected());
    }
    Ok(total)
}

/// Seconds, more than none.
pub fn some_seconds(text: &str) -> Result<f64, String> {
    seconds(text).and_then(|s| if s > 0.0 { Ok(s) } else { Err("expected more than 0 seconds".to_owned()) })
}

/// A count, at least 1.
pub fn count(text: &str) -> Result<usize, String> {
    let n = text.trim().parse::<usize>().ok().filter(|n| *n >= 1);
    n.ok_or_else(|| "expected a number of at least 1".to_owned())
}

/// A symbol of a graph and its value: `T=1000`.
pub fn binding(text: &str) -> Result<(char, usize), String> {
    let expected = || "expected T=N (mel frames) or B=N (items of a batch), such as T=1000".to_owned();
    let (symbol, value) = text.split_once('=').ok_or_else(expected)?;
    match symbol.trim() {
        "T" => Ok(('T', count(value).map_err(|_| expected())?)),
        "B" => Ok(('B', count(value).map_err(|_| expected())?)),
        _ => Err(expected()),
    }
}

/// A count, also 0.
pub fn any_count(text: &str) -> Result<usize, String> {
    text.trim().parse().map_err(|_| "expected a whole number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings() {
        for (text, expected) in [
            ("T=1000", Some(('T', 1000))),
            (" B = 2 ", Some(('B', 2))),
            ("T=0", None),
            ("T", None),
            ("X=1", None),
            ("T=-1", None),
        ] {
            assert_eq!(binding(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, expected) in [
            ("0", Some(0.0)),
            ("90", Some(90.0)),
            ("1.5", Some(1.5)),
            (".5", Some(0.5)),
            ("1:30", Some(90.0)),
            ("1:00:00.25", Some(3600.25)),
            (" 7 ", Some(7.0)),
            ("", None),
            (":", None),
            (".", None),
            ("1:", None),
            ("1:60", None),
            ("1:2:3:4", None),
            ("-1", None),
            ("1e9", None),
            ("inf", None),
            ("nan", None),
            ("1.2.3", None),
            ("1:1.5:3", None),
            ("99999999999:0", None),
        ] {
            assert_eq!(seconds(text).ok(), expected, "{text}");
        }
        assert!(some_seconds("0").is_err());
        assert_eq!(some_seconds("0.25"), Ok(0.25));
    }

    #[test]
    fn counts() {
        for (text, expected) in
            [("1", Some(1)), ("1024", Some(1024)), ("0", None), ("1025", None), ("x", None)]
        {
            assert_eq!(threads(text).ok(), expected, "{text}");
        }
        for (text, expected) in [("1", Some(1)), ("99999", Some(99_999)), ("0", None), ("-1", None)] {
            assert_eq!(count(text).ok(), expected, "{text}");
        }
    }
}
