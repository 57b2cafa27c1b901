//! Dates for chat templates: `strftime` of what they use.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// A moment, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moment {
    year: u64,
    /// From 0.
    month: usize,
    day: u64,
    /// From Thursday, the first day of 1970.
    weekday: usize,
    seconds: u64,
}

fn moment(unix: u64) -> Moment {
    let (days, seconds) = (unix / 86_400, unix % 86_400);
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    Moment { year, month, day: left + 1, weekday: (days % 7) as usize, seconds }
}

/// Now, in UTC, as `format` says; a sign that is not known stays as it is.
pub(crate) fn now(format: &str) -> String {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    strftime(unix, format)
}

fn strftime(unix: u64, format: &str) -> String {
    let m = moment(unix);
    let mut out = String::new();
    let mut signs = format.chars();
    while let Some(c) = signs.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let sign = signs.next();
        let (plain, sign) = if sign == Some('-') { (true, signs.next()) } else { (false, sign) };
        let two = |n: u64| if plain { n.to_string() } else { format!("{n:02}") };
        out.push_str(&match sign {
            Some('Y') => m.year.to_string(),
            Some('y') => two(m.year % 100),
            Some('m') => two(m.month as u64 + 1),
            Some('d') => two(m.day),
            Some('H') => two(m.seconds / 3600),
            Some('M') => two(m.seconds / 60 % 60),
            Some('S') => two(m.seconds % 60),
            Some('B') => MONTHS[m.month].to_owned(),
            Some('b') => MONTHS[m.month][..3].to_owned(),
            Some('A') => DAYS[m.weekday].to_owned(),
            Some('a') => DAYS[m.weekday][..3].to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (unix, format, expected) in [
            (0, "%Y-%m-%d %H:%M:%S %A", "1970-01-01 00:00:00 Thursday"),
            (951_782_399, "%d %B %Y, %H:%M:%S", "28 February 2000, 23:59:59"),
            (951_782_400, "%d %b %y %a", "29 Feb 00 Tue"),
            (1_796_000_461, "%-d %b %Y %-H", "30 Nov 2026 1"),
            (1_796_000_461, "%% %q %", "% %q %"),
        ] {
            assert_eq!(strftime(unix, format), expected);
        }
    }
}
