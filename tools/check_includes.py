#!/usr/bin/env python3
"""Proves the include rule and the few other rules of the tree that a script can prove.

    python3 tools/check_includes.py [ROOT]

Prints one line per breach, FILE:LINE: what and which rule; exit code 1 if there is any.
"""
import re
import sys
from pathlib import Path

# Folder of src/ -> the folders it may include besides itself.
ALLOWED = {
    "base": set(),
    "compute": {"base"},
    "text": {"base"},
    "media": {"base"},
    "model": {"base", "compute"},
    "engine": {"base", "compute", "model"},
    "server": {"base", "compute", "model", "engine", "text", "media"},
    "cli": {"base", "compute", "model", "engine", "text", "media", "server"},
}
MAX_BEAST_FILES = 4

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Comments and literals, so that words inside them do not count.
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
BANNED = [
    (re.compile(r"\b(secure_)?getenv\b"), "getenv is read in src/main.cc only", {"src/main.cc"}),
    (re.compile(r"\bthread_local\b"), "no thread_local: pass what the function needs", set()),
]


def blank(text):
    """The text with comments and literals emptied, line numbers kept."""
    return NOISE.sub(lambda m: "\n" * m.group().count("\n"), text)


def includes(text):
    for number, line in enumerate(text.splitlines(), 1):
        if m := INCLUDE.match(line):
            yield number, m.group(1) == '"', m.group(2)


def check_layers(path, layer, text, root):
    """Quoted includes start at src/ and point down only."""
    for number, quoted, target in includes(text):
        if not quoted:
            continue
        folder = target.split("/")[0]
        if not (root / "src" / target).is_file():
            yield number, f'"{target}" is no file under src/: include by the path from src/'
        elif layer != "" and folder != layer and folder not in ALLOWED[layer]:
            allowed = ", ".join(sorted(ALLOWED[layer])) or "nothing"
            yield number, f'{layer} may include {allowed}, not "{target}"'


def check_libraries(path, text):
    for number, _, target in includes(text):
        if re.match(r"(oneapi/)?dnnl", target) and not path.startswith("bench/") and not path.endswith("_bench.cc"):
            yield number, f"<{target}>: oneDNN is a rival in benchmarks only"
        if re.match(r"boost/(asio|beast)", target) and path.endswith(".h"):
            yield number, f"<{target}>: Beast and Asio belong in .cc files"


def check_words(path, text):
    for number, line in enumerate(blank(text).splitlines(), 1):
        for pattern, rule, exempt in BANNED:
            if pattern.search(line) and path not in exempt:
                yield number, rule


def check_tree(root):
    """Every breach as 'path:line: text', in the order of the files."""
    root = Path(root)
    breaches, beast_files = [], []
    files = [f for f in sorted(root.glob("src/**/*")) + sorted(root.glob("bench/**/*")) if f.suffix in (".h", ".cc", ".cu", ".cuh")]
    for file in files:
        path = file.relative_to(root).as_posix()
        parts = path.split("/")
        layer = parts[1] if parts[0] == "src" and len(parts) > 2 else ""  # main.cc and bench/ may see everything
        text = file.read_text()
        if layer and layer not in ALLOWED:
            breaches.append(f"{path}:1: src/{layer} is not a folder of the design; add it to ALLOWED with what it may see")
            continue
        found = [*check_layers(path, layer, text, root), *check_libraries(path, text), *check_words(path, text)]
        breaches += [f"{path}:{number}: {what}" for number, what in sorted(found)]
        if any(re.match(r"boost/(asio|beast)", target) for _, _, target in includes(text)):
            beast_files.append(path)
    if len(beast_files) > MAX_BEAST_FILES:
        breaches.append(f"{beast_files[-1]}:1: Beast or Asio in {len(beast_files)} files, at most {MAX_BEAST_FILES}: "
                        + ", ".join(beast_files))
    return breaches


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    breaches = check_tree(root)
    print("\n".join(breaches) or "includes: every one points down")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
