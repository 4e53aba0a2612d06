"""A real PostgreSQL server for tests: the binaries of the system's package, in a folder of its own, on a free port."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "s3cret-w0rd"
"""Password of the tests' user; no output may contain it."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    binaries: Path
    folder: Path
    port: int

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql+psycopg://tester:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Creates an empty database and returns its address."""
        name = f"board_{uuid.uuid4().hex[:12]}"
        self.run(f"CREATE DATABASE {name}", "postgres")
        return self.url(name)

    def run(self, statement: str, database: str) -> str:
        """Executes SQL with psql, so that tests have a reader that is not the code under test."""
        command: list[str | Path] = [
                   self.binaries / "psql", "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", statement, "-d", database,
                   "-h", "127.0.0.1", "-p", str(self.port), "-U", "tester"]  # fmt: skip
        done = subprocess.run(
            command, env=os.environ | {"PGPASSWORD": PASSWORD}, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.strip()

    def query(self, url: str, statement: str) -> list[list[str]]:
        """Reads the database of an address with psql."""
        found = self.run(statement, url.rpartition("/")[2])
        return [line.split("|") for line in found.splitlines()]


def find_binaries() -> Path | None:
    """Folder with initdb, pg_ctl and psql: those of the PATH, or of Debian's package ``postgresql``."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in found if (folder / "pg_ctl").exists() and (folder / "psql").exists()), None)


@contextmanager
def running_server(*, durable: bool = False) -> Iterator[Server]:
    """Starts a server for the duration of a block; skips the test where PostgreSQL or psycopg is missing.

    Args:
        durable: Whether it waits for the disk at each commit, as a server in use does.
    """
    pytest.importorskip("psycopg", reason="psycopg is not installed: pip install '.[postgres]'")
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server: install it, on Debian with: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="evoengine-postgres-"))
    user = _unprivileged(folder)
    (folder / "password").write_text(PASSWORD)
    data, log = folder / "data", folder / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    control: list[str | Path] = [binaries / "pg_ctl", "-D", data, "-w", "-t", "60"]
    try:
        _call([binaries / "initdb", "-D", data, "-U", "tester", "-A", "scram-sha-256", "--pwfile", folder / "password",
               "-E", "UTF8", "--locale", "C.UTF-8", "--no-sync"], user, folder)  # fmt: skip
        settings = f"-c fsync={'on' if durable else 'off'} -c listen_addresses=127.0.0.1 -c port={port}"
        settings += f" -c unix_socket_directories={folder}"
        _call([*control, "-l", log, "-o", settings, "start"], user, folder)
        yield Server(binaries, folder, port)
    finally:
        with suppress(subprocess.CalledProcessError):
            _call([*control, "-m", "immediate", "stop"], user, folder)
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged(folder: Path) -> str | None:
    """User for the server, which refuses to run as root; None for the own one."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            account = pwd.getpwnam(name)
            os.chown(folder, account.pw_uid, account.pw_gid)
            return name
    pytest.skip("PostgreSQL does not run as root, and there is no unprivileged user for it")


def _call(command: list[str | Path], user: str | None, folder: Path) -> None:
    done = subprocess.run(
        [*map(str, command)], user=user, group=None if user is None else pwd.getpwnam(user).pw_gid,
        extra_groups=None if user is None else [], cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if "start" not in command else subprocess.DEVNULL,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, stderr=done.stderr)
