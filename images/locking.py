"""Locks toolchains: what was locked stays as it is, unless the matrix or the user asks for another version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from images.build_plan import BaseKind
from images.lock import Lock, LockedToolchain, LockedWheel, Resolved
from images.matrix import Toolchain
from images.resolve import resolve

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Origins:
    """What a lock holds beside the Python index, and who is asked for it.

    Attributes:
        refs: git repositories and refs that components are built from.
        patches: "component/file" to sha256, as they lie in the repository.
        digest_of: a registry's reference to its digest.
        commit_of: a git repository's address and ref to its commit.
    """

    refs: Collection[tuple[str, str]] = ()
    patches: Mapping[str, str] = field(default_factory=dict)
    digest_of: Callable[[str], Resolved]
    commit_of: Callable[[str, str], Resolved]


def relock(
    chosen: Sequence[Toolchain],
    toolchains: Mapping[str, Toolchain],
    old: Lock,
    upgrade: Collection[str],
    origins: Origins,
    progress: Callable[[int, int, str], None],
) -> Lock:
    """Resolve toolchains for each of their Pythons; what is locked already keeps its version, digest or commit.

    Args:
        chosen: which are resolved; the others stay as they are.
        toolchains: all that there are: what the lock holds of others goes.
        old: the lock as it is.
        upgrade: distributions, bases and git refs that may move; ALL: every one that no pin holds.
        origins: what else is locked.
        progress: is told how many steps are over, of how many, and what comes next.

    Raises:
        LanewiseError: the index does not answer, or the versions do not go together.
    """
    locks = {name: dict(old.toolchains[name]) for name in toolchains if name in old.toolchains}
    jobs = [(toolchain, python) for toolchain in chosen for python in toolchain.pythons]
    for toolchain in chosen:
        locks[toolchain.name] = {}
    for done, (toolchain, python) in enumerate(jobs):
        progress(done, len(jobs) + 1, f"{toolchain.name} for Python {python}")
        keep = _kept(old.find(toolchain.name, python), upgrade)
        locks[toolchain.name][python] = resolve(toolchain, python, keep)
    progress(len(jobs), len(jobs) + 1, "digests and commits")
    return Lock(
        toolchains={name: locks[name] for name in toolchains if name in locks},
        bases=_bases(toolchains.values(), old, upgrade, origins),
        commits=_commits(old, upgrade, origins),
        patches=origins.patches,
    )


def _kept(locked: LockedToolchain | None, upgrade: Collection[str]) -> dict[str, str]:
    wheels = () if locked is None or ALL in upgrade else locked.wheels
    return {wheel.name: wheel.version for wheel in wheels if wheel.name not in upgrade}


def _bases(
    toolchains: Iterable[Toolchain], old: Lock, upgrade: Collection[str], origins: Origins
) -> dict[str, Resolved]:
    bases = {base.reference: base for t in toolchains for base in t.bases if base.kind is BaseKind.REGISTRY}
    return {
        reference: _resolved(old.bases.get(reference), {ALL, base.name} & set(upgrade), origins.digest_of, reference)
        for reference, base in bases.items()
    }


def _commits(old: Lock, upgrade: Collection[str], origins: Origins) -> dict[str, dict[str, Resolved]]:
    found: dict[str, dict[str, Resolved]] = {}
    for location, ref in origins.refs:
        known = old.commit(location, ref)
        asked = _resolved(known, {ALL, ref} & set(upgrade), origins.commit_of, location, ref)
        found.setdefault(location, {})[ref] = asked
    return found


def _resolved(known: Resolved | None, may_move: Collection[str], ask: Callable[..., Resolved], *what: str) -> Resolved:
    """What was locked stays unless it may move, and is not given up because nobody answers now.

    Nor does a reason give way to another: a lock would change with the machine that it is written on.
    """
    if known and known.value and not may_move:
        return known
    asked = ask(*what)
    return known if asked.unresolved and known else asked


def drift(old: Lock, new: Lock) -> list[str]:
    """What differs between two locks, one line a thing."""
    return [
        *_drift_of_values(_named(old), _named(new)),
        *(line for name in dict.fromkeys((*old.toolchains, *new.toolchains)) for line in _drift_of(name, old, new)),
    ]


def _named(lock: Lock) -> dict[str, Resolved]:
    """All but the toolchains, by what a person calls it."""
    return {
        **lock.bases,
        **{f"{location} {ref}": found for location, refs in lock.commits.items() for ref, found in refs.items()},
        **{f"patch {name}": Resolved(value=sha256) for name, sha256 in lock.patches.items()},
    }


def _drift_of_values(old: Mapping[str, Resolved], new: Mapping[str, Resolved]) -> Iterable[str]:
    for name in dict.fromkeys((*old, *new)):
        a, b = (_words(where.get(name)) for where in (old, new))
        if a != b:
            yield f"{name}: {a} -> {b}"


def _words(found: Resolved | None) -> str:
    if found is None:
        return "none"
    return found.value.removeprefix("sha256:")[:12] or f"unresolved ({found.unresolved})"


def _drift_of(name: str, old: Lock, new: Lock) -> Iterable[str]:
    if name not in new.toolchains or name not in old.toolchains:
        yield f"{name}: {'no longer in the matrix' if name in old.toolchains else 'not locked yet'}"
        return
    for python in sorted({*old.toolchains[name], *new.toolchains[name]}):
        label = f"{name} (Python {python})"
        before, after = old.find(name, python), new.find(name, python)
        if before is None or after is None:
            yield f"{label}: {'no longer in the matrix' if after is None else 'not locked yet'}"
            continue
        yield from _drift_of_files(f"{label}:", before.wheels, after.wheels)
        if before.unresolved != after.unresolved:
            yield f"{label}: unresolved: {', '.join(after.unresolved) or 'nothing any more'}"
        if changed := set(before.core) ^ set(after.core):
            yield f"{label}: core takes other wheels: {', '.join(sorted(changed))}"


def _drift_of_files(label: str, old: Sequence[LockedWheel], new: Sequence[LockedWheel]) -> Iterable[str]:
    before, after = ({file.name: file for file in files} for files in (old, new))
    for name in sorted({*before, *after}):
        a, b = before.get(name), after.get(name)
        if a != b:
            versions = [f"{file.version} ({file.sha256[:8]})" if file else "none" for file in (a, b)]
            yield f"{label} {name} {versions[0]} -> {versions[1]}"
