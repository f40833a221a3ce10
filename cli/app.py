"""The command line: one file per noun or verb, put together here.

Command modules import nothing heavy at the top, so `--help` and `gate` start fast.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from snapline.cli import (
    bench,
    certify,
    contract,
    erase,
    evidence,
    gate,
    history,
    impact,
    init,
    judge,
    leakage,
    link,
    materialize,
    mirror,
    observe,
    plan,
    probes,
    promote,
    query,
    refresh,
    register,
    retire,
    rollout,
    route,
    snapshot,
    status,
    verify,
    view,
    watch,
)
from snapline.cli.output import Exit, crash, fail

# Typer brings its own copy of click; its usage errors are reached through the public subclass.
USAGE_ERROR: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="snapline",
    help="A registry in which every model is a materialized view over a time-bounded snapshot.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.command("init")(init.init)
app.add_typer(snapshot.app, name="snapshot")
app.add_typer(view.app, name="view")
app.command("materialize")(materialize.materialize)
app.command("register")(register.register)
app.command("link")(link.link)
app.add_typer(probes.app, name="probes")
app.add_typer(contract.app, name="contract")
app.command("certify")(certify.certify)
app.command("judge")(judge.judge)
app.add_typer(evidence.app, name="evidence")
app.command("verify")(verify.verify)
app.command("status")(status.status)
app.command("leakage")(leakage.leakage)
app.command("erase")(erase.erase)
app.command("erasures")(erase.erasures)
app.command("retire")(retire.retire)
app.command("plan")(plan.plan)
app.command("apply")(plan.apply)
app.add_typer(refresh.app, name="refresh")
app.command("watch")(watch.watch)
app.command("gate")(gate.gate)
app.command("promote")(promote.promote)
app.command("rollback")(promote.rollback)
app.add_typer(rollout.app, name="rollout")
app.command("observe")(observe.observe)
app.command("route")(route.route)
app.command("lineage")(history.lineage)
app.command("impact")(impact.impact)
app.command("query")(query.query)
app.command("log")(history.log)
app.command("server")(mirror.server)
app.command("mirror")(mirror.mirror)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line and leave with a documented exit code."""
    from snapline.lineage.errors import DefinitionError, SnaplineError

    as_json = "--json" in sys.argv
    try:
        code = app(standalone_mode=False)
    except SnaplineError as error:
        fail(error, as_json)
    except USAGE_ERROR as error:
        usage = error.ctx.get_usage() if error.ctx else ""
        fail(DefinitionError(error.format_message(), hint=usage), as_json)
    except BrokenPipeError:
        # Whoever read the answer had enough of it; keep the interpreter from failing once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(int(Exit.DONE)) from None
    except (typer.Abort, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
        raise SystemExit(130) from None
    except Exception as error:  # noqa: BLE001 - the process boundary: whatever is left is our bug
        crash(error, as_json)
    raise SystemExit(code if isinstance(code, int) else int(Exit.DONE))
