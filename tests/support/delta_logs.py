"""Delta logs edited by hand, for what deltalake reads and does not write."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_MAGIC = 1681511377
Action = dict[str, Any]


def log_file(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def edit(table: Path, version: int, change: Callable[[list[Action]], object]) -> None:
    """Read a commit's actions, let `change` alter them in place, and write them back."""
    path = log_file(table, version)
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    change(actions)
    path.write_text("\n".join(json.dumps(action) for action in actions))


def inline_deletion_vector(rows: Sequence[int]) -> Action:
    """Return the descriptor of a deletion vector that lies in the log itself.

    Its bytes are a magic number, then a 64-bit roaring bitmap: the number of its parts, and for each the upper half of
    its numbers and a 32-bit bitmap of their lower halves. They are written in Z85.
    """
    from pyroaring import BitMap

    data = struct.pack("<IQI", _MAGIC, 1, 0) + BitMap(rows).serialize()
    text = _z85(data + b"\0" * (-len(data) % 4))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows)}


def _z85(data: bytes) -> str:
    text = ""
    for start in range(0, len(data), 4):
        number, digits = int.from_bytes(data[start : start + 4], "big"), ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits = _DIGITS[digit] + digits
        text += digits
    return text
