//! How long a search may take, as people write it: `90s`, `1.5h`, `1h30m`, `2d 12h`.
//!
//! Exact: in whole nanoseconds, without floating point. No library at hand reads fractions of an hour and days, refuses a
//! number without a unit, and rounds nothing.

use std::time::Duration;

/// Units from the longest on, in nanoseconds.
#[rustfmt::skip]
const UNITS: [(&str, u128); 6] = [
    ("d",   86_400_000_000_000),
    ("h",    3_600_000_000_000),
    ("min",     60_000_000_000),
    ("m",       60_000_000_000),
    ("s",        1_000_000_000),
    ("ms",           1_000_000),
];

/// Nobody waits longer; sums and multiples of it stay far from overflow.
const MOST_DAYS: u64 = 1000;

/// A positive time: numbers with units from the longest to the shortest, each unit once, blanks between them or none; a
/// fraction in the last one only.
pub fn budget(text: &str) -> Result<Duration, String> {
    const EXAMPLES: &str = "expected a time such as 90s, 5m, 1.5h or 1h30m";
    let mut rest = text.trim_matches(' ');
    let mut total: u128 = 0;
    let mut shortest = u128::MAX;
    let mut fraction_in = None;
    if rest.is_empty() {
        return Err(EXAMPLES.to_owned());
    }
    while !rest.is_empty() {
        let (whole, behind) = digits(rest);
        let (fraction, behind) = match behind.strip_prefix('.') {
            Some(behind) => digits(behind),
            None => ("", behind),
        };
        let number = &rest[..rest.len() - behind.len()];
        if whole.is_empty() || number.ends_with('.') {
            return Err(format!("{EXAMPLES}, found `{rest}`"));
        }
        let length = behind.find(|c: char| !c.is_alphabetic());
        let (unit, behind) = behind.split_at(length.unwrap_or(behind.len()));
        let Some((_, nanoseconds)) = UNITS.iter().find(|u| u.0 == unit) else {
            let found = if unit.is_empty() {
                "no unit".to_owned()
            } else {
                format!("`{unit}`")
            };
            return Err(format!(
                "expected a unit (d, h, m, s or ms) behind `{number}`, found {found}"
            ));
        };
        if *nanoseconds >= shortest {
            return Err(format!(
                "expected each unit once and from the longest to the shortest, found `{text}`"
            ));
        }
        if let Some(earlier) = fraction_in {
            return Err(format!(
                "expected a fraction in the last number only, found one in `{earlier}`"
            ));
        }
        shortest = *nanoseconds;
        fraction_in = (!fraction.is_empty()).then_some(number);
        let part = part(whole, fraction, *nanoseconds)?;
        total = total.saturating_add(part);
        rest = behind.trim_start_matches(' ');
    }
    let most = Duration::from_hours(24 * MOST_DAYS);
    if total == 0 {
        return Err("expected more than no time".to_owned());
    }
    if total > most.as_nanos() {
        return Err(format!("expected at most {MOST_DAYS}d, found `{text}`"));
    }
    Ok(Duration::from_nanos_u128(total))
}

/// The digits at the beginning, and what is behind them.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

/// `whole.fraction` units; saturating, since any time that long is refused.
fn part(whole: &str, fraction: &str, nanoseconds: u128) -> Result<u128, String> {
    let fraction = fraction.trim_end_matches('0');
    let number = |digits: &str| digits.parse().unwrap_or(u128::MAX);
    let scale = u32::try_from(fraction.len())
        .ok()
        .and_then(|length| 10u128.checked_pow(length));
    let of_fraction = match (fraction, scale) {
        ("", _) => Some(0),
        (_, Some(scale)) => (number(fraction).checked_mul(nanoseconds))
            .filter(|n| n % scale == 0)
            .map(|n| n / scale),
        (_, None) => None,
    };
    let of_fraction = of_fraction.ok_or("expected whole nanoseconds, found a finer fraction")?;
    Ok(number(whole)
        .saturating_mul(nanoseconds)
        .saturating_add(of_fraction))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_exact() {
        for (text, milliseconds) in [
            ("60s", 60_000),
            ("90s", 90_000),
            ("4h", 14_400_000),
            ("1.5m", 90_000),
            ("20ms", 20),
            ("500ms", 500),
            ("2d", 172_800_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1h  30min", 5_400_000),
            (" 5m ", 300_000),
            ("1.5h", 5_400_000),
            ("1h1.5m", 3_690_000),
            ("0h90s", 90_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("0.1s", 100),
            ("0.70s", 700),
            ("1000d", 86_400_000_000),
        ] {
            let expected = Duration::from_millis(milliseconds);
            assert_eq!(budget(text), Ok(expected), "{text}");
        }
        assert_eq!(budget("0.000001ms"), Ok(Duration::from_nanos(1)));
        assert_eq!(
            budget("999d23h59m59.999999999s"),
            Ok(Duration::new(86_399_999, 999_999_999))
        );
    }

    #[test]
    fn what_is_no_budget_is_told_why() {
        for (text, why) in [
            ("", "a time such as 90s, 5m, 1.5h or 1h30m"),
            ("  ", "a time such as"),
            ("60", "a unit (d, h, m, s or ms) behind `60`, found no unit"),
            ("1h30", "behind `30`, found no unit"),
            ("s", "found `s`"),
            ("0s", "more than no time"),
            ("0h0.000ms", "more than no time"),
            ("-1s", "found `-1s`"),
            ("1h-5m", "found `-5m`"),
            ("1h+5m", "found `+5m`"),
            ("1h,5m", "found `,5m`"),
            ("+1h", "found `+1h`"),
            ("4 h", "behind `4`, found no unit"),
            ("1e9h", "behind `1`, found `e`"),
            ("1.2.3s", "behind `1.2`, found no unit"),
            ("1.s", "found `1.s`"),
            (".5h", "found `.5h`"),
            (
                "1.5h30m",
                "a fraction in the last number only, found one in `1.5`",
            ),
            ("30m1h", "from the longest to the shortest"),
            ("1h1h", "each unit once"),
            ("1m1min", "each unit once"),
            ("1H", "found `H`"),
            ("5minutes", "found `minutes`"),
            ("1h30m later", "found `later`"),
            ("１h", "found `１h`"),
            ("1µs", "found `µs`"),
            ("0.0000001ms", "whole nanoseconds"),
            (
                "0.0000000000000000000000000000000000000000001s",
                "whole nanoseconds",
            ),
            ("1001d", "at most 1000d"),
            ("1000d1ms", "at most 1000d"),
            ("99999999999999999999999h", "at most 1000d"),
            (
                "999999999999999999999999999999999999999999999d",
                "at most 1000d",
            ),
            ("inf", "found `inf`"),
            ("NaNs", "found `NaNs`"),
        ] {
            let found = budget(text).expect_err(text);
            assert!(found.contains(why), "{text}: {found}");
        }
    }
}
