"""The command line: parses, calls the library and prints; it decides nothing."""

from __future__ import annotations

import typer

from holdfast.cli import following, inspecting, planning, pruning, reporting, simulating, transfer, verifying
from holdfast.cli.common import OneLineErrors, common_options

__all__ = ["app", "main"]

app = typer.Typer(
    name="holdfast",
    help="Inspect, verify, export, prune and import checkpoint runs. URL is a local path or s3://, gs://, az://...",
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.callback()(common_options)
app.command("ls")(inspecting.ls)
app.command("show")(inspecting.show)
app.command("diff")(inspecting.diff)
app.command("follow")(following.follow)
app.command("verify")(verifying.verify)
app.command("export")(transfer.export)
app.command("import")(transfer.import_)
app.command("prune")(pruning.prune)
app.command("plan")(planning.plan)
app.command("simulate")(simulating.simulate)
app.command("report")(reporting.report)


def main() -> None:
    """The ``holdfast`` command."""
    app(prog_name="holdfast")
