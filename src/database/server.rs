//! A database on a server, which many machines use at once: PostgreSQL.
//!
//! A connection that is lost is made again, for a while, and what was under way is done anew: everything that is asked for here comes to the same when it is done twice.
//! Connections are not encrypted. A password is in no text that is shown or written.

use super::DatabaseError;
use super::Kind;
use super::sql::{All, SqlError, Value, tables_of_server, values_of};
use postgres::{Client, Config, IsolationLevel, NoTls};
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where a database is, and who asks: `postgres://USER:PASSWORD@HOST:PORT/DATABASE`.
#[derive(Clone)]
pub struct Url {
    config: Box<Config>,
    /// Without the password.
    shown: String,
    password: Option<String>,
}

/// The text is no address of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected an address such as postgres://USER@HOST:5432/DATABASE, with the names of user, host and database; found something else, which is not repeated here since it may hold a password"
)]
pub struct NoUrl;

/// How long a connection that was lost is sought.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// Between two attempts, at first and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];
/// After how long without a word it is asked whether the other end is there, how often, and how long an answer may take.
const IDLE: Duration = Duration::from_secs(15);
const PROBES: u32 = 3;

impl Url {
    /// Whether a text means a server, and not a file or a folder.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("postgres://") || text.starts_with("postgresql://")
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, NoUrl> {
        let mut config: Config = text.parse().map_err(|_| NoUrl)?;
        let is_whole = Self::is_meant(text)
            && config.get_user().is_some()
            && config.get_dbname().is_some()
            && !config.get_hosts().is_empty();
        if !is_whole {
            return Err(NoUrl);
        }
        let password = match config.get_password() {
            Some(bytes) => Some(String::from_utf8(bytes.to_vec()).map_err(|_| NoUrl)?),
            None => None,
        };
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT);
        }
        config
            .application_name("tilewright")
            .keepalives_idle(IDLE)
            .keepalives_interval(IDLE)
            .keepalives_retries(PROBES)
            .tcp_user_timeout(IDLE * PROBES);
        Ok(Self {
            config: Box::new(config),
            shown: without_password(text).ok_or(NoUrl)?,
            password,
        })
    }

    /// With a password that stood elsewhere, where the text has none.
    pub fn with_password(mut self, password: Option<&str>) -> Self {
        if let (None, Some(password)) = (&self.password, password) {
            self.config.password(password);
            self.password = Some(password.to_owned());
        }
        self
    }

    /// The password, for the process that is to open the same database.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        self.config.get_dbname().unwrap_or_default()
    }

    /// The user's name, and hosts with ports: what a file of passwords is asked for.
    pub fn user(&self) -> &str {
        self.config.get_user().unwrap_or_default()
    }

    /// The first host that has a name, and its port.
    pub fn host(&self) -> (String, u16) {
        let host = self.config.get_hosts().iter().find_map(|host| match host {
            postgres::config::Host::Tcp(name) => Some(name.clone()),
            postgres::config::Host::Unix(_) => None,
        });
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        (host.unwrap_or_else(|| "localhost".to_owned()), port)
    }
}

/// The text but for `:PASSWORD` before the host, and `password=…` behind it.
fn without_password(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let (place, options) = match rest.split_once('?') {
        Some((place, options)) => (place, Some(options)),
        None => (rest, None),
    };
    // In the user's part everything else is escaped: the last @ ends it.
    let place = match place.rsplit_once('@') {
        Some((user, host)) => format!("{}@{host}", user.split(':').next()?),
        None => place.to_owned(),
    };
    let options = options.map(|options| {
        let others = options.split('&').filter(|o| !o.starts_with("password="));
        others.collect::<Vec<_>>().join("&")
    });
    let options = options.filter(|options| !options.is_empty());
    let options = options.map_or(String::new(), |options| format!("?{options}"));
    Some(format!("{scheme}://{place}{options}"))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Url").field(&self.shown).finish()
    }
}

/// A lock that a process has for as long as its connection lives: the number of what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(pub(crate) i64);

/// A database that was opened.
pub(crate) struct Server {
    url: Url,
    client: Option<Client>,
    /// What is locked as long as this process lives, and whether it is now.
    mark: Option<(Mark, bool)>,
    /// By how many seconds the server's clock is ahead of ours.
    ahead: f64,
    /// When a connection was made again last.
    restored: Option<Instant>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.url).finish()
    }
}

fn here() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

impl Server {
    /// Connects, once: who names a server that is not there wants to know it.
    pub(crate) fn open(url: &Url) -> Result<Self, DatabaseError> {
        let mut server = Self {
            url: url.clone(),
            client: None,
            mark: None,
            ahead: 0.0,
            restored: None,
        };
        match server.connect() {
            Ok(()) => Ok(server),
            Err(e) => Err(server.fault(&e)),
        }
    }

    /// Connects, as soon as the server is there: it was, not long ago.
    pub(crate) fn await_open(url: &Url) -> Result<Self, DatabaseError> {
        let since = Instant::now();
        let mut pause = PAUSES[0];
        loop {
            match Self::open(url) {
                Err(_) if since.elapsed() < PATIENCE => std::thread::sleep(pause),
                opened => return opened,
            }
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// Makes the tables of a kind where there are none, with what they hold at first.
    pub(crate) fn make(
        &mut self,
        kind: &Kind,
        fill: impl Fn(&mut All<'_, '_>) -> Result<(), SqlError>,
    ) -> Result<(), DatabaseError> {
        let tables = tables_of_server(&(kind.schema)());
        let made = self.write(|all| {
            // One at a time: of two that make it at once the second finds a database that is not empty.
            all.execute(
                "SELECT pg_advisory_xact_lock(?1)",
                values_of![kind.application],
            )?;
            let found: i64 = all.one(
                "SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace",
                &[],
            )?;
            if found > 0 {
                return Ok(false);
            }
            for table in tables.split(';').filter(|t| !t.trim().is_empty()) {
                all.execute(table, &[])?;
            }
            all.execute(
                "CREATE TABLE tilewright (application BIGINT NOT NULL, version BIGINT NOT NULL)",
                &[],
            )?;
            all.execute(
                "INSERT INTO tilewright (application, version) VALUES (?1, ?2)",
                values_of![kind.application, kind.version],
            )?;
            fill(all)?;
            Ok(true)
        })?;
        match (made, self.version(kind)?) {
            (true, _) => Ok(()),
            (false, Some(_)) => Err(self.told(format!("{} is here already", kind.full))),
            (false, None) => Err(self.told(
                "expected a database or a schema without tables, found some; it is left as it is"
                    .to_owned(),
            )),
        }
    }

    /// Whether it is of a kind, and of the version that is known.
    pub(crate) fn check(&mut self, kind: &Kind) -> Result<(), DatabaseError> {
        match self.version(kind)? {
            Some(found) if found == kind.version => Ok(()),
            Some(found) => Err(self.told(format!(
                "expected a {} of version {}, found version {found}, of another tilewright; it is left as it is",
                kind.name, kind.version
            ))),
            None => Err(self.told(format!(
                "expected {}, found none in this database; it is left as it is",
                kind.full
            ))),
        }
    }

    fn version(&mut self, kind: &Kind) -> Result<Option<i64>, DatabaseError> {
        self.read(|all| {
            let there = "SELECT to_regclass('tilewright') IS NOT NULL";
            if !all.one::<bool>(there, &[])? {
                return Ok(None);
            }
            let own = "SELECT version FROM tilewright WHERE application = ?1";
            let row = all.first(own, values_of![kind.application])?;
            row.map(|row| row.get(0)).transpose()
        })
    }

    /// The time on the server, in seconds since the beginning of 1970.
    pub(crate) fn now(&self) -> f64 {
        here() + self.ahead
    }

    /// How long ago a connection that was lost was made again.
    pub(crate) fn restored(&self) -> Option<Duration> {
        self.restored.map(|at| at.elapsed())
    }

    /// Does all of some work, or nothing. It may be begun several times.
    pub(crate) fn write<T>(
        &mut self,
        work: impl FnMut(&mut All<'_, '_>) -> Result<T, SqlError>,
    ) -> Result<T, DatabaseError> {
        self.work(IsolationLevel::ReadCommitted, work)
    }

    /// Reads all of something at one moment.
    pub(crate) fn read<T>(
        &mut self,
        work: impl FnMut(&mut All<'_, '_>) -> Result<T, SqlError>,
    ) -> Result<T, DatabaseError> {
        self.work(IsolationLevel::RepeatableRead, work)
    }

    fn work<T>(
        &mut self,
        isolation: IsolationLevel,
        mut work: impl FnMut(&mut All<'_, '_>) -> Result<T, SqlError>,
    ) -> Result<T, DatabaseError> {
        let since = Instant::now();
        let mut pause = PAUSES[0];
        loop {
            let done = self.once(isolation, &mut work);
            let error = match done {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if !error.is_passing() || since.elapsed() > PATIENCE {
                return Err(self.fault(&error));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    fn once<T>(
        &mut self,
        isolation: IsolationLevel,
        work: &mut impl FnMut(&mut All<'_, '_>) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        if self.client.as_ref().is_none_or(Client::is_closed) {
            tracing::warn!("{}: the connection is made again", self.url);
            self.connect()?;
            self.restored = Some(Instant::now());
        }
        let Some(client) = self.client.as_mut() else {
            unreachable!("it was connected");
        };
        let mut all = client
            .build_transaction()
            .isolation_level(isolation)
            .start()?;
        let done = work(&mut All::Server(&mut all))?;
        all.commit()?;
        Ok(done)
    }

    fn connect(&mut self) -> Result<(), SqlError> {
        self.client = None;
        let mut client = self.url.config.connect(NoTls)?;
        let asked = here();
        let row = client.query_one(
            "SELECT extract(epoch FROM clock_timestamp())::double precision",
            &[],
        )?;
        let server: f64 = row.try_get(0)?;
        self.ahead = server - (asked + here()) / 2.0;
        self.client = Some(client);
        if let Some((mark, _)) = self.mark {
            let locked = self.lock(mark)?;
            self.mark = Some((mark, locked));
        }
        Ok(())
    }

    /// Locks what a mark stands for, for as long as this process lives. Where somebody else has it that is tried again by [`Server::keep`].
    pub(crate) fn keep(&mut self, mark: Mark) -> Result<(), DatabaseError> {
        if self.mark == Some((mark, true)) && self.client.as_ref().is_some_and(|c| !c.is_closed()) {
            return Ok(());
        }
        match self.lock(mark) {
            Ok(locked) => self.mark = Some((mark, locked)),
            // It is locked when the connection is made again.
            Err(e) if e.is_passing() => self.mark = Some((mark, false)),
            Err(e) => return Err(self.fault(&e)),
        }
        Ok(())
    }

    fn lock(&mut self, mark: Mark) -> Result<bool, SqlError> {
        let Some(client) = self.client.as_mut() else {
            return Ok(false);
        };
        let sql = format!("SELECT pg_try_advisory_lock({SPACE}, $1)");
        let row = client.query_one(&sql, &[&Value::Int(mark.0)])?;
        Ok(row.try_get(0)?)
    }

    /// What went wrong, with the server's name.
    fn fault(&self, error: &SqlError) -> DatabaseError {
        self.told(error.to_string())
    }

    pub(crate) fn told(&self, reason: String) -> DatabaseError {
        DatabaseError::Server {
            name: self.url.to_string(),
            reason,
        }
    }
}

/// Marks of one schema are its own.
const SPACE: &str = "hashtext('tilewright ' || current_schema())";

/// Whether nobody has what a mark stands for, until the end of this work.
pub(crate) fn is_free(all: &mut All<'_, '_>, mark: Mark) -> Result<bool, SqlError> {
    let sql = format!("SELECT pg_try_advisory_xact_lock({SPACE}, ?1)");
    all.one(&sql, values_of![mark.0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (text, shown) in [
            (
                "postgres://ann:s3cret@db:5433/night",
                "postgres://ann@db:5433/night",
            ),
            (
                "postgresql://ann:s3%40cret@db/night?connect_timeout=3",
                "postgresql://ann@db/night?connect_timeout=3",
            ),
            (
                "postgres://ann@db/night?password=s3cret&connect_timeout=3",
                "postgres://ann@db/night?connect_timeout=3",
            ),
            (
                "postgres://ann@db/night?password=s3cret",
                "postgres://ann@db/night",
            ),
            ("postgres://ann@db/night", "postgres://ann@db/night"),
        ] {
            let url = Url::parse(text).expect("an address");
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("cret"));
            assert_eq!(url.password().is_some(), text.contains("cret"), "{text}");
            // What is shown can be opened, with a password from elsewhere.
            let again = Url::parse(shown)
                .expect("an address")
                .with_password(Some("x"));
            assert_eq!((again.password(), again.database()), (Some("x"), "night"));
        }
        for text in [
            "postgres://",
            "postgres://db/night",
            "postgres://ann:s3cret@db",
            "postgres://ann:s3cret@db:port/night",
            "postgres://ann:s3cret@db/night?speed=high",
            "http://ann:s3cret@db/night",
            "night",
        ] {
            let said = Url::parse(text).expect_err("none").to_string();
            assert!(!said.contains("s3cret"), "{said}");
        }
    }

    #[test]
    fn who_is_not_there_is_named() {
        // Nobody listens on a port that was just given back.
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let port = port.expect("a port").port();
        let text = format!("postgres://ann:s3cret@127.0.0.1:{port}/night");
        let url = Url::parse(&text).expect("an address");
        let begun = Instant::now();
        let said = Server::open(&url).expect_err("nobody").to_string();
        assert!(
            said.contains("127.0.0.1") && said.contains("refused"),
            "{said}"
        );
        assert!(
            !said.contains("s3cret") && begun.elapsed() < CONNECT,
            "{said}"
        );
    }
}
