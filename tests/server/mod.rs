//! A PostgreSQL server of a test's own, on this machine alone, where its programs are installed: as `nobody` where the tests are root, whom it refuses.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Who asks, and what nothing that is shown or written may have in it.
pub(crate) const USER: &str = "ann";
pub(crate) const PASSWORD: &str = "s3cret:of@ann";
/// As addresses write it.
const ESCAPED: &str = "s3cret%3Aof%40ann";

/// A server that ends with this process, however that ends.
pub(crate) struct Server {
    /// It waits for the end of its input, which is that of this process.
    _guard: Child,
    folder: PathBuf,
    port: u16,
}

/// The server of all tests of this process; none where PostgreSQL is not installed, which is said, unless it has to be.
pub(crate) fn server() -> Option<&'static Server> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    SERVER.get_or_init(Server::start).as_ref()
}

/// The address of a new database, with its password.
pub(crate) fn database() -> Option<String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let server = server()?;
    let name = format!("night{}", COUNT.fetch_add(1, Ordering::Relaxed));
    server.ask(&format!("CREATE DATABASE {name}"));
    Some(server.address(&name))
}

/// A program of PostgreSQL: some systems have them outside of the path.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for version in fs::read_dir("/usr/lib/postgresql").into_iter().flatten() {
        folders.extend(version.map(|v| v.path().join("bin")));
    }
    folders.iter().map(|f| f.join(name)).find(|p| p.is_file())
}

/// A number of `nobody`.
fn nobody(what: &str) -> Option<u32> {
    let said = Command::new("id").args([what, "nobody"]).output().ok()?;
    String::from_utf8(said.stdout).ok()?.trim().parse().ok()
}

/// The words that a command begins with so that the server's user runs it.
fn as_its_user() -> Option<Vec<String>> {
    if !rustix::process::geteuid().is_root() {
        return Some(Vec::new());
    }
    let (user, group) = (nobody("-u")?, nobody("-g")?);
    let words = format!("setpriv --reuid {user} --regid {group} --clear-groups");
    Some(words.split(' ').map(str::to_owned).collect())
}

impl Server {
    /// Starts one.
    pub(crate) fn start() -> Option<Self> {
        let found = (|| {
            let user = as_its_user()?;
            let has_user = user.is_empty() || which("setpriv");
            has_user.then_some((user, program("initdb")?, program("pg_ctl")?))
        })();
        let Some((user, initdb, pg_ctl)) = found else {
            let why =
                "PostgreSQL's initdb and pg_ctl are not here: what needs a server is not tested";
            let is_required = std::env::var_os("TILEWRIGHT_REQUIRE_POSTGRES").is_some();
            assert!(!is_required, "{why}");
            // So that it is seen where nothing else is.
            let _ =
                std::io::Write::write_all(&mut std::io::stderr(), format!("{why}\n").as_bytes());
            return None;
        };
        let folder = tempfile::Builder::new().prefix("server-").tempdir();
        let folder = folder.expect("a folder").keep();
        fs::write(folder.join("password"), PASSWORD).expect("writable");
        if let (Some(uid), Some(gid), false) = (nobody("-u"), nobody("-g"), user.is_empty()) {
            for path in [folder.clone(), folder.join("password")] {
                std::os::unix::fs::chown(path, Some(uid), Some(gid)).expect("root");
            }
        }
        let free = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
        let port = free.expect("a port").port();
        let text = |path: &Path| path.display().to_string();
        let data = text(&folder.join("data"));
        let end = format!(
            "read -r _; {} '{}' -D '{data}' -m immediate stop; rm -rf '{}'",
            user.join(" "),
            text(&pg_ctl),
            text(&folder)
        );
        let guard = Command::new("sh")
            .args(["-c", &end])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let server = Self {
            _guard: guard.expect("a shell"),
            folder,
            port,
        };
        let made = [&user[..], &[text(&initdb)]].concat();
        let file = format!("--pwfile={}", text(&server.folder.join("password")));
        server.runs(
            &made,
            &[
                "-D",
                &data,
                "-U",
                USER,
                &file,
                "-A",
                "scram-sha-256",
                "-E",
                "UTF8",
                "--no-locale",
                "--no-sync",
            ],
        );
        server.control("start");
        Some(server)
    }

    fn runs(&self, words: &[String], more: &[&str]) {
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args(more)
            .current_dir(&self.folder);
        // What it starts has its output: nobody waits for the end of that.
        let log = fs::File::create(self.folder.join("said")).expect("writable");
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log);
        let status = command.status().expect("it starts");
        let said = fs::read_to_string(self.folder.join("said")).unwrap_or_default();
        assert!(status.success(), "{words:?} {more:?}: {said}");
    }

    /// Starts or stops it.
    pub(crate) fn control(&self, what: &str) {
        let pg_ctl = program("pg_ctl").expect("as before").display().to_string();
        let words = [as_its_user().expect("as before"), vec![pg_ctl]].concat();
        let data = self.folder.join("data").display().to_string();
        let options = format!("-p {} -h 127.0.0.1 -k '' -F -N 200", self.port);
        self.runs(
            &words,
            &["-D", &data, "-w", "-m", "immediate", "-o", &options, what],
        );
    }

    /// The address of a database, with its password.
    pub(crate) fn address(&self, database: &str) -> String {
        let port = self.port;
        format!("postgres://{USER}:{ESCAPED}@127.0.0.1:{port}/{database}")
    }

    /// Has something done.
    pub(crate) fn ask(&self, sql: &str) {
        let connected = postgres::Client::connect(&self.address("postgres"), postgres::NoTls);
        let mut client = connected.expect("our own server");
        client.batch_execute(sql).expect("it does it");
    }

    /// Ends every connection to a database.
    #[allow(dead_code, reason = "not every program of tests loses connections")]
    pub(crate) fn disconnect(&self, database: &str) {
        let all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity";
        self.ask(&format!("{all} WHERE datname = '{database}'"));
    }
}

fn which(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}
