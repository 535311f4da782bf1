//! Text forms of numbers and times, as people know them from the original client.

use std::time::Duration;

use ichor_types::GoDuration;
use jiff::Timestamp;

/// Reads a length of time such as `1h30m`, `1.5s` or `0`; negative ones have no meaning here.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let length: GoDuration = text.parse().ok()?;
    (length >= GoDuration::ZERO).then(|| length.to_std())
}

/// Writes a length of time as `1h0m0s`, `34s` or `1.5s`.
pub fn duration(length: Duration) -> String {
    GoDuration::from_std(length).to_string()
}

/// How long ago `then` was, in whole seconds.
pub fn since(then: Timestamp, now: Timestamp) -> String {
    let length = Duration::try_from(now.duration_since(then)).unwrap_or_default();
    duration(Duration::from_secs(length.as_secs_f64().round() as u64))
}

/// A protobuf time, when it is one.
pub fn timestamp(time: Option<&prost_types::Timestamp>) -> Option<Timestamp> {
    let time = time?;
    Timestamp::new(time.seconds, time.nanos).ok()
}

/// A time as RFC 3339 in UTC, with as many decimals as it has.
pub fn rfc3339(time: Timestamp) -> String {
    time.to_string()
}

/// A time as `2025-01-01 00:00:00.000000001 +0000 UTC`.
pub fn go_time(time: Timestamp) -> String {
    let text = time.to_string();
    let (date, clock) = text.trim_end_matches('Z').split_once('T').unwrap_or((&text, ""));
    format!("{date} {clock} +0000 UTC")
}

/// The time of a file: `Jan  2 15:04:05` in the last half year, `Jan  2 2006 15:04` before; in UTC.
pub fn file_time(time: Timestamp, now: Timestamp) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const HALF_YEAR: i64 = 180 * 24 * 3600;
    let text = rfc3339(time);
    let (date, clock) = text.split_once('T').unwrap_or((&text, ""));
    let mut parts = date.split('-');
    let year = parts.next().unwrap_or_default();
    let month = parts.next().and_then(|month| month.parse::<usize>().ok()).unwrap_or(1);
    let day = parts.next().unwrap_or_default().trim_start_matches('0');
    let month = MONTHS[(month + 11) % 12];
    if now.as_second() - time.as_second() < HALF_YEAR {
        format!("{month} {day:>2} {}", clock.get(..8).unwrap_or_default())
    } else {
        format!("{month} {day:>2} {year} {}", clock.get(..5).unwrap_or_default())
    }
}

/// The date of a time as `2025-01-01`.
pub fn date(time: Timestamp) -> String {
    rfc3339(time).split('T').next().unwrap_or_default().to_owned()
}

/// A size in powers of a thousand, two digits at most: `1.2 GB`.
pub fn bytes(size: u64) -> String {
    scaled(size, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// A size in powers of 1024, two digits at most: `1.2 GiB`.
pub fn binary_bytes(size: u64) -> String {
    scaled(size, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

fn scaled(size: u64, base: f64, units: &[&str]) -> String {
    if size < 10 {
        return format!("{size} B");
    }
    let mut value = size as f64;
    let mut unit = 0;
    while value >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let value = (value * 10.0 + 0.5).floor() / 10.0;
    if value < 10.0 { format!("{value:.1} {}", units[unit]) } else { format!("{value:.0} {}", units[unit]) }
}

/// The distance to a time in words: `3 minutes ago`, `11 months from now`.
pub fn relative(then: Timestamp, now: Timestamp) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const WEEK: i64 = 7 * DAY;
    const MONTH: i64 = 30 * DAY;
    const YEAR: i64 = 12 * MONTH;
    const LONG: i64 = 37 * YEAR;
    let seconds = now.as_second() - then.as_second();
    let direction = if seconds >= 0 { "ago" } else { "from now" };
    let distance = seconds.abs();
    let (count, unit) = match distance {
        0 => return "now".to_owned(),
        1..MINUTE => (distance, "second"),
        MINUTE..HOUR => (distance / MINUTE, "minute"),
        HOUR..DAY => (distance / HOUR, "hour"),
        DAY..WEEK => (distance / DAY, "day"),
        WEEK..MONTH => (distance / WEEK, "week"),
        MONTH..YEAR => (distance / MONTH, "month"),
        // A year and a half is nearer to two.
        YEAR.. if distance < 18 * MONTH => (1, "year"),
        YEAR.. if distance >= LONG => return format!("a long while {direction}"),
        YEAR.. => ((distance / YEAR).max(2), "year"),
        _ => return "now".to_owned(),
    };
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {unit}{plural} {direction}")
}

/// A file mode in the bit layout of the wire as letters: `drwxr-xr-x`, `Lrwxrwxrwx`.
pub fn file_mode(mode: u32) -> String {
    // One letter for each high bit, from bit 31 down.
    const HIGH: &[u8] = b"dalTLDpSugct?";
    const LOW: &[u8] = b"rwxrwxrwx";
    let mut text = String::with_capacity(10);
    for (index, letter) in HIGH.iter().enumerate() {
        if mode & (1 << (31 - index)) != 0 {
            text.push(char::from(*letter));
        }
    }
    if text.is_empty() {
        text.push('-');
    }
    for (index, letter) in LOW.iter().enumerate() {
        let set = mode & (1 << (8 - index)) != 0;
        text.push(if set { char::from(*letter) } else { '-' });
    }
    text
}

/// The word of `known` closest to `word`, when one is close enough to be what was meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance <= limit || (word.len() >= 3 && candidate.starts_with(word))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edits between two words, a swap of neighbours counted once.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let same = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + same);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// Several errors as the block people know: a count, then one line each.
pub fn errors_block(errors: &[String]) -> String {
    let noun = if errors.len() == 1 { "1 error".to_owned() } else { format!("{} errors", errors.len()) };
    let lines: String = errors.iter().map(|error| format!("\t* {error}\n")).collect();
    format!("{noun} occurred:\n{lines}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn durations_are_read_and_written_alike() {
        for (text, secs) in [("30m0s", 1800.0), ("1h30m", 5400.0), ("1.5s", 1.5), ("250ms", 0.25), ("0", 0.0)]
        {
            let read = parse_duration(text).map(|d| d.as_secs_f64());
            assert_eq!(read, Some(secs), "{text}");
        }
        for bad in ["", "5", "s", "1x", "-", "1h-"] {
            assert_eq!(parse_duration(bad), None, "{bad:?}");
        }
        for (length, text) in [
            (Duration::from_secs(1800), "30m0s"),
            (Duration::from_secs(3600 * 8760), "8760h0m0s"),
            (Duration::from_millis(1500), "1.5s"),
            (Duration::from_millis(250), "250ms"),
            (Duration::ZERO, "0s"),
        ] {
            assert_eq!(duration(length), text);
        }
    }

    #[test]
    fn file_modes_use_the_layout_of_the_wire() {
        assert_eq!(file_mode(0o755 | 1 << 31), "drwxr-xr-x");
        assert_eq!(file_mode(0o777 | 1 << 27), "Lrwxrwxrwx");
        assert_eq!(file_mode(0o644), "-rw-r--r--");
        assert_eq!(file_mode(0o666 | 1 << 26 | 1 << 21), "Dcrw-rw-rw-");
    }

    #[test]
    fn sizes_have_two_digits_at_most() {
        assert_eq!(bytes(7), "7 B");
        assert_eq!(bytes(1_234_567), "1.2 MB");
        assert_eq!(bytes(82_854_982), "83 MB");
        assert_eq!(binary_bytes(82_854_982), "79 MiB");
    }

    #[test]
    fn a_slip_of_the_finger_is_recognized() {
        assert_eq!(nearest("verison", ["version", "get"]), Some("version"));
        assert_eq!(nearest("proc", ["processes", "get"]), Some("processes"));
        assert_eq!(nearest("banana", ["version", "get"]), None);
    }

    #[test]
    fn times_keep_the_looks_of_the_original() {
        let time: Timestamp = "2025-01-01T00:00:05.25Z".parse().unwrap();
        assert_eq!(go_time(time), "2025-01-01 00:00:05.25 +0000 UTC");
        assert_eq!(date(time), "2025-01-01");
        assert_eq!(since(time, "2025-01-01T00:01:39Z".parse().unwrap()), "1m34s");
        assert_eq!(relative("2026-01-01T00:00:00Z".parse().unwrap(), time), "1 year from now");
        assert_eq!(relative("1970-01-01T00:00:00Z".parse().unwrap(), time), "a long while ago");
        assert_eq!(file_time(time, time), "Jan  1 00:00:05");
        assert_eq!(file_time(time, "2025-08-01T00:00:00Z".parse().unwrap()), "Jan  1 2025 00:00");
    }
}
