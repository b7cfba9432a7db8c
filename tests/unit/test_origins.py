"""Where names that can move lead: real git repositories, made here; a fake engine for registries."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError, ImageNotFound

from images.lock import Resolved
from images.matrix import read_toolchains
from images.origins import NO_ENGINE, NO_REF, NO_REGISTRY, NO_SERVER, NO_TAG, commit_of, digest_of, git_refs, origins
from images.patching import PATCHES


@dataclass
class FakeClient:
    """Answers as an engine that was asked for registry data: a digest, or an error of the SDK."""

    answer: Any
    asked: list[str] = field(default_factory=list)

    @property
    def images(self) -> FakeClient:
        return self

    def get_registry_data(self, reference: str) -> Any:
        self.asked.append(reference)
        if isinstance(self.answer, Exception):
            raise self.answer
        return type("FakeRegistryData", (), {"id": self.answer})


def test_a_tag_leads_to_the_digest_that_the_registry_has() -> None:
    client = FakeClient("sha256:12")
    assert digest_of("some/cuda:1", client) == Resolved(value="sha256:12")  # type: ignore[arg-type]
    assert client.asked == ["some/cuda:1"]


@pytest.mark.parametrize(
    ("client", "why"),
    [
        (None, NO_ENGINE),
        (FakeClient(ImageNotFound("no such manifest")), NO_TAG),
        (FakeClient(APIError("dial tcp: lookup registry: no such host")), NO_REGISTRY),
    ],
)
def test_a_digest_that_cannot_be_had_has_a_reason_in_words_that_never_change(client: Any, why: str) -> None:
    assert digest_of("some/cuda:1", client) == Resolved(unresolved=why)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main", "-C"]
    folder.mkdir()
    for words in (
        ["init", "--quiet"],
        ["commit", "--quiet", "--allow-empty", "--message", "first"],
        ["tag", "light"],
        ["tag", "--annotate", "v1", "--message", "annotated"],
        ["commit", "--quiet", "--allow-empty", "--message", "second"],
        ["branch", "v1"],
    ):
        subprocess.run([*git, str(folder), *words], check=True)
    return folder


def head(repository: Path, name: str) -> str:
    return subprocess.check_output(["git", "-C", str(repository), "rev-parse", name], text=True).strip()


def test_a_ref_leads_to_its_commit_and_a_tag_goes_before_a_branch(repository: Path) -> None:
    first = head(repository, "light")
    assert first != head(repository, "main")
    assert commit_of(str(repository), "light") == Resolved(value=first)
    assert commit_of(str(repository), "v1") == Resolved(value=first)
    assert commit_of(str(repository), "main") == Resolved(value=head(repository, "main"))


def test_a_ref_that_is_not_there_and_a_repository_that_is_not(repository: Path) -> None:
    assert commit_of(str(repository), "v2") == Resolved(unresolved=NO_REF)
    assert commit_of(str(repository / "nothing"), "v1") == Resolved(unresolved=NO_SERVER)
    assert commit_of("--upload-pack=touch /tmp/never", "v1") == Resolved(unresolved=NO_SERVER)
    assert commit_of("ext::sh -c true", "v1") == Resolved(unresolved=NO_SERVER)


def test_what_is_built_from_git_is_asked_for_by_its_own_version() -> None:
    refs = dict(git_refs(read_toolchains()["cu130-m"]))
    assert refs["https://github.com/pytorch/pytorch.git"] == "v2.9.1"
    assert refs["https://github.com/NVIDIA/nccl.git"] == "v2.28.9-1"


def test_patches_are_locked_by_their_hashes() -> None:
    found = origins(read_toolchains().values(), None)
    assert set(found.patches) == {f"{path.parent.name}/{path.name}" for path in PATCHES.glob("*/*.patch")}
    assert all(len(sha256) == 64 for sha256 in found.patches.values())
    assert len(set(found.refs)) == len(found.refs)
    assert found.digest_of("some/cuda:1") == Resolved(unresolved=NO_ENGINE)
