"""`tv_answer`: the distributions of whole answers are close. The clause to gate on.

With y drawn by the serving engine, E max(0, 1 - P(y)/Q(y)) is the total variation distance of the two distributions of
answers, so the expectation of any reward differs by at most its range times this.

Written as a limit, `tv_answer: "0.05"`, or with the horizon, `{horizon: 256, limit: "0.05"}`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, ClassVar

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from snapline.contracts.clauses.protocol import DrawnAnswerClause
from snapline.contracts.figures import Share
from snapline.lineage.documents import Value

Horizon = Annotated[int, Field(ge=1, le=1 << 20)]


class UpToHorizon(Value):
    """A limit on a figure of answers of up to `horizon` tokens; written as the limit alone, too."""

    horizon: Horizon = 32
    limit: Share

    @model_validator(mode="before")
    @classmethod
    def _spelt_out(cls, written: Any) -> Any:
        """Take a limit alone for the limit."""
        return written if isinstance(written, (dict, Value)) else {"limit": written}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema with the limit alone beside the long spelling."""
        long = handler(core)
        limit = handler.resolve_ref_schema(long)["properties"]["limit"]
        return {"anyOf": [{name: value for name, value in limit.items() if name != "title"}, long]}

    @property
    def allowed(self) -> Decimal:
        """The limit as written."""
        return self.limit


class TvAnswer(UpToHorizon, DrawnAnswerClause):
    """The total variation distance of answers of up to `horizon` tokens, averaged over prompts, is at most this."""

    name: ClassVar[str] = "tv_answer"
    gives_up: ClassVar[str] = (
        "anything about tokens after the horizon, answers drawn at another temperature, or a sampler that does not "
        "follow the engine's own logits: see sampler_drift"
    )

    @property
    def figure(self) -> str:
        """The expected distance."""
        return f"expected total variation distance between answers of up to {self.horizon} tokens"
