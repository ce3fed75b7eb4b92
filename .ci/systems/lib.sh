# What .ci/windows and .ci/arm share. They set `target`, `features`, `work`, `left_out` (a file: a part of the names of tests, and why they are left
# out) and `steps`, and have a function for each step.
# shellcheck shell=bash

# Tests whose tools are missing there are skipped.
unset DULY_CI
passed=0 failed=0 out=0 failures=()

# Counts the tests of a log of cargo. $1: the step, $2: the log.
count() {
    local line ok=0 bad=0 filtered=0 ignored=0
    while read -r line; do
        ok=$((ok + $(sed -E 's/.* ([0-9]+) passed.*/\1/' <<<"$line")))
        bad=$((bad + $(sed -E 's/.* ([0-9]+) failed.*/\1/' <<<"$line")))
        ignored=$((ignored + $(sed -E 's/.* ([0-9]+) ignored.*/\1/' <<<"$line")))
        filtered=$((filtered + $(sed -E 's/.* ([0-9]+) filtered out.*/\1/' <<<"$line")))
    done < <(grep -a '^test result: ' "$2" || true)
    echo "$1: $ok passed, $bad failed, $((filtered + ignored)) left out"
    passed=$((passed + ok)) failed=$((failed + bad)) out=$((out + filtered + ignored))
}

# Runs tests, without those that are left out, and counts them. $1: the step, then arguments of cargo test.
tests() {
    local step=$1 log=$work/$1.log skips=() pattern
    shift
    while read -r pattern _; do skips+=(--skip "$pattern"); done < <(grep -vE '^(#|$)' "$left_out")
    cargo test --quiet --locked --target "$target" --features "$features" "$@" --no-run
    if ! timeout 3000 cargo test --locked --target "$target" --features "$features" "$@" -- --test-threads "${DULY_THREADS:-4}" "${skips[@]}" >"$log" 2>&1; then
        failures+=("$step")
        grep -aE '^test .* FAILED$|^    [a-z_]+::|^error' "$log" | sort -u || true
        echo "the log: $log"
    fi
    count "$step" "$log"
}

# One check of a black-box script. $1: what holds, then a command.
holds() {
    local what=$1
    shift
    if "$@" >"$work/last" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1)) failures+=("$what")
        echo "does not hold: $what ($*)"
        tail -n 20 "$work/last"
    fi
}

# Runs the steps, by default all.
run_steps() {
    local chosen=("$@") one
    [ $# -gt 0 ] || chosen=("${steps[@]}")
    for one in "${chosen[@]}"; do
        step "$one"
        "step_$one"
    done
    echo "left out, and why:"
    grep -vE '^(#|$)' "$left_out" | sed 's/^/    /'
    echo "$passed passed, $failed failed, $out left out"
    [ "$failed" = 0 ] && [ ${#failures[@]} = 0 ]
}
