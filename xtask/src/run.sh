#!/usr/bin/env bash
# Runs everything in this bundle on the machine's GPU. Needs a driver; no Rust and no CUDA toolkit.
# With OUT set to a folder, the output of each step also goes to $OUT/<step>.txt.
# Usage: run.sh [filter]   with a filter, only the steps whose name contains it
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
filter=${1:-}
limit=${STEP_SECONDS:-600}
failed=()
passed=0
export MEMMGR_TRACES=$here/traces
# Tests that find no GPU fail instead of skipping.
export MEMMGR_REQUIRE_GPU=1
# For each mode.
export MEMMGR_INTEGRITY_OPERATIONS=${MEMMGR_INTEGRITY_OPERATIONS:-1000000}

shopt -s nullglob
nodes=(/dev/nvidia[0-9]* /dev/dxg /dev/nvhost-gpu)
present=()
for node in "${nodes[@]}"; do [ -e "$node" ] && present+=("$node"); done
if [ ${#present[@]} -eq 0 ]; then
    echo "no NVIDIA GPU on this machine (no /dev/nvidia0): nothing was run" >&2
    exit 1
fi
[ -n "${OUT:-}" ] && mkdir -p "$OUT"

# step <name> <command...>
step() {
    local name=$1 start=$SECONDS status
    shift
    case $name in *"$filter"*) ;; *) return 0 ;; esac
    echo "== $name"
    if [ -n "${OUT:-}" ]; then
        timeout "$limit" "$@" 2>&1 | tee "$OUT/$name.txt"
    else
        timeout "$limit" "$@" 2>&1
    fi
    status=${PIPESTATUS[0]}
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        echo "== $name: ok, $((SECONDS - start)) s"
    else
        failed+=("$name")
        echo "== $name: FAILED (status $status), $((SECONDS - start)) s"
    fi
}

# Test programs may travel packed.
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT
# unpack <folder>: says where its programs are
unpack() {
    local packed=("$here/$1"/*.gz) file to
    if [ ${#packed[@]} -eq 0 ]; then
        echo "$here/$1"
        return
    fi
    mkdir -p "$unpacked/$1"
    for file in "${packed[@]}"; do
        to=$unpacked/$1/$(basename "$file" .gz)
        gzip -dc "$file" >"$to" && chmod +x "$to" || return 1
    done
    echo "$unpacked/$1"
}
tests=$(unpack tests) && planted=$(unpack sanitizer) || exit 1

# The test beside cudarc compiles a kernel with NVRTC, which may come with Python packages alone.
nvrtc=$(ls -d /usr/local/cuda/lib64 /opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib 2>/dev/null | tr '\n' ':')
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$nvrtc

step info "$here/bin/memmgr" info
for test in "$tests"/*; do
    name=$(basename "$test")
    # This one shows what happens on a machine without a driver.
    [ "$name" = no_driver ] && continue
    # Tests share the GPU and its memory: few at a time.
    step "test-$name" "$test" --test-threads="${TEST_THREADS:-2}"
done
# What they print is compared where the repository is: cargo xtask facts --output-of $OUT/fact-NAME.txt NAME
for program in "$here"/facts/*; do
    step "fact-$(basename "$program")" "$program"
done
# For the table in docs/conformance.md: cargo xtask conformance --gpu $OUT/table.txt
if [ -e "$tests/conformance" ]; then
    step table env MEMMGR_TABLE=1 "$tests/conformance" table --exact --nocapture
fi
# Programs in C, C++ and Python on libmemmgr.
clients=$here/clients
export MEMMGR_LIBRARY=$clients/libmemmgr.so.0
for program in calls reference hot; do step "client-$program" "$clients/$program"; done
if python3 -c 'import torch' 2>/dev/null; then
    step client-torch-streams python3 "$clients/python/tests/torch_streams.py"
    step client-torch-mempool python3 "$clients/python/tests/torch_mempool.py"
    step client-torch-train python3 "$clients/python/tests/train.py"
fi
if python3 -c 'import cupy' 2>/dev/null; then
    step client-cupy python3 "$clients/python/tests/cupy_streams.py"
fi
# A kernel writes beyond its block and stays in the segment: found where the manager tells tools of its blocks, and only there.
# finds <yes|no> <program...>
finds() {
    local wanted=$1 found=no
    shift
    compute-sanitizer --tool memcheck --error-exitcode 9 "$@"
    case $? in 0) ;; 9) found=yes ;; *) return 1 ;; esac
    echo "found: $found, expected: $wanted"
    [ "$found" = "$wanted" ]
}
export -f finds
if [ -x /usr/local/cuda/bin/compute-sanitizer ]; then PATH=$PATH:/usr/local/cuda/bin; fi
if command -v compute-sanitizer >/dev/null; then
    for source in malloc vmm; do
        told=(env MEMMGR_DEVICE_SOURCE=$source bash -c 'finds "$@"' finds)
        # Of mapped memory tools are told nothing.
        if [ "$source" = malloc ]; then wanted=yes; else wanted=no; fi
        step "sanitizer-$source-overrun" "${told[@]}" "$wanted" "$planted/overrun"
        step "sanitizer-$source-sound" "${told[@]}" no "$planted/overrun" sound
        step "sanitizer-$source-untold" "${told[@]}" no "$planted/overrun-untold"
    done
fi
step demo "$here/bin/memmgr" demo
for trace in "$here"/traces/*.csv.gz; do
    step "replay-$(basename "$trace")" "$here/bin/memmgr" replay "$trace" --mode all
done
if "$here/bin/memmgr" bench --help >/dev/null 2>&1; then
    step bench "$here/bin/memmgr" bench
fi

echo
echo "backend: CUDA on this machine's GPU: $passed steps passed, ${#failed[@]} failed"
for name in "${failed[@]:+${failed[@]}}"; do echo "failed: $name"; done
[ ${#failed[@]} -eq 0 ] && [ "$passed" -gt 0 ]
