"""./inv, run as users run it: the real script in a small project of its own.

Where it matters the Python, the venv and pip are real and install a wheel made here (no network); elsewhere a scripted
Python stands in, so that the rest takes milliseconds.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "inv"

# Stands in for invoke: says what it was given.
MODULE = """
import json, os, sys

def main():
    stdin = sys.stdin.read() if "stdin" in sys.argv else None
    print(json.dumps({"version": VERSION, "argv": sys.argv[1:], "cwd": os.getcwd(), "stdin": stdin,
                      "prefix": sys.prefix, "path": os.environ["PATH"], "venv": os.environ.get("VIRTUAL_ENV")}))
    return int(os.environ.get("FAKE_EXIT", "0"))
"""

# Stands in for Python, its venv and its pip. What the files beside it hold decides how it behaves.
FAKE_PYTHON = r"""#!/bin/sh
here=@HERE@
case "$1 $2 $3" in
"-c "*ensurepip*) echo "$(cat "$here/state") $here/python" ;;
"-c "*) exec "@PYTHON@" "$@" ;;
"-I -m venv")
    for folder; do :; done
    mkdir -p "$folder/bin" && cp "$0" "$folder/bin/python" ;;
"-I -m pip")
    [ ! -p "$here/started" ] || { echo >"$here/started"; read -r _ <"$here/go"; }
    echo "$*" >"$here/asked"
    cat >/dev/null  # takes what the verb should get, if it is let
    cat "$here/pip-says"
    [ ! -s "$here/pip-says" ] || exit 1
    [ ! -e "$here/inv" ] || cp "$here/inv" "${0%/*}/inv"
    [ ! -e "$here/fill" ] || head -c 1000000 /dev/zero 2>/dev/null >"${0%/*}/fill" || : ;;
esac
"""
FAKE_INV = '#!/bin/sh\ncat\nprintf "%s\\n" "$@"\n'


def make_executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def make_wheel(folder: Path, version: str) -> str:
    """Builds invoke-VERSION into `folder`; returns its line for a lock."""
    info = f"invoke-{version}.dist-info"
    files = {
        "fake_invoke.py": f"VERSION = {version!r}\n{MODULE}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: invoke\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ninv = fake_invoke:main\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}\n"
        for name, text in files.items()
    )
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"invoke-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(name, text)
    return f"invoke=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


@dataclass
class Project:
    root: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def start(self, *args: str, cwd: Path | None = None, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.root / "inv", *args],
            cwd=cwd or self.root,
            env={**self.env, **env},
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def inv(self, *args: str, cwd: Path | None = None, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.root / "inv", *args],
            cwd=cwd or self.root,
            env={**self.env, **env},
            text=True,
            input=stdin,
            capture_output=True,
            timeout=60,
        )


def make_project(root: Path, lock: str, **env: str) -> Project:
    root.mkdir(parents=True)
    shutil.copy2(SCRIPT, root / "inv")
    (root / "requirements.lock").write_text(lock)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON", "VIRTUAL_ENV"))}
    return Project(root, {**inherited, "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "NO_PROXY": "*", **env})


def real_project(folder: Path) -> Project:
    """A project that the running Python sets up from a wheel."""
    lock = make_wheel(folder / "wheels", "1.0")
    links = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / "wheels")}
    return make_project(folder / "a project", lock, PYTHON=sys.executable, **links)


@dataclass
class Fake:
    """The scripted Python: every setting is a file."""

    folder: Path

    def __post_init__(self) -> None:
        text = FAKE_PYTHON.replace("@HERE@", f"'{self.folder}'").replace("@PYTHON@", sys.executable)
        make_executable(self.folder / "python", text)
        make_executable(self.folder / "inv", FAKE_INV)
        self.set("state", "3.12 ok")
        self.set("pip-says", "")

    def set(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "fake python")


@pytest.fixture
def project(tmp_path: Path, fake: Fake) -> Project:
    return make_project(tmp_path / "a project", "one==1\n", PYTHON=str(fake.folder / "python"))


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH without any Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("cat", "cksum", "cp", "date", "dirname", "mkdir", "readlink", "rm", "rmdir", "sh", "tail"):
        (folder / name).symlink_to(shutil.which(name) or pytest.fail(f"no {name}"))
    return folder


def set_up_says(run: subprocess.CompletedProcess[str]) -> bool:
    return "inv: setting up .venv" in run.stderr


def assert_three_parts(run: subprocess.CompletedProcess[str], code: int, what: str, expected: str, todo: str) -> None:
    assert run.returncode == code, run.stderr
    assert run.stdout == ""
    first, second, third = run.stderr.splitlines()[-3:]
    assert first.startswith("inv: ")
    assert what in first
    assert second.startswith("  expected: ")
    assert expected in second
    assert third.startswith("  next:     ")
    assert todo in third


# With a real Python, venv and pip


@pytest.fixture(scope="module")
def first_use(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, subprocess.CompletedProcess[str]]:
    project = real_project(tmp_path_factory.mktemp("first"))
    return project, project.inv("--list")


@pytest.fixture
def ready(first_use: tuple[Project, subprocess.CompletedProcess[str]]) -> Project:
    """Set up; tests must leave it so."""
    return first_use[0]


def test_first_use_sets_up_and_runs(first_use: tuple[Project, subprocess.CompletedProcess[str]]) -> None:
    project, run = first_use
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)  # nothing but the verb's own output
    assert said["argv"] == ["--search-root", str(project.root), "--list"]
    assert said["prefix"] == said["venv"] == str(project.venv)
    assert said["path"].startswith(f"{project.venv}/bin:")
    assert "setting up .venv (there is none yet)" in run.stderr
    assert "ready after" in run.stderr


def test_second_use_sets_nothing_up(ready: Project) -> None:
    before = (ready.venv / "pyvenv.cfg").stat()
    run = ready.inv("check")
    assert (run.returncode, run.stderr) == (0, "")
    assert (ready.venv / "pyvenv.cfg").stat().st_mtime_ns == before.st_mtime_ns


def test_arguments_folder_input_and_exit_code_pass_through(ready: Project, tmp_path: Path) -> None:
    args = ["a b", "", "it's", '"q"', "$HOME", "*", "-f", "--", "line\nline", "stdin"]
    run = ready.inv(*args, cwd=tmp_path, stdin="data", FAKE_EXIT="7")
    said = json.loads(run.stdout)
    assert said["argv"][2:] == args
    assert said["cwd"] == str(tmp_path)
    assert said["stdin"] == "data"
    assert run.returncode == 7


def test_found_through_a_link_and_through_path(ready: Project, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "inv").symlink_to(ready.root / "inv")
    for command in ("bin/inv", "cd bin && PATH=.:$PATH && inv", f"cd '{ready.root}' && sh inv"):
        run = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=ready.env, capture_output=True, text=True)
        assert json.loads(run.stdout)["argv"] == ["--search-root", str(ready.root), "--list"], run.stderr


def test_settings_that_would_confuse_python_and_pip(tmp_path: Path) -> None:
    project = real_project(tmp_path)
    del project.env["PYTHON"]
    shims = tmp_path / "shims"  # as pyenv's, without a version: found first, of no use
    for name in ("python3", "python3.13", "python3.12", "python3.11"):
        make_executable(shims / name, "#!/bin/sh\necho 'version not set' >&2\nexit 127\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "fake_invoke.py").write_text("raise SystemExit('from PYTHONPATH')")
    (tmp_path / "pip.conf").write_text("[install]\nuser = true\n")
    run = project.inv(
        PATH=f"{shims}:{tmp_path / 'bin'}:{os.environ['PATH']}",
        PYTHONHOME="/nowhere",
        PYTHONPATH=str(tmp_path / "site"),
        VIRTUAL_ENV=str(tmp_path / "other"),
        PIP_CONFIG_FILE=str(tmp_path / "pip.conf"),
        PIP_CONSTRAINT="/nowhere",
        PIP_REQUIRE_VIRTUALENV="1",
        PIP_TARGET=str(tmp_path / "target"),
        PIP_USER="1",
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["prefix"] == str(project.venv)


def test_killed_while_pip_downloads(tmp_path: Path) -> None:
    project = real_project(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes pip's call and never answers
        server.settimeout(60)
        killed = project.start(PIP_FIND_LINKS=f"http://127.0.0.1:{server.getsockname()[1]}/")
        connection, _ = server.accept()
        with connection:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.communicate(timeout=60)
    assert (project.venv / "bin" / "python").exists()
    run = project.inv()
    assert "an earlier set-up did not finish" in run.stderr
    assert json.loads(run.stdout)["version"] == "1.0"


def test_changed_lock_and_wrong_hash(tmp_path: Path) -> None:
    project = real_project(tmp_path)
    assert project.inv().returncode == 0
    lock = make_wheel(tmp_path / "wheels", "2.0")
    (project.root / "requirements.lock").write_text(lock[:-5] + "beef\n")
    run = project.inv()
    assert "requirements.lock has changed" in run.stderr
    assert "DO NOT MATCH THE HASHES" in run.stderr  # pip's own words
    assert_three_parts(run, 1, "pip install failed", "hashes", "do not trust")
    (project.root / "requirements.lock").write_text(lock)
    assert json.loads(project.inv().stdout)["version"] == "2.0"
    assert not list(project.venv.glob("lib/python*/site-packages/invoke-1.0*"))


# With the scripted Python


def test_set_up_once_and_input_left_to_the_verb(project: Project) -> None:
    runs = [project.inv("a b", stdin="data\n") for _ in range(2)]
    assert [run.stdout.splitlines() for run in runs] == [["data", "--search-root", str(project.root), "a b"]] * 2
    assert [set_up_says(run) for run in runs] == [True, False]


def test_pip_is_asked_for_wheels_with_hashes(project: Project, fake: Fake) -> None:
    project.inv()
    asked = (fake.folder / "asked").read_text()
    assert "--require-hashes" in asked
    assert "--only-binary :all:" in asked


def test_rebuild_keeps_nothing_of_the_old(project: Project, fake: Fake) -> None:
    (fake.folder / "python3").symlink_to("python")
    project.env |= {"PYTHON": "", "PATH": f"{fake.folder}:{os.environ['PATH']}"}
    project.inv()
    (project.venv / "lib").mkdir()
    (project.root / "requirements.lock").write_text("two==2\n")
    assert "requirements.lock has changed" in project.inv().stderr
    assert not (project.venv / "lib").exists()


def test_moved_folder(project: Project) -> None:
    project.inv()
    old, project.root = project.root, project.root.with_name("elsewhere")
    old.rename(project.root)
    run = project.inv()
    assert f"the folder was at {old}" in run.stderr
    assert str(project.root) in run.stdout.splitlines()
    assert not set_up_says(project.inv())


@pytest.mark.parametrize("gone", ["bin/python", "bin/inv"])
def test_python_or_packages_gone(project: Project, gone: str) -> None:
    project.inv()
    (project.venv / gone).unlink()
    (project.venv / gone).symlink_to("/nowhere/python3.10")
    run = project.inv()
    assert "is gone" in run.stderr
    assert run.returncode == 0
    assert not set_up_says(project.inv())


def test_another_python_named(project: Project, tmp_path: Path) -> None:
    project.inv()
    other = Fake(tmp_path / "other")
    run = project.inv(PYTHON=str(other.folder / "python"))
    assert f"PYTHON asks for {other.folder}/python" in run.stderr
    assert not set_up_says(project.inv(PYTHON=""))  # who names none takes what is there


@pytest.mark.parametrize("kind", ["folder", "link", "dangling link", "file"])
def test_venv_of_the_users_is_left_alone(project: Project, tmp_path: Path, kind: str) -> None:
    theirs = project.venv if kind == "folder" else tmp_path / "theirs"
    if kind in ("folder", "link"):
        theirs.mkdir()
        (theirs / "precious").touch()
    if "link" in kind:
        project.venv.symlink_to(theirs)
    if kind == "file":
        project.venv.touch()
    assert_three_parts(project.inv(), 2, f"{project.venv} was not made by ./inv", "it deletes no other", "mv .venv")
    assert os.path.lexists(project.venv)
    assert (theirs / "precious").exists() == (kind in ("folder", "link"))


def test_empty_venv_folder_is_nobodys(project: Project) -> None:
    project.venv.mkdir()  # what a kill between the first two steps leaves
    assert project.inv().returncode == 0


def hold_pip(fake: Fake) -> None:
    os.mkfifo(fake.folder / "started")
    os.mkfifo(fake.folder / "go")


def wait_for_pip(fake: Fake) -> None:
    (fake.folder / "started").read_text()


def release_pip(fake: Fake) -> None:
    (fake.folder / "go").write_text("\n")
    for name in ("started", "go"):
        (fake.folder / name).unlink()


def test_two_at_once(project: Project, fake: Fake) -> None:
    hold_pip(fake)
    first = project.start("first")
    wait_for_pip(fake)
    second = project.start("second")
    assert second.stderr
    waits = second.stderr.readline()
    release_pip(fake)
    outputs = [run.communicate(timeout=60) for run in (first, second)]
    assert "waiting for another ./inv" in waits
    assert [out.splitlines()[-1] for out, _ in outputs] == ["first", "second"]
    assert ["setting up" in err for _, err in outputs] == [True, False]


def test_pip_that_outlives_its_caller_is_waited_for(project: Project, fake: Fake) -> None:
    hold_pip(fake)
    killed = project.start()
    wait_for_pip(fake)
    killed.kill()  # the shell alone: its pip still writes into .venv
    killed.wait(timeout=60)
    second = project.start("second")
    assert second.stderr
    waits = second.stderr.readline()
    release_pip(fake)
    out, err = second.communicate(timeout=60)
    killed.communicate(timeout=60)
    assert "waiting for another ./inv" in waits
    assert "an earlier set-up did not finish" in err
    assert out.splitlines()[-1] == "second"


def test_ctrl_c(project: Project, fake: Fake) -> None:
    hold_pip(fake)
    run = project.start()
    wait_for_pip(fake)
    os.killpg(run.pid, signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (130, "")
    assert "interrupted; the next ./inv starts over" in err
    for name in ("started", "go"):
        (fake.folder / name).unlink()
    assert "did not finish" in project.inv().stderr


@pytest.mark.parametrize(
    ("state", "what", "os_release", "advice"),
    [
        ("3.12 bare", "has no ensurepip", "ID=debian", "apt-get install python3.12 python3.12-venv"),
        ("3.12 bare", "has no ensurepip", 'ID=ubuntu\nID_LIKE="debian"', "apt-get install python3.12 python3.12-venv"),
        ("3.9 old", "is Python 3.9", "ID=debian", "apt-get install python3.11 python3.11-venv"),
        ("3.9 old", "is Python 3.9", 'ID="rocky"\nID_LIKE="rhel centos fedora"', "dnf install python3.11"),
        ("3.9 old", "is Python 3.9", "ID=fedora", "dnf install python3.11"),
        ("3.9 old", "is Python 3.9", "ID=alpine", "apk add python3"),
        ("3.9 old", "is Python 3.9", "ID=arch", "pacman -S python"),
        ("3.9 old", "is Python 3.9", "ID=other", "install Python 3.11 or newer"),
        ("3.9 old", "is Python 3.9", None, "install Python 3.11 or newer"),
    ],
)
def test_unsuitable_python(
    project: Project, fake: Fake, tmp_path: Path, state: str, what: str, os_release: str | None, advice: str
) -> None:
    fake.set("state", state)
    if os_release is not None:
        (tmp_path / "os-release").write_text(os_release)
    script = (project.root / "inv").read_text()
    assert "/etc/os-release" in script
    (project.root / "inv").write_text(script.replace("/etc/os-release", f"'{tmp_path}/os-release'"))
    assert_three_parts(project.inv(), 2, f"{fake.folder}/python {what}", "Python 3.11 or newer", f"as root: {advice}")
    assert not project.venv.exists()


def test_without_any_suitable_python(project: Project, tools: Path, tmp_path: Path) -> None:
    project.env |= {"PATH": str(tools), "PYTHON": ""}
    assert_three_parts(project.inv(), 2, "none in PATH", "Python 3.11 or newer", "PYTHON=/path/to/python3.12 ./inv")
    make_executable(tools / "python3", "#!/bin/sh\necho '3.9 old /usr/bin/python3.9'\n")
    make_executable(tools / "python3.12", "#!/bin/sh\nexit 127\n")
    run = project.inv()
    assert_three_parts(run, 2, f"/usr/bin/python3.9 is Python 3.9, {tools}/python3.12 does not run", "3.11", "PYTHON=")
    make_executable(tmp_path / "good" / "python3.11", (tmp_path / "fake python" / "python").read_text())
    assert project.inv(PATH=f"{tools}:{tmp_path / 'good'}").returncode == 0


def test_python_named_is_no_good(project: Project) -> None:
    assert_three_parts(project.inv(PYTHON="/nowhere"), 2, "PYTHON=/nowhere: /nowhere does not run", "3.11", "PYTHON=")


def test_no_lock(project: Project) -> None:
    (project.root / "requirements.lock").unlink()
    assert_three_parts(project.inv(), 2, "cannot read", "the lock of the packages", "git -C")


@pytest.mark.parametrize(
    ("pip_says", "expected", "todo"),
    [
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "hashes", "do not trust"),
        ("ERROR: Hashes are required in --require-hashes mode, but they are missing", "hashes", "git checkout"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "500 MB", "free"),
        ("ERROR: ... [Errno 13] Permission denied: '/x'", "may write", "owner"),
        ("WARNING: ... 'NewConnectionError(...)'\nERROR: No matching distribution found for x", "answers", "network"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]'))", "certificate", "PIP_CERT"),
        ("ERROR: No matching distribution found for mpi4py==4.1.2", "Python 3.12", "PYTHON="),
        ("what nobody foresaw", "succeed", "call ./inv again"),
    ],
)
def test_pip_fails(project: Project, fake: Fake, pip_says: str, expected: str, todo: str) -> None:
    fake.set("pip-says", "first line\n" * 20 + pip_says)
    run = project.inv()
    assert_three_parts(run, 1, "pip install failed", expected, todo)
    assert pip_says in run.stderr
    assert run.stderr.count("first line") < 12  # the last lines, not all
    fake.set("pip-says", "")
    assert "did not finish" in project.inv().stderr


def test_pip_installs_elsewhere(project: Project, fake: Fake) -> None:
    (fake.folder / "inv").unlink()
    assert_three_parts(project.inv(), 1, "put no inv into", "installed into .venv", "pip config list")


def in_own_mounts(project: Project, mount: str) -> subprocess.CompletedProcess[str]:
    """Runs ./inv after `mount`, which sees the project's folder as $1, where mounts are nobody else's."""
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if not shutil.which("unshare"):
        pytest.skip("needs unshare (util-linux) for mounts of its own")
    trial = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True)
    if trial.returncode:
        pytest.skip(f"needs mounts of its own, which are not to be had here: {trial.stderr.strip()}")
    command: list[str | Path] = [*unshare, "sh", "-c", f'{mount} && cd "$1" && exec ./inv', "sh", project.root]
    return subprocess.run(command, env=project.env, capture_output=True, text=True)


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'


def test_read_only_folder(project: Project) -> None:
    assert_three_parts(in_own_mounts(project, READ_ONLY), 1, f"cannot write {project.venv}", "may write", "clone")
    project.inv()
    assert in_own_mounts(project, READ_ONLY).returncode == 0  # made before: nothing to write


def test_full_disk(project: Project, fake: Fake) -> None:
    fake.set("fill", "")
    small = 'cp -R "$1" "$1.copy" && mount -t tmpfs -o size=256k none "$1" && cp "$1.copy"/* "$1"'
    assert_three_parts(in_own_mounts(project, small), 1, "cannot write", "room", "free some space")
