"""Stream options of a spec."""

import pytest

from springtide import errors
from springtide.domain.core import validation
from springtide.domain.spec.elastic_job import ElasticJob, FollowingWish, RoleWish
from springtide.launch.spec.resolve import online_of


def online_job_of(workers=None, servers=None, resume="", **following):
    job = ElasticJob(
        script="train.py",
        workers=workers or RoleWish(),
        servers=servers or RoleWish(),
        resume=resume,
        following=FollowingWish(**following),
    )
    return online_of(job, cores=8)


def test_workers_follow_a_stream_unless_their_count_is_fixed():
    assert online_job_of().on and online_job_of().rules.most == 8 and online_job_of().servers_follow
    assert not online_job_of(workers=RoleWish(count=3)).on
    bounded = online_job_of(workers=RoleWish(start=3, min=2, max=6))
    assert bounded.on and (bounded.rules.fewest, bounded.rules.most) == (2, 6)
    assert not online_job_of(on=False).on
    assert not online_job_of(servers=RoleWish(count=2)).servers_follow
    assert not online_job_of(servers=RoleWish(max=2)).servers_follow


def test_durations_are_parsed_with_units():
    read = [validation.parse_duration("slo_lag", text) for text in ("20m", "90s", "1.5h", "30", "250ms")]
    assert read == [1200, 90, 5400, 30, 0.25]
    assert online_job_of(slo_lag="5m").rules.slo_lag_s == 300


@pytest.mark.parametrize(
    ("following", "said"),
    [
        ({"slo_lag": "soon"}, "slo_lag soon: expected a time above 0, such as 90s"),
        ({"slo_lag": "0"}, "expected a time above 0"),
        ({"settings": {"evry": "3"}}, "no online setting named 'evry'"),
        ({"settings": {"every": "often"}}, "--online-setting every_s: got 'often', expected a number"),
        ({"settings": {"lag_price": "-1"}}, "lag_price -1: must be 0 or more"),
        ({"settings": {"late_price": "nan"}}, "late_price nan: must be 0 or more"),
        ({"settings": {"history": "nowhere.jsonl"}}, "nowhere.jsonl: no such file"),
        ({"settings": {"speedup": "0"}}, "must be above 0"),
        ({"export_every": "5m"}, "export_every 5m: export_to is missing; give the place for exports"),
        ({"metrics_port": 70000}, "metrics_port 70000: must be 0 to 65535"),
    ],
)
def test_stream_option_mistake_is_one_error_with_advice(following, said):
    with pytest.raises(errors.UserError, match=said):
        online_job_of(**following)


def test_settings_by_name_change_the_rules():
    job = online_job_of(settings={"every": "30", "start_s": "5", "forecaster": "last-day", "lag_price": "3"})
    assert (job.every_s, job.rules.start_s, job.forecaster, job.rules.lag_price) == (30, 5, "last-day", 3)


def test_resumed_run_uses_the_traffic_history_of_its_predecessor(tmp_path):
    (tmp_path / "traffic.jsonl").write_text("")
    assert online_job_of(resume=str(tmp_path)).history == str(tmp_path / "traffic.jsonl")
    assert (
        online_job_of(resume=str(tmp_path / "other")).history == online_job_of(resume="s3://bucket/run").history == ""
    )
