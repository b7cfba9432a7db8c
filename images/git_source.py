"""A git repository at one commit, through a bare mirror in the cache; nothing that it holds is run."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from lanewise.errors import InputError, LanewiseError
from lanewise.files import writing

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ADDRESS = re.compile(r"(https?|ssh|git|file)://[^\s]+|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^\s:]+|/[^\s]*")
_SECONDS = 3600
_NOTHING_RUNS = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.ext.allow=never",
    "-c", "advice.detachedHead=false", "-c", "gc.auto=0",
)  # fmt: skip


def checkout(
    address: str, commit: str, ref: str, cache: Path, told: Callable[[str], None], *, mirror: str = ""
) -> Path:
    """The files of a commit, submodules included, without git's own; kept, so that it is fetched once.

    Args:
        address: of the repository.
        commit: full hash; what is fetched is verified against it.
        ref: tag or branch that holds it, for servers that do not give out single commits.
        cache: folder below which the bare mirror and the checkout are kept.
        told: is told what happens.
        mirror: another address to fetch from.

    Raises:
        InputError: the address or the commit is none, or the repository does not have the commit.
        LanewiseError: the repository does not answer, or there is no space.
    """
    if not _COMMIT.fullmatch(commit):
        raise InputError(f"{commit[:80]!r} is no commit", expected="a full hash, as the lock has it", todo="./inv lock")
    for place in (address, *([mirror] if mirror else [])):
        if not _ADDRESS.fullmatch(place):
            raise InputError(
                f"{place[:200]!r} is no git address", expected="https://, ssh://, file:// or a path", todo="correct it"
            )
    tree = cache / "trees" / commit
    if tree.is_dir():
        return tree
    bare = cache / "git" / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}.git"
    source = mirror or address
    with writing(tree):
        tree.parent.mkdir(parents=True, exist_ok=True)
        told(f"fetching {commit[:12]} of {source}")
        _fetch(bare, source, commit, ref)
        with tempfile.TemporaryDirectory(prefix=".checkout-", dir=tree.parent) as folder:
            made = Path(folder, "tree")
            _export(bare, source, commit, made)
            made.replace(tree)
    return tree


def _fetch(bare: Path, source: str, commit: str, ref: str) -> None:
    """Bring the commit into the mirror: alone, else with its ref, else with everything."""
    if not (bare / "HEAD").exists():
        shutil.rmtree(bare, ignore_errors=True)
        _git("init", "--quiet", "--bare", "--template=", str(bare))
    if _has(bare, commit):
        return
    attempts = [["--depth", "1", source, commit], *([["--depth", "1", source, ref]] if ref else []),
                [source, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"]]  # fmt: skip
    problem = ""
    for attempt in attempts:
        done = _run("--git-dir", str(bare), "fetch", "--quiet", "--force", "--no-auto-gc", *attempt)
        problem = problem or done.stderr
        if done.returncode == 0 and _has(bare, commit):
            return
    if "Could not read from remote" in problem or "unable to access" in problem or "Could not resolve" in problem:
        raise _failed(f"cannot fetch {source}", problem)
    raise InputError(
        f"{source} does not have commit {commit}" + (f", nor under {ref}" if ref else ""),
        expected="the commit that the lock names",
        todo="./inv lock --check tells whether the ref moved; or name a mirror that has it",
    )


def _has(bare: Path, commit: str) -> bool:
    done = _run("--git-dir", str(bare), "rev-parse", "--quiet", "--verify", f"{commit}^{{commit}}")
    return done.returncode == 0 and done.stdout.strip() == commit


def _export(bare: Path, source: str, commit: str, folder: Path) -> None:
    kept = f"refs/lanewise/{commit}"
    _git("--git-dir", str(bare), "update-ref", kept, commit)
    _git("init", "--quiet", "--template=", str(folder))
    inside = ("-C", str(folder))
    _git(*inside, "remote", "add", "origin", source)  # what submodules with relative addresses are resolved against
    _git(*inside, "fetch", "--quiet", "--depth", "1", "--update-shallow", bare.resolve().as_uri(), kept)
    _git(*inside, "checkout", "--quiet", "--detach", commit)
    if (folder / ".gitmodules").exists():
        local = ("-c", "protocol.file.allow=always") if source.startswith(("/", "file://")) else ()
        _git(*inside, *local, "submodule", "update", "--quiet", "--init", "--recursive", "--depth", "1")
    found = _git(*inside, "rev-parse", "HEAD").stdout.strip()
    if found != commit:
        raise _failed(f"the checkout of {source} is at {found}", f"expected {commit}")
    for path in sorted(folder.rglob(".git")):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = _run(*arguments)
    if done.returncode:
        raise _failed(f"git {' '.join(a for a in arguments if not a.startswith('-'))[:200]} failed", done.stderr)
    return done


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_DIR")},
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "LC_ALL": "C",
    }
    try:
        return subprocess.run(
            ["git", *_NOTHING_RUNS, *arguments],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _failed("git did not end", f"no end within {_SECONDS} s") from None
    except FileNotFoundError:
        raise LanewiseError("there is no git", expected="git in PATH", todo="install it: apt-get install git") from None


def _failed(what: str, why: str) -> LanewiseError:
    return LanewiseError(
        f"{what}: {' '.join(why.split())[-300:]}",
        expected="a repository that answers",
        todo="check the network and the address; a mirror can be named",
    )
