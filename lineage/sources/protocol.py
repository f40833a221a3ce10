"""What a snapshot asks of the place its rows lie in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from snapline.lineage.files import HashedFile

Keep = Callable[[pa.Table], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Reading:
    """Rows read from a source, and the files they were read from, hashed."""

    table: pa.Table
    files: tuple[HashedFile, ...]


class Source(Protocol):
    """A table that can be read whole and consistently, part by part."""

    def read(self, control: Sequence[str], keep: Keep) -> Reading:
        """Return the rows that `keep` chooses, of plain types, in any order.

        Every row of the source passes through `keep` once, in tables of the control columns alone, so `keep` may also
        count what it does not choose. All rows are of one state of the source.

        Args:
            control: The columns `keep` looks at.
            keep: From a table of n rows of those columns, shape (n,): which of the rows to return.

        Raises:
            NotFoundError: The source is gone.
            DefinitionError: It cannot be read as one table, or lacks a control column.
            ConflictError: It changed while it was read.
        """
