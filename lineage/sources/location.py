"""Where the files of a Parquet source lie: all a gate needs of a source, so nothing here imports what reads rows."""

from __future__ import annotations

import os
from pathlib import Path

from snapline.lineage.errors import DefinitionError, NotFoundError


def locate(source: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the folder of a Parquet source and its files: paths below that folder, sorted.

    In a folder, at any depth, the files that end in `.parquet` count; names that begin with `.` or `_` do not.

    Raises:
        NotFoundError: The source is gone, or the folder has no Parquet file.
        DefinitionError: Rows or columns would be missed: a folder inside is a link, or is named `column=value`.
    """
    if source.is_file():
        return source.parent, (source.name,)
    if not source.is_dir():
        raise NotFoundError(f"no Parquet file or folder {source}", hint="Put it back, or name the source anew.")
    found: list[str] = []
    for folder, below, names in os.walk(source):
        below[:] = [name for name in below if not name.startswith((".", "_"))]
        for name in below:
            _refuse_folder(Path(folder, name))
        visible = (name for name in names if name.endswith(".parquet") and not name.startswith((".", "_")))
        found += [Path(folder, name).relative_to(source).as_posix() for name in visible]
    if not found:
        raise NotFoundError(f"no .parquet file in the folder {source}", hint="Name a folder that holds the table.")
    return source, tuple(sorted(found))


def _refuse_folder(folder: Path) -> None:
    if folder.is_symlink():
        raise DefinitionError(f"{folder} is a link to a folder", hint="Put the files there themselves.")
    if "=" in folder.name:
        raise DefinitionError(
            f"the folder name {folder} holds the value of a column, and only files are read",
            hint="Write that column into the files.",
        )
