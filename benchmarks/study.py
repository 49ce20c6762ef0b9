"""``python -m benchmarks.study FILE``: put the bounds that ``benchmarks accuracy --json FILE`` found into the policy.

FILE must come from ``--scale full``: a policy decides from what was shown, not from a trial.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.claims._accuracy_settings import SETTINGS
from holdfast.policy import study

_BEGIN, _END = "# begin of what the study writes\n", "# end of what the study writes\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    parser.add_argument("file", type=Path, help="the figures of the claim 'accuracy'")
    figures = json.loads(parser.parse_args(arguments).file.read_text(encoding="utf-8"))
    if (figures.get("benchmark"), figures.get("scale")) != ("accuracy", "full"):
        parser.error("these are not the figures of `python -m benchmarks accuracy --scale full`")
    module = Path(study.__file__)
    module.write_text(rewritten(module.read_text(encoding="utf-8"), figures), encoding="utf-8")
    return 0


def rewritten(source: str, figures: Mapping[str, Any]) -> str:
    """The module's source with these figures in the place of the old ones."""
    before, _, rest = source.partition(_BEGIN)
    after = rest.partition(_END)[2]
    lines = "".join(f"    {_line(each)},\n" for each in measurements(figures))
    return f"{before}{_BEGIN}STUDY = (\n{lines})\n{_END}{after}"


def _line(each: study.Measurement) -> str:
    """As it stands in the module."""
    differs = ", difference=True" if each.difference else ""
    return (
        f'Measurement(method="{each.method}", bits={each.bits}, restores={each.restores}, '
        f"auc_drop_bound_percent={each.auc_drop_bound_percent}{differs})"
    )


def measurements(figures: Mapping[str, Any]) -> list[study.Measurement]:
    """Of every setting that stores rows in few bits. With 8 bits the paper's codec is ours."""
    found = []
    for name, setting in SETTINGS.items():
        if setting.precision is not None:
            precision = setting.precision
            methods = study.MEASURED_METHODS if precision.bits == 8 else (precision.method,)
            bound = round(float(figures[f"{name}_auc_drop_bound_percent"]), 4)
            found += [
                study.Measurement(
                    method=method,
                    bits=precision.bits,
                    restores=setting.restores,
                    auc_drop_bound_percent=bound,
                    difference=precision.difference,
                )
                for method in methods
            ]
    return found


if __name__ == "__main__":
    sys.exit(main())
