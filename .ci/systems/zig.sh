# zig, from PyPI, as a C compiler for other systems. Sourced in the root folder of the project by a script that has a function `skip`.
# shellcheck shell=bash

# A target, and the name that zig has for it. The headers of MSVC are Microsoft's: its C code is compiled with those of MinGW.
zig_name() {
    case $1 in
    x86_64-pc-windows-gnu | x86_64-pc-windows-msvc) echo x86_64-windows-gnu ;;
    aarch64-apple-darwin) echo aarch64-macos ;;
    x86_64-apple-darwin) echo x86_64-macos ;;
    aarch64-unknown-linux-gnu) echo aarch64-linux-gnu ;;
    aarch64-unknown-linux-musl) echo aarch64-linux-musl ;;
    *) echo "$1: not a target of this script" >&2 && return 1 ;;
    esac
}

# Installs zig below the folder of the build, as `tools`.
install_zig() {
    command -v python3 >/dev/null || skip "no python3, which installs zig"
    tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
    mkdir -p "$tools"
    tools=$(realpath "$tools")
    if [ ! -x "$tools/zig/bin/python" ] || ! "$tools/zig/bin/python" -m ziglang version >/dev/null 2>&1; then
        rm -rf "$tools/zig"
        { python3 -m venv "$tools/zig" && "$tools/zig/bin/pip" install --quiet 'ziglang>=0.13'; } >/dev/null 2>&1 || skip "no zig, and none from PyPI"
    fi
    export ZIG_GLOBAL_CACHE_DIR=$tools/zig-cache
}

# Has the crate cc use zig for a target. $1: the target.
zig_compiler() {
    local name archiver=ar
    name=$(zig_name "$1")
    # The crate cc names the target in its own way, which zig does not know. What zig adds to find faults needs a library of its own.
    cat >"$tools/zig-cc-$1" <<END
#!/bin/sh
for argument do
    shift
    case \$argument in
    --target=* | -mmacosx-version-min=*) ;;
    *) set -- "\$@" "\$argument" ;;
    esac
done
exec "$tools/zig/bin/python" -m ziglang cc -target $name -fno-sanitize=undefined "\$@"
END
    [[ $1 == *-msvc ]] && archiver=lib
    printf '#!/bin/sh\nexec "%s/zig/bin/python" -m ziglang %s "$@"\n' "$tools" "$archiver" >"$tools/zig-$archiver"
    chmod +x "$tools/zig-cc-$1" "$tools/zig-$archiver"
    export "CC_${1//-/_}=$tools/zig-cc-$1" "AR_${1//-/_}=$tools/zig-$archiver"
}
