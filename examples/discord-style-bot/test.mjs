// Runs the bot in Node.js with the checks of test.py.
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";

const path = (name) => fileURLToPath(new URL(name, import.meta.url));
execFileSync("python3", [path("test.py"), process.execPath, path("bot.mjs")], { stdio: "inherit" });
