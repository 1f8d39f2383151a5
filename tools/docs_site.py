"""Put the documentation of each version side by side into out/site, for the switcher: ``make docs-site``.

The documentation of the tree is ``dev``. Of each minor version the last tag is built, in a work tree of its
own, by its own ``make docs``. The page at the top leads to the newest release. BASE is the path of the site
on its server.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "out/site"
TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)")


def newest(tags: list[str]) -> dict[str, str]:
    """Return the tag with the last patch of each minor version, by version, the newest first."""
    found: dict[tuple[int, int], tuple[int, str]] = {}
    for tag in tags:
        if match := TAG.fullmatch(tag):
            major, minor, patch = map(int, match.groups())
            found[major, minor] = max(found.get((major, minor), (-1, "")), (patch, tag))
    return {tag[1:]: tag for _, (_, tag) in sorted(found.items(), reverse=True)}


def switcher(versions: list[str], base: str) -> list[dict[str, object]]:
    """Return what the theme's switcher reads; the newest release is the one that others point to."""
    entries: list[dict[str, object]] = [
        {"name": "development", "version": "dev", "url": f"{base}dev/", "preferred": not versions}
    ]
    for number, version in enumerate(versions):
        name = f"{version} (newest)" if number == 0 else version
        entry = {"name": name, "version": version, "url": f"{base}{version}/", "preferred": number == 0}
        entries.append(entry)
    return entries


def main(base: str) -> None:
    """Build the documentation of the tags, and lay all out."""
    if not (base.startswith("/") and base.endswith("/")):
        raise SystemExit(f"BASE must begin and end with a slash, got {base!r}")
    tags = subprocess.run(["git", "tag"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    versions = newest(tags)
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(ROOT / "out/docs", SITE / "dev")
    for version, tag in versions.items():
        tree = ROOT / "out/site-of" / version
        subprocess.run(["git", "worktree", "add", "--detach", tree, tag], cwd=ROOT, check=True)
        try:
            subprocess.run(["make", "docs"], cwd=tree, check=True, env=os.environ | {"DOCS_VERSION": version})
            shutil.copytree(tree / "out/docs", SITE / version)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    entries = switcher(list(versions), base)
    (SITE / "switcher.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    (first,) = (entry["version"] for entry in entries if entry["preferred"])
    page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={first}/">'
    (SITE / "index.html").write_text(f'{page}<a href="{first}/">timerheap</a>\n', encoding="utf-8")
    print(f"{SITE.relative_to(ROOT)} has {', '.join(['dev', *versions])}")


if __name__ == "__main__":
    main(*sys.argv[1:] or ["/"])
