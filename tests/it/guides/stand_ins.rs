//! Stand-ins for programs that a test cannot use: they need a network, root, systemd, Docker, or minutes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::docs::tree;
use crate::fixtures::set_mode;

/// Programs that do nothing. Those of the folder `bin` beside this file examine their arguments. `TREE` is the source tree.
const IDLE: [&str; 6] = ["systemctl", "useradd", "apt", "git", "ssh", "digest.sh"];

const NOTHING: &str = "#!/bin/sh\n";

/// Files that the snippets name.
const FILES: [(&str, &str); 2] =
    [("backup.sh", NOTHING), ("tasks.toml", "[[task]]\nname = \"t\"\nevery = \"1h\"\ncommand = [\"true\"]\n")];

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
    IDLE.iter().for_each(|name| write_program(&home.join("bin").join(name), NOTHING));
    for entry in std::fs::read_dir(tree().join("tests/it/guides/bin")).expect("the programs").flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("a program");
        write_program(&home.join("bin").join(entry.file_name()), &text);
    }
    // Scripts of the tree that take minutes: they must exist.
    for script in
        ["benches/peers/run", "benches/postgres/run", ".ci/run", ".ci/packages", "packaging/deb", "packaging/release"]
    {
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
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(find_modern_node).clone()
}

fn find_modern_node() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_BIN_EXE_duly")).parent().and_then(Path::parent).expect("the folder of builds");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let of_path = std::env::split_paths(&path).map(|folder| folder.join("node")).find(|file| file.is_file());
    let is_modern = |node: &PathBuf| {
        let script = "require('node:sqlite'); if (!process.features.typescript) throw new Error()";
        Command::new(node).args(["-e", script]).output().is_ok_and(|output| output.status.success())
    };
    of_path.into_iter().chain([built.join("clients/node22/node_modules/.bin/node")]).find(is_modern)
}
