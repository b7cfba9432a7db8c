"""Reads images/matrix.yaml: the toolchains, as a person wrote them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from lanewise.errors import InputError
from lanewise.files import read_text

MATRIX = Path(__file__).parent / "matrix.yaml"
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """CUDA and the versions that go with it.

    Attributes:
        name: identifier, e.g. "cu128".
        cuda: CUDA version.
        meaning: why it is in the matrix.
        pins: component to version.
    """

    name: str
    cuda: str
    meaning: str
    pins: Mapping[str, str]


def read_toolchains(path: Path = MATRIX) -> dict[str, Toolchain]:
    """The toolchains by name, in the file's order.

    Raises:
        InputError: the file is not a matrix.
    """
    try:
        document = yaml.safe_load(read_text(path, what="matrix", limit=_MAX_FILE_BYTES))
        return {name: Toolchain(name=name, **fields) for name, fields in document["toolchains"].items()}
    except (yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"matrix {path} cannot be understood: {' '.join(str(error).split())[:200]}",
            expected="a mapping `toolchains` from names to cuda, meaning and pins",
            todo="mend the file",
        ) from error
