"""Loads YAML as hand-written topologies need it: bus ids stay text, and nothing hides or multiplies."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

_PLAIN_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})", re.ASCII)
_PLAIN_FLOAT = re.compile(r"-?[0-9]{1,18}\.[0-9]{1,18}", re.ASCII)
_READ_OTHERWISE = {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp")}


class TopologyLoader(yaml.SafeLoader):
    """A SafeLoader that allows less.

    YAML 1.1 reads 0000:43:00.0 as the number 2580 (base 60): only plain decimal numbers are numbers here. Refused are
    aliases, which make a small file a huge document, and a key that stands twice, which hides one value.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - as its base class has it
        first: [(tag, form) for tag, form in forms if tag not in _READ_OTHERWISE]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Every node passes here."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(None, None, "an anchor or alias", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Every mapping passes here."""
        mapping = super().construct_mapping(node, deep=deep)
        if len(mapping) < len(node.value):
            raise yaml.MarkedYAMLError(None, None, "a key that stands twice", node.start_mark)
        return mapping


for _tag, _form in (("int", _PLAIN_INTEGER), ("float", _PLAIN_FLOAT)):
    TopologyLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_form.pattern})$", re.ASCII), list("-0123456789")
    )
