#!/usr/bin/env bash
# Everything that needs a GPU, in one go: the GPU tests, then the benchmarks. Writes a handful of files below ${OUT:-out};
# the artifacts stay in ${ARTIFACTS:-out/artifacts} and are packed beside the results.
#
#   bench/device.sh BINARY [TESTS] [-- options of bench/run.py]
#
# BINARY is a built `tilewright`; TESTS is the test executable that `cargo test --no-run` built for the GPU tests, or
# omitted. Neither cargo nor a compiler is needed on the machine.
set -uo pipefail
cd "$(dirname "$0")/.."

if [ $# -lt 1 ]; then
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 2
fi
binary=$(realpath "$1")
shift
tests=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    tests+=("$(realpath "$1")")
    shift
done
[ $# -gt 0 ] && shift

out=${OUT:-out}
artifacts=${ARTIFACTS:-out/artifacts}
mkdir -p "$out" "$artifacts"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,temperature.gpu --format=csv | tee "$out/gpu.txt"
python3 -c 'import torch; print("torch", torch.__version__, "cuda", torch.version.cuda)' | tee -a "$out/gpu.txt"

failed=0
for test in "${tests[@]}"; do
    name=$(basename "$test")
    TILEWRIGHT_REQUIRE_GPU=1 timeout 300 "$test" --test-threads 1 2>&1 | tee "$out/$name.log" | tail -n 40 || failed=1
done
python3 bench/run.py --binary "$binary" --out "$artifacts" --results "$out/results.json" "$@" 2>"$out/bench.err" | tee "$out/bench.txt" || failed=1
tail -n 20 "$out/bench.err"
tar -C "$artifacts" -czf "$out/artifacts.tar.gz" .
exit $failed
