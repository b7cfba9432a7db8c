"""A PCIe link: generation, lanes, and what they amount to; once by physics, once by NCCL's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lanewise.errors import InputError

GENERATIONS: Mapping[int, float] = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
"""GT/s per lane of each generation (PCI-SIG base specifications 1.0 to 7.0)."""
_PAYLOAD: Mapping[int, float] = {1: 0.8, 2: 0.8, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 236 / 256, 7: 236 / 256}
"""Share of the bits that carry packets: 8b/10b, 128b/130b, from 6.0 on 236 of a flit's 256 bytes (the same)."""
_NCCL_RATES: Mapping[int, int] = {1: 15, 2: 30, 3: 60, 4: 120, 5: 240, 6: 480}
"""100 Mb/s per lane: kvDictPciGen in NCCL's src/graph/topo.cc, alike in 2.26 to 2.32. 7.0 is not in it."""
_NCCL_UNKNOWN = 60
"""What that table says of a speed that is not in it: generation 3."""
MAX_WIDTH = 32


@dataclass(frozen=True, kw_only=True)
class Link:
    """A PCIe link; None where a value is not known.

    Attributes:
        generation, width: what it runs at.
        max_generation, max_width: what both of its ends can do.

    Raises:
        InputError: when made with a generation or width that no link has.
    """

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None

    def __post_init__(self) -> None:
        for generation in (self.generation, self.max_generation):
            if generation is not None and generation not in GENERATIONS:
                raise InputError(
                    f"a PCIe link of generation {generation}", expected="1 to 7", todo="correct it, or leave it out"
                )
        for width in (self.width, self.max_width):
            if width is not None and not 1 <= width <= MAX_WIDTH:
                raise InputError(
                    f"a PCIe link of {width} lanes",
                    expected=f"1 to {MAX_WIDTH} lanes; a link without any carries nothing",
                    todo="correct it, leave it out where it is not known, or look why the link did not train",
                )

    @property
    def narrowed(self) -> bool:
        """Whether it runs on fewer lanes than both ends have."""
        return bool(self.width and self.max_width and self.width < self.max_width)

    @property
    def slowed(self) -> bool:
        """Whether it runs at a lower rate than both ends can: idle GPUs lower it, else it is a fault."""
        return bool(self.generation and self.max_generation and self.generation < self.max_generation)

    @property
    def bandwidth(self) -> float | None:
        """GB/s (10^9 bytes) one way, after encoding, before packet headers: 63.0 for generation 5 on 16 lanes."""
        if self.generation is None or self.width is None:
            return None
        return GENERATIONS[self.generation] * _PAYLOAD[self.generation] * self.width / 8

    @property
    def full(self) -> Link:
        """What both ends can do, where that is known, else what it runs at: NCCL reads it so up to 2.30.4.

        From 2.30.5 on NCCL takes a GPU's present rate from NVML instead, so an idle GPU counts as slow there.
        """
        return Link(generation=self.max_generation or self.generation, width=self.max_width or self.width)

    @property
    def nccl_bandwidth(self) -> float:
        """GB/s as NCCL counts a link that it reads from sysfs: lanes x rate / 80 (ncclTopoAddPci in topo.cc).

        What is not known counts as generation 3 and 16 lanes there.
        """
        full = self.full
        return (full.width or 16) * _NCCL_RATES.get(full.generation or 0, _NCCL_UNKNOWN) / 80

    def __str__(self) -> str:
        """Such as "Gen5 x16", and "Gen5 x8 of Gen5 x16" where it could do more."""
        now = _shown(self.generation, self.width)
        return f"{now} of {_shown(self.max_generation, self.max_width)}" if self.narrowed or self.slowed else now


UNKNOWN_LINK = Link()


def link_of(device: str, *, generation: int | None, width: int | None, most: Link = UNKNOWN_LINK) -> Link:
    """The link above a device, as a file states it.

    Args:
        device: its bus id, for errors.
        generation, width: what it runs at. A kernel or tool that tells no rate tells no width either: then 0, or all
            ones (63, 255, from a register that cannot be read), means not known.
        most: what both ends can do.

    Raises:
        InputError: no link is like that, e.g. one with a rate and no lanes.
    """
    if generation is None and width in (0, 63, 255):
        width = None
    try:
        return Link(generation=generation, width=width, max_generation=most.generation, max_width=most.width)
    except InputError as error:
        raise InputError(f"{device} has {error.what}", expected=error.expected, todo=error.todo) from None


def _shown(generation: int | None, width: int | None) -> str:
    return f"Gen{generation or '?'} x{width or '?'}"


def generation_of(gigatransfers: float) -> int | None:
    """The generation that runs at so many GT/s per lane; None if there is none."""
    return next((generation for generation, rate in GENERATIONS.items() if rate == gigatransfers), None)
