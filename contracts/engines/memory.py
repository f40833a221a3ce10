"""The most memory a measurement took."""

from __future__ import annotations

import resource
from pathlib import Path

STATUS = Path("/proc/self/status")


def reset_peak(device: str) -> None:
    """Forget the peak so far, on a GPU; a CPU process's peak can't be forgotten."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: str) -> int:
    """Return the most that was allocated on the GPU since `reset_peak`, or else this process's peak resident memory.

    The kernel's own high-water mark comes first: after a fork, `getrusage` reports the parent's peak as the child's.
    """
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    if STATUS.exists():
        for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return int(value.split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
