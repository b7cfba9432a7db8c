"""The few calls of CUDA's driver API that the ladder needs, by ctypes: no package has to be on the node.

Needs Python >= 3.9 and its standard library only. Signatures: cuda.h of CUDA 12 and 13, whose names with _v2 are those
that the header's own macros choose (https://docs.nvidia.com/cuda/cuda-driver-api/). A process makes one `Cuda`, in a
child of its own (ladder_child.py), and frees nothing: its end does.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .ladder_child import DeviceError, ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

LIBRARY = "libcuda.so.1"
_OUT_OF_MEMORY, _NO_DEVICE, _PEER_ACCESS_ALREADY_ENABLED = 2, 100, 704
_ADDRESS_BYTES = 32  # "0000:41:00.0", and longer domains

Handle = ctypes.c_void_p


@dataclass(frozen=True)
class Device:
    """A GPU that is in use: its primary context and a stream of it."""

    number: int
    context: Handle
    stream: Handle


class Cuda:
    """CUDA's driver, for this process.

    Args:
        visible: GPUs by their number in the order of PCI addresses; device n is then the nth of these. None: all.

    Raises:
        ToolError: there is no libcuda, or it finds no GPU.
        DeviceError: the driver does not start.
    """

    def __init__(self, visible: Sequence[int] | None = None) -> None:
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, visible))
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise ToolError(f"cannot load {LIBRARY}: {error}") from error
        self._call("cuInit", ctypes.c_uint(0))

    def addresses(self) -> list[str]:
        """PCI addresses of the devices, in their order, as sysfs writes them."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        found = []
        for number in range(count.value):
            text = ctypes.create_string_buffer(_ADDRESS_BYTES)
            self._call("cuDeviceGetPCIBusId", text, ctypes.c_int(_ADDRESS_BYTES), self._device(number))
            found.append(text.value.decode(errors="replace").lower())
        return found

    def open(self, number: int) -> Device:
        """Begin to use a device."""
        context, stream = Handle(), Handle()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(number))
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(1))  # CU_STREAM_NON_BLOCKING
        return Device(number, context, stream)

    def allow(self, one: Device, other: Device) -> str:
        """Let two devices reach each other's memory; empty, or how the driver refuses: then copies take the host's."""
        for device, peer in ((one, other), (other, one)):
            can = ctypes.c_int()
            numbers = self._device(device.number), self._device(peer.number)
            self._call("cuDeviceCanAccessPeer", ctypes.byref(can), *numbers)
            if not can.value:
                return "cuDeviceCanAccessPeer says no"
            self._use(device)
            result = self._library.cuCtxEnablePeerAccess(peer.context, ctypes.c_uint(0))
            if result not in (0, _PEER_ACCESS_ALREADY_ENABLED):
                return f"cuCtxEnablePeerAccess: {self._name(result)}"
        return ""

    def allocate(self, device: Device, size: int) -> int:
        """Memory of a device, in bytes; its address."""
        address = ctypes.c_uint64()
        self._use(device)
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def upload(self, device: Device, address: int, data: bytes) -> None:
        """Write to a device's memory from the host."""
        self._use(device)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))
        self.wait(device)

    def fill(self, device: Device, address: int, byte: int, size: int) -> None:
        """Set every byte."""
        self._use(device)
        self._call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(byte), ctypes.c_size_t(size))
        self._call("cuCtxSynchronize")

    def download(self, device: Device, address: int, size: int) -> bytes:
        """Read a device's memory, by the device itself."""
        self._use(device)
        data = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw

    def copy(self, source: Device, source_address: int, target: Device, target_address: int, size: int) -> None:
        """Put a copy on the source's stream, so that the source writes; returns before it is done."""
        self._use(source)
        self._call(
            "cuMemcpyPeerAsync",
            *(ctypes.c_uint64(target_address), target.context),
            *(ctypes.c_uint64(source_address), source.context),
            *(ctypes.c_size_t(size), source.stream),
        )

    def wait(self, device: Device) -> None:
        """Until all on the device's stream is done."""
        self._use(device)
        self._call("cuStreamSynchronize", device.stream)

    def mark(self, device: Device) -> Handle:
        """An event on the device's stream."""
        event = Handle()
        self._use(device)
        self._call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(0))
        self._call("cuEventRecord", event, device.stream)
        return event

    def seconds(self, begin: Handle, end: Handle) -> float:
        """From one event to another of the same stream, both in the past."""
        milliseconds = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value / 1000

    def _use(self, device: Device) -> None:
        self._call("cuCtxSetCurrent", device.context)

    def _device(self, number: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
        return device

    def _call(self, function: str, *arguments: Any) -> None:  # noqa: ANN401 - whatever ctypes can pass
        try:
            result = getattr(self._library, function)(*arguments)
        except AttributeError as error:
            raise ToolError(f"{LIBRARY} has no {function}: too old a driver") from error
        if result in (_OUT_OF_MEMORY, _NO_DEVICE):
            raise ToolError(f"{function}: {self._name(result)}")
        if result:
            raise DeviceError(f"{function}: {self._name(result)}")

    def _name(self, result: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(ctypes.c_int(result), ctypes.byref(text))
        return (text.value or b"").decode() or f"error {result}"
