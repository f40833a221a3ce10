"""Signed statements: a predicate about a subject, as an in-toto Statement inside a DSSE envelope.

The envelope's exact bytes are what is kept and verified. Each kind of certificate is one `Kind`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from snapline.lineage.errors import IntegrityError
from snapline.lineage.signing import SigningKey, TrustedKeys, open_envelope, seal

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"

Predicate = TypeVar("Predicate", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Kind(Generic[Predicate]):
    """One kind of statement.

    Attributes:
        predicate_type: Its own name for its format.
        model: What its predicate is parsed as.
        noun: What messages call it, with its article.
        subject: The name and the digest a predicate speaks of.
        remedy: What to do about one that does not hold.
    """

    predicate_type: str
    model: type[Predicate]
    noun: str
    subject: Callable[[Predicate], tuple[str, str]]
    remedy: str

    def issue(self, predicate: Predicate, key: SigningKey) -> bytes:
        """Return the signed envelope of a statement with this predicate; equal arguments give equal bytes."""
        statement: dict[str, Any] = {
            "_type": STATEMENT_TYPE,
            "subject": [self._subject(predicate)],
            "predicateType": self.predicate_type,
            "predicate": predicate.model_dump(mode="json"),
        }
        payload = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        return seal(payload, PAYLOAD_TYPE, key)

    def read(self, envelope: bytes, trusted: TrustedKeys) -> Predicate:
        """Return the predicate inside an envelope a trusted key signed.

        Raises:
            IntegrityError: The envelope, the signature or the statement does not hold.
        """
        payload = open_envelope(envelope, PAYLOAD_TYPE, trusted)
        try:
            statement = json.loads(payload)
            predicate = self.model.model_validate(statement["predicate"])
            types, subject = (statement["_type"], statement["predicateType"]), statement["subject"]
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in problem["loc"])
            message = f"the signed statement is not {self.noun}: {where}: {problem['msg']}"
            raise IntegrityError(message, hint=self.remedy) from error
        except (ValueError, LookupError, TypeError) as error:
            raise IntegrityError(f"the signed statement is not {self.noun}: {error}", hint=self.remedy) from error
        if types != (STATEMENT_TYPE, self.predicate_type):
            expected = f"{STATEMENT_TYPE} of {self.predicate_type}"
            raise IntegrityError(f"expected a signed {expected}, found {types[0]} of {types[1]}", hint=self.remedy)
        if subject != [self._subject(predicate)]:
            raise IntegrityError("the signed statement's subject is not what its predicate binds", hint=self.remedy)
        return predicate

    def _subject(self, predicate: Predicate) -> dict[str, Any]:
        name, digest = self.subject(predicate)
        kind, _, value = digest.partition(":")
        return {"name": name, "digest": {kind: value}}
