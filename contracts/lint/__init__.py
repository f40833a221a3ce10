"""Lint: what is wrong with a contract before anything is measured.

One file per kind of fault: `attainable` (no measurement could ever meet it), `promises` (it says less than it seems
to), `parts` (its slices and columns), `rollout` (its stages and escalations), `documents` (it cannot be read at all).
"""

from snapline.contracts.lint.check import lint, require_attainable
from snapline.contracts.lint.documents import located, malformed
from snapline.contracts.lint.issues import Kind, LintIssue, Severity

__all__ = ["Kind", "LintIssue", "Severity", "lint", "located", "malformed", "require_attainable"]
