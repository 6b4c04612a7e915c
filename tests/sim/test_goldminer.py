"""`springtide reproduce goldminer`: the virtual cluster loses no job and no core, and its rows hold."""

import json
from dataclasses import replace

import pytest

from springtide.cli import app
from springtide_lab.reproduce.goldminer import cluster, jobs, reproduction, rows, systems
from springtide_lab.reproduce.goldminer.cluster import walk
from springtide_lab.reproduce.goldminer.systems import Host

SMALL = jobs.TracePreset(jobs=24, period_min=60.0, mean_min=60.0, machines=2)
"""Two machines, so that drawn are in each other's way."""


@pytest.fixture(scope="module")
def figures_by_system():
    return rows.results(SMALL, [0, 1])


@pytest.mark.parametrize("system", systems.SYSTEMS, ids=lambda system: system.key)
def test_every_job_is_trained_to_its_end_within_machine_capacity(system):
    drawn = [job for job in jobs.draw(SMALL, 3) if job.gpus == 1]
    story = cluster.run(drawn, system, SMALL, 3)
    assert sorted(one.job.name for one in story.ends) == [job.name for job in drawn]
    for one in story.ends:
        assert one.queued >= 0 and one.ended - one.started >= one.job.minutes * (1 - 1e-6), "faster than its ideal"
    for moment in story.moments:
        assert -1e-9 <= moment.gpus <= 1 + 1e-9 and -1e-9 <= moment.cpus <= 1 + 1e-9
    assert story.moments[-1].gpus == pytest.approx(0) and story.moments[-1].cpus == pytest.approx(0)


def test_no_system_beats_the_lower_bound(figures_by_system):
    for place, seed in enumerate((0, 1)):
        drawn = jobs.draw(SMALL, seed)
        least = rows.least_jct(drawn, SMALL)
        assert sum(job.minutes for job in drawn) / len(drawn) <= least
        assert all(least <= figures[place].jct for figures in figures_by_system.values())


def test_unobstructed_jobs_cannot_beat_their_ideal_time():
    drawn = [replace(job, at=0.0) for job in jobs.draw(SMALL, 2) if job.gpus == 1][:2]
    ideal = sum(job.minutes for job in drawn) / len(drawn)
    assert rows.least_jct(drawn, SMALL) == pytest.approx(ideal, rel=1e-6)
    few = replace(SMALL, machines=1, cpus=int(drawn[0].model.ratio / 2) + 1)
    assert rows.least_jct(drawn[:1], few) > 1.3 * drawn[0].minutes, "half the cores"


def test_parallel_seeds_match_single_runs(figures_by_system):
    drawn = jobs.draw(SMALL, 1)
    for system in (systems.TUNED, systems.FIXED):
        alone = cluster.figures(cluster.run(drawn, system, SMALL, 1), SMALL.measured_min)
        assert figures_by_system[system][1] == alone


def test_same_seed_gives_the_same_trace_and_another_differs():
    drawn = jobs.draw(SMALL, 1)
    assert drawn == jobs.draw(SMALL, 1) != jobs.draw(SMALL, 2)
    once, again = (cluster.figures(cluster.run(drawn, systems.SRTF, SMALL, 1), 500) for _ in range(2))
    assert once == again


def test_trace_is_half_of_each_class_with_the_papers_mean():
    drawn = jobs.draw(jobs.TracePreset(), 0)
    assert len(drawn) == jobs.JOBS and abs(sum(job.model.intensive for job in drawn) - len(drawn) / 2) <= 1
    assert sum(job.minutes for job in drawn) / len(drawn) == pytest.approx(202)
    assert {job.gpus for job in drawn} <= {1, 2, 4, 8} and all(0 <= job.at <= 480 for job in drawn)
    assert [job.at for job in drawn] == sorted(job.at for job in drawn)


def test_every_choice_of_ratios_matches_the_papers_text():
    for choice in jobs.CHOICES:
        known = jobs.models(choice)
        assert known["Bert"].ratio <= 8 < min(one.ratio for one in known.values() if one.name != "Bert")
        assert max(one.ratio for one in known.values()) == 64 and 19 < known["ResNet18"].ratio <= 27
        assert all((one.ratio > 12) is one.intensive is jobs.MODELS[name].intensive for name, one in known.items())


def test_fixed_data_workers_have_exactly_the_useful_cores():
    for model in jobs.MODELS.values():
        assert model.fed(model.enough) == model.capable > model.fed(model.enough - 1), model.name


def test_alternative_ratios_use_matching_job_counts():
    changed = {
        rows.VARIANTS[name](jobs.TracePreset()).ratios: rows.VARIANTS[name](jobs.TracePreset())
        for name in rows.VARIANTS
    }
    assert set(changed) == set(jobs.CHOICES) == set(rows.AS_MANY)
    assert [changed[one].jobs for one in ("three full", "mean 22.5", "in order", "highest")] == [110, 102, 80, 70]


def test_trainers_are_packed_into_the_fullest_machine_that_holds_them():
    hosts = [Host("a", 8, 64.0), Host("b", 8, 64.0)]
    systems.take(hosts[1], 4, 32.0)
    assert systems.pack(hosts, 4, 8.0) == [hosts[1]] * 4
    assert systems.pack(hosts, 4, 9.0) == [hosts[0]] * 4  # 32 cores hold three of nine
    assert systems.pack(hosts, 12, 8.0) == [hosts[0]] * 8 + [hosts[1]] * 4
    assert systems.pack(hosts, 2, 64.0) is None


def test_first_waiting_job_blocks_later_ones():
    wide = jobs.Job(name="wide", at=0.0, gpus=1, minutes=10.0, model=jobs.MODELS["WDL"])
    drawn = [wide, *(jobs.Job(name=f"next-{at}", at=float(at), gpus=1, minutes=1.0, model=wide.model) for at in (1, 2))]
    one_machine = jobs.TracePreset(machines=1)
    ends = {end.job.name: end for end in cluster.run(drawn, systems.TUNED, one_machine).ends}
    assert [ends[name].started for name in ("wide", "next-1", "next-2")] == pytest.approx([0, 10, 11])
    fed = cluster.run(drawn, systems.SRTF, one_machine)
    assert all(end.queued == 0 for end in fed.ends), "data workers keep no trainer out"


def test_walk_of_resnet18_matches_the_papers_figure():
    path = walk(jobs.MODELS["ResNet18"])
    sizes = [one.data_worker_cpu for one in path.stands if one.data_workers == 1]
    assert sizes == [1, 2, 3, 4, 5, 6, 7, 8], "the first data worker grows while it is linear"
    assert path.end.data_worker_cpu == 8 and path.end.data_workers in (3, 4) and path.end.trainer_cpu == 3
    assert min(one.trainer_cpu for one in path.stands) == 2, "tried, and one step back"
    assert path.end.speed == pytest.approx(0.937)


def test_rows_hold_every_figure_or_a_reason(figures_by_system, tmp_path):
    all_rows = [
        *rows.table_5(figures_by_system),
        *rows.bounds(SMALL, figures_by_system, [0, 1]),
        *rows.use(figures_by_system),
        *rows.of_one_job(tmp_path),
    ]
    assert all(one.ours is not None or one.why for one in all_rows)
    by = {one.what: one for one in all_rows}
    assert by["No DW (HW C/G): fragmentation"].ours == 0
    assert by["No DW (tuned C/G): JCT, min"].paper == 540
    assert by["DeepFM: cost saved, 4 extra CPU machines"].ours == pytest.approx(0.88, abs=0.001)
    for one in rows.table_5(figures_by_system):
        gains = one.what.endswith("gain over No DW (tuned)")
        assert not gains or one.ours <= by["JCT gain over No DW (tuned), at most"].spread[1]


def test_core_shortage_is_shown_beside_the_bound():
    drawn = jobs.draw(SMALL, 0)
    runs = {system: cluster.run(drawn, system, SMALL, 0) for system in (systems.TUNED, systems.SRTF)}
    found = {system: [cluster.figures(story, SMALL.measured_min)] for system, story in runs.items()}
    most, least, feasible, near, short = rows.bounds(SMALL, found, [0])
    assert feasible.ours <= most.ours and near.ours <= 1 and least.ours <= found[systems.SRTF][0].jct
    work = sum(job.minutes * job.gpus * job.model.ratio for job in drawn)
    assert short.ours == pytest.approx(work / (SMALL.machines * SMALL.cpus * SMALL.period_min), rel=1e-3)


def test_published_bench_result_becomes_a_row(tmp_path):
    goal = {"id": "vs_dataset_split", "value": 1.5, "target": 1.4, "better": "higher"}
    published = {"quick": False, "date": "2026-11-16", "goals": [goal], "details": {"trainer_cpu": 0.5}}
    (tmp_path / "dataworkers.json").write_text(json.dumps(published))
    (tmp_path / "dataworkers-walk.json").write_text(json.dumps(published))
    fused = {**published, "goals": [], "details": {"fused_vs_singly": {"half a core": 1.4}}}
    (tmp_path / "transfer.json").write_text(json.dumps(fused))
    by = {one.what: one for one in rows.of_one_job(tmp_path)}
    assert by["over a split at the data set's end"].met and "2026-11-16" in by["over a split at the data set's end"].why
    assert by["real processes: cores of the trainer at the end"].ours == 0.5
    assert by["fused messages over one a tensor, half a core for the trainer"].ours == 1.4


def test_real_trace_can_be_given(tmp_path):
    lines = [
        f"2017-10-09 {hour:02}:{minute:02}:00,{1200 + 60 * minute},1"
        for hour in range(8)
        for minute in range(0, 60, 10)
    ]
    (tmp_path / "jobs.csv").write_text("timestamp,duration,num_gpus\n" + "\n".join(lines))
    drawn = jobs.draw(jobs.TracePreset(jobs=12, trace=str(tmp_path / "jobs.csv")), 0)
    assert len(drawn) == 12 and sum(job.minutes for job in drawn) / 12 == pytest.approx(202)


def test_options_of_other_papers_and_invalid_files_are_refused(tmp_path, capsys):
    assert app.main(["reproduce", "herald", "--trace", "jobs.csv"]) == 2
    assert "springtide reproduce goldminer" in capsys.readouterr().err
    assert app.main(["reproduce", "goldminer", "--metric", "sjf"]) == 2
    assert "no data worker metric named 'sjf'" in capsys.readouterr().err
    assert app.main(["reproduce", "goldminer", "--trace", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert app.main(["reproduce", "goldminer", "--trace", str(tmp_path / "other.csv")]) == 2
    assert "timestamp, duration and num_gpus" in capsys.readouterr().err
    (tmp_path / "few.csv").write_text("timestamp,duration,num_gpus\n2017-10-09 07:01:55,3000,1\n")
    assert app.main(["reproduce", "goldminer", "--trace", str(tmp_path / "few.csv")]) == 2
    assert "--jobs" in capsys.readouterr().err


def test_tiny_version_prints_and_draws(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "VARIANTS", {"same": lambda preset: preset})
    own = "springtide.planning.dataworkers.allocation:srtf"
    command = ["reproduce", "goldminer", "--quick", "--jobs", "12", "--json", "--out", str(tmp_path), "--metric", own]
    assert app.main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    said = json.loads(lines[-1])
    assert said["reproduction"] == "goldminer" and said["jobs"] == 12 and said["quick"]
    keys = {"figure", "what", "paper", "ours", "goal", "met", "seeds", "spread"}
    assert all(keys <= set(one) for one in said["rows"])
    ours = {one["what"]: one["ours"] for one in said["rows"]}
    assert ours[f"{own}: JCT, min"] == ours["SRTF: JCT, min"]
    for name in ("002-fig-13", "002-fig-14", "002-table-5"):
        assert (tmp_path / f"goldminer-{name}.png").stat().st_size > 1000
    assert reproduction.VARIED_SEEDS >= 3
