"""The logits processor under which vLLM emits given answers. vLLM imports this module, in every process it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import AdapterLogitsProcessor  # noqa: TID253 - nobody else imports this

from snapline.contracts.engines.protocol import Path
from snapline.contracts.engines.vllm_capture import PROBE

if TYPE_CHECKING:
    import torch


class ForceTokens(AdapterLogitsProcessor):  # type: ignore[misc]
    """Makes a probe on the forced path emit its given answer, whatever the logits say; leaves the others alone."""

    def is_argmax_invariant(self) -> bool:
        """Return False: the argmax is what this changes."""
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        """Return what forces a request's tokens, or None."""
        probe = (params.extra_args or {}).get(PROBE)
        if not probe or probe["path"] != Path.DECODE_FORCED:
            return None

        def force(output: list[int], logits: torch.Tensor) -> torch.Tensor:
            token = probe["answer"][len(output)]
            logits.fill_(-float("inf"))[token] = 0.0
            return logits

        return force
