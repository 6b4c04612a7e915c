"""A loop over a log in one process: every record counts once, and the loop ends with the stream."""

import numpy as np
import pytest
import torch
from torch import nn

import springtide as st
from springtide import errors
from springtide.data.stream import records
from springtide.data.stream.log.layout import LogSettings
from springtide.data.stream.log.stream import create

B = 16


class Counter(nn.Module):
    """Counts ids."""

    def __init__(self, **bounds):
        super().__init__()
        self.ids = st.EmbeddingBag(1, init="zeros", **bounds)

    def forward(self, ids):
        return -self.ids(ids.unsqueeze(1)).sum()


def decode(bodies):
    return torch.tensor([int.from_bytes(body, "little") for body in bodies])


class Log:
    """A log with numbered records."""

    def __init__(self, folder, **settings):
        self.stream = create(folder / "log", LogSettings(**{"partitions": 2} | settings))
        self.writer, self.count, self.url = self.stream.writer(), 0, f"log://{folder}/log"

    def append(self, count, partition=0, at=None):
        numbers = np.arange(self.count, self.count + count, dtype="<u8")
        self.count += count
        self.writer.append(partition, numbers.tobytes(), 8 * np.arange(1, count + 1, dtype=np.int64), at=at)
        self.writer.flush()

    def seal(self):
        self.writer.close()
        self.stream.seal()


@pytest.fixture
def log(tmp_path):
    made = Log(tmp_path)
    yield made
    made.writer.close()
    made.writer = made.stream = None  # what it has mapped goes with it


def prepare_loop(log, model=None, accumulate=1, **options):
    """Model, optimizer, batches and how often each id was counted."""
    job, model = st.join(), model or Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    given = {"decode": decode, "linger_s": 0.05} | options
    model, optimizer, batches = job.prepare(
        model, optimizer, st.stream(log.url, **given), batch_size=B, accumulate=accumulate
    )

    def counts():
        state = model.state_dict()
        return dict(zip(state["ids.keys"].tolist(), state["ids.rows"][:, 0].tolist(), strict=True))

    return job, model, optimizer, batches, counts


def step(model, optimizer, batch):
    optimizer.zero_grad()
    model(batch).backward()
    optimizer.step()


def test_every_record_of_a_sealed_log_counts_once_and_the_loop_ends(log):
    log.append(100, partition=0)
    log.append(7, partition=1)
    log.seal()
    job, model, optimizer, batches, counts = prepare_loop(log)
    sizes = []
    for batch in batches:
        sizes.append(len(batch))
        step(model, optimizer, batch)
    job.finish()
    assert counts() == dict.fromkeys(range(107), 1.0)
    assert sorted(sizes) == sorted([100 % B, 7, *[B] * (100 // B)])


def test_late_records_are_trained_on_arrival_in_partial_batches(log):
    log.append(B + 3)
    job, model, optimizer, batches, counts = prepare_loop(log)
    sizes = []
    for batch in batches:
        sizes.append(len(batch))
        step(model, optimizer, batch)
        if sizes == [B, 3]:  # the three have waited long enough
            log.append(5, partition=1)
        elif sizes == [B, 3, 5]:
            log.append(2)
            log.seal()
    assert sizes == [B, 3, 5, 2]
    assert counts() == dict.fromkeys(range(log.count), 1.0)
    job.finish()
    assert job._link.reports.latest.stream.records == log.count
    assert job._link.reports.latest.stream.lag_p99_s < 60


def test_until_now_ends_at_the_stream_end_of_job_start(log):
    log.append(40)
    _, model, optimizer, batches, counts = prepare_loop(log, until="now")
    for batch in batches:
        log.append(1)
        step(model, optimizer, batch)
    assert counts() == dict.fromkeys(range(40), 1.0)


def test_stream_loop_resumes_after_break(log):
    log.append(4 * B)
    log.seal()
    _, model, optimizer, batches, counts = prepare_loop(log)
    for batch in batches:
        step(model, optimizer, batch)
        break
    assert counts() == dict.fromkeys(range(B), 1.0)
    for batch in batches:
        step(model, optimizer, batch)
    assert counts() == dict.fromkeys(range(4 * B), 1.0)


def test_accumulated_stream_batches_survive_a_wait_for_records(log, monkeypatch):
    log.append(B)
    _, model, optimizer, batches, counts = prepare_loop(log)
    rest, rests = batches._step.rest, []

    def resting():
        rest()
        rests.append(log.count)
        if len(rests) == 3:
            log.append(B)  # the loop has waited for it with a batch in hand

    monkeypatch.setattr(batches._step, "rest", resting)
    optimizer.zero_grad()
    for handed, batch in enumerate(batches):
        model(batch).backward()
        if handed == 0:
            rests.clear()
        else:
            optimizer.step()
            log.seal()
    assert counts() == dict.fromkeys(range(2 * B), 1.0)


def test_untrainable_records_are_set_aside_and_the_others_trained(log, tmp_path, caplog):
    log.append(B - 4)
    ends = np.array([3, 3 + 100, 3 + 100 + 8, 3 + 100 + 16], dtype=np.int64)
    log.writer.append(0, bytes(3) + bytes(100) + (7001).to_bytes(8, "little") + (7002).to_bytes(8, "little"), ends)
    log.writer.append(0, b"abc" * B, np.arange(3, 3 * B + 1, 3))  # a batch of nothing but those
    log.seal()

    def strict(bodies):
        assert all(len(body) == 8 for body in bodies)
        return decode(bodies)

    options = {"decode": strict, "max_record_bytes": 50, "dead_letters": str(tmp_path / "dead")}
    job, model, optimizer, batches, counts = prepare_loop(log, **options)
    for batch in batches:
        step(model, optimizer, batch)
    job.finish()
    assert job._wired.step.count == 2, "the batch of which nothing is left is named to the servers too"
    assert counts() == dict.fromkeys([*range(B - 4), 7001, 7002], 1.0)
    use = job._link.reports.latest.stream
    assert (use.corrupt, use.oversized, use.late, use.records) == (1 + B, 1, 0, B - 2), "what is trained, no more"
    [letters] = (tmp_path / "dead").iterdir()
    assert len(letters.read_text().splitlines()) == 2 + B
    assert caplog.text.count("only counted") == 2, "once a kind"


def test_row_expiry_follows_the_streams_event_time(log):
    for number in range(60):
        at = [1_000_000.0 + 10 * number] * B
        if number == 30:
            at[3] = 9e9  # one that claims to come from the future
        bodies = records.seal([int(log.count + i).to_bytes(8, "little") for i in range(B)], at)
        log.count += B
        log.writer.append(0, b"".join(bodies), np.cumsum([len(body) for body in bodies], dtype=np.int64))
    log.seal()
    _, model, optimizer, batches, counts = prepare_loop(log, Counter(ttl=100))
    most = 0
    for batch in batches:
        step(model, optimizer, batch)
        most = max(most, len(counts()))
    assert most <= 12 * B, "ids of the last hundred seconds, ten of which are a batch"
    assert counts().keys() <= set(range(log.count - 12 * B, log.count)) and len(counts()) >= 10 * B


def test_records_deleted_by_retention_before_reading_are_counted(tmp_path, caplog):
    log = Log(tmp_path, partitions=1, segment_bytes=8 * 50, retain_bytes=8 * 200)
    log.append(60)
    job, model, optimizer, batches, counts = prepare_loop(log)
    for batch in batches:
        step(model, optimizer, batch)
        break
    for _ in range(20):
        log.append(50)  # the loop does not look: most of it is gone when it does
    kept = log.stream.bounds()[0].start
    assert kept > 500
    log.seal()
    for batch in batches:
        step(model, optimizer, batch)
    job.finish()
    assert counts() == dict.fromkeys([*range(B), *range(kept, log.count)], 1.0)
    assert job._link.reports.latest.stream.expired == kept - B
    assert "deleted by the stream's retention" in caplog.text


def test_jumping_clock_affects_only_the_reported_lag(log):
    for number in range(12):
        log.append(B, partition=number % 2, at=[1e9, 4e9, 2e9][number % 3])
    log.seal()
    job, model, optimizer, batches, counts = prepare_loop(log)
    for batch in batches:
        step(model, optimizer, batch)
    job.finish()
    assert counts() == dict.fromkeys(range(log.count), 1.0)
    assert job._link.reports.latest.stream.records == log.count and job._link.reports.latest.stream.lag_p50_s >= 0.0


def test_torn_batch_is_dropped_unless_this_worker_holds_its_lease(log):
    log.append(2 * B)
    log.seal()
    job, *_, batches, _ = prepare_loop(log)
    step_of = batches._step
    for _ in batches:
        claims = list(step_of._batches.claims)
        assert not step_of._context.listener.on_torn(claims), "it is ours: that cannot be"
        job._link.leases.tracker.apply_changes([(claims[0].shard, claims[0].first)], ())
        assert step_of._context.listener.on_torn(claims)
        break


def test_stream_reader_error_ends_the_loop(log, monkeypatch):
    from springtide.data.stream.log.reader import LogReader

    def broken(*_):
        raise errors.BadInput("the log is broken")

    monkeypatch.setattr(LogReader, "poll", broken)
    log.append(B)
    *_, batches, _ = prepare_loop(log)
    with pytest.raises(errors.BadInput, match="the log is broken"):
        next(iter(batches))


@pytest.mark.parametrize(
    "given, said",
    [({"epochs": 2}, "epochs=2"), ({"scaling": "global_batch"}, "global_batch")],
)
def test_unsupported_stream_options_are_refused(log, given, said, served_job):
    job, model = served_job(), Counter()
    with pytest.raises(errors.BadInput, match=said):
        job.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), st.stream(log.url), **given)


def test_accumulated_stream_parts_train_every_record_once(log):
    log.append(100, partition=0)
    log.append(7, partition=1)
    log.seal()
    job, model, optimizer, batches, counts = prepare_loop(log, accumulate=3)
    sizes, steps = [], 0
    for batch in batches:
        model(batch).backward()
        sizes.append(len(batch))
        if batches.completes_step:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    job.finish()
    assert counts() == dict.fromkeys(range(107), 1.0)
    assert sorted(sizes) == sorted([100 % B, 7, *[B] * (100 // B)])
    assert steps == 3 + 1  # of 48, 48 and 4 records; of 7
