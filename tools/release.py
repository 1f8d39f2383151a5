"""Build what a release publishes, twice, and check it: ``make release-check``.

Into out/release/dist go the sdist, a wheel for each Python and platform, an SBOM in CycloneDX's format and
SHA256SUMS, all of the last commit. Zig's C compiler builds for both architectures and both C libraries on
one machine. Nothing is published. The last lines say what was done and what was not; the exit status is 1
if a step has failed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
EXTRAS = ",".join(PROJECT["project"]["optional-dependencies"])
TOOLS = Path(sys.executable).parent


class Target(NamedTuple):
    """A platform: what Zig calls it, and the tag of its wheels."""

    arch: str
    zig: str
    plat: str

    @property
    def libc(self) -> str:
        return "musl" if self.plat.startswith("musl") else "gnu"


TARGETS = [
    Target(arch, f"{arch}-linux-{libc}", f"{plat}_{arch}")
    for libc, plat in [("gnu.2.17", "manylinux_2_17"), ("musl", "musllinux_1_2")]
    for arch in ("x86_64", "aarch64")
]


def run(*command: str | Path, cwd: Path = ROOT, quiet: bool = True, **environment: str) -> str:
    """Run a command of this environment, and return what it prints; what fails prints all it has said."""
    drop = {"PYTHONPATH", "SPARK_HOME"}
    env = {name: value for name, value in os.environ.items() if name not in drop}
    env |= {"PATH": f"{TOOLS}{os.pathsep}{env['PATH']}", "PYTHONSAFEPATH": "1"} | environment
    output = subprocess.PIPE if quiet else None
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=env,
        stdout=output,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
    )
    if done.returncode:
        print(done.stdout or "", file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, list(map(str, command)))
    return done.stdout or ""


def found_python(version: str) -> Path | None:
    """Return an interpreter on the PATH, or among pyenv's, whose shim may be there and yet not run."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    for candidate in candidates + sorted(pyenv.glob(f"{version}.*/bin/python")):
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return None


def environment(folder: Path, python: Path, *install: str | Path, pip: bool = True) -> Path:
    """Make an environment anew, and return its interpreter."""
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", *([] if pip else ["--without-pip"]), folder)
    made = folder / "bin/python"
    run("pip", "--python", made, "install", "--quiet", *install)
    return made


# ---- build


def sdist(source: Path, dist: Path, epoch: str) -> Path:
    """Build the sdist, and pack it again: setuptools leaves times and users of this machine in it."""
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", source / "sdist", source)
    (made,) = (source / "sdist").iterdir()
    packed = io.BytesIO()
    with tarfile.open(made) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = int(epoch), 0, 0, "", ""
            member.mode = 0o755 if member.isdir() else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    (dist / made.name).write_bytes(gzip.compress(packed.getvalue(), mtime=int(epoch)))
    return dist / made.name


def write_c(python: Path, source: Path) -> None:
    """Let Cython write the C file, without the folder of NumPy, which it puts into the module."""
    run(python, "-m", "cython", "-3", "timerheap/_native/_core.pyx", cwd=source)
    file = source / "timerheap/_native/_core.c"
    text = file.read_text(encoding="utf-8")
    file.write_text(re.sub(r'"[^"\n]*/site-packages/', '"', text), encoding="utf-8")


def wheel(python: Path, target: Target, source: Path, dist: Path, epoch: str) -> None:
    """Build the wheel of a Python and a platform, and let auditwheel name it."""
    cc = f"{sys.executable} -m ziglang cc -target {target.zig}"
    version = "".join(run(python, "-c", "import sys; print('%d%d' % sys.version_info[:2])").split())
    shutil.rmtree(source / "build", ignore_errors=True)
    made, patched = source / "wheel", source / "patched"
    for folder in (made, patched):
        shutil.rmtree(folder, ignore_errors=True)
    run(
        *(python, "-m", "build", "--wheel", "--no-isolation", "--outdir", made, source),
        CC=cc,
        CXX=cc,
        LDSHARED=f"{cc} -shared -s",
        LDCXXSHARED=f"{cc} -shared -s",
        AR=f"{sys.executable} -m ziglang ar",
        CFLAGS="-fPIC -DNDEBUG",
        SOURCE_DATE_EPOCH=epoch,
        _PYTHON_HOST_PLATFORM=f"linux-{target.arch}",
        SETUPTOOLS_EXT_SUFFIX=f".cpython-{version}-{target.arch}-linux-{target.libc}.so",
        **{f"ZIG_{which}_CACHE_DIR": str(source.parent / "zig") for which in ("GLOBAL", "LOCAL")},
    )
    (built,) = made.iterdir()
    if target.libc == "musl":
        # Zig's musl calls itself libc.so; distributions have it as the name that auditwheel expects.
        run("wheel", "unpack", "--dest", patched, built)
        (module,) = patched.rglob("*.so")
        run("patchelf", "--replace-needed", "libc.so", f"libc.musl-{target.arch}.so.1", module)
        built.unlink()
        run("wheel", "pack", "--dest-dir", made, *patched.iterdir(), SOURCE_DATE_EPOCH=epoch)
    run(
        "auditwheel", "repair", "--wheel-dir", dist, built, SOURCE_DATE_EPOCH=epoch
    )  # it finds the platform itself


def sbom(dist: Path, version: str, python: Path) -> None:
    """Write what an installation with all extras consists of, with versions and licences."""
    folder = dist.parent / "sbom"
    made = environment(folder, python, f"{of_this_machine(dist, version)}[{EXTRAS}]", pip=False)
    to = dist / f"timerheap-{PROJECT['project']['version']}.cdx.json"
    run(
        *("cyclonedx-py", "environment", "--pyproject", ROOT / "pyproject.toml", "--mc-type", "library"),
        *("--gather-license-texts", "--output-reproducible", "--output-file", to, made),
    )
    shutil.rmtree(folder)


def of_this_machine(dist: Path, version: str) -> Path:
    """Return the wheel of a Python that runs here."""
    tag = f"cp{version.replace('.', '')}"
    (built,) = dist.glob(f"*-{tag}-{tag}-*manylinux*_{os.uname().machine}.whl")
    return built


def build(folder: Path, pythons: dict[str, Path], commit: str, epoch: str) -> Path:
    """Build the sdist, and the wheels from it, of a commit in a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    dist, tree, source = folder / "dist", folder / "tree", folder / "source"
    for made in (dist, tree, source):
        made.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(tree, filter="data")
    with tarfile.open(sdist(tree, dist, epoch)) as files:
        files.extractall(source, filter="data")
    (unpacked,) = source.iterdir()
    write_c(next(iter(pythons.values())), unpacked)
    for python in pythons.values():
        for target in TARGETS:
            wheel(python, target, unpacked, dist, epoch)
            print(f"  {sorted(dist.glob('*.whl'), key=os.path.getmtime)[-1].name}", flush=True)
    shutil.rmtree(tree)
    shutil.rmtree(source)  # with the compiler's cache
    return dist


def digests(dist: Path) -> dict[str, str]:
    """Return the checksums of the files of a release by their names."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(dist.iterdir())
        if file.name != "SHA256SUMS"
    }


# ---- check


def check_names(dist: Path, pythons: dict[str, Path]) -> str:
    """Fail unless there is one wheel of each Python and platform, with the version of pyproject.toml."""
    version = PROJECT["project"]["version"]
    tags = [f"cp{python.replace('.', '')}" for python in pythons]
    wanted = [
        f"timerheap-{version}-{tag}-{tag}-.*{target.plat}.*\\.whl" for tag in tags for target in TARGETS
    ]
    names = [file.name for file in dist.glob("*.whl")]
    missing = [name for name in wanted if sum(bool(re.fullmatch(name, found)) for found in names) != 1]
    if missing or len(names) != len(wanted) or not (dist / f"timerheap-{version}.tar.gz").exists():
        raise SystemExit(f"dist must have one file of each name, got {sorted(names)}; not found: {missing}")
    return f"{len(names)} wheels and the sdist of {version}"


def check_wheels(dist: Path) -> str:
    """Fail if auditwheel or twine finds fault, or if a wheel has more than the package."""
    for file in dist.glob("*.whl"):
        # No end of a line that auditwheel wraps cuts the tag.
        shown = "".join(run("auditwheel", "show", file).split())
        if f'tag:"{file.stem.split("-")[-1].split(".")[-1]}"' not in shown:
            raise SystemExit(f"auditwheel gives {file.name} a different tag:\n{shown}")
    run("twine", "check", "--strict", *dist.glob("*.whl"), *dist.glob("*.tar.gz"))
    return "auditwheel confirms the tag of each wheel, twine the metadata"


def relative_links(dist: Path) -> list[str]:
    """Return the links of the README, as the sdist shows it, that a package index cannot follow."""
    (made,) = dist.glob("*.tar.gz")
    with tarfile.open(made) as files:
        shown = files.extractfile(f"{made.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert shown is not None
        return re.findall(r"\]\((?!\w+:)([^)]*)\)", shown.read().decode())


def core_tests(version: str, python: Path, dist: Path) -> str:
    """Run the tests that need the wheel and NumPy alone, on the built manylinux wheel."""
    folder = dist.parent / f"test-{version}"
    made = environment(
        folder, python, "--group", f"{ROOT}/pyproject.toml:test-core", of_this_machine(dist, version)
    )
    said = run(made, "-m", "pytest", "-q", "-p", "no:cacheprovider", "@tests/core.txt")
    shutil.rmtree(folder)
    return said.strip().splitlines()[-1].strip("= ")


def steps(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Do all of it, and tell of each step: its name and what it has shown."""
    commit = run("git", "rev-parse", "HEAD").strip()
    epoch = run("git", "log", "-1", "--format=%ct", commit).strip()
    changed = run("git", "status", "--porcelain").strip()
    yield "commit", commit + (", NOT the changed files of the tree" if changed else "")
    interpreters = {version: found_python(version) for version in arguments.pythons.split(",")}
    chosen = {version: python for version, python in interpreters.items() if python}
    for version in interpreters.keys() - chosen.keys():
        yield "not done", f"wheels for CPython {version}: no such interpreter runs here"
    requires = [*PROJECT["build-system"]["requires"], "build"]
    pinned = run("pip", "freeze")  # the compiler of both builds is the same, so are NumPy and Cython
    out = arguments.out.resolve()
    constraints = out / "constraints.txt"
    constraints.write_text(pinned, encoding="utf-8")
    builders = {
        version: environment(out / f"build-{version}", python, "-c", constraints, *requires)
        for version, python in chosen.items()
    }
    first = next(iter(chosen.items()))
    dist = build(out / "first", builders, commit, epoch)
    yield "built", check_names(dist, chosen)
    yield "checked", check_wheels(dist)
    if links := relative_links(dist):
        where = "pyproject.toml must say [project.urls] Source"
        yield "not done", f"{len(links)} links of the README lead nowhere on a package index: {where}"
    sbom(dist, *first)
    yield "SBOM", next(dist.glob("*.cdx.json")).name
    built = digests(dist)
    if arguments.once:
        yield "not done", "a second build (--once)"
    else:
        again = build(out / "a-second-time", builders, commit, epoch)
        sbom(again, *first)
        second = digests(again)
        differ = [name for name in built.keys() | second.keys() if built.get(name) != second.get(name)]
        if differ:
            raise SystemExit(
                f"two builds of one commit must be the same bytes; these differ: {sorted(differ)}"
            )
        yield "reproduced", f"all {len(built)} files are the same bytes when they are built again elsewhere"
    lines = [f"{digest}  {name}\n" for name, digest in built.items()]
    (dist / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    yield "checksums", "SHA256SUMS"
    for version, python in chosen.items():
        yield f"tests/core.txt on CPython {version}", core_tests(version, python, dist)
    shutil.rmtree(out / "dist", ignore_errors=True)
    shutil.move(dist, out / "dist")
    for made in [*out.glob("build-*"), out / "first", out / "a-second-time"]:
        shutil.rmtree(made, ignore_errors=True)
    yield "not done", "tests of the aarch64 wheels: make test-arm64 WHEEL=..., which needs root"
    yield "not done", "tests of the musllinux wheels: needs a CPython of a musl distribution"
    yield "not done", "publishing: the workflow `release` does it, for a tag"


def main() -> None:
    """Do it, and keep the report beside the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pythons", default=",".join(PYTHONS), help="of these versions, default: %(default)s"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out/release", help="default: out/release")
    parser.add_argument("--once", action="store_true", help="do not build a second time")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    report = []
    for name, what in steps(arguments):
        report.append(f"{name}: {what}")
        print(report[-1], flush=True)
    (arguments.out / "report.txt").write_text("\n".join(report) + "\n", encoding="utf-8")
    print(f"\nThe files are in {arguments.out}/dist. In short:\n")
    print("\n".join(f"  {line}" for line in report))


if __name__ == "__main__":
    main()
