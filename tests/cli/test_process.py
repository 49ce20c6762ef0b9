"""The command as a process of its own: what it imports, how it is called, how a shell completes it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import holdfast as hf
from tests.tiny import Tiny

MODULE = [sys.executable, "-m", "holdfast"]


def ran(*command: object, **environment: str) -> str:
    result = subprocess.run(
        [str(each) for each in command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_python_m_holdfast_is_the_command() -> None:
    assert ran(*MODULE, "--version") == f"holdfast {hf.__version__}\n"
    assert "Usage: holdfast " in ran(*MODULE, "--help")


def test_ls_lists_a_run_without_torch_and_numpy(trained: tuple[Path, Tiny]) -> None:
    code = (
        "import sys\n"
        "from holdfast.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "late = {'numpy', 'torch'} & set(sys.modules)\n"
        "assert not late, f'ls must not wait for {late}'\n"
    )
    for arguments in ([], ["--json"]):
        assert "differential" in ran(sys.executable, "-c", code, "ls", trained[0], *arguments)


def test_a_shell_completes_commands_and_options() -> None:
    def completed(*words: str) -> list[str]:
        asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        return ran(*MODULE, _HOLDFAST_COMPLETE="complete_bash", **asked).split()

    assert completed("holdfast", "p") == ["prune", "plan"]
    assert {"--json", "--option"} <= set(completed("holdfast", "ls", "--"))
    assert "--install-completion" in ran(*MODULE, "--help")
