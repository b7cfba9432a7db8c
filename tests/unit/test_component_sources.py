"""Sources: files of an index (a server on loopback), git repositories and trees (made here)."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from images.build_plan import Source, SourceKind
from images.index import fetch_file, index_url
from images.sources_fetch import fetch_source, tree_hash
from lanewise.errors import InputError, LanewiseError

CONTENT = b"not really an archive" * 1000
HASH = hashlib.sha256(CONTENT).hexdigest()
FILE = "small-1.0.tar.gz"


class FakeIndex(ThreadingHTTPServer):
    """Serves one file of one distribution, in the way that a test sets."""

    daemon_threads = True
    html = False
    sent = CONTENT
    page: bytes | None = None
    name = FILE

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}/simple"


class _Handler(BaseHTTPRequestHandler):
    server: FakeIndex

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.path == "/simple/small-thing/":
            kind, body = self._listing()
        elif self.path.startswith("/files/"):
            kind, body = "application/octet-stream", self.server.sent
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _listing(self) -> tuple[str, bytes]:
        name = self.server.name
        if self.server.html:
            return "text/html", f'<a href="../../files/{name}#sha256={HASH}">{name}</a><a>none</a>'.encode()
        files = [{"filename": name, "url": f"/files/{name}", "hashes": {"sha256": HASH}}]
        return "application/vnd.pypi.simple.v1+json", self.server.page or json.dumps({"files": files}).encode()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch) -> Iterator[FakeIndex]:
    server = FakeIndex()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    yield server
    server.shutdown()
    server.server_close()


SDIST = Source(kind=SourceKind.SDIST, location="Small_Thing==1.0", identity=HASH)


@pytest.mark.parametrize("html", [False, True], ids=["PEP 691", "PEP 503"])
def test_a_file_of_the_index_is_fetched_once_by_its_hash(index, tmp_path, html) -> None:
    index.html = html
    folder = fetch_source(SDIST, tmp_path)
    assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [(FILE, CONTENT)]
    asked = list(index.asked)
    assert fetch_source(SDIST, tmp_path) == folder
    assert index.asked == asked == ["/simple/small-thing/", f"/files/{FILE}"]


def test_a_wheel_is_kept_where_the_locks_wheels_are(index, tmp_path) -> None:
    wheel = Source(kind=SourceKind.WHEEL, location="small-thing==1.0", identity=HASH)
    assert fetch_source(wheel, tmp_path) == tmp_path / "wheels" / HASH


def test_a_file_that_was_damaged_on_disk_is_fetched_again(index, tmp_path) -> None:
    path = fetch_source(SDIST, tmp_path) / FILE
    path.write_bytes(b"x")
    assert fetch_source(SDIST, tmp_path) / FILE == path
    assert path.read_bytes() == CONTENT


def test_another_file_than_the_lock_names_is_refused_and_not_kept(index, tmp_path) -> None:
    index.sent = CONTENT + b"!"
    with pytest.raises(LanewiseError, match="sent a file with sha256") as caught:
        fetch_source(SDIST, tmp_path)
    assert caught.value.expected == HASH
    assert not list((tmp_path / "sources" / "files" / HASH).iterdir())


def test_a_hash_that_the_index_does_not_list_is_an_input_error(index, tmp_path) -> None:
    with pytest.raises(InputError, match="lists no file of Small_Thing with sha256"):
        fetch_source(Source(kind=SourceKind.WHEEL, location="Small_Thing==1.0", identity="0" * 64), tmp_path)


def test_a_name_that_would_leave_the_folder_is_refused(index, tmp_path) -> None:
    index.name = "../../evil.tar.gz"
    with pytest.raises(InputError, match="lists no file"):
        fetch_source(SDIST, tmp_path)


@pytest.mark.parametrize("page", [b"[", b"[]", b"{}", b'{"files": 3}', b'{"files": [{"filename": "x"}]}'])
def test_an_index_that_talks_nonsense_is_an_error(index, tmp_path, page) -> None:
    index.page = page
    with pytest.raises(LanewiseError, match="something else than a list"):
        fetch_source(SDIST, tmp_path)


def test_a_mirror_is_asked_instead_and_verified_all_the_same(index, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    mirrored = Source(kind=SourceKind.SDIST, location="small-thing==1.0", identity=HASH, mirror=index.url)
    assert (fetch_source(mirrored, tmp_path) / FILE).read_bytes() == CONTENT


def test_an_index_that_does_not_answer_is_an_error_that_tells_no_password(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:hunter2@127.0.0.1:9/simple")
    with pytest.raises(LanewiseError, match="cannot fetch") as caught:
        fetch_source(SDIST, tmp_path)
    assert "hunter2" not in str(caught.value)


def test_an_address_that_is_no_web_address_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="no address of an index"):
        fetch_file("small", HASH, tmp_path, index="file:///etc")


def test_the_public_index_is_used_where_the_user_names_none(monkeypatch) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"):
        monkeypatch.delenv(name, raising=False)
    assert index_url().startswith("https://")
    assert index_url().endswith("/simple")


# git


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.invalid", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", "-C", folder, *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder: Path, **files: str) -> Path:
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=first")
    return folder


@pytest.fixture
def project(tmp_path) -> Path:
    return repository(tmp_path / "project", one="1\n")


def of_git(location: object, commit: str, **fields: str) -> Source:
    return Source(kind=SourceKind.GIT, location=str(location), identity=commit, **fields)


def test_a_commit_is_checked_out_although_its_branch_moved_on(project, tmp_path) -> None:
    commit = git(project, "rev-parse", "HEAD")
    (project / "one").write_text("2\n")
    git(project, "commit", "--quiet", "--all", "--message=second")
    said: list[str] = []
    tree = fetch_source(of_git(project, commit, ref="main"), tmp_path / "cache", said.append)
    assert (tree / "one").read_text() == "1\n"
    assert sorted(path.name for path in tree.iterdir()) == ["one"]
    assert len(said) == 1
    assert fetch_source(of_git(project, commit), tmp_path / "cache", said.append) == tree
    assert len(said) == 1


def test_submodules_come_along(project, tmp_path) -> None:
    inner = repository(tmp_path / "inner", two="2\n")
    git(project, "submodule", "add", "--quiet", str(inner), "third_party/inner")
    git(project, "commit", "--quiet", "--message=with a submodule")
    tree = fetch_source(of_git(project, git(project, "rev-parse", "HEAD")), tmp_path / "cache")
    assert (tree / "third_party/inner/two").read_text() == "2\n"
    assert not list(tree.rglob(".git"))


def test_nothing_that_a_repository_or_a_template_holds_is_run(project, tmp_path, monkeypatch) -> None:
    template = tmp_path / "template" / "hooks"
    template.mkdir(parents=True)
    for name in ("post-checkout", "reference-transaction"):
        (template / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/PWNED\n")
        (template / name).chmod(0o755)
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(template.parent))
    fetch_source(of_git(project, git(project, "rev-parse", "HEAD")), tmp_path / "cache")
    assert not (tmp_path / "PWNED").exists()


def test_a_mirror_gives_the_same_commit_and_no_other(project, tmp_path) -> None:
    commit = git(project, "rev-parse", "HEAD")
    mirror = tmp_path / "mirror"
    subprocess.run(["git", "clone", "--quiet", "--bare", project, mirror], check=True)
    there = of_git("https://example.invalid/x.git", commit, mirror=str(mirror))
    assert (fetch_source(there, tmp_path / "cache") / "one").read_text() == "1\n"


def test_a_commit_that_the_repository_does_not_have_is_an_input_error(project, tmp_path) -> None:
    with pytest.raises(InputError, match="does not have commit f"):
        fetch_source(of_git(project, "f" * 40, ref="main"), tmp_path / "cache")
    assert not list((tmp_path / "cache" / "sources" / "trees").iterdir())


def test_a_repository_that_does_not_answer_is_an_error(tmp_path) -> None:
    with pytest.raises(LanewiseError, match="cannot fetch"):
        fetch_source(of_git(tmp_path / "nowhere", "f" * 40), tmp_path / "cache")


@pytest.mark.parametrize("address", ["ext::sh -c touch% PWNED", "--upload-pack=touch PWNED", "relative/path", ""])
def test_addresses_that_are_commands_are_refused(tmp_path, address) -> None:
    for source in (of_git(address, "f" * 40), of_git("/x", "f" * 40, mirror=address or "-x")):
        with pytest.raises(InputError, match="no git address"):
            fetch_source(source, tmp_path / "cache")


@pytest.mark.parametrize("commit", ["main", "abc123", "F" * 40, "", "--all"])
def test_a_ref_is_no_commit(tmp_path, commit) -> None:
    with pytest.raises(InputError, match="no commit"):
        fetch_source(of_git("/x", commit), tmp_path / "cache")


# Trees


@pytest.fixture
def tree(tmp_path) -> Path:
    folder = tmp_path / "tree"
    (folder / "below").mkdir(parents=True)
    (folder / "a.cu").write_text("a")
    (folder / "below" / "b.sh").write_text("b")
    (folder / "link").symlink_to("a.cu")
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a.cu").write_text("b"),
        lambda folder: (folder / "a.cu").rename(folder / "c.cu"),
        lambda folder: (folder / "below" / "b.sh").chmod(0o755),
        lambda folder: (folder / "link").unlink(),
        lambda folder: (folder / "new").write_text(""),
        lambda folder: ((folder / "link").unlink(), (folder / "link").symlink_to("below")),
    ],
)
def test_the_hash_of_a_tree_follows_names_contents_links_and_what_is_a_program(tree, change) -> None:
    before = tree_hash(tree)
    change(tree)
    assert tree_hash(tree) != before


def test_the_hash_of_a_tree_does_not_follow_times_places_and_git(tree, tmp_path) -> None:
    before = tree_hash(tree)
    os.utime(tree / "a.cu", (1, 1))
    (tree / ".git").mkdir()
    (tree / ".git" / "HEAD").write_text("x")
    tree.rename(tmp_path / "elsewhere")
    assert tree_hash(tmp_path / "elsewhere") == before


def test_a_tree_is_copied_so_that_later_changes_do_not_matter(tree, tmp_path) -> None:
    source = Source(kind=SourceKind.TREE, location=str(tree), identity=tree_hash(tree))
    copy = fetch_source(source, tmp_path / "cache")
    (tree / "a.cu").write_text("changed")
    assert (copy / "a.cu").read_text() == "a"
    assert (copy / "link").readlink() == Path("a.cu")
    assert fetch_source(source, tmp_path / "cache") == copy


def test_a_tree_that_changed_since_planning_is_refused(tree, tmp_path) -> None:
    source = Source(kind=SourceKind.TREE, location=str(tree), identity=tree_hash(tree))
    (tree / "a.cu").write_text("changed")
    with pytest.raises(InputError, match="have the hash"):
        fetch_source(source, tmp_path / "cache")
    assert not list((tmp_path / "cache" / "sources" / "trees").iterdir())


def test_what_is_no_tree_of_files_is_refused(tree, tmp_path) -> None:
    os.mkfifo(tree / "pipe")
    with pytest.raises(InputError, match="neither a file nor a link"):
        tree_hash(tree)
    for source in (tree, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="cannot build from"):
            fetch_source(Source(kind=SourceKind.TREE, location=str(source), identity=HASH), tmp_path / "cache")
