#!/usr/bin/env python3
"""Writes terminal.svg: runs the commands below at a pseudo-terminal, and draws what they print.

Usage: terminal.py PROGRAM TASKS.toml terminal.svg (docs/images/make calls it). Takes half a minute.
"""

import html
import json
import os
import pty
import re
import subprocess
import sys
import tempfile

COLUMNS = 98
# The first scheduler is killed while `slow` runs; the second one recovers its run.
SESSION = [
    ("timeout -s KILL 11 duly -q run --tasks tasks.toml", "       # kill -9 after 11 seconds"),
    ("timeout -s INT 16 duly run --tasks tasks.toml 2> duly.log", "  # Ctrl-C after 16 seconds"),
    ("duly list", ""),
    ("duly history", ""),
    ("duly logs RUN", ""),
]
CELL, LINE, MARGIN, FONT = 8.0, 18, 16, 13
PLAIN, PROMPT = "#d6deeb", "#7f8ea3"
COLORS = {"8": "#8b98a9", "9": "#ff7b72", "10": "#56d364", "11": "#e3b341", "12": "#79c0ff"}


def run(line: str, folder: str, program: str) -> str:
    """Returns what a command prints at a terminal, escape sequences included."""
    path = os.path.dirname(os.path.abspath(program)) + ":" + os.environ["PATH"]
    env = {"PATH": path, "HOME": folder, "TZ": "UTC", "TERM": "xterm-256color", "LANG": "C.UTF-8", "DULY_DB": "duly.db"}
    master, slave = pty.openpty()
    subprocess.run(["stty", "cols", str(COLUMNS), "rows", "50"], stdin=slave, check=True)
    child = subprocess.Popen(["sh", "-c", line], cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    printed = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # Linux: the last program has closed the terminal
            break
        if not part:
            break
        printed += part
    os.close(master)
    child.wait()
    return printed.decode().replace("\r\n", "\n")


def drawn(line: str, y: int) -> str:
    """Returns one line of the terminal as text elements, each at its column."""
    color, column, found = PLAIN, 0, []
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        escape = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
        if escape:
            codes = escape[1].split(";")
            color = COLORS[codes[2]] if codes[:2] == ["38", "5"] else PLAIN
            continue
        for word in re.finditer(r"\S+(?: \S+)*", part):
            text, x = word[0], MARGIN + (column + word.start()) * CELL
            width = len(text) * CELL
            found.append(f'<text x="{x:g}" y="{y}" textLength="{width:g}" fill="{color}">{html.escape(text)}</text>')
        column += len(part)
    return "".join(found)


def main() -> None:
    program, tasks, file = sys.argv[1:]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        with open(tasks, encoding="utf-8") as source, open(os.path.join(folder, "tasks.toml"), "w", encoding="utf-8") as copy:
            copy.write(source.read())
        for line, comment in SESSION:
            if line.endswith(" RUN"):
                runs = json.loads(run("duly history slow --json", folder, program))
                line = line.replace("RUN", str(next(row["id"] for row in runs if row["attempt"] == 2)))
            printed = run(line, folder, program).rstrip("\n")
            lines.append((PROMPT, "$ " + line + comment))
            lines.extend((PLAIN, text) for text in printed.split("\n") if printed)
            too_wide = [text for _, text in lines if len(re.sub(r"\x1b\[[0-9;]*m", "", text)) > COLUMNS]
            assert not too_wide, too_wide
    width, height = 2 * MARGIN + COLUMNS * CELL, 2 * MARGIN + len(lines) * LINE
    with open(file, "w", encoding="utf-8") as svg:
        svg.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height}" viewBox="0 0 {width:g} {height}" role="img">\n')
        svg.write("<title>duly list and duly history, after a scheduler was killed</title>\n")
        svg.write(f'<rect width="100%" height="100%" rx="8" fill="#0d1520"/>\n<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="{FONT}">\n')
        for number, (color, text) in enumerate(lines):
            row = drawn(text, MARGIN + number * LINE + FONT)
            svg.write((row.replace(PLAIN, color) if color != PLAIN else row) + "\n")
        svg.write("</g>\n</svg>\n")


main()
