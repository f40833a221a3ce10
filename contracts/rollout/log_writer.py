"""The file that the router writes its serving log into: JSON lines, one answer each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from snapline.lineage.errors import NotFoundError


class LogWriter:
    """Appends lines in the order they were put, from one task, and flushes them as soon as they are there.

    The file is opened anew for each batch of lines, so it may be moved away at any time. A last line that was cut short
    by a crash is closed before another is written, so it spoils no other.

    Args:
        tell: Hears of lines that could not be written.

    Raises:
        NotFoundError: The file cannot be written.
    """

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self.path = path
        self.broken = False
        self._tell = tell
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        try:
            self._append(b"")
        except OSError as error:
            raise NotFoundError(
                f"the log {path} cannot be written: {error.strerror}", hint="Name a file in a folder that is there."
            ) from error

    def put(self, line: str) -> None:
        """Hand over a line."""
        self._lines.put_nowait(line)

    async def run(self) -> None:
        """Write lines until `finish` is called and everything put before it is written."""
        last = False
        while not last:
            batch = [await self._lines.get()]
            while not self._lines.empty():
                batch.append(self._lines.get_nowait())
            lines = [line for line in batch if line is not None]
            last = len(lines) < len(batch)
            try:
                await asyncio.to_thread(self._append, "".join(f"{line}\n" for line in lines).encode())
                self.broken = False
            except OSError as error:
                self.broken = True
                self._tell(f"{len(lines)} lines are lost, for {self.path} cannot be written: {error.strerror}")

    def finish(self) -> None:
        """Let `run` end after what was put so far."""
        self._lines.put_nowait(None)

    def _append(self, data: bytes) -> None:
        with self.path.open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(data)
