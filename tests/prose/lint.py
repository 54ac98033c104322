#!/usr/bin/env python3
"""Prints phrases that a reader has to decode, and fails if there are any.

  tests/prose/lint.py [PATH ...]  searches these files and directories of the repository, or all

Paths are relative to the root of the repository, as `git ls-files` prints them.

It reads Markdown outside code blocks; comments, documentation and string literals of Rust, C and
Python; and long names of Rust functions. patterns.tsv lists the phrases. exempt.tsv lists sentences
that may stay, each with a reason.
"""
import argparse
import ast
import io
import pathlib
import re
import subprocess
import sys
import tokenize

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
GENERATED = {"adapters/python/torch_suite.md", "include/ringtree.h"}
# Files that quote the phrases.
EXCEPT = {"tests/prose/lint.py"}
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[\"')\]*`]*\s+(?=[A-Z`\[*\"(“])")
RUST = re.compile(
    r"""(?P<comment>//[^\n]*)|(?P<block>/\*.*?\*/)|\bb?r(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)"""
    r"""|b?"(?P<string>(?:\\.|[^"\\])*)"|'(?:\\(?:u\{[^}]*\}|x..|.)|[^'\\\n])'""",
    re.S,
)


def sentences(lines):
    """Splits (number, text) lines into (number, sentence); an empty text ends a paragraph."""
    paragraph = []
    for number, text in [*lines, (0, "")]:
        if text.strip():
            paragraph.append((number, text.strip()))
            continue
        whole, starts = "", []
        for number, part in paragraph:
            starts.append((len(whole), number))
            whole += part + " "
        begin = 0
        for end in [*(match.end() for match in SENTENCE_END.finditer(whole)), len(whole)]:
            at = max(number for start, number in starts if start <= begin) if starts else 0
            if whole[begin:end].strip():
                yield at, whole[begin:end].strip()
            begin = end
        paragraph = []


def markdown(lines):
    """Omits code blocks and headings, and makes a paragraph of each list item and table cell."""
    is_code = False
    for number, raw in lines:
        text = raw.strip()
        if text.startswith(("```", "~~~")):
            is_code = not is_code
            yield number, ""
        elif is_code or text.startswith(("#", "<", "---")) or re.match(r"\[[^\]]+\]:", text):
            yield number, ""
        elif text.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", text.strip("|")):
                yield from ((number, cell), (number, ""))
        else:
            item = re.match(r"(?:[-*+]|\d+\.)\s+", text)
            if item:
                yield number, ""
            yield number, text[item.end():] if item else text


def rust(source):
    """Yields the texts of a Rust or C file."""
    run, last = [], 0
    for found in RUST.finditer(source):
        number = source.count("\n", 0, found.start()) + 1
        if found["comment"] is not None:
            if number != last + 1:
                yield from sentences(markdown(run))
                run = []
            run.append((number, re.sub(r"^//[/!]?", "", found["comment"])))
            last = number
            continue
        text = found["block"] or found["raw"] or found["string"]
        if text and (found["block"] or " " in text):
            joined = re.sub(r"\\\n\s*", "", text)
            lines = [re.sub(r"^\s*/?\*+/?", "", line) for line in joined.split("\n")]
            yield from sentences(markdown([(number + at, line) for at, line in enumerate(lines)]))
    yield from sentences(markdown(run))
    for found in re.finditer(r"\bfn (\w+_\w+_\w+_\w+)", source):
        yield source.count("\n", 0, found.start()) + 1, found[1].replace("_", " ")


def python(source):
    """Yields the texts of a Python file."""
    run, last = [], 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield from sentences(run)
                run = []
            run.append((token.start[0], token.string.lstrip("#!")))
            last = token.start[0]
    yield from sentences(run)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            lines = enumerate(node.value.split("\n"), node.lineno)
            yield from sentences(list(lines))


READERS = {
    ".md": lambda source: sentences(markdown(enumerate(source.split("\n"), 1))),
    ".rs": rust, ".c": rust, ".cpp": rust, ".cu": rust, ".cuh": rust, ".h": rust,
    ".py": python, ".pyi": python,
}


def table(name):
    lines = (HERE / name).read_text(encoding="utf-8").split("\n")
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def hits(chosen):
    patterns = [(label, re.compile(pattern)) for label, pattern in table("patterns.tsv")]
    exempt = [(path, part) for path, part, _reason in table("exempt.tsv")]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for one in chosen:
        if not any(path == one or path.startswith(f"{one}/") for path in listed.stdout.split("\n")):
            sys.exit(f"{one} is not a tracked file or directory")
    for path in listed.stdout.split("\n"):
        reader = READERS.get(pathlib.Path(path).suffix)
        if not reader or path in GENERATED | EXCEPT or not (ROOT / path).is_file():
            continue
        if chosen and not any(one == path or path.startswith(f"{one}/") for one in chosen):
            continue
        for number, text in reader((ROOT / path).read_text(encoding="utf-8")):
            if any(path == one and part in text for one, part in exempt):
                continue
            for label, pattern in patterns:
                for found in pattern.finditer(text):
                    yield path, number, label, text, found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", metavar="PATH")
    found = list(hits([one.rstrip("/") for one in parser.parse_args().paths]))
    for path, number, label, text, match in found:
        before, after = text[: match.start()][-60:], text[match.end():][:60]
        print(f"{path}:{number}: {label}: …{before}⟦{match.group()}⟧{after}…")
    if found:
        print(f"{len(found)} phrases that a reader has to decode; rewrite them")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
