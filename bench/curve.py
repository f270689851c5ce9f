"""What time buys: the best time of a candidate against the seconds that a search took until then.

    python bench/curve.py --binary target/release/tilewright --budget 5m --seeds 1,2,3 --results bench/results/curve.json gqa_bs8 llama_decode_layer

Needs a GPU and no package. Each search has a log of its own, and is as if there had been none before it. A point of a curve is the least warm median of any
candidate that was timed in the first so many seconds, as the log has it; the last one is the figure of the artifact, which was timed with more care.
The log counts whole seconds.
"""

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
AT = "5,10,20,30,60,120,180,240,300,600,900,1200"


def trials(binary: Path, log: Path) -> list[dict[str, Any]]:
    """Candidates that were timed, oldest first."""
    words = [str(binary), "log", "--database", str(log), "--whole", "--format", "jsonl"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def search(arguments: argparse.Namespace, program: str, seed: int) -> dict[str, Any]:
    """The curve of a search, and what its artifact takes."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "trials.sqlite"
        words = ["optimize", ROOT / "examples" / f"{program}.lax", "--target", arguments.target, "--budget", arguments.budget]
        words += ["--seed", seed, "--no-db", "--database", log, "--json", "-o", Path(scratch) / "artifact"]
        begun = time.time()
        done = subprocess.run([str(word) for word in [arguments.binary, *words]], capture_output=True, text=True)
        if done.returncode != 0:
            return {"program": program, "seed": seed, "error": done.stderr.strip()[-400:]}
        report = json.loads(done.stdout)
        timed = trials(arguments.binary, log)
    curve = []
    for seconds in arguments.at:
        until = [t["measured"]["warm"]["median_us"] for t in timed if t["when"] - begun <= seconds]
        if until and seconds <= report["search_seconds"] + 1:
            curve.append((seconds, min(until)))
    warm = report["best"]["measured_us"]["spread"]["warm"]
    clocks = sorted(t["measured"]["telemetry"]["sm_mhz"] for t in timed if (t["measured"].get("telemetry") or {}).get("sm_mhz"))
    return {
        "program": program,
        "seed": seed,
        "curve_s_us": curve,
        "us": warm["median_us"],
        "p10_us": warm["p10_us"],
        "p90_us": warm["p90_us"],
        "seconds": report["search_seconds"],
        "work": report["work"],
        "sm_mhz": [clocks[0], clocks[len(clocks) // 2], clocks[-1]] if clocks else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", help="names of examples")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/tilewright")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--seeds", type=lambda text: [int(word) for word in text.split(",")], default=[1])
    parser.add_argument("--at", type=lambda text: [float(word) for word in text.split(",")], default=AT, help="seconds of the points")
    parser.add_argument("--commit", help="the commit to name in the results")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    query = ["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader", "-i", "0"]
    device = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    results: dict[str, Any] = {
        "device": device,
        "date": datetime.date.today().isoformat(),
        "commit": arguments.commit,
        "budget": arguments.budget,
        "searches": [],
    }
    for program in arguments.programs:
        for seed in arguments.seeds:
            found = search(arguments, program, seed)
            results["searches"].append(found)
            print(json.dumps(found), flush=True)
            if arguments.results:
                arguments.results.write_text(json.dumps(results, indent=1) + "\n")
    return int(any("error" in found for found in results["searches"]))


if __name__ == "__main__":
    sys.exit(main())
