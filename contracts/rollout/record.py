"""One logged request: the row of a serving log, as JSON lines or as an Arrow table with the same names.

    {"id": "r-17", "at": "2026-11-30T09:00:00Z", "route": "serving", "prompt_ids": [1, 42], "token_ids": [7, 2],
     "sampled_logprob": [-0.1, -2.5], "margin": [3.1, 0.02], "batch_size": 4, "cache_hit": false,
     "latency_seconds": 0.21, "tags": {"language": "en", "tenant": "a"}}

Nothing more than what a slice or a clause reads: no text of the prompt or the answer.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from snapline.lineage.cut import Instant
from snapline.lineage.documents import Received

LogProbability = Annotated[float, Field(le=0, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0)]


class ServingRecord(Received):
    """What was served to one request.

    Attributes:
        id: Unique in the traffic; it decides, by its hash, whether the request is in a stage's share.
        at: When it was answered.
        route: Who answered: the serving engine, the reference, or the serving engine on a copy nobody saw.
        token_ids: The answer, exactly as emitted.
        sampled_logprob: Log-probability of each emitted token by whoever answered, in nats, at the contract's
            temperature and untruncated.
        margin: Per token, the largest log-probability less the second largest.
        batch_size: How many requests ran beside it, itself included, when it started.
        cache_hit: Whether a prefix of its prompt was found in the cache.
        reference_logprob: The same tokens' log-probabilities by the reference, when somebody scored them already.
        tags: Columns that slices may ask for, such as language or tenant.
    """

    id: Annotated[str, Field(min_length=1)]
    at: Instant
    route: Literal["serving", "reference", "shadow"] = "serving"
    prompt_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    token_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    sampled_logprob: tuple[LogProbability, ...] | None = None
    margin: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    batch_size: Annotated[int, Field(ge=1)] | None = None
    cache_hit: bool | None = None
    latency_seconds: Annotated[float, Field(ge=0)] | None = None
    reference_logprob: tuple[LogProbability, ...] | None = None
    tags: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_figure_per_token(self) -> Self:
        for name in ("sampled_logprob", "margin", "reference_logprob"):
            figures = getattr(self, name)
            if figures is not None and len(figures) != len(self.token_ids):
                raise ValueError(
                    f"{name}: expected one figure for each of {len(self.token_ids)} tokens, found {len(figures)}"
                )
        return self
