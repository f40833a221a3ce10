"""Where each tensor lies inside a safetensors file.

The header is read as a stranger's bytes: its size is bounded, its JSON may name nothing twice, and the tensors must
tile the rest of the file exactly, so that no byte belongs to no tensor or to two. That is stricter than some
readers, and it makes a whole-file digest and the digests of its tensors speak of the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

from snapline.lineage.errors import DefinitionError

# The format's own limit (safetensors, README "Format").
MAX_HEADER_BYTES = 100_000_000
_LENGTH_BYTES = 8
_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """One tensor: what the header says of it, and its bytes' half-open range, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """How many bytes it takes."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Layout:
    """The bytes before the first tensor, and the tensors in the order in which they lie in the file."""

    header_bytes: int
    tensors: tuple[TensorSpan, ...]


def read_layout(stream: BinaryIO, size_bytes: int, name: str) -> Layout:
    """Return the layout of a safetensors file whose spans tile the file without a gap.

    Args:
        stream: The file, at its start; it is left after the header.
        size_bytes: How long the file is.
        name: What messages call it.

    Raises:
        DefinitionError: It is not a whole, well-formed safetensors file.
    """
    try:
        length = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        header_bytes = _LENGTH_BYTES + length
        if length > MAX_HEADER_BYTES or header_bytes > size_bytes:
            raise ValueError(f"it claims a header of {length} bytes in a file of {size_bytes}")
        header = json.loads(stream.read(length).decode("utf-8"), object_pairs_hook=_no_name_twice)
        return Layout(header_bytes, _tiling(header, size_bytes - header_bytes))
    except (ValueError, RecursionError) as error:
        raise DefinitionError(
            f"{name} is not a well-formed safetensors file: {error}", hint="Write or download the file again."
        ) from error


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("its header writes a name twice")
    return names


def _tiling(header: object, data_bytes: int) -> tuple[TensorSpan, ...]:
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its __metadata__ is not a map of text to text")
    spans = sorted((_span(name, entry) for name, entry in header.items()), key=lambda span: (span.begin, span.end))
    position = 0
    for span in spans:
        if span.begin != position:
            raise ValueError(f"tensor {span.name!r} begins at byte {span.begin} of the data, expected {position}")
        position = span.end
    if position != data_bytes:
        raise ValueError(f"its tensors take {position} bytes, but {data_bytes} follow the header")
    return tuple(spans)


def _span(name: str, entry: object) -> TensorSpan:
    name.encode("utf-8")  # a lone surrogate is JSON, but no text: it could be neither printed nor hashed
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} has not exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise ValueError(f"tensor {name!r} has the unknown dtype {dtype!r}")
    if not _whole_numbers(shape) or not _whole_numbers(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {name!r} has the shape {shape!r} and offsets {offsets!r}, expected whole numbers")
    bits = prod(shape) * _BITS[dtype]
    begin, end = offsets
    if bits != (end - begin) * 8:
        raise ValueError(f"tensor {name!r}: {dtype} of shape {shape} takes {bits} bits, not bytes {begin} to {end}")
    return TensorSpan(name, dtype, tuple(shape), begin, end)


def _whole_numbers(value: object) -> bool:
    # JSON's true is an int to Python, hence the exact type; a file cannot be longer than 2**63 bytes.
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)
