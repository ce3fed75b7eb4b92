//! Stand-ins for programs that a test cannot use: they need a network, root, systemd, Docker, or minutes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixtures::set_mode;
use crate::guides::tree;

/// Programs, by name. `TREE` is the source tree.
const PROGRAMS: [(&str, &str); 13] = [
    ("cargo", CARGO),
    // The image runs the program itself.
    (
        "docker",
        "#!/bin/sh\ncase $1 in\nbuild) shift; while [ $# -gt 0 ]; do [ \"$1\" = -f ] && [ ! -f \"TREE/$2\" ] && exit 1; shift; done;;\nexec) shift 2; exec \"$@\";;\nrun) ;;\n*) exit 1;;\nesac\n",
    ),
    ("sudo", "#!/bin/sh\n[ \"$1\" = -u ] && shift 2\nexec \"$@\"\n"),
    ("pip", "#!/bin/sh\n[ \"$1\" = install ] && [ -f \"TREE/${2#./}/pyproject.toml\" ]\n"),
    ("npm", "#!/bin/sh\n[ \"$1\" = install ] || [ \"$1\" = run ]\n"),
    ("systemctl", NOTHING),
    ("useradd", NOTHING),
    ("apt", NOTHING),
    ("git", NOTHING),
    ("ssh", NOTHING),
    ("crontab", "#!/bin/sh\nprintf '30 2 * * *  ./backup --full\\n@reboot     ./warm-cache\\n'\n"),
    ("mail", "#!/bin/sh\nexec cat >/dev/null\n"),
    ("digest.sh", NOTHING),
];

const NOTHING: &str = "#!/bin/sh\n";

/// Files that the snippets name.
const FILES: [(&str, &str); 2] =
    [("backup.sh", NOTHING), ("tasks.toml", "[[task]]\nname = \"t\"\nevery = \"1h\"\ncommand = [\"true\"]\n")];

/// Examples, benches, features and targets that a command names must exist.
const CARGO: &str = r#"#!/bin/sh
fail() { echo "cargo: no $1" >&2; exit 1; }
case $1 in
+nightly) [ -f "TREE/fuzz/fuzz_targets/$4.rs" ] || fail "$4"; exit 0;;
build|run|test|bench|clippy|fmt|tarpaulin) ;;
*) fail "command $1";;
esac
[ "$1" = fmt ] && exit 0
shift
while [ $# -gt 0 ]; do
    case $1 in
    --) break;;
    --example) [ -f "TREE/examples/$2.rs" ] || fail "example $2"; shift;;
    --bench) grep -q "^name = \"$2\"" TREE/Cargo.toml || fail "bench $2"; shift;;
    --features) for one in $(echo "$2" | tr , ' '); do grep -q "^$one = \[" TREE/Cargo.toml || fail "feature $one"; done; shift;;
    esac
    shift
done
"#;

/// What handlers of the snippets call: `send`, `collect`, a shop and a bank.
const JS: &str = "globalThis.send = async () => 'message-1';\n";
const PYTHON: &str =
    "import builtins\nbuiltins.send = lambda to: 'message-1'\nbuiltins.collect = lambda payload, cancelled: []\n";

fn write_program(path: &Path, text: &str) {
    std::fs::write(path, text.replace("TREE", &tree().display().to_string())).expect("a program");
    set_mode(path, 0o755);
}

/// Fills the folder `home`: programs in `bin`, the clients, and a copy of the examples.
pub(super) fn furnish(home: &Path) {
    for folder in ["bin", "node_modules", "target/release", "target/debian", "benches", ".ci", "python"] {
        std::fs::create_dir_all(home.join(folder)).expect("a folder");
    }
    let link = |to: &Path, from: &str| std::os::unix::fs::symlink(to, home.join(from)).expect("a link");
    link(Path::new(env!("CARGO_BIN_EXE_duly")), "bin/duly");
    link(Path::new(env!("CARGO_BIN_EXE_duly")), "target/release/duly");
    link(&tree().join("clients/node"), "node_modules/duly");
    link(&tree().join("clients"), "clients");
    link(&tree().join("packaging/duly.service"), "duly.service");
    PROGRAMS.iter().for_each(|(name, text)| write_program(&home.join("bin").join(name), text));
    // Scripts of the tree that take minutes: they must exist.
    for script in ["benches/peers/run", "benches/postgres/run", ".ci/run", "packaging/deb"] {
        assert!(tree().join(script).is_file(), "no {script}");
        std::fs::create_dir_all(home.join(script).parent().expect("a folder")).expect("a folder");
        write_program(&home.join(script), NOTHING);
    }
    std::fs::copy(tree().join("packaging/duly.service"), home.join("packaging/duly.service")).expect("the unit");
    for (name, text) in FILES {
        write_program(&home.join(name), text);
    }
    std::fs::write(home.join("stand_ins.mjs"), JS).expect("a module");
    std::fs::write(home.join("python/sitecustomize.py"), PYTHON).expect("a module");
    if let Some(node) = modern_node() {
        link(&node, "bin/node");
    }
}

/// Copies the files of a folder of the tree, without what was built there.
pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").map(|entry| entry.expect("an entry")) {
        let target = to.join(entry.file_name());
        if entry.file_name() == "target" || entry.file_name() == "node_modules" || target.exists() {
            continue;
        } else if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).expect("a copy");
        }
    }
}

/// Returns a Node.js that has `node:sqlite` and runs TypeScript: the one of the machine, or that of `.ci/clients`.
fn modern_node() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_BIN_EXE_duly")).parent().and_then(Path::parent).expect("the folder of builds");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_path = std::env::split_paths(&path).map(|folder| folder.join("node")).find(|file| file.is_file());
    let is_modern = |node: &PathBuf| {
        let script = "require('node:sqlite'); if (!process.features.typescript) throw new Error()";
        Command::new(node).args(["-e", script]).output().is_ok_and(|output| output.status.success())
    };
    of_path.into_iter().chain([built.join("clients/node22/node_modules/.bin/node")]).find(is_modern)
}
