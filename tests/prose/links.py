#!/usr/bin/env python3
"""Checks that the target of every relative link in a Markdown file of the repository exists.

A link must name a tracked file or a directory, and an anchor must be a heading of the page. A page
for a package index must not have relative links, because it is shown without the repository.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
PACKAGE_PAGES = ["adapters/python/README.md", "crates/plan/README.md"]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(path):
    """Returns the text of a page without its code blocks."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.M | re.S)


def anchors(path):
    """Returns the anchors that GitHub and mdBook create for a page's headings."""
    found = set()
    for heading in re.findall(r"^#+\s+(.*)$", prose(path), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def main():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    files = {ROOT / one for one in listed if one and (ROOT / one).is_file()}
    directories = {parent for one in files for parent in one.parents}
    failed = False
    for page in sorted(one for one in files if one.suffix == ".md"):
        text = re.sub(r"`[^`\n]*`(?!\])", "", prose(page))
        for link in LINK.findall(text):
            if re.match(r"[a-z]+:", link):
                continue
            if str(page.relative_to(ROOT)) in PACKAGE_PAGES and not link.startswith("#"):
                failed = True
                print(f"{page.relative_to(ROOT)}: {link} is relative, but the page is shown without the repository")
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            wrong = target not in files and target not in directories
            if not wrong and anchor and target.suffix == ".md":
                wrong = anchor not in anchors(target)
            if wrong:
                failed = True
                print(f"{page.relative_to(ROOT)}: the target of {link} does not exist")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
