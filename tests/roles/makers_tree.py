"""A made-up node as a tree of files that roles can be run on: eight GPUs behind two switches, Debian's folders."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.unit.makers_node import fake_rig, write

Tree = dict[str, tuple[int, bytes | str | None]]
"""Names to mode and content."""

SYSCTLS = {
    "kernel/numa_balancing": "1",
    "vm/swappiness": "60",
    "vm/zone_reclaim_mode": "0",
    "vm/max_map_count": "65530",
    "vm/overcommit_memory": "0",
    "vm/min_free_kbytes": "67584",
}
FOLDERS = (
    "etc/default/grub.d", "etc/sysctl.d", "etc/modprobe.d", "etc/tmpfiles.d", "etc/security/limits.d",
    "etc/systemd/system/multi-user.target.wants", "usr/local/lib", "usr/bin", "var/lib", "run",
)  # fmt: skip
CACHE = "root/.cache/vllm/gpu_p2p_access_cache_for_0,1.json"


def node_tree(root: Path) -> Path:
    """The node below `root`; every value in it can be written, and nothing reacts."""
    fake_rig(root)
    for name in FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    write(
        root,
        {
            **{f"proc/sys/{name}": f"{value}\n" for name, value in SYSCTLS.items()},
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never\n",
            "sys/module/pcie_aspm/parameters/policy": "[default] performance powersave powersupersave \n",
            "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n",
            "proc/driver/nvidia/params": "EnableResizableBar: 0\nDynamicPowerManagement: 3\n",
            "proc/1/cgroup": "0::/init.scope\n",
            "etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n',
            "usr/sbin/update-grub": "#!/bin/sh\n",
            CACHE: "{}\n",
        },
    )
    for folder in (root / "sys/bus/pci/devices").iterdir():
        write(folder.resolve(), {"power/control": "auto\n", "power/runtime_status": "active\n"})
    return root


def tree(root: Path) -> Tree:
    """Everything below `root` by name: its mode, and what it holds (a link: where it points; a folder: nothing)."""
    found: Tree = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        held = str(path.readlink()) if stat.S_ISLNK(mode) else path.read_bytes() if stat.S_ISREG(mode) else None
        found[str(path.relative_to(root))] = (mode, held)
    return found


def different(before: Tree, after: Tree) -> list[str]:
    """Names that are not the same in both; the trees themselves are too large to print."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
