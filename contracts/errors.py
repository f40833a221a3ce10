"""Errors of measuring: an engine that is not there, fails, or measured something else."""

from __future__ import annotations

from snapline.lineage.errors import SnaplineError


class EngineError(SnaplineError):
    """An engine could not measure."""


class EngineUnavailableError(EngineError):
    """The engine, its interpreter or its device is not on this machine."""


class EngineFailedError(EngineError):
    """The engine started, then crashed, hung past its time limit or answered nonsense."""


class IncomparableError(SnaplineError):
    """Two measurements differ in something the contract does not allow to differ, so no number is given."""
