"""The errors a caller can act on.

Every error Snapline raises on purpose is a `SnaplineError`: a message that says what was expected and what was found,
and a hint that says what to do. The process boundary (`snapline.cli.output`) turns the class into an exit code.
"""

from __future__ import annotations


class SnaplineError(Exception):
    """Root of every deliberate error.

    Args:
        message: What was expected and what was found.
        hint: What to do about it, as one sentence; may be empty.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class DefinitionError(SnaplineError):
    """Asked wrongly: a malformed document, an impossible option, an unsupported file."""


class NotFoundError(SnaplineError):
    """Something named is not there."""


class ConflictError(SnaplineError):
    """Something moved under us: the ledger's head or a source changed while we worked."""


class RequirementError(SnaplineError):
    """A condition of the requested change does not hold; the answer is no.

    Args:
        message: What was required.
        reasons: Each reason the requirement failed.
        hint: What to do about it.
    """

    def __init__(self, message: str, *, reasons: tuple[str, ...] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reasons = reasons


class IntegrityError(SnaplineError):
    """Do not trust this: a digest, a signature or the chain does not hold."""


class TrainerError(SnaplineError):
    """A view's trainer could not be started, failed, or left no folder of weights."""
