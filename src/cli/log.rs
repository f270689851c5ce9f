//! `log`: what was timed. Also the log that a search adds to.

use crate::cli::{Failure, Format, Optimize, TrialLog, place};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tilewright::log::{Filter, Log};
use tilewright::{MemoryHandle, Trial};

/// Digits of a hash that a table shows.
const DIGITS: usize = 8;

/// The log of a search: that of `--database`, else the user's own. Nothing is timed without a GPU, so none is made without one.
///
/// # Errors
/// The one that was asked for cannot be used. Where the user's own cannot there is none, with a warning.
pub(crate) fn of_search(arguments: &Optimize) -> Result<Option<MemoryHandle>, Failure> {
    chosen(
        arguments.database.as_deref(),
        arguments.no_log || arguments.no_gpu,
    )
}

/// The log of this file; without one none, or the user's own.
///
/// # Errors
/// As [`of_search`].
pub(crate) fn chosen(file: Option<&Path>, none: bool) -> Result<Option<MemoryHandle>, Failure> {
    if let Some(path) = file {
        let log = Log::open(path).map_err(Failure::refused)?;
        return Ok(Some(MemoryHandle::new(log)));
    }
    if none {
        return Ok(None);
    }
    let opened = place::log().map(|path| Log::open(&path)).transpose();
    let log = opened.unwrap_or_else(|error| {
        tracing::warn!("what is timed is not in the log: {error}");
        None
    });
    Ok(log.map(MemoryHandle::new))
}

/// The trials that are meant.
pub(crate) fn log(arguments: &TrialLog) -> Result<String, Failure> {
    let path = arguments.database.clone().or_else(place::log);
    let path = path.ok_or_else(|| {
        Failure::refused(
            "neither XDG_DATA_HOME nor HOME says where the log is: name it by --database",
        )
    })?;
    if !path.exists() {
        return Err(Failure::refused(format!(
            "{}: there is no log; `tilewright optimize` makes one, on a machine with a GPU",
            path.display()
        )));
    }
    let log = Log::existing(&path).map_err(Failure::refused)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = |ago: Duration| now.unwrap_or_default().saturating_sub(ago).as_secs();
    let filter = Filter {
        program: arguments.program.clone(),
        gpu: arguments.gpu.clone(),
        kernel: arguments.kernel.clone(),
        since: arguments.since.map(since),
        whole: arguments.whole,
        fastest: arguments.fastest,
    };
    if arguments.format == Format::Csv {
        return log.csv(&filter).map_err(Failure::refused);
    }
    let trials = log.list(&filter).map_err(Failure::refused)?;
    if arguments.format == Format::Table {
        let count = trials.len();
        let s = if count == 1 { "" } else { "s" };
        return Ok(format!(
            "{}{count} trial{s} in {}\n",
            table(&trials),
            log.path().display()
        ));
    }
    let lines = trials
        .iter()
        .map(|trial| serde_json::to_string(trial).map(|line| line + "\n"));
    lines.collect::<Result<_, _>>().map_err(Failure::refused)
}

/// What the columns of a table are called, and which are aligned to the right.
#[rustfmt::skip]
const TITLES: [(&str, bool); 12] = [
    ("when (UTC)", false), ("program", false), ("hash", false), ("kernel", false), ("GPU", false), ("warm us", true),
    ("p10 to p90", true), ("cold us", true), ("clock us", true), ("registers", true), ("MHz", true), ("W", true),
];

/// A line for each trial below one of titles; nothing of none.
fn table(trials: &[Trial]) -> String {
    if trials.is_empty() {
        return String::new();
    }
    let mut rows = vec![TITLES.map(|t| t.0.to_owned())];
    rows.extend(trials.iter().map(cells));
    let mut widths = [0; TITLES.len()];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: [String; TITLES.len()]| {
        let cells = row.into_iter().zip(TITLES).zip(widths);
        let cells = cells.map(|((cell, (_, right)), width)| match right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        let cells: Vec<String> = cells.collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.into_iter().map(line).collect()
}

fn cells(trial: &Trial) -> [String; TITLES.len()] {
    let short = |hash: &str| hash.chars().take(DIGITS).collect::<String>();
    let us = |us: f64| format!("{us:.1}");
    let measured = &trial.measured;
    let kernel = trial.kernel.as_ref().filter(|_| !trial.whole);
    let registers: Vec<String> = trial.registers.iter().map(u32::to_string).collect();
    let sensor = |value: Option<f64>| value.map_or_else(String::new, |x| format!("{x:.0}"));
    [
        utc(trial.when),
        trial.program.clone(),
        short(&trial.program_hash),
        kernel.map_or_else(|| "all".to_owned(), |k| short(k.as_str())),
        trial.gpu.clone(),
        us(measured.warm.median_us),
        format!(
            "{} to {}",
            us(measured.warm.p10_us),
            us(measured.warm.p90_us)
        ),
        us(measured.cold.median_us),
        us(trial.clock_us),
        registers.join(" "),
        sensor(measured.telemetry.and_then(|t| t.sm_mhz)),
        sensor(measured.telemetry.and_then(|t| t.power_w)),
    ]
}

/// Day and minute of a second since the beginning of 1970: years from March on, so that the leap day is the last (Hinnant,
/// "chrono-compatible low-level date algorithms", `civil_from_days`).
fn utc(seconds: u64) -> String {
    /// Days of 400 years, from the first of March of the year 0 to the beginning of 1970, and of five months from March on.
    const ERA: u64 = 146_097;
    const TO_1970: u64 = 719_468;
    const FIVE_MONTHS: u64 = 153;
    let days = seconds / 86_400 + TO_1970;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / FIVE_MONTHS;
    let day = day - (FIVE_MONTHS * month + 2) / 5 + 1;
    let (year, month) = match month < 10 {
        true => (era * 400 + year, month + 3),
        false => (era * 400 + year + 1, month - 9),
    };
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Oracle: GNU date.
    #[test]
    fn seconds_are_days() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00"),
            (951_782_400, "2000-02-29 00:00"),
            (951_868_799, "2000-02-29 23:59"),
            (951_868_800, "2000-03-01 00:00"),
            (1_764_020_519, "2025-11-24 21:41"),
            (1_798_761_599, "2026-12-31 23:59"),
            (4_107_542_400, "2100-03-01 00:00"),
        ] {
            assert_eq!(utc(seconds), expected, "{seconds}");
        }
    }
}
