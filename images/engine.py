"""The container engine's state; `lanewise.engine` holds it, for tuning/ asks it, too."""

from __future__ import annotations

from lanewise.engine import EngineState, engine_state

__all__ = ["EngineState", "engine_state"]
