//! What a row has.

use crate::pipeline::{KernelName, Trial, TrialKey};
use device::telemetry::Telemetry;
use device::timing::{Measurement, Timing};
use rusqlite::Row;
use rusqlite::types::Value;

/// The columns of a trial but for its tile program, in the order of [`values`], with their types and what else SQL says of them.
#[rustfmt::skip]
pub(super) const COLUMNS: [(&str, &str); 37] = [
    ("unix_time",        "INTEGER NOT NULL"),
    ("program",          "TEXT NOT NULL"),
    ("program_hash",     "TEXT NOT NULL"),
    ("kernel",           "TEXT"),
    ("whole",            "INTEGER NOT NULL"),
    ("target",           "TEXT NOT NULL"),
    ("gpu",              "TEXT NOT NULL"),
    ("driver",           "TEXT NOT NULL"),
    ("power_limit_mw",   "INTEGER"),
    ("compiler",         "TEXT NOT NULL"),
    ("seed",             "INTEGER NOT NULL"),
    ("clock_us",         "REAL NOT NULL"),
    ("roofline_us",      "REAL NOT NULL"),
    ("warm_median_us",   "REAL NOT NULL"),
    ("warm_p10_us",      "REAL NOT NULL"),
    ("warm_p90_us",      "REAL NOT NULL"),
    ("warm_min_us",      "REAL NOT NULL"),
    ("warm_samples",     "INTEGER NOT NULL"),
    ("warm_replays",     "INTEGER NOT NULL"),
    ("warm_drift",       "REAL NOT NULL"),
    ("warm_steady",      "INTEGER NOT NULL"),
    ("cold_median_us",   "REAL NOT NULL"),
    ("cold_p10_us",      "REAL NOT NULL"),
    ("cold_p90_us",      "REAL NOT NULL"),
    ("cold_min_us",      "REAL NOT NULL"),
    ("cold_samples",     "INTEGER NOT NULL"),
    ("cold_replays",     "INTEGER NOT NULL"),
    ("cold_drift",       "REAL NOT NULL"),
    ("cold_steady",      "INTEGER NOT NULL"),
    ("copies",           "INTEGER NOT NULL"),
    ("copies_exceed_l2", "INTEGER NOT NULL"),
    ("sm_mhz",           "REAL"),
    ("power_w",          "REAL"),
    ("registers",        "TEXT NOT NULL"),
    ("spilled",          "TEXT NOT NULL"),
    ("key",              "TEXT NOT NULL"),
    ("schedule",         "TEXT NOT NULL"),
];

/// The last column: in the table `trial` the number of a tile program, in the view `trials` its text.
pub(super) const TILE: &str = "tile";

/// The names of the columns, with commas.
pub(super) fn column_names() -> String {
    COLUMNS.map(|c| c.0).join(", ")
}

/// What makes an empty database a log.
pub(super) fn schema() -> String {
    let columns: String = (COLUMNS.iter())
        .map(|(name, kind)| format!("  {name} {kind},\n"))
        .collect();
    let view = view();
    format!(
        "CREATE TABLE tile_program (\n  id INTEGER PRIMARY KEY,\n  hash TEXT NOT NULL UNIQUE,\n  text TEXT NOT NULL\n);
         CREATE TABLE trial (\n  id INTEGER PRIMARY KEY,\n{columns}  {TILE} INTEGER NOT NULL REFERENCES tile_program (id)\n);
         CREATE INDEX trial_by_key ON trial (key);
         CREATE INDEX trial_by_kernel ON trial (kernel, gpu);
         CREATE INDEX trial_by_program ON trial (program_hash, gpu, driver);
         {view}"
    )
}

fn view() -> String {
    let shown = COLUMNS.map(|c| format!("trial.{}", c.0)).join(", ");
    format!(
        "CREATE VIEW trials AS SELECT trial.id, {shown}, tile_program.text AS {TILE}
           FROM trial JOIN tile_program ON tile_program.id = trial.{TILE};"
    )
}

/// What makes a log of version 1 one of version 2, which knows power limits.
pub(super) fn upgrade() -> String {
    let view = view();
    format!("ALTER TABLE trial ADD COLUMN power_limit_mw INTEGER; DROP VIEW trials; {view}")
}

/// The values of a trial's row.
pub(super) fn values(trial: &Trial) -> [Value; COLUMNS.len()] {
    let text = |text: &str| Value::Text(text.to_owned());
    // SQLite's whole numbers have a sign: seeds of more than 63 bits are negative ones.
    let number = |n: u64| Value::Integer(n as i64);
    let list = |numbers: &[u32]| Value::Text(serde_json::json!(numbers).to_string());
    let maybe = |x: Option<f64>| x.map_or(Value::Null, Value::Real);
    let measured = &trial.measured;
    let timing = |t: &Timing| {
        [
            Value::Real(t.median_us),
            Value::Real(t.p10_us),
            Value::Real(t.p90_us),
            Value::Real(t.min_us),
            number(t.samples.into()),
            number(t.replays.into()),
            Value::Real(t.drift),
            number(t.steady.into()),
        ]
    };
    let ([w0, w1, w2, w3, w4, w5, w6, w7], [c0, c1, c2, c3, c4, c5, c6, c7]) =
        (timing(&measured.warm), timing(&measured.cold));
    [
        number(trial.when),
        text(&trial.program),
        text(&trial.program_hash),
        trial
            .kernel
            .as_ref()
            .map_or(Value::Null, |k| text(k.as_str())),
        number(trial.whole.into()),
        text(&trial.target),
        text(&trial.gpu),
        text(&trial.driver),
        (trial.power_limit_mw).map_or(Value::Null, |mw| number(mw.into())),
        text(&trial.compiler),
        number(trial.seed),
        Value::Real(trial.clock_us),
        Value::Real(trial.roofline_us),
        w0,
        w1,
        w2,
        w3,
        w4,
        w5,
        w6,
        w7,
        c0,
        c1,
        c2,
        c3,
        c4,
        c5,
        c6,
        c7,
        number(measured.copies.into()),
        number(measured.copies_exceed_l2.into()),
        maybe(measured.telemetry.and_then(|t| t.sm_mhz)),
        maybe(measured.telemetry.and_then(|t| t.power_w)),
        list(&trial.registers),
        list(&trial.spilled),
        text(trial.key.as_str()),
        text(&trial.schedule),
    ]
}

/// The trial of a row that has all columns, by their names.
pub(super) fn trial(row: &Row<'_>) -> rusqlite::Result<Trial> {
    let text = |name: &str| row.get::<_, String>(name);
    let number = |name: &str| row.get::<_, i64>(name).map(|n| n as u64);
    let count = |name: &str| row.get::<_, u32>(name);
    let real = |name: &str| row.get::<_, f64>(name);
    let list = |name: &str| -> rusqlite::Result<Vec<u32>> {
        let text: String = row.get(name)?;
        serde_json::from_str(&text).map_err(|e| {
            let index = row.as_ref().column_index(name).unwrap_or_default();
            let kind = rusqlite::types::Type::Text;
            rusqlite::Error::FromSqlConversionFailure(index, kind, Box::new(e))
        })
    };
    let timing = |which: &str| -> rusqlite::Result<Timing> {
        let name = |figure: &str| format!("{which}_{figure}");
        Ok(Timing {
            median_us: real(&name("median_us"))?,
            p10_us: real(&name("p10_us"))?,
            p90_us: real(&name("p90_us"))?,
            min_us: real(&name("min_us"))?,
            samples: count(&name("samples"))?,
            replays: count(&name("replays"))?,
            drift: real(&name("drift"))?,
            steady: row.get(name("steady").as_str())?,
        })
    };
    let (sm_mhz, power_w): (Option<f64>, Option<f64>) = (row.get("sm_mhz")?, row.get("power_w")?);
    let known = sm_mhz.is_some() || power_w.is_some();
    Ok(Trial {
        key: TrialKey::from(text("key")?),
        program: text("program")?,
        program_hash: text("program_hash")?,
        kernel: row
            .get::<_, Option<String>>("kernel")?
            .map(KernelName::from),
        target: text("target")?,
        gpu: text("gpu")?,
        driver: text("driver")?,
        power_limit_mw: row.get("power_limit_mw")?,
        compiler: text("compiler")?,
        seed: number("seed")?,
        when: number("unix_time")?,
        whole: row.get("whole")?,
        tile: text(TILE)?,
        schedule: text("schedule")?,
        clock_us: real("clock_us")?,
        roofline_us: real("roofline_us")?,
        measured: Measurement {
            warm: timing("warm")?,
            cold: timing("cold")?,
            copies: count("copies")?,
            copies_exceed_l2: row.get("copies_exceed_l2")?,
            telemetry: known.then_some(Telemetry { sm_mhz, power_w }),
        },
        registers: list("registers")?,
        spilled: list("spilled")?,
    })
}
