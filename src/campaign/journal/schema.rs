//! The tables of a journal.

use crate::database::{Kind, contents};

/// The letters TwJo tell it from other databases.
pub(super) const KIND: Kind = Kind {
    name: "journal",
    full: "the journal of a campaign",
    application: 0x5477_4a6f,
    version: 5,
    schema,
    upgrades: &[upgrade, upgrade_offers, upgrade_floors, || TRIAL.to_owned()],
};

/// Version 2 knows where something was timed, and may be on a server.
fn upgrade() -> String {
    let columns = "ALTER TABLE slice ADD COLUMN timed_on TEXT; ALTER TABLE artifact ADD COLUMN timed_on TEXT;
        ALTER TABLE session ADD COLUMN host TEXT NOT NULL DEFAULT ''; ALTER TABLE session ADD COLUMN stopping INTEGER NOT NULL DEFAULT 0;";
    format!("{columns} {PLACE} {}", contents::TABLES)
}

/// Version 3 knows machines that only compile.
fn upgrade_offers() -> String {
    format!("ALTER TABLE session ADD COLUMN compiler TEXT; {OFFER}")
}

/// Version 4 knows in what time a job's program might run at best; 0 where that was not asked.
fn upgrade_floors() -> String {
    "ALTER TABLE job ADD COLUMN floor_us REAL NOT NULL DEFAULT 0;".to_owned()
}

/// Programs that wait for a process, on whatever machine.
const OFFER: &str = "CREATE TABLE offer (
       id INTEGER PRIMARY KEY,
       slice INTEGER NOT NULL REFERENCES slice (id),
       key TEXT NOT NULL,
       compiler TEXT NOT NULL,
       arch TEXT NOT NULL,
       source TEXT NOT NULL,
       state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'taken', 'done', 'failed')),
       taker INTEGER REFERENCES session (id),
       lease REAL NOT NULL DEFAULT 0,
       answer BLOB,
       UNIQUE (slice, key)
     );
     CREATE INDEX offer_by_state ON offer (state);";

/// Version 5 knows what was timed: the first time of each key in a job, its tile program by the hash of its text. The rest is JSON.
const TRIAL: &str = "CREATE TABLE trial (
       id INTEGER PRIMARY KEY,
       job INTEGER NOT NULL REFERENCES job (id),
       slice INTEGER NOT NULL REFERENCES slice (id),
       session INTEGER NOT NULL REFERENCES session (id),
       key TEXT NOT NULL,
       tile INTEGER NOT NULL REFERENCES content (id),
       body TEXT NOT NULL,
       UNIQUE (job, key)
     );";

/// Where what is timed for a target is timed: what was timed elsewhere is stale.
const PLACE: &str = "CREATE TABLE place (target TEXT PRIMARY KEY, timed_on TEXT NOT NULL);";

/// Times are in seconds since the beginning of 1970, or as their names say.
fn schema() -> String {
    let tables = "CREATE TABLE campaign (
       id INTEGER PRIMARY KEY CHECK (id = 1),
       made REAL NOT NULL,
       budget_ms INTEGER NOT NULL,
       first_ms INTEGER,
       seed INTEGER NOT NULL,
       stopping INTEGER NOT NULL DEFAULT 0
     );
     CREATE TABLE session (
       id INTEGER PRIMARY KEY,
       pid INTEGER NOT NULL,
       begun REAL NOT NULL,
       seen REAL NOT NULL,
       workers INTEGER NOT NULL,
       ended INTEGER NOT NULL DEFAULT 0,
       host TEXT NOT NULL DEFAULT '',
       stopping INTEGER NOT NULL DEFAULT 0,
       compiler TEXT
     );
     CREATE TABLE job (
       id INTEGER PRIMARY KEY,
       name TEXT NOT NULL UNIQUE,
       program TEXT NOT NULL,
       program_hash TEXT NOT NULL,
       target TEXT NOT NULL,
       weight REAL NOT NULL,
       floor_us REAL NOT NULL DEFAULT 0,
       state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'done', 'failed')),
       reason TEXT,
       least_ms INTEGER NOT NULL DEFAULT 0,
       forgiven INTEGER NOT NULL DEFAULT 0,
       seal TEXT,
       UNIQUE (program_hash, target)
     );
     CREATE TABLE slice (
       id INTEGER PRIMARY KEY,
       job INTEGER NOT NULL REFERENCES job (id),
       number INTEGER NOT NULL,
       budget_ms INTEGER NOT NULL,
       state TEXT NOT NULL CHECK (state IN ('waiting', 'leased', 'ended', 'lost')),
       attempts INTEGER NOT NULL,
       token INTEGER NOT NULL,
       session INTEGER NOT NULL REFERENCES session (id),
       worker INTEGER NOT NULL,
       pid INTEGER NOT NULL,
       lease REAL NOT NULL,
       seconds REAL,
       trials INTEGER,
       recalled INTEGER,
       us REAL,
       verified INTEGER,
       timed_on TEXT,
       reason TEXT,
       UNIQUE (job, number)
     );
     CREATE INDEX slice_by_state ON slice (state);
     CREATE TABLE artifact (
       id INTEGER PRIMARY KEY,
       seal TEXT NOT NULL UNIQUE,
       job INTEGER NOT NULL REFERENCES job (id),
       slice INTEGER NOT NULL REFERENCES slice (id),
       unix_time REAL NOT NULL,
       us REAL NOT NULL,
       verified INTEGER NOT NULL,
       timed_on TEXT
     );";
    format!("{tables} {PLACE} {} {OFFER} {TRIAL}", contents::TABLES)
}
