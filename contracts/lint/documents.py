"""Where issues are in the text of a document, and what is wrong with one that is no contract at all."""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml

from snapline.contracts.clauses import DIAGNOSTICS
from snapline.contracts.lint.issues import Kind, LintIssue, Severity
from snapline.lineage.errors import DefinitionError

_PLACE = re.compile(r":(?P<line>\d+): (?:(?P<field>[^\s:]+): )?(?P<message>.*)")


def malformed(problem: DefinitionError, name: str) -> tuple[LintIssue, ...]:
    """Return what is wrong with a document that could not be read, by what the reader said of it.

    Args:
        name: What the reader called the document.
    """
    return tuple(_issue(text.removeprefix(name)) for text in problem.message.splitlines() if text)


def located(issues: Iterable[LintIssue], text: str) -> tuple[LintIssue, ...]:
    """Return issues with the line of the deepest part of their field that the document spells out."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return tuple(issue.model_copy(update={"line": _line(root, issue.field.split("."))}) for issue in issues)


def _issue(text: str) -> LintIssue:
    match = _PLACE.fullmatch(text)
    line, field, message = match.group("line", "field", "message") if match else (None, None, text.lstrip(": "))
    leaf = (field or "").rpartition(".")[2]
    kind = Kind.MALFORMED
    if leaf in DIAGNOSTICS:
        kind = Kind.UNBOUNDED
        message = f"{message}; {leaf} is a diagnostic, and no sample gives confidence in a limit on it: name it under "
        message += "diagnostics, and limit half_span or tv_answer"
    elif leaf == "diagnostics":
        kind = Kind.UNBOUNDED
    return LintIssue(
        kind=kind,
        severity=Severity.ERROR,
        field=field or "(document)",
        message=message,
        line=int(line) if line else None,
    )


def _line(node: yaml.Node | None, path: list[str]) -> int:
    line = node.start_mark.line + 1 if node else 1
    while path:
        found: tuple[yaml.Node, int] | None = None
        # A slice's name may have dots of its own, so the longest name that is there is meant.
        for end in range(len(path), 0, -1):
            found = _child(node, ".".join(path[:end]))
            if found is not None:
                path = path[end:]
                break
        if found is None:
            break
        node, line = found
    return int(line)


def _child(node: yaml.Node | None, name: str) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.MappingNode):
        return next(((value, key.start_mark.line + 1) for key, value in node.value if key.value == name), None)
    if isinstance(node, yaml.SequenceNode):
        return next(((item, item.start_mark.line + 1) for item in node.value if _is_named(item, name)), None)
    return None


def _is_named(node: yaml.Node, name: str) -> bool:
    return isinstance(node, yaml.MappingNode) and any(
        key.value == "name" and value.value == name for key, value in node.value
    )
