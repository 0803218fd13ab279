"""A real SLURM of two virtual nodes on this machine, in a folder of its own, on loopback ports; no systemd, no cgroups.

Debian packages: slurmctld slurmd slurm-client munge (`.ci/run` installs them).
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from free_ports import free_ports

NODES = ("n1", "n2")
_TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "squeue", "sinfo")
_SECONDS = 120.0
_SBIN = "/usr/sbin"

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
KillWait=1
MinJobAge=300
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
{nodes}
PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 Boards=1 SocketsPerBoard=1 "
    "CoresPerSocket=8 ThreadsPerCore=1 RealMemory=20000 State=UNKNOWN"
)


@dataclass(frozen=True)
class Slurm:
    """A SLURM that runs; its commands find it by SLURM_CONF."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it."""
        return {**_environment(), "SLURM_CONF": str(self.folder / "slurm.conf")}

    def call(self, *command: str) -> str:
        """Run one of its commands."""
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, timeout=_SECONDS, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def jobs(self, state: str = "RUNNING") -> dict[str, str]:
        """Return the node of each job in a state, by its number."""
        lines = self.call("squeue", "--noheader", f"--states={state}", "--format=%i %N").splitlines()
        return {line.split()[0]: line.split()[-1] for line in lines}

    def wait_for_jobs(self, count: int, *, without: set[str] = frozenset()) -> dict[str, str]:  # type: ignore[assignment]
        """Wait until so many jobs run, apart from some."""
        deadline = time.monotonic() + _SECONDS
        while True:
            jobs = {job: node for job, node in self.jobs().items() if job not in without}
            if len(jobs) >= count:
                return jobs
            assert time.monotonic() < deadline, f"{len(jobs)} of {count} jobs: {self.call('squeue')}\n{self.logs()}"
            time.sleep(0.1)

    def wait_for_no_jobs(self) -> None:
        """Wait until all have ended."""
        deadline = time.monotonic() + _SECONDS
        while self.jobs():
            assert time.monotonic() < deadline, f"jobs outlive the run: {self.call('squeue')}"
            time.sleep(0.1)

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))


@contextlib.contextmanager
def running_slurm(folder: Path) -> Iterator[Slurm]:
    """Start it, and stop it by its process ids."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_environment()["PATH"]) is None]
    assert not missing, (
        f"no {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge (see CONTRIBUTING.md)"
    )
    _write_configuration(folder)
    slurm = Slurm(folder)
    started: list[subprocess.Popen[bytes]] = []
    try:
        munge = [
            f"--{name}={folder}/munge.{name.removesuffix('-file')}" for name in ("key-file", "pid-file", "log-file")
        ]
        munge += [f"--seed-file={folder}/munge.seed", f"--socket={folder}/munge.socket"]
        started.append(_start(slurm, "munged", "--foreground", "--force", *munge))
        _wait(lambda: (folder / "munge.socket").exists(), slurm, "munged")
        started.append(_start(slurm, "slurmctld", "-D"))
        started += [_start(slurm, "slurmd", "-D", "-N", node) for node in NODES]
        _wait(lambda: _idle(slurm) == set(NODES), slurm, "slurmd")
        yield slurm
    finally:
        if len(started) > 1:
            subprocess.run(["scancel", "--user", _user()], env=slurm.environment, timeout=_SECONDS, check=False)
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in reversed(started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()


def _write_configuration(folder: Path) -> None:
    (folder / "state").mkdir(parents=True)
    for node in NODES:
        (folder / f"spool.{node}").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    port, *ports = free_ports(1 + len(NODES))
    nodes = "\n".join(_NODE.format(name=name, host=host, port=at) for name, at in zip(NODES, ports, strict=True))
    text = _CONF.format(host=host, folder=folder, user=_user(), port=port, nodes=nodes, names=",".join(NODES))
    (folder / "slurm.conf").write_text(text)


def _start(slurm: Slurm, *command: str) -> subprocess.Popen[bytes]:
    path = shutil.which(command[0], path=_environment()["PATH"])
    assert path is not None
    with (slurm.folder / f"{command[0]}.out.log").open("ab") as log:
        return subprocess.Popen([path, *command[1:]], env=slurm.environment, stdout=log, stderr=log)


def _wait(ready: object, slurm: Slurm, what: str) -> None:
    assert callable(ready)
    deadline = time.monotonic() + _SECONDS
    while not ready():
        assert time.monotonic() < deadline, f"{what} is not ready:\n{slurm.logs()}"
        time.sleep(0.1)


def _idle(slurm: Slurm) -> set[str]:
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"],
        capture_output=True, text=True, env=slurm.environment, timeout=_SECONDS, check=False,
    )  # fmt: skip
    return set(done.stdout.split())


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{os.environ['PATH']}:{_SBIN}"}


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
