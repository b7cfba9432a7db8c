"""Fetches one file of the Python index by its hash; pip would run a source archive's build on this machine for that."""

from __future__ import annotations

import hashlib
import html.parser
import json
import os
import re
import ssl
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from packaging.utils import canonicalize_name

from lanewise.errors import InputError, LanewiseError
from lanewise.files import writing

_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_SECONDS = 60
_MAX_PAGE_BYTES = 64 << 20
_PIECE = 1 << 20
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*")


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """A file as the index lists it."""

    name: str
    url: str
    sha256: str


def index_url() -> str:
    """The index that the user gave pip, or pip's own default."""
    named = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_DEFAULT_INDEX")
    return (named or str(import_module("pip._internal.models.index").PyPI.simple_url)).rstrip("/")


def fetch_file(
    distribution: str, sha256: str, folder: Path, *, index: str = "", told: Callable[[str], None] = lambda _line: None
) -> Path:
    """Fetch the file of that hash; where it is kept already and whole, nothing is fetched.

    Args:
        distribution: whose file it is.
        sha256: hash of the file.
        folder: where it is kept, in a folder of its own named after the hash.
        index: address of an index (PEP 503 or 691), instead of index_url().
        told: is told how far it is.

    Raises:
        InputError: the index has no file of that hash, or the folder cannot be written to.
        LanewiseError: the index does not answer, what it sent has another hash, or there is no space.
    """
    for kept in (folder / sha256).glob("[!.]*"):
        if _sha256(kept) == sha256:
            return kept
        kept.unlink()  # damaged on disk
    page = f"{index or index_url()}/{canonicalize_name(distribution)}/"
    found = next((file for file in _listed(page) if file.sha256 == sha256), None)
    if found is None or not _SAFE_NAME.fullmatch(found.name):
        raise InputError(
            f"{page} lists no file of {distribution} with sha256 {sha256}",
            expected="the file that the lock names",
            todo="./inv lock --check tells whether the index changed; name another index by PIP_INDEX_URL",
        )
    target = folder / sha256 / found.name
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=".part-", dir=target.parent)
        os.close(handle)
        try:
            _download(found, Path(part), told)
            Path(part).replace(target)
        finally:
            Path(part).unlink(missing_ok=True)
    return target


def _listed(page: str) -> Iterator[IndexFile]:
    with _open(page) as answer:
        data = _guarded(page, lambda: answer.read(_MAX_PAGE_BYTES))
        if "json" in answer.headers.get("Content-Type", ""):
            yield from _from_json(page, data)
        else:
            yield from _from_html(page, data)


def _from_json(page: str, data: bytes) -> Iterator[IndexFile]:
    """PEP 691."""
    try:
        files: list[dict[str, Any]] = json.loads(data)["files"]
        yield from (
            IndexFile(name=f["filename"], url=urljoin(page, f["url"]), sha256=f["hashes"].get("sha256", ""))
            for f in files
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreachable(page, f"it sent something else than a list of files ({str(error)[:80]})") from error


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _from_html(page: str, data: bytes) -> Iterator[IndexFile]:
    """PEP 503."""
    links = _Links()
    links.feed(data.decode("utf-8", "replace"))
    for target in links.targets:
        url, fragment = urldefrag(urljoin(page, target))
        name = unquote(urlsplit(url).path).rpartition("/")[2]
        yield IndexFile(name=name, url=url, sha256=fragment.removeprefix("sha256="))


def _download(file: IndexFile, target: Path, told: Callable[[str], None]) -> None:
    digest, done = hashlib.sha256(), 0
    with _open(file.url) as answer, target.open("wb") as out:
        total = int(answer.headers.get("Content-Length") or 0)
        while piece := _guarded(file.url, lambda: answer.read(_PIECE)):
            digest.update(piece)
            out.write(piece)
            done += len(piece)
            told(f"{file.name}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != file.sha256:
        raise LanewiseError(
            f"{file.url} sent a file with sha256 {digest.hexdigest()} ({done:,} bytes)",
            expected=file.sha256,
            todo="call again; if it does not help, the index or something before it changes files",
        )


def _open(url: str) -> HTTPResponse:
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(f"{url[:300]!r} is no address of an index", expected="http or https", todo="correct it")
    request = urllib.request.Request(url, headers={"Accept": _ACCEPT, "User-Agent": "lanewise"})  # noqa: S310 - checked
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
    answer: HTTPResponse = _guarded(
        url,
        lambda: urllib.request.urlopen(request, timeout=_SECONDS, context=context),  # noqa: S310 - checked above
    )
    return answer


def _guarded(url: str, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever is called
    try:
        return call()
    except (OSError, HTTPException, ValueError) as error:
        raise _unreachable(url, str(error)[:200] or type(error).__name__) from error


def _unreachable(url: str, why: str) -> LanewiseError:
    shown = (
        urlsplit(url)._replace(netloc=urlsplit(url).hostname or "").geturl()
    )  # an index's password is nobody's business
    return LanewiseError(
        f"cannot fetch {shown}: {why}",
        expected="a Python index that answers",
        todo="check the network; PIP_INDEX_URL names another index, PIP_CERT its certificate authority",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
