"""Nodes as containers: systemd and sshd over a simulated server's PCI tree of plain files, reached by plain SSH.

There is no kernel behind it: its command line is this machine's, and registers take whatever is written to them.
tests/vm has one. Never mount this machine's /sys/bus/pci, or give such a container privileges.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images.context import ContextFile, tar_stream
from images.engine_work import build
from tests.vm.server import make_server
from tests.vm.sysfs import write_tree

LABEL = "lanewise.node-bed"
"""On every container, with the id of the process that it is for."""
IMAGE = "lanewise-node-bed"
BOOT_SECONDS = 60
_FILES = Path(__file__).parent / "node_bed"
_DEFAULT_HOST = "unix:///var/run/docker.sock"


def node_image(client: Any, base: str) -> str:
    """Id of the image of nodes, made of a Debian base image with Python; the engine keeps its layers.

    Raises:
        LanewiseError: it cannot be built, e.g. where containers reach no package source.
    """
    files = [ContextFile(path=path.name, content=path) for path in sorted(_FILES.iterdir())]
    return build(
        client,
        tar_stream(files),
        what="build the image of nodes",
        arguments={"BASE": base},
        network="default",
        progress=lambda _line: None,
        tag=IMAGE,
    )


@dataclass(frozen=True, kw_only=True)
class Node:
    """A running node.

    Attributes:
        container: the engine's.
        tree: folder of its PCI devices.
        key: file of the private key that its root lets in.
    """

    container: Any
    tree: Path
    key: Path

    @property
    def name(self) -> str:
        """Of the container, and in the inventory."""
        return str(self.container.name)

    def run(self, command: str) -> str:
        """Output of a shell command, whatever it ends with."""
        return str(self.container.exec_run(["sh", "-c", command]).output.decode().strip())

    def host(self) -> dict[str, Any]:
        """Its variables in an Ansible inventory: SSH without network or port."""
        engine = os.environ.get("DOCKER_HOST") or _DEFAULT_HOST
        serve = f"docker -H {engine} exec -i {self.name} sh -c 'mkdir -p /run/sshd; exec /usr/sbin/sshd -i'"
        options = "-F /dev/null -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        return {
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": f'{options} -o ProxyCommand="{serve}"',
        }

    def power_cycle(self) -> None:
        """Stop it, put its registers to what firmware leaves, and start it: units run as at a boot."""
        self.container.stop(timeout=20)
        write_tree(self.tree, make_server())
        self.container.start()
        self.wait()

    def wait(self) -> None:
        """Until its units have been started.

        Raises:
            TimeoutError: they were not within BOOT_SECONDS.
        """
        deadline = time.monotonic() + BOOT_SECONDS
        while (state := self.run("systemctl is-system-running")) not in ("running", "degraded"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: systemd is {state!r}: {self.container.logs().decode()[-1000:]}")
            time.sleep(0.1)


@contextmanager
def nodes(client: Any, image: str, folder: Path, count: int = 1) -> Iterator[list[Node]]:
    """So many new nodes; they go with the block.

    Args:
        client: the engine.
        image: of `node_image`.
        folder: for keys and trees; the engine must see it under the same path.
        count: how many.
    """
    _remove_abandoned(client)
    key = folder / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", IMAGE, "-f", str(key)], check=True)
    made: list[Node] = []
    try:
        made.extend(_start(client, image, key, folder / f"node{number}") for number in range(count))
        for node in made:
            node.wait()
        yield made
    finally:
        for node in made:
            node.container.remove(force=True, v=True)


def _remove_abandoned(client: Any) -> None:
    """Nodes whose process was killed before it could remove them."""
    for container in client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True):
        if not Path(f"/proc/{container.labels[LABEL]}").exists():
            container.remove(force=True, v=True)


def _start(client: Any, image: str, key: Path, tree: Path) -> Node:
    write_tree(tree, make_server())
    container = client.containers.create(
        image,
        name=f"{IMAGE}-{os.getpid()}-{tree.name}",
        hostname=tree.name,
        labels={LABEL: str(os.getpid())},
        network_mode="none",
        # For systemd, instead of privileges, which would give it this machine's devices.
        cap_add=["SYS_ADMIN"],
        security_opt=["seccomp=unconfined", "apparmor=unconfined"],
        cgroupns="host",
        tmpfs={"/run": "", "/run/lock": "", "/tmp": "exec"},
        volumes={
            "/sys/fs/cgroup": {"bind": "/sys/fs/cgroup", "mode": "rw"},
            str(tree): {"bind": str(tree), "mode": "rw"},
            str(tree / "bus/pci"): {"bind": "/sys/bus/pci", "mode": "rw"},
        },
    )
    node = Node(container=container, tree=tree, key=key)
    try:
        container.start()
        public = key.with_suffix(".pub").read_text().strip()
        node.run(f"umask 077; mkdir -p /root/.ssh; echo '{public}' > /root/.ssh/authorized_keys")
    except BaseException:
        container.remove(force=True, v=True)
        raise
    return node
