"""Rules as they are now, read again and again beside the traffic, and shut when they get too old to be believed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from snapline.contracts.rollout.routes import Rules

EVERY_SECONDS = 1.0
BELIEVED_SECONDS = 10.0
QUIET_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Outside:
    """What the router must be given: clocks, names for requests that have none, and somebody to tell."""

    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    new_id: Callable[[], str]
    tell: Callable[[str], None]


class Voice:
    """Tells people what went wrong, each kind of thing once a minute however often it happens."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._told: dict[str, float] = {}

    def tell(self, kind: str, message: str) -> None:
        """Tell it unless something of its kind was told within the minute."""
        now = self._outside.monotonic()
        if now - self._told.get(kind, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._told[kind] = now
            self._outside.tell(message)


class Follower:
    """The newest rules that could be read.

    Args:
        first: The rules to begin with, which were just read.
        read: Returns the rules as they are; it is called in a thread.
        every: Seconds between two readings.
    """

    def __init__(
        self, first: Rules, read: Callable[[], Rules], outside: Outside, voice: Voice, every: float = EVERY_SECONDS
    ) -> None:
        self._rules, self._read, self._every = first, read, every
        self._outside, self._voice = outside, voice
        self._as_of = outside.monotonic()

    @property
    def age(self) -> float:
        """Seconds since the reading began that gave these rules."""
        return self._outside.monotonic() - self._as_of

    @property
    def rules(self) -> Rules:
        """The rules to follow; when they could not be read for ten seconds, those that keep to the reference."""
        return self._rules if self.age <= BELIEVED_SECONDS else self._rules.shut

    async def run(self) -> None:
        """Read again and again, until cancelled; a failed reading leaves what is known to grow old."""
        while True:
            await asyncio.sleep(self._every)
            began = self._outside.monotonic()
            try:
                self._rules = await asyncio.to_thread(self._read)
                self._as_of = began
            except Exception as error:  # noqa: BLE001 - whatever it is, traffic goes on and ends up at the reference
                self._voice.tell(
                    "rules",
                    f"the rollout's state cannot be read, so after {BELIEVED_SECONDS:.0f} s everything goes to the "
                    f"reference: {error}",
                )
