//! Values of options that are more than a word.

/// A number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    let n = text.trim().parse::<usize>().ok().filter(|n| (1..=1024).contains(n));
    n.ok_or_else(|| "expected a number from 1 to 1024".to_owned())
}

/// Whether something is on, as the variables for OpenVINO say it.
pub fn switch(text: &str) -> Result<bool, String> {
    let is = |all: [&str; 4]| all.iter().any(|one| text.trim().eq_ignore_ascii_case(one));
    match (is(["1", "on", "yes", "true"]), is(["0", "off", "no", "false"])) {
        (true, _) => Ok(true),
        (_, true) => Ok(false),
        _ => Err("expected 1, on, yes, true; or 0, off, no, false".to_owned()),
    }
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

/// Seconds of a window: 0 for none, else long enough to make sense.
pub fn window(text: &str) -> Result<f64, String> {
    let expected = || "expected 0 (everything at once) or at least 5 seconds".to_owned();
    seconds(text)
        .map_err(|_| expected())
        .and_then(|s| if s == 0.0 || s >= 5.0 { Ok(s) } else { Err(expected()) })
}

/// A probability.
pub fn probability(text: &str) -> Result<f32, String> {
    let p = text.trim().parse::<f32>().ok().filter(|p| (0.0..=1.0).contains(p));
    p.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

/// A count, at least 1.
pub fn count(text: &str) -> Result<usize, String> {
    whole(text, 1, MOST)
}

/// More than anything that is counted.
const MOST: usize = 1_000_000_000;

/// A whole number from `least` to `most`.
fn whole(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let n = text.trim().parse().ok().filter(|n| (least..=most).contains(n));
    n.ok_or_else(|| format!("expected a whole number from {least} to {most}"))
}

/// A real number from `least` to `most`.
fn real(text: &str, least: f32, most: f32) -> Result<f32, String> {
    let x = text.trim().parse().ok().filter(|x| (least..=most).contains(x));
    x.ok_or_else(|| format!("expected a number from {least} to {most}"))
}

/// A part of 1.
pub fn part(text: &str) -> Result<f32, String> {
    real(text, 0.0, 1.0)
}

/// What logits are divided by.
pub fn temperature(text: &str) -> Result<f32, String> {
    real(text, 0.0, 1000.0)
}

/// What is taken from logits.
pub fn penalty(text: &str) -> Result<f32, String> {
    real(text, -1000.0, 1000.0)
}

/// What logits are divided by where a token came before.
pub fn repetition(text: &str) -> Result<f32, String> {
    real(text, 0.01, 1000.0)
}

/// A seed.
pub fn seed(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// A channel, counted from 0.
pub fn channel(text: &str) -> Result<usize, String> {
    whole(text, 0, 65_535)
}

/// Mel frames of a day, the longest recording that is read.
const DAY: usize = 24 * 3600 * 100;

/// A symbol of a graph and its value: `T=1000`.
pub fn binding(text: &str) -> Result<(char, usize), String> {
    let expected = || {
        "expected T=N (mel frames, or tokens), B=N (items of a batch) or R=N (rows of logits), such as T=1000"
            .to_owned()
    };
    let (symbol, value) = text.split_once('=').ok_or_else(expected)?;
    match symbol.trim() {
        "T" => Ok(('T', whole(value, 1, DAY)?)),
        "B" => Ok(('B', whole(value, 1, 65_536)?)),
        "R" => Ok(('R', whole(value, 1, DAY)?)),
        _ => Err(expected()),
    }
}

/// A count, also 0.
pub fn any_count(text: &str) -> Result<usize, String> {
    whole(text, 0, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings() {
        for (text, expected) in [
            ("T=1000", Some(('T', 1000))),
            (" B = 2 ", Some(('B', 2))),
            ("R=3", Some(('R', 3))),
            ("T=0", None),
            ("T", None),
            ("X=1", None),
            ("T=-1", None),
            ("T=8640000", Some(('T', 8_640_000))),
            ("T=8640001", None),
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
    fn windows_and_probabilities() {
        for (text, expected) in
            [("0", Some(0.0)), ("5", Some(5.0)), ("2:00", Some(120.0)), ("4.9", None), ("x", None)]
        {
            assert_eq!(window(text).ok(), expected, "{text}");
        }
        for (text, expected) in
            [("0", Some(0.0)), ("0.5", Some(0.5)), ("1.1", None), ("nan", None), ("-0.1", None)]
        {
            assert_eq!(probability(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn counts() {
        for (text, expected) in
            [("1", Some(1)), ("1024", Some(1024)), ("0", None), ("1025", None), ("x", None)]
        {
            assert_eq!(threads(text).ok(), expected, "{text}");
        }
        for (text, expected) in [
            ("1", Some(1)),
            ("99999", Some(99_999)),
            ("0", None),
            ("-1", None),
            ("1e3", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(count(text).ok(), expected, "{text}");
        }
        assert_eq!((any_count("0"), channel("-1").is_err(), channel("70000").is_err()), (Ok(0), true, true));
    }

    #[test]
    fn real_numbers_keep_to_their_range() {
        for (text, expected) in [
            ("0", Some(0.0)),
            ("1", Some(1.0)),
            ("1.1", None),
            ("-0.1", None),
            ("nan", None),
            ("inf", None),
            ("x", None),
        ] {
            assert_eq!(part(text).ok(), expected, "{text}");
        }
        assert_eq!(
            (penalty("-1"), temperature("-1").is_err(), repetition("0").is_err()),
            (Ok(-1.0), true, true)
        );
        assert_eq!((seed("18446744073709551615"), seed("-1").is_err()), (Ok(u64::MAX), true));
    }
}
