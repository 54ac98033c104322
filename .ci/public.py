#!/usr/bin/env python3
"""Compares the public items of ringtree and ringtree-plan, with all features, with public.txt.

`--write` writes the file. Items are functions, methods, types, traits, constants and macros in the documentation, but
not fields and variants. Needs no nightly toolchain.
"""
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
LIST = ROOT / ".ci/public.txt"
COUNTED = {"function", "struct", "enum", "trait", "constant", "type_alias", "macro", "union", "static"}


def documented(package):
    """Returns the documentation of a package as JSON."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    # The JSON output is unstable. Private links are reported by the check of the documentation.
    command = ["cargo", "rustdoc", "--quiet", "--locked", "--lib", "-p", package, "--all-features", "--",
               "-Z", "unstable-options", "--output-format", "json"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "RUSTC_BOOTSTRAP": "1"}, check=True)
    return json.loads((target / "doc" / f"{package.replace('-', '_')}.json").read_text(encoding="utf-8"))


def items(package):
    """Returns the paths of all public items of a package."""
    documentation = documented(package)
    index = documentation["index"]
    found, seen = set(), set()
    root = str(documentation["root"])
    todo = [(root, package.replace("-", "_"))]
    while todo:
        at, path = todo.pop()
        if at in seen or at not in index:
            continue
        item = index[at]
        is_hidden = "doc(hidden)" in json.dumps(item["attrs"]).replace(" ", "").replace("#[", "")
        if item["crate_id"] != 0 or is_hidden:
            continue
        seen.add(at)
        kind, inner = next(iter(item["inner"].items()))
        if kind == "impl":
            if inner["trait"] is None:
                todo += [(str(one), path) for one in inner["items"]]
            continue
        if kind == "use":
            if inner.get("id") is not None:
                todo.append((str(inner["id"]), path))
            continue
        if at != root:
            path = f"{path}::{item['name']}"
        if kind in COUNTED:
            found.add(f"{kind} {path}")
        if isinstance(inner, dict):
            for key in ("items", "impls"):
                todo += [(str(one), path) for one in inner.get(key, [])]
    return found


def main():
    found = sorted(set.union(*(items(package) for package in ("ringtree", "ringtree-plan"))))
    text = "".join(f"{one}\n" for one in found)
    if "--write" in sys.argv[1:]:
        LIST.write_text(text, encoding="utf-8")
        print(f"{len(found)} public items")
        return 0
    listed = set(LIST.read_text(encoding="utf-8").splitlines())
    for sign, lines in (("+", set(found) - listed), ("-", listed - set(found))):
        for line in sorted(lines):
            print(f"{sign} {line}")
    if set(found) != listed:
        print("the public items differ from .ci/public.txt; if this is intended, run .ci/public.py --write")
        return 1
    print(f"{len(found)} public items")
    return 0


if __name__ == "__main__":
    sys.exit(main())
