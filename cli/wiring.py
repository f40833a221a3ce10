"""Put a home together: the one place that knows which store, registry, cache and engines are used."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from snapline.lineage.digest import BulkAlgorithm, hex_part
from snapline.lineage.errors import ConflictError, DefinitionError, NotFoundError
from snapline.lineage.ledger import GENESIS, Ledger
from snapline.lineage.objects import ObjectStore
from snapline.lineage.observe import Lens
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.stat_cache import StatCache

if TYPE_CHECKING:
    from snapline.contracts.targets import Target
    from snapline.lineage.model import ModelVersion
    from snapline.lineage.registries.protocol import Registry
    from snapline.lineage.state import State

SETTINGS = "settings.json"
LEFTOVER_SECONDS = 86_400


def now() -> datetime:
    """Return the instant that counts as now for the whole command."""
    return datetime.now(UTC)


def environment() -> Mapping[str, str]:
    """Return the environment that child processes inherit."""
    return dict(os.environ)


class Home:
    """An opened home.

    Args:
        root: The folder; it must have been initialised.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trusted = TrustedKeys.load(root / "keys" / "trusted")

    @classmethod
    def open(cls, option: Path | None) -> Home:
        """Return the home an option, the environment or the current folder names.

        Raises:
            NotFoundError: It was never initialised.
        """
        root = located(option)
        if not (root / SETTINGS).is_file():
            raise NotFoundError(
                f"no Snapline home at {root}", hint="Make one with snapline init, or name one with --home."
            )
        return cls(root)

    @cached_property
    def key(self) -> SigningKey:
        """The key this home signs with."""
        return SigningKey.load(self.key_path)

    @property
    def key_path(self) -> Path:
        """Where that key lies; a copy of a home that only gates need not have it."""
        return self.root / "keys" / "signing.key"

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger; a home without a signing key can read it."""
        from snapline.lineage.stores.sql import SqlStore

        url = json.loads((self.root / SETTINGS).read_text())["ledger"]
        store = SqlStore(url.replace("{home}", str(self.root)))
        key = self.key if self.key_path.exists() else None
        return Ledger(store, key, self.trusted, self.root / "head.json")

    def state(self) -> State:
        """Return what the ledger says, chain and last signature checked.

        Raises:
            NotFoundError: Making the home was interrupted before its first entry.
        """
        loaded = self.ledger.load()
        if loaded.length == 0:
            raise NotFoundError(f"the Snapline home at {self.root} is half made", hint="Finish it with snapline init.")
        return loaded.state

    def objects(self, algorithm: BulkAlgorithm) -> ObjectStore:
        """Return the object store beside the ledger."""
        return ObjectStore(self.root / "objects", algorithm)

    def lens(self, state: State, use_cache: bool = True) -> Lens:
        """Return what looking at a model's inputs needs."""
        instant = now()
        file = self.root / "cache" / "digests.db"
        cache = StatCache(file, now_ns=int(instant.timestamp() * 1e9)) if use_cache else None
        return Lens(self.objects(state.algorithm), cache, instant)

    def resolve(self, text: str, state: State) -> ModelVersion:
        """Return the version a person named."""
        from snapline.lineage.model import parse_reference

        return state.resolve(parse_reference(text))

    def targets(self, option: Path | None) -> dict[str, Target]:
        """Return the declared targets."""
        from snapline.contracts.targets import load_targets

        return load_targets(option or self.root / "targets.yaml")

    def workplace(self) -> Path:
        """Return the folder for work in progress; what killed commands left in it a day ago is removed."""
        path = self.root / "work"
        path.mkdir(parents=True, exist_ok=True)
        for left in path.iterdir():
            with suppress(OSError):
                if now().timestamp() - left.stat().st_mtime > LEFTOVER_SECONDS:
                    shutil.rmtree(left)
        return path

    @cached_property
    def registry(self) -> Registry:
        """The MLflow mirror over this home's own store."""
        from snapline.lineage.registries.mlflow import MlflowRegistry
        from snapline.lineage.registries.mlflow_session import QUIET_ENVIRONMENT

        os.environ.update(QUIET_ENVIRONMENT)
        return MlflowRegistry(
            self.tracking_uri, self.root / "artifacts", hex_part(self.ledger.entries()[0].digest)[:16]
        )

    @property
    def tracking_uri(self) -> str:
        """Where MLflow keeps what the mirror writes."""
        return f"sqlite:///{self.root / 'mlflow.db'}"


def located(option: Path | None) -> Path:
    """Return the absolute folder of the home that is meant, whether or not it exists."""
    return (option or Path(".snapline")).absolute()


def initialise(root: Path, algorithm: BulkAlgorithm, ledger_url: str) -> bool:
    """Make a home and return whether anything was missing; doing it twice changes nothing.

    Raises:
        DefinitionError: The home exists with other settings.
    """
    from snapline.lineage.events import Initialized

    settings = {"ledger": ledger_url, "algorithm": algorithm.value}
    path = root / SETTINGS
    if path.is_file() and (found := json.loads(path.read_text())) != settings:
        raise DefinitionError(
            f"{root} was initialised with {found}", hint="Settings of a home never change; use another."
        )
    for folder in ("keys/trusted", "objects", "cache"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    with suppress(ConflictError):
        SigningKey.create(root / "keys" / "signing.key")
    if not (root / "head.json").exists():
        # A crash between making the key and trusting it; later, who is trusted is the owner's to say.
        SigningKey.load(root / "keys" / "signing.key").publish(root / "keys" / "trusted")
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    temporary.write_text(json.dumps(settings, indent=2) + "\n")
    temporary.replace(path)
    try:
        first = Initialized(at=now(), algorithm=algorithm, salt=secrets.token_hex(32))
        Home(root).ledger.commit(lambda _state: [first], expected_head=GENESIS)
    except ConflictError:
        return False
    return True
