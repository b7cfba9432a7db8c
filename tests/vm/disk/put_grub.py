"""Puts GRUB into a disk image as grub-install would, without a loop device: put_grub.py DISK BOOT_IMG CORE_IMG

Offsets: GRUB's include/grub/i386/pc/boot.h and include/grub/offsets.h.
"""

from __future__ import annotations

import sys
from pathlib import Path

SECTOR = 512
CORE_AT = 2048
"""First sector of the BIOS boot partition, at 1 MiB."""
_CORE_SECTOR_FIELD = slice(0x5C, 0x64)
_DRIVE_CHECK = slice(0x66, 0x68)
_NO_OPERATION = b"\x90\x90"
"""In place of a jump: boot from the disk that the BIOS names."""
_BLOCK_LIST = slice(0x1F4, 0x200)
_LOAD_SEGMENT = 0x820
_TABLE_AT = 440
"""What follows in the first sector belongs to the partition table."""


def put(disk: Path, boot: bytes, core: bytes) -> None:
    """Write the boot sector before the table, and the core into the first partition, with the list of its sectors."""
    sector, image = bytearray(boot), bytearray(core)
    image += bytes(-len(image) % SECTOR)
    sector[_CORE_SECTOR_FIELD] = CORE_AT.to_bytes(8, "little")
    sector[_DRIVE_CHECK] = _NO_OPERATION
    rest = len(image) // SECTOR - 1
    image[_BLOCK_LIST] = b"".join(
        [(CORE_AT + 1).to_bytes(8, "little"), rest.to_bytes(2, "little"), _LOAD_SEGMENT.to_bytes(2, "little")]
    )
    with disk.open("r+b") as file:
        file.write(sector[:_TABLE_AT])
        file.seek(CORE_AT * SECTOR)
        file.write(image)


if __name__ == "__main__":
    put(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes(), Path(sys.argv[3]).read_bytes())
