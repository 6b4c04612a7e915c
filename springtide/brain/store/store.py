"""The brain's database by URL: an SQLite file or PostgreSQL, with past and live jobs. All calls block; use a thread.

Several processes may share an SQLite file: the file uses a write-ahead log, and every transaction waits for the write
lock at its start. Fields that queries filter by have their own column. The rest is JSON, so a new field changes no
table.
"""

import contextlib
import fcntl
import pathlib
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite

from springtide import errors
from springtide.brain.store import rows
from springtide.domain.plan.view import PastJob
from springtide.telemetry.host import disks

BUSY_S = 30.0  # longest wait in seconds for another writer; a write usually takes milliseconds
NOTICED = "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 -c tcp_user_timeout=10000"
POSTGRESQL = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "options": NOTICED}
"""Connect timeout in seconds, and TCP timeout in milliseconds. Without these timeouts, a cut connection would block
decisions for minutes, and PostgreSQL would keep the lock of a disconnected brain for hours.
"""
BRAIN = 0x5B7A13  # PostgreSQL's advisory lock of the serving brain: an arbitrary number that must never change
# most past jobs in a decision; a warm start compares past jobs in pairs, so more jobs would take too long
NEWEST = 1000
VERSION = 1
"""Version of these tables. Increase this version when a table changes, and convert older databases in `create`."""
LOCK = 0x5B7A12  # PostgreSQL's advisory lock for creating tables: an arbitrary number that must never change

metadata = sa.MetaData()

versions = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer, primary_key=True))

past_jobs = sa.Table(
    "past_jobs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("ended_at", sa.Double, nullable=False, index=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.UniqueConstraint("name", "ended_at", name="past_jobs_once"),
)
"""Finished jobs; `job` is JSON. If a job is reported twice because a reply was lost, the database stores it once."""

live_jobs = sa.Table(
    "live_jobs",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("seen_at", sa.Double, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("pledge", sa.LargeBinary),
    sa.Column("view", sa.LargeBinary, nullable=False),
)
"""Running jobs, for a restarted brain: the resources that each job holds, and the plan promised to the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistory:
    """Past jobs that the database holds."""

    jobs: tuple[PastJob, ...] = ()
    unreadable: int = 0


class BrainStore:
    """An open database; create it with `open_store`."""

    def __init__(self, engine: sa.Engine, where: str) -> None:
        self._engine, self.where = engine, where
        self._lock: sa.Connection | None = None
        self._strict = False
        self._file: IO[str] | None = None

    def remember(self, past: PastJob) -> None:
        """Store a finished job and delete its live row. Storing a job twice is harmless."""
        row = rows.row_of(past)
        insert = (postgresql if self._engine.dialect.name == "postgresql" else sqlite).insert
        with self._writing() as connection:
            connection.execute(insert(past_jobs).values(row).on_conflict_do_nothing())
            connection.execute(sa.delete(live_jobs).where(live_jobs.c.name == row["name"]))

    def history(self, *, newest: int = NEWEST) -> StoredHistory:
        past = past_jobs
        asked = sa.select(past).order_by(past.c.ended_at.desc(), past.c.id.desc()).limit(newest)
        with self._transaction() as connection:
            found = [dict(row) for row in connection.execute(asked).mappings()]
        jobs, unreadable = rows.pasts_of(found[::-1])
        return StoredHistory(jobs=jobs, unreadable=unreadable)

    def count(self) -> int:
        with self._transaction() as connection:
            return connection.execute(sa.select(sa.func.count()).select_from(past_jobs)).scalar_one()

    def keep_live(self, live: Sequence[Mapping[str, Any]], gone: Sequence[str] = ()) -> None:
        """Replace the rows of some live jobs and delete the rows of others, in one transaction."""
        insert = (postgresql if self._engine.dialect.name == "postgresql" else sqlite).insert
        with self._writing() as connection:
            if gone:
                connection.execute(sa.delete(live_jobs).where(live_jobs.c.name.in_(gone)))
            if live:
                asked = insert(live_jobs)
                fresh = {name: asked.excluded[name] for name in live_jobs.c.keys() if name != "name"}  # noqa: SIM118
                connection.execute(asked.on_conflict_do_update(index_elements=["name"], set_=fresh), list(live))

    def live(self) -> list[dict[str, Any]]:
        with self._transaction() as connection:
            return [dict(row) for row in connection.execute(sa.select(live_jobs)).mappings()]

    def claim(self, *, strict: bool = False) -> None:
        """Become the only brain that serves from this database, until a call of `close`. Raise BadInput if another
        brain serves from the database.

        Two brains on one database would both assign the same cores. PostgreSQL's lock ends with its connection. After a
        lost connection, `claim` takes the lock again. An SQLite file gets a lock file beside it.

        With `strict`, standbys wait to take over. From then on, all writes use the connection that holds the lock. A
        brain that lost the lock cannot write, and its successor reads all earlier writes.
        """
        self._strict = strict and self._engine.dialect.name == "postgresql"
        with database_errors(self.where):
            if self._engine.dialect.name != "postgresql":
                self._claim_file()
            elif self._lock is None or not _answers(self._lock):
                self._lock = self._engine.connect()
                if not self._lock.execute(sa.select(sa.func.pg_try_advisory_lock(BRAIN))).scalar():
                    self._lock.close()
                    self._lock = None
                    raise self._taken()
                self._lock.commit()

    def holds(self) -> bool:
        """Return True if this brain still holds the lock. If the connection was lost, its lock is lost too, and this
        method does not take the lock again."""
        if self._engine.dialect.name != "postgresql":
            return self._file is not None
        if self._lock is not None and not _answers(self._lock):
            self._lock = None
        return self._lock is not None

    def _claim_file(self) -> None:
        name = self._engine.url.database
        if self._file is not None or not name or name == ":memory:":
            return
        file = open(f"{name}.brain", "w")  # noqa: SIM115 - the lock is held until the store is closed
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise self._taken() from None
        self._file = file

    def _taken(self) -> errors.BadInput:
        return errors.BadInput(
            f"another brain serves from the database {self.where}; stop that one, or give --database"
        )

    def close(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(exc.SQLAlchemyError):  # PostgreSQL may notice a closed connection late
                self._lock.execute(sa.select(sa.func.pg_advisory_unlock(BRAIN)))
            with contextlib.suppress(exc.SQLAlchemyError):
                self._lock.close()
            self._lock = None
        if self._file is not None:
            self._file.close()
        self._engine.dispose()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        if not self._strict:
            with self._transaction() as connection:
                yield connection
            return
        if self._lock is None:
            raise errors.Fenced(
                f"this brain has lost its lock on the database {self.where}: this brain must not write any more"
            )
        with database_errors(self.where):
            try:
                with self._lock.begin():
                    yield self._lock
            except exc.DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                self._lock = None
                raise errors.Fenced(
                    f"the connection to {self.where} and the lock of this brain are lost: another brain may already "
                    f"serve"
                ) from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with database_errors(self.where), self._engine.begin() as connection:
            yield connection


def open_store(url: str) -> BrainStore:
    parsed = parse(url)
    where = parsed.render_as_string(hide_password=True)
    with database_errors(where):
        engine = _engine(parsed)
        try:
            create(engine, where=where)
        except BaseException:
            engine.dispose()
            raise
    return BrainStore(engine, where)


def parse(url: str) -> sa.URL:
    if not url:
        raise errors.BadInput(
            "database: no URL; expected one such as sqlite:///history.db or postgresql://user@host/brain"
        )
    if "://" not in url:
        return sa.URL.create("sqlite", database=str(pathlib.Path(url).absolute()))
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError) as error:
        raise errors.BadInput(
            f"database {url!r}: {error}; expected a URL such as sqlite:///history.db or postgresql://user@host/brain"
        ) from error
    match parsed.get_backend_name():
        case "sqlite":
            return parsed
        case "postgresql" | "postgres":
            return parsed.set(drivername="postgresql+psycopg")
        case other:
            raise errors.UnknownName("database", other, ["sqlite", "postgresql"])


@contextlib.contextmanager
def database_errors(where: str) -> Iterator[None]:
    try:
        yield
    except exc.SQLAlchemyError as error:
        cause = str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__]
        raise errors.HistoryUnavailable(
            f"the brain's database {where}: {cause[0]}. Check that the database exists and is intact."
        ) from error


def _answers(connection: sa.Connection) -> bool:
    try:
        connection.execute(sa.select(1))
        connection.commit()
    except exc.SQLAlchemyError:
        with contextlib.suppress(exc.SQLAlchemyError):
            connection.invalidate()
            connection.close()
        return False
    return True


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() == "postgresql":
        try:
            return sa.create_engine(url, pool_pre_ping=True, pool_size=3, connect_args=POSTGRESQL)
        except ModuleNotFoundError as error:
            raise errors.MissingExtra("a history in PostgreSQL", "brain") from error
    if url.database and url.database != ":memory:":
        try:
            pathlib.Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.HistoryUnavailable(f"the brain's database {url.database}: {error.strerror}") from error
        engine = sa.create_engine(url, poolclass=sa.NullPool, connect_args={"timeout": BUSY_S})
    else:
        engine = sa.create_engine(url, poolclass=sa.StaticPool, connect_args={"check_same_thread": False})
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # autocommit mode: this module begins transactions itself
    # replace invalid bytes, because one invalid row must not make the valid rows unreadable
    connection.text_factory = lambda text: text.decode(errors="replace")
    path = connection.execute("PRAGMA database_list").fetchone()[2]
    mode = disks.sqlite_journal_mode(pathlib.Path(path)) if path else "memory"
    _set_journal_mode(connection, mode)
    for pragma in ("synchronous=NORMAL", f"busy_timeout={int(BUSY_S * 1000)}"):
        connection.execute(f"PRAGMA {pragma}")


def _set_journal_mode(connection: Any, mode: str) -> None:
    """Set the journal mode of a new file. Retry, because SQLite does not wait while another process sets the mode."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode={mode}")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def create(engine: sa.Engine, *, where: str) -> None:
    """Create missing tables. Processes that open a new database at the same time create tables one after another."""
    with engine.begin() as connection:  # on SQLite, this statement takes the write lock
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
        metadata.create_all(connection)
        version = connection.execute(sa.select(sa.func.max(versions.c.version))).scalar()
        if version is None:
            connection.execute(sa.insert(versions).values(version=VERSION))
        elif version != VERSION:
            raise errors.OtherVersion(
                f"the history at {where}", version, VERSION, "use the version that wrote it, or give another database"
            )
