//! A plan: which programs a campaign optimises, for which GPUs, how much each counts, and how long all of it may take.
//!
//! It is a TOML file. Every fault is told with its line and column, and with what would be right; all that are found in what TOML and types allow, not the first.

use crate::{budget, files};
use ir::Program;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Bytes of a plan that is read.
const MOST_BYTES: u64 = 1 << 20;
/// Jobs of a plan: a grid of extents grows fast.
const MOST_JOBS: usize = 10_000;
/// Characters of a job's name, which is that of a folder.
const MOST_NAME: usize = 120;

/// What a campaign does.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// How long all of it may take.
    pub budget: Duration,
    /// How long the first search of each job may take; none where that follows from the budget.
    pub first: Option<Duration>,
    /// The seed of all searches; none for one that is drawn.
    pub seed: Option<u64>,
    /// The jobs, each of another program or target, in the order of the plan.
    pub jobs: Vec<Job>,
}

/// A program for a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name, which is that of its folder.
    pub name: String,
    /// The program, with its extents.
    pub program: Program,
    /// The target's name, or `auto`.
    pub target: String,
    /// How often it runs in whatever the user wants to be fast.
    pub weight: f64,
}

/// Why there is no plan: what is wrong, a line each.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct PlanError(Vec<String>);

/// The file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    budget: Spanned<String>,
    first: Option<Spanned<String>>,
    seed: Option<u64>,
    target: Option<Spanned<Few<String>>>,
    program: Spanned<Vec<Entry>>,
}

/// A table `[[program]]`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    file: Spanned<String>,
    name: Option<Spanned<String>>,
    weight: Option<Spanned<f64>>,
    target: Option<Spanned<Few<String>>>,
    #[serde(default)]
    extents: BTreeMap<String, Spanned<Few<u64>>>,
    shapes: Option<Spanned<Vec<Row>>>,
}

/// A row of a table of shapes.
type Row = Spanned<BTreeMap<String, Number>>;

/// One value, or a list of some.
struct Few<T>(Vec<T>);

/// An extent, or a weight.
#[derive(Clone, Copy)]
enum Number {
    Whole(u64),
    Real(f64),
}

impl Plan {
    /// Reads a plan and the programs that it names; their paths begin at the plan's folder.
    ///
    /// # Errors
    /// All that is wrong with the plan, or the first program that cannot be read.
    pub fn read(path: &Path) -> Result<Self, PlanError> {
        let text = files::read_text(path, MOST_BYTES)
            .map_err(|e| PlanError(vec![format!("{}: {e}", path.display())]))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, &path.display().to_string(), folder)
    }

    /// Reads the text of a plan; `file` is the name that faults quote, and paths begin at `folder`.
    ///
    /// # Errors
    /// As [`Plan::read`].
    pub fn parse(text: &str, file: &str, folder: &Path) -> Result<Self, PlanError> {
        let mut reader = Reader {
            text,
            file,
            folder,
            faults: Vec::new(),
        };
        let written: Written = toml::from_str(text).map_err(|e| {
            let why = e.message().trim_end().replace('\n', ", ");
            PlanError(vec![reader.placed(e.span().unwrap_or_default(), &why)])
        })?;
        let plan = reader.plan(&written);
        if reader.faults.is_empty() {
            return Ok(plan);
        }
        Err(PlanError(reader.faults))
    }
}

/// Reads what was parsed, and collects faults.
struct Reader<'a> {
    text: &'a str,
    file: &'a str,
    folder: &'a Path,
    faults: Vec<String>,
}

impl Reader<'_> {
    fn placed(&self, span: Range<usize>, why: &str) -> String {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("{}:{line}:{column}: {why}", self.file)
    }

    fn fault(&mut self, span: Range<usize>, why: &str) {
        let fault = self.placed(span, why);
        self.faults.push(fault);
    }

    fn plan(&mut self, written: &Written) -> Plan {
        let mut jobs: Vec<Job> = Vec::new();
        if written.program.get_ref().is_empty() {
            self.fault(written.program.span(), "expected at least one program");
        }
        for entry in written.program.get_ref() {
            self.entry(entry, written.target.as_ref(), &mut jobs);
        }
        let budget = self.time(&written.budget);
        let first = written.first.as_ref().and_then(|first| self.time(first));
        if let (Some(at), Some(longer), Some(budget)) = (&written.first, first, budget)
            && longer > budget
        {
            let why = format!("expected at most the budget, {budget:?}, found {longer:?}");
            self.fault(at.span(), &why);
        }
        Plan {
            budget: budget.unwrap_or_default(),
            first,
            seed: written.seed,
            jobs,
        }
    }

    fn time(&mut self, written: &Spanned<String>) -> Option<Duration> {
        let time = budget::budget(written.get_ref());
        time.map_err(|why| self.fault(written.span(), &why)).ok()
    }

    /// The jobs of one table.
    fn entry(&mut self, entry: &Entry, target: Option<&Spanned<Few<String>>>, jobs: &mut Vec<Job>) {
        let weight = self.weight(entry.weight.as_ref());
        let targets = self.targets(entry.target.as_ref().or(target));
        let rows = self.rows(entry);
        let paths = self.paths(&entry.file);
        let name = entry.name.as_ref().filter(|name| self.is_name(name));
        for path in &paths {
            for (extents, own) in &rows {
                let Some(program) = self.program(path, extents, entry) else {
                    // Other extents would have the same fault.
                    break;
                };
                for target in &targets {
                    let mut job = Job {
                        name: called(name, &program, extents, target, targets.len()),
                        program: program.clone(),
                        target: target.clone(),
                        weight: weight * own,
                    };
                    if let Some(name) = name.filter(|_| paths.len() > 1) {
                        let why = format!(
                            "expected a name for one program, found {} files that match",
                            paths.len()
                        );
                        self.fault(name.span(), &why);
                        return;
                    }
                    job.name.truncate(job.name.floor_char_boundary(MOST_NAME));
                    self.add(job, entry, jobs);
                    if jobs.len() > MOST_JOBS {
                        let why =
                            format!("expected at most {MOST_JOBS} jobs in a plan, found more");
                        self.fault(entry.file.span(), &why);
                        return;
                    }
                }
            }
        }
    }

    /// Adds a job; one that is there already counts for more.
    fn add(&mut self, job: Job, entry: &Entry, jobs: &mut Vec<Job>) {
        let same = |other: &&mut Job| other.target == job.target && other.program == job.program;
        if let Some(other) = jobs.iter_mut().find(same) {
            other.weight += job.weight;
            return;
        }
        if jobs.iter().any(|other| other.name == job.name) {
            let why = format!(
                "expected another name for each job, found two that are called `{}`: say `name = …` in one of the tables",
                job.name
            );
            self.fault(entry.file.span(), &why);
        }
        jobs.push(job);
    }

    fn weight(&mut self, written: Option<&Spanned<f64>>) -> f64 {
        let Some(written) = written else { return 1.0 };
        let weight = *written.get_ref();
        if weight > 0.0 && weight.is_finite() {
            return weight;
        }
        self.fault(written.span(), &no_weight(weight));
        1.0
    }

    /// The targets' names; all but `auto` are known.
    fn targets(&mut self, written: Option<&Spanned<Few<String>>>) -> Vec<String> {
        let Some(written) = written else {
            return vec!["auto".to_owned()];
        };
        let names = &written.get_ref().0;
        let mut known: Vec<String> = Vec::new();
        for name in names {
            let name = name.to_ascii_lowercase();
            match crate::target(&name) {
                Err(why) if name != "auto" => self.fault(written.span(), &why.to_string()),
                Ok(_) | Err(_) if known.contains(&name) => {}
                Ok(_) | Err(_) => known.push(name),
            }
        }
        if names.is_empty() {
            self.fault(written.span(), "expected at least one target");
        }
        known
    }

    /// The extents of each job, with how much more it counts for them: every row of the table with every point of the grid.
    fn rows(&mut self, entry: &Entry) -> Vec<(BTreeMap<String, u64>, f64)> {
        let mut rows = vec![(BTreeMap::new(), 1.0)];
        if let Some(shapes) = &entry.shapes {
            if shapes.get_ref().is_empty() {
                self.fault(shapes.span(), "expected at least one shape");
            }
            rows = shapes.get_ref().iter().map(|row| self.row(row)).collect();
        }
        for (axis, values) in &entry.extents {
            let list = &values.get_ref().0;
            if list.is_empty() {
                self.fault(values.span(), "expected at least one extent");
            }
            if rows.iter().any(|row| row.0.contains_key(axis)) {
                let why = format!("the extent of `{axis}` is in `shapes` too");
                self.fault(values.span(), &why);
            }
            if rows.len().saturating_mul(list.len()) > MOST_JOBS {
                let why = format!("expected at most {MOST_JOBS} jobs in a plan, found more");
                self.fault(values.span(), &why);
                return Vec::new();
            }
            let with = |(row, weight): &(BTreeMap<String, u64>, f64), extent: &u64| {
                let mut row = row.clone();
                row.insert(axis.clone(), *extent);
                (row, *weight)
            };
            let all = rows.iter();
            rows = all
                .flat_map(|row| list.iter().map(move |extent| with(row, extent)))
                .collect();
        }
        rows
    }

    /// A row of a table of shapes.
    fn row(&mut self, row: &Row) -> (BTreeMap<String, u64>, f64) {
        let (mut extents, mut weight) = (BTreeMap::new(), 1.0);
        for (key, number) in row.get_ref() {
            match (key.as_str(), *number) {
                ("weight", number) => {
                    weight = number.real();
                    if weight <= 0.0 || !weight.is_finite() {
                        self.fault(row.span(), &no_weight(weight));
                    }
                }
                (_, Number::Whole(extent)) => {
                    extents.insert(key.clone(), extent);
                }
                (axis, Number::Real(found)) => {
                    let why = format!("expected a whole extent of `{axis}`, found {found}");
                    self.fault(row.span(), &why);
                }
            }
        }
        (extents, weight)
    }

    /// The files that a path or a pattern names, in the order of their names.
    fn paths(&mut self, file: &Spanned<String>) -> Vec<PathBuf> {
        let path = self.folder.join(file.get_ref());
        if !file.get_ref().contains(['*', '?', '[']) {
            return vec![path];
        }
        // What the folder of the plan is called is no pattern.
        let folder = glob::Pattern::escape(&self.folder.display().to_string());
        let pattern = Path::new(&folder).join(file.get_ref());
        let found = match glob::glob(&pattern.display().to_string()) {
            Ok(found) => found,
            Err(e) => {
                let why = format!("expected a path or a pattern such as `layers/*.lax`: {e}");
                self.fault(file.span(), &why);
                return Vec::new();
            }
        };
        let mut paths = Vec::new();
        for path in found {
            match path {
                Ok(path) => paths.push(path),
                Err(e) => self.fault(file.span(), &e.to_string()),
            }
        }
        if paths.is_empty() {
            let why = format!("no file matches `{}`", pattern.display());
            self.fault(file.span(), &why);
        }
        paths
    }

    /// A program with these extents.
    fn program(
        &mut self,
        path: &Path,
        extents: &BTreeMap<String, u64>,
        entry: &Entry,
    ) -> Option<Program> {
        let shown = path.display().to_string();
        let text = match files::read_text(path, ir::limits::MAX_SOURCE as u64) {
            Ok(text) => text,
            Err(e) => {
                self.fault(entry.file.span(), &format!("{shown}: {e}"));
                return None;
            }
        };
        match ir::text::parse_with(&text, &shown, extents) {
            Ok(program) => Some(program),
            Err(faults) => {
                let with: Vec<String> = extents.iter().map(|(a, n)| format!("{a} = {n}")).collect();
                let with = match with.is_empty() {
                    true => String::new(),
                    false => format!(" with {}", with.join(", ")),
                };
                let why = format!("this program cannot be read{with}:\n{faults}");
                self.fault(entry.file.span(), &why);
                None
            }
        }
    }

    /// Whether a name is one that a folder may have anywhere.
    fn is_name(&mut self, name: &Spanned<String>) -> bool {
        let text = name.get_ref();
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let fits = text.chars().all(plain) && text.len() <= MOST_NAME / 2;
        let fits = fits && text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if !fits {
            let why = format!(
                "expected a name of at most {} letters, digits, `.`, `_` and `-` that begins with a letter or a digit, found `{text}`",
                MOST_NAME / 2
            );
            self.fault(name.span(), &why);
        }
        fits
    }
}

fn no_weight(found: f64) -> String {
    format!("expected a weight above 0, how often the program runs, found {found}")
}

/// What a job is called: after its program, the extents that the plan gave it and, where there are several, its target.
fn called(
    name: Option<&Spanned<String>>,
    program: &Program,
    extents: &BTreeMap<String, u64>,
    target: &str,
    targets: usize,
) -> String {
    let mut all = match name {
        Some(name) => name.get_ref().clone(),
        None => program.name.clone(),
    };
    for (axis, extent) in extents {
        all += &format!("-{axis}{extent}");
    }
    if targets > 1 {
        all += &format!("-{target}");
    }
    all
}

impl Number {
    fn real(self) -> f64 {
        match self {
            Self::Whole(n) => n as f64,
            Self::Real(x) => x,
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Seen;
        impl Visitor<'_> for Seen {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a positive number")
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Number, E> {
                let whole = u64::try_from(n);
                let wrong = de::Unexpected::Signed(n);
                (whole.map(Number::Whole)).map_err(|_| E::invalid_value(wrong, &self))
            }

            fn visit_f64<E: de::Error>(self, x: f64) -> Result<Number, E> {
                Ok(Number::Real(x))
            }
        }
        from.deserialize_any(Seen)
    }
}

/// What [`Few`] can be made of.
trait Said: Sized {
    const ONE: &'static str;
    fn text(_: &str) -> Option<Self> {
        None
    }
    fn number(_: i64) -> Option<Self> {
        None
    }
}

impl Said for String {
    const ONE: &'static str = "a name or a list of names";
    fn text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl Said for u64 {
    const ONE: &'static str = "an extent or a list of extents";
    fn number(n: i64) -> Option<Self> {
        Self::try_from(n).ok()
    }
}

impl<'de, T: Said + Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Seen<T>(PhantomData<T>);
        impl<'de, T: Said + Deserialize<'de>> Visitor<'de> for Seen<T> {
            type Value = Few<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::ONE)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Few<T>, E> {
                let one = T::text(text).map(|one| Few(vec![one]));
                one.ok_or_else(|| E::invalid_type(de::Unexpected::Str(text), &self))
            }

            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Few<T>, E> {
                let one = T::number(n).map(|one| Few(vec![one]));
                one.ok_or_else(|| E::invalid_type(de::Unexpected::Signed(n), &self))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Few<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = items.next_element::<T>()? {
                    all.push(item);
                }
                Ok(Few(all))
            }
        }
        from.deserialize_any(Seen(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with two programs in `layers`.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let layers = folder.path().join("layers[1]");
        std::fs::create_dir(&layers).expect("writable");
        for name in ["down", "up"] {
            let text = format!(
                "program {name}\naxis b = 2, i = 8\nx = parameter f32 [b, i]\nreturn f32 [b] sum(x; i) / size(i)\n"
            );
            std::fs::write(layers.join(format!("{name}.lax")), text).expect("writable");
        }
        folder
    }

    fn parsed(text: &str) -> Result<Plan, String> {
        let folder = folder();
        let folder = folder.path().join("layers[1]");
        Plan::parse(text, "plan.toml", &folder).map_err(|e| e.to_string())
    }

    #[test]
    fn tables_and_grids_fill_extents() {
        let plan = parsed(
            r#"
            budget = "1h30m"
            first = "20s"
            seed = 5
            target = "H200"

            [[program]]
            file = "up.lax"
            weight = 4
            shapes = [{ i = 64, weight = 2.5 }, { i = 128 }]
            extents.b = [1, 8]

            [[program]]
            file = "*.lax"
            target = ["h200", "h100"]

            [[program]]
            file = "up.lax"
            name = "mean"
            extents = { i = 32 }
            weight = 0.5
            "#,
        )
        .expect("a plan");
        assert_eq!(plan.budget, Duration::from_mins(90));
        assert_eq!(
            (plan.first, plan.seed),
            (Some(Duration::from_secs(20)), Some(5))
        );
        let found: Vec<(&str, &str, f64)> = (plan.jobs.iter())
            .map(|j| (j.name.as_str(), j.target.as_str(), j.weight))
            .collect();
        let expected = [
            ("up-b1-i64", "h200", 10.0),
            ("up-b8-i64", "h200", 10.0),
            ("up-b1-i128", "h200", 4.0),
            ("up-b8-i128", "h200", 4.0),
            ("down-h200", "h200", 1.0),
            ("down-h100", "h100", 1.0),
            ("up-h200", "h200", 1.0),
            ("up-h100", "h100", 1.0),
            ("mean-i32", "h200", 0.5),
        ];
        assert_eq!(found, expected);
        // Not the numbers of axes alone: what was made of extents is too.
        let text = plan.jobs[0].program.to_string();
        assert!(
            text.contains("i = 64") && text.contains("64") && !text.contains(" 8"),
            "{text}"
        );
    }

    #[test]
    fn the_same_job_twice_counts_for_both() {
        let text = "budget = \"1m\"\ntarget = \"h200\"\n[[program]]\nfile = \"up.lax\"\nweight = 3\n\
                    [[program]]\nfile = \"up.lax\"\nextents = { i = 8 }\n";
        let plan = parsed(text).expect("a plan");
        assert_eq!((plan.jobs.len(), plan.jobs[0].weight), (1, 4.0));
    }

    #[test]
    fn faults_are_told_with_their_places() {
        let with = |lines: &str| format!("budget = \"1m\"\n[[program]]\n{lines}");
        for (text, expected) in [
            (
                "budget = 60\n[[program]]\nfile = \"up.lax\"".to_owned(),
                "plan.toml:1:10: invalid type: integer `60`, expected a string",
            ),
            (
                "budget = \"60\"\n[[program]]\nfile = \"up.lax\"".to_owned(),
                "plan.toml:1:10: expected a unit (d, h, m, s or ms) behind `60`, found no unit",
            ),
            (
                "[[program]]\nfile = \"up.lax\"".to_owned(),
                "missing field `budget`",
            ),
            (
                "budget = \"1m\"\nprogram = []".to_owned(),
                "plan.toml:2:11: expected at least one program",
            ),
            (
                "budget = \"1m\"\nfirst = \"2m\"\n[[program]]\nfile = \"up.lax\"".to_owned(),
                "plan.toml:2:9: expected at most the budget, 60s, found 120s",
            ),
            ("budget = \"1m\"".to_owned(), "missing field `program`"),
            (
                "budget = \"1m".to_owned(),
                "plan.toml:1:13: invalid basic string",
            ),
            (
                with("fil = \"up.lax\""),
                "plan.toml:3:1: unknown field `fil`, expected one of `file`, `name`, `weight`, `target`, `extents`, `shapes`",
            ),
            (with("file = \"left.lax\""), "plan.toml:3:8: "),
            (
                with("file = \"left*.lax\""),
                "plan.toml:3:8: no file matches",
            ),
            (
                with("file = \"up.lax\"\nweight = 0"),
                "plan.toml:4:10: expected a weight above 0, how often the program runs, found 0",
            ),
            (
                with("file = \"up.lax\"\nweight = \"often\""),
                "plan.toml:4:10: invalid type: string \"often\", expected f64",
            ),
            (
                with("file = \"up.lax\"\ntarget = \"h2000\""),
                "plan.toml:4:10: unknown target `h2000`",
            ),
            (
                with("file = \"up.lax\"\nextents = { k = 4 }"),
                "no axis `k` is declared, whose extent should be 4",
            ),
            (
                with("file = \"up.lax\"\nextents = { i = 0 }"),
                "this program cannot be read with i = 0",
            ),
            (
                with("file = \"up.lax\"\nextents = { i = -4 }"),
                "plan.toml:4:17: invalid type: integer `-4`, expected an extent or a list of extents",
            ),
            (
                with("file = \"up.lax\"\nextents = { i = [] }"),
                "plan.toml:4:17: expected at least one extent",
            ),
            (
                with("file = \"up.lax\"\nshapes = [{ i = 4.5 }]"),
                "plan.toml:4:11: expected a whole extent of `i`, found 4.5",
            ),
            (
                with("file = \"up.lax\"\nshapes = [{ i = 4 }]\nextents = { i = 4 }"),
                "plan.toml:5:17: the extent of `i` is in `shapes` too",
            ),
            (
                with("file = \"up.lax\"\nname = \"../up\""),
                "plan.toml:4:8: expected a name of at most 60 letters",
            ),
            (
                with("file = \"*.lax\"\nname = \"all\""),
                "plan.toml:4:8: expected a name for one program, found 2 files that match",
            ),
            (
                with(
                    "file = \"up.lax\"\nname = \"a\"\n[[program]]\nfile = \"down.lax\"\nname = \"a\"",
                ),
                "plan.toml:6:8: expected another name for each job, found two that are called `a`",
            ),
        ] {
            let found = parsed(&text).expect_err(&text);
            assert!(found.contains(expected), "{text}\n{found}");
        }
        // All of them.
        let both = with("file = \"up.lax\"\nweight = 0\ntarget = \"h2000\"");
        assert_eq!(parsed(&both).expect_err("two faults").lines().count(), 2);
    }
}
