"""The divergence measures on a CUDA device are those of the CPU."""

from __future__ import annotations

import pytest
import torch

from snapline.contracts.evidence import MEASURES
from snapline.contracts.kernels.reference import divergence

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocabulary", [2, 1000, 49_152, 151_936])
def test_cuda_gives_what_the_cpu_gives(dtype: torch.dtype, vocabulary: int) -> None:
    random = torch.Generator().manual_seed(vocabulary)
    reference = (torch.randn(9, vocabulary, generator=random) * 6).to(dtype)
    serving = (reference + 0.2 * torch.randn(9, vocabulary, generator=random)).to(dtype)
    serving[0] = reference[0]
    tokens = torch.randint(vocabulary, (9,), generator=random)
    here = divergence(reference, serving, tokens)
    there = divergence(reference.cuda(), serving.cuda(), tokens.cuda())
    for name in MEASURES:
        torch.testing.assert_close(getattr(there, name).cpu(), getattr(here, name), rtol=1e-9, atol=1e-12)
    assert there.flip.cpu().tolist() == here.flip.tolist()
    assert there.identical.cpu().tolist() == here.identical.tolist()
