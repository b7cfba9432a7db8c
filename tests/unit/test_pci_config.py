"""Configuration spaces made here: what is read of them, and that what does not tell is never taken for an answer."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest

from playbooks.module_utils.pci_config import ACS, PCI_EXPRESS, ConfigError, ConfigSpace, DeviceControl, Link, shown
from tests.unit.makers_pci import (
    ACS_AT,
    ACS_CONTROL_AT,
    AER_AT,
    DEVICE_CONTROL_AT,
    DOWNSTREAM,
    EXPRESS_AT,
    GPU,
    INTEGRATED,
    ISA,
    LINK_CONTROL_AT,
    PORT,
    ROOT_PORT,
    space,
)

IDS = (0x1022, 0x14AB)
PORT_BYTES = space(IDS, PORT, ROOT_PORT, acs=0x001D)


def test_registers_of_a_port() -> None:
    config = ConfigSpace(bytes(PORT_BYTES))
    assert not config.truncated
    assert config.port_type() == "root_port"
    assert config.acs() == (0x005F, 0x001D)
    assert config.device_control() == DeviceControl(256, 512, True, True, True)
    assert config.link() == Link(5, 16, 1, 16, "l0s l1", "l1")


def test_where_the_registers_that_can_be_set_lie() -> None:
    config = ConfigSpace(bytes(PORT_BYTES))
    found = [config.locate(register) for register in ("acs_control", "max_read_request", "aspm")]
    assert found == [ACS_CONTROL_AT, DEVICE_CONTROL_AT, LINK_CONTROL_AT]


def test_none_means_that_there_is_no_such_thing() -> None:
    old, plain = ConfigSpace(bytes(space(IDS, ISA))), ConfigSpace(bytes(space(IDS, PORT, DOWNSTREAM)))
    assert (old.port_type(), old.acs(), old.device_control(), old.link()) == (None, None, None, None)
    assert plain.acs() is None
    assert old.locate("aspm") is None


def test_inside_the_root_complex_there_is_no_link() -> None:
    config = ConfigSpace(bytes(space(IDS, GPU, INTEGRATED)))
    assert config.port_type() == "root_complex_endpoint"
    assert config.link() is None
    assert config.locate("aspm") is None


@pytest.mark.parametrize("size", [0, 3, 6, 63, 64])
def test_what_a_user_without_root_may_read_does_not_tell(size: int) -> None:
    config = ConfigSpace(bytes(PORT_BYTES[:size]))
    assert config.truncated
    for ask in (config.port_type, config.acs, config.device_control, config.link):
        with pytest.raises(ConfigError, match=f"only {size} bytes"):
            ask()


def test_without_extended_space_acs_is_not_known_but_the_rest_is() -> None:
    config = ConfigSpace(bytes(PORT_BYTES[:256]))
    assert config.link() is not None
    with pytest.raises(ConfigError, match="only 256 bytes"):
        config.acs()


def test_a_device_that_is_gone_does_not_tell() -> None:
    config = ConfigSpace(b"\xff" * 4096)
    assert config.gone
    with pytest.raises(ConfigError, match="does not answer"):
        config.port_type()


@pytest.mark.parametrize("at", [ACS_CONTROL_AT, DEVICE_CONTROL_AT, LINK_CONTROL_AT])
def test_a_register_of_all_ones_does_not_tell(at: int) -> None:
    data = bytearray(PORT_BYTES)
    data[at : at + 2] = b"\xff\xff"
    config = ConfigSpace(bytes(data))
    ask = {ACS_CONTROL_AT: config.acs, DEVICE_CONTROL_AT: config.device_control, LINK_CONTROL_AT: config.link}[at]
    with pytest.raises(ConfigError, match="all ones"):
        ask()


def test_lists_that_loop_or_lead_into_the_header_end() -> None:
    for target in (0x40, 0x08):
        data = bytearray(PORT_BYTES)
        data[0x41] = target
        with pytest.raises(ConfigError, match="damaged list of capabilities"):
            ConfigSpace(bytes(data)).capability(0x11)
    for target in (AER_AT, 0x40):
        data = bytearray(PORT_BYTES)
        struct.pack_into("<I", data, AER_AT, 1 | 1 << 16 | target << 20)
        with pytest.raises(ConfigError, match="damaged list of extended"):
            ConfigSpace(bytes(data)).extended(ACS)


def test_reserved_codes_are_not_sizes_or_types() -> None:
    data = bytearray(PORT_BYTES)
    struct.pack_into("<H", data, DEVICE_CONTROL_AT, 0x7936)
    struct.pack_into("<H", data, EXPRESS_AT + 2, 0x00B2)
    with pytest.raises(ConfigError, match="size code 7"):
        ConfigSpace(bytes(data)).device_control()
    with pytest.raises(ConfigError, match="port type 11"):
        ConfigSpace(bytes(data)).port_type()
    assert shown("max_read_request", 0x7936) == "0x7936"


def test_registers_for_people() -> None:
    assert shown("acs_control", 0x1D) == "0x001d"
    assert shown("max_read_request", 0x5936) == "4096"
    assert [shown("aspm", word) for word in (0x40, 0x41, 0x42, 0x43)] == ["disabled", "l0s", "l1", "l0s l1"]


def test_hostile_bytes_give_an_answer_or_a_config_error() -> None:
    chance = random.Random(8)
    for _ in range(400):
        data = bytearray(PORT_BYTES)
        for _ in range(6):
            data[chance.choice([6, 0x34, 0x40, 0x41, EXPRESS_AT, EXPRESS_AT + 1, chance.randrange(0x200)])] = (
                chance.randrange(256)
            )
        config = ConfigSpace(bytes(data[: chance.choice([64, 255, 256, 300, 4096])]))
        for ask in (config.port_type, config.acs, config.device_control, config.link):
            with suppress(ConfigError):
                ask()


def test_capabilities_are_found_wherever_they_are_in_the_list() -> None:
    config = ConfigSpace(bytes(PORT_BYTES))
    assert [config.capability(number) for number in (0x01, PCI_EXPRESS, 0x11)] == [0x40, EXPRESS_AT, None]
    assert [config.extended(number) for number in (0x01, ACS, 0x10)] == [AER_AT, ACS_AT, None]
