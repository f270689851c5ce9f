//! What pretends: a compiler and a GPU, each in the manner of which it has the name.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};
use std::hash::{Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tilewright::device::gpu::GpuInfo;
use tilewright::device::gpu_error::GpuError;
use tilewright::device::nvrtc::{CompileError, Compiled, KernelStats, NotFound};
use tilewright::device::telemetry::Telemetry;
use tilewright::device::timing::{Measurement, Timing};
use tilewright::device::worker::serve;
use tilewright::ir::Reject;
use tilewright::verify::KernelFindings;
use tilewright::worker::Job;

/// A process that compiles, in the manner that the path's last name is.
pub(super) fn compiler(manner: &str, name: &Path) {
    let folder = name.with_extension("compiled");
    work(|request| compile(manner, name, &folder, &request));
}

/// The process of a GPU, likewise.
pub(super) fn gpu(manner: String, name: &Path, device: u32) {
    let mut gpu = Pretender {
        device,
        notes: name.with_extension("notes"),
        manner,
        is_loaded: false,
        timed: 0,
        screened: 0,
        verified: 0,
    };
    work(move |request| gpu.answer(&request));
}

/// Threads from which on a kernel spills in the manner of that name.
pub(super) const WIDE: u32 = 128;

/// Texts after which no other one compiles in the manner of that name.
const FEW: usize = 6;

/// Whether a text of one kernel, the first of several, or one that was asked for before.
fn is_wanted_again(folder: &Path, source: &str, mark: &Path) -> bool {
    let is_first = |path: &Path| std::fs::File::create_new(path).is_ok();
    let number = number(source);
    number == "0"
        || is_first(&folder.join(format!("whole{number}")))
        || !is_first(&mark.with_extension(ASKED))
}

/// Where in its program a kernel stands, as its name says. One that is compiled alone is the first.
fn number(source: &str) -> &str {
    let head = source.split("__global__ void").nth(1);
    let head = head
        .and_then(|text| text.split('{').next())
        .map(str::trim_end);
    let name = head.and_then(|head| head.split(") ").last()?.split('(').next());
    name.and_then(|name| name.rsplit('_').next())
        .unwrap_or_default()
}

/// Until so long after the search began, but for the first of those that have another one in front of them, which is not waited for. The link by which a
/// search calls this program is made when it begins.
fn sleep_until_late(name: &Path, folder: &Path, source: &str) {
    let first = folder.join(format!("whole{}", number(source)));
    if std::fs::File::create_new(&first).is_err() {
        let begun = std::fs::symlink_metadata(name).and_then(|found| found.modified());
        let elapsed = begun.ok().and_then(|begun| begun.elapsed().ok());
        std::thread::sleep(LATE.saturating_sub(elapsed.unwrap_or_default()));
    }
}

/// Of thirty seconds: behind what the last picks have, which ends with the twenty-seventh.
const LATE: Duration = Duration::from_millis(27_200);

/// What marks of texts that were asked for once end with.
pub(super) const ASKED: &str = "asked";

/// Whatever the text is, it compiles; kernels of many threads may spill. No text may come twice.
fn compile(manner: &str, name: &Path, folder: &Path, request: &Value) -> Value {
    if request.get("Version").is_some() && manner == "compiles-nothing" {
        let none = CompileError::NotFound(NotFound { tried: Vec::new() });
        return json!({"Version": {"Err": none}});
    }
    if request.get("Version").is_some() {
        let minor = i32::from(manner == "compiles-newer");
        return json!({"Version": {"Ok": [13, minor]}});
    }
    if manner == "compiles-slowly" {
        std::thread::sleep(Duration::from_millis(60));
    }
    if manner == "compiles-never" {
        std::thread::sleep(LONG);
    }
    let source = request["Compile"]["source"].as_str().unwrap_or_default();
    let mut hasher = std::hash::DefaultHasher::new();
    source.hash(&mut hasher);
    std::fs::create_dir_all(folder).expect("a folder for what was compiled");
    let mark = folder.join(hasher.finish().to_string());
    if manner == "compiles-wholes-again" && !is_wanted_again(folder, source, &mark) {
        std::thread::sleep(LONG);
    }
    if manner == "compiles-wholes-late" && number(source) != "0" {
        sleep_until_late(name, folder, source);
    }
    let before = std::fs::read_dir(folder).map_or(0, Iterator::count);
    if manner == "compiles-few" && before >= FEW {
        std::thread::sleep(LONG);
    }
    // What a search drops may be made by then, and be asked for again: of that these manners have much.
    let may_be_dropped = manner.starts_with("compiles-wholes");
    if std::fs::File::create_new(mark).is_err() && !may_be_dropped {
        std::fs::write(folder.join("twice"), source).expect("a note");
    }
    let bounds = source.split("__launch_bounds__(").skip(1);
    let threads = bounds.filter_map(|b| b.split(&[',', ')']).next()?.parse::<u32>().ok());
    let kernels = threads.enumerate().map(|(k, threads)| KernelStats {
        name: format!("kernel{k}"),
        entry: true,
        registers: 32,
        shared_bytes: 0,
        stack_bytes: 0,
        spill_stores: match manner {
            "spills-wide" if threads >= WIDE => 8,
            "spills-others" if before > 1 => 8,
            _ => 0,
        },
        spill_loads: 0,
        barriers: 0,
    });
    let compiled = Compiled {
        cubin: b"\x7fELF".to_vec(),
        log: String::new(),
        kernels: kernels.collect(),
    };
    json!({"Compile": {"Ok": compiled}})
}

/// Where a line stands for each trial that was begun: its time.
pub(super) const BEGUN: &str = "begun";

/// Nobody waits for it.
const LONG: Duration = Duration::from_secs(300);

/// A GPU.
struct Pretender {
    device: u32,
    manner: String,
    /// Where processes of one manner leave notes for each other.
    notes: PathBuf,
    is_loaded: bool,
    timed: u32,
    screened: u32,
    verified: u32,
}

impl Pretender {
    fn answer(&mut self, request: &Value) -> Value {
        let call = |code: i32| GpuError::Call {
            call: "cuInit".to_owned(),
            code,
            name: "CUDA_ERROR".to_owned(),
        };
        if request == "Info" {
            let none = GpuError::NoDriver {
                reason: "no such file".to_owned(),
            };
            match self.manner.as_str() {
                "is-absent" => return json!({"Info": {"Err": none}}),
                "is-broken" => return json!({"Info": {"Err": call(999)}}),
                "says-nothing" => std::process::exit(9),
                _ => {}
            }
            let name = if self.manner == "is-another" {
                "NVIDIA H100 80GB HBM3"
            } else {
                "NVIDIA H200"
            };
            let info = GpuInfo {
                name: name.to_owned(),
                uuid: format!("GPU-pretended-{}", self.device),
                capability: (9, 0),
                memory_bytes: 1 << 37,
                l2_bytes: 60_000_000,
                multiprocessors: 132,
                shared_bytes: 232_448,
                driver_version: 13_000,
                driver: Some("580.95.05".to_owned()),
                power_limit_mw: Some(self.watts() * 1000),
                devices: if self.manner.ends_with("-two") { 2 } else { 1 },
            };
            return json!({"Info": {"Ok": info}});
        }
        if request.get("Load").is_some() {
            self.is_loaded = true;
            return match self.manner.as_str() {
                "loads-slowly" => {
                    std::thread::sleep(LONG);
                    json!({"Loaded": {"Ok": null}})
                }
                "dies-of-the-reference" => std::process::exit(137),
                "has-no-room" => {
                    json!({"Loaded": {"Err": "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2)"}})
                }
                _ => json!({"Loaded": {"Ok": null}}),
            };
        }
        if request == "Prepare" {
            if self.manner == "dies-of-preparing" {
                std::process::exit(137);
            }
            return json!({"Loaded": {"Ok": null}});
        }
        if !self.is_loaded {
            let fault = Reject::Fault("no program was loaded".to_owned());
            let (asked, _) = request
                .as_object()
                .and_then(|all| all.iter().next())
                .expect("a question");
            let answer = match asked.as_str() {
                "Screen" => "Screened",
                "Verify" => "Verified",
                _ => "Timed",
            };
            return json!({answer: {"Err": fault}});
        }
        if request.get("Screen").is_some() {
            self.screened += 1;
            if self.manner == "screens-never" {
                std::thread::sleep(LONG);
            }
            if self.manner == "screens-beside-two" && self.screened == 2 {
                self.wait_for_the_other();
            }
            if self.manner == "screens-one" && self.screened > 1 {
                let wrong = Reject::Wrong("not the first".to_owned());
                return json!({"Screened": {"Err": wrong}});
            }
            return json!({"Screened": self.judged("screens-nothing", json!(null))});
        }
        if request.get("Verify").is_some() {
            self.verified += 1;
            if self.manner == "verifies-one" && self.verified > 1 {
                std::thread::sleep(LONG);
            }
            let job: Job = serde_json::from_value(request["Verify"].clone()).expect("a job");
            let evidence = KernelFindings {
                subject: job.subject(),
                runs: 7,
                ..KernelFindings::default()
            };
            let mut verdict = self.judged("verifies-nothing", json!(evidence));
            if self.manner == "verifies-the-third" && self.verified < 3 {
                verdict = json!({"Err": Reject::Wrong("not the third".to_owned())});
            }
            return json!({"Verified": verdict});
        }
        if self.manner == "times-three" && self.timed >= 3 {
            std::thread::sleep(LONG);
        }
        let jobs = request["Time"]["jobs"].as_array();
        let most = match self.manner.as_str() {
            "times-itself" => 1,
            "times-two" => 2,
            _ => usize::MAX,
        };
        if self.manner == "faults" || jobs.map_or(0, Vec::len) > most {
            let fault = Reject::Fault(call(700).to_string());
            return json!({"Timed": {"Err": fault}});
        }
        if self.manner == "screens-beside-two" {
            // Enough kernels are left when the second candidate comes.
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.manner == "screens-beside-two" && self.device == 1 {
            std::fs::create_dir_all(&self.notes).expect("a folder for notes");
            let timed = vec![b'x'; self.timed as usize + 1];
            std::fs::write(self.notes.join("timed"), timed).expect("a note");
        }
        if self.manner == "times-alone" {
            let mark = self.notes.join("timing");
            if std::fs::File::create_new(&mark).is_err() {
                std::fs::write(self.notes.join("at-once"), "").expect("a note");
            }
            std::thread::sleep(Duration::from_millis(5));
            // Where two were there the first has removed it.
            let _ = std::fs::remove_file(&mark);
        }
        let is_trial = request["Time"]["care"] == "Quick";
        let times = jobs.into_iter().flatten().map(|job| {
            let time = self.time(job, is_trial);
            if is_trial {
                self.note_begun(time.warm.median_us);
            }
            time
        });
        let times: Vec<Measurement> = times.collect();
        json!({"Timed": {"Ok": times}})
    }

    /// What its board may draw.
    fn watts(&self) -> u32 {
        match self.manner.as_str() {
            "is-capped" => 500,
            _ => 700,
        }
    }

    /// Waits until the other GPU has timed more than can have waited for it, and leaves a note that it has.
    fn wait_for_the_other(&self) {
        const MORE: usize = 20;
        let timed = || std::fs::read_to_string(self.notes.join("timed")).map_or(0, |n| n.len());
        let (before, begun) = (timed(), Instant::now());
        while timed() < before + MORE {
            if begun.elapsed() > Duration::from_secs(10) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::write(self.notes.join("went-on"), "").expect("a note");
    }

    fn judged(&self, refusing: &str, answer: Value) -> Value {
        if self.manner == refusing {
            json!({"Err": Reject::Wrong(refusing.to_owned())})
        } else {
            json!({"Ok": answer})
        }
    }

    /// A line with what a time will be, in a file that outlives whoever is killed meanwhile.
    fn note_begun(&self, us: f64) {
        std::fs::create_dir_all(&self.notes).expect("a folder for notes");
        let file = self.notes.join(BEGUN);
        let opened = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file);
        let line = format!("{us:.8}\n");
        let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("a note");
    }

    /// Later ones take longer; where it likes narrow blocks, wide ones do. No two times of trials are equal: processes differ in the last digits.
    fn time(&mut self, job: &Value, is_trial: bool) -> Measurement {
        self.timed += 1;
        let digits = match is_trial {
            true => f64::from(std::process::id()) * 1e-8,
            false => 0.0,
        };
        let launches = job["launches"].as_array().into_iter().flatten();
        let threads = launches.filter_map(|launch| launch["threads"].as_f64());
        let us = match self.manner.as_str() {
            "likes-narrow" => threads.map(|threads| 1000.0 + threads).sum(),
            _ => 1000.0 + f64::from(self.timed) + digits,
        };
        let (warm, cold) = match self.manner.as_str() {
            "is-too-fast" => (0.25, 0.4),
            "is-too-fast-when-cold" => (us, 0.4),
            "gives-no-number" => (0.0, 0.0),
            _ => (us, us + 10.0),
        };
        let timing = |us: f64| Timing {
            median_us: us,
            p10_us: us,
            p90_us: us,
            min_us: us,
            samples: 3,
            replays: 1,
            drift: 0.0,
            steady: true,
        };
        Measurement {
            warm: timing(warm),
            cold: timing(cold),
            copies: 1,
            copies_exceed_l2: false,
            telemetry: Some(Telemetry {
                sm_mhz: Some(1755.0 + f64::from(self.device)),
                power_w: Some(512.5),
            }),
        }
    }
}

/// Answers as a worker does, until nobody asks any more.
fn work(answer: impl FnMut(Value) -> Value) {
    serve(
        std::io::stdin(),
        std::io::stdout(),
        || std::process::exit(0),
        answer,
    )
    .expect("the worker should end with its input");
}

/// As many processes compile as on a small machine.
pub(super) fn keep_to_two_cores() {
    let own = sched_getaffinity(None).expect("our own");
    let mut two = CpuSet::new();
    let cores = (0..CpuSet::MAX_CPU).filter(|core| own.is_set(*core));
    cores.take(2).for_each(|core| two.set(core));
    sched_setaffinity(None, &two).expect("our own");
}
