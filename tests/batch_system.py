"""Stand-ins for the commands of a batch system: a job is run at once, and its script is kept."""

from __future__ import annotations

import sys
from pathlib import Path

_SUBMIT = """#!{python}
# Stands in for a batch system: runs the job at once, as a process group that the cancel command ends.
import pathlib, subprocess, sys
folder = pathlib.Path({folder!r})
script = pathlib.Path(sys.argv[-1]).read_text() if len(sys.argv) > 1 else sys.stdin.read()
log = (folder / "jobs.log").open("a")
with (folder / "jobs.sh").open("a") as scripts:
    scripts.write(script)
job = subprocess.Popen(["bash", "-c", script], start_new_session=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
with (folder / "pids").open("a") as pids:
    pids.write(f"{{job.pid}}\\n")
print(f"Job <{{job.pid}}>")
"""
_CANCEL = """#!{python}
import contextlib, os, signal, sys
for job in sys.argv[1:]:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(int(job), signal.SIGTERM)
"""


def install_batch_system(folder: Path, submit: str, cancel: str) -> Path:
    """Write the two commands into a folder below `folder`, and return it; scripts and output of jobs go to `folder`."""
    tools = folder / "bin"
    tools.mkdir()
    for name, text in ((submit, _SUBMIT), (cancel, _CANCEL)):
        (tools / name).write_text(text.format(python=sys.executable, folder=str(folder)))
        (tools / name).chmod(0o755)
    return tools
