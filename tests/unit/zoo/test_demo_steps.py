"""How long nobody trained, from what workers note."""

from springtide.zoo import demo_steps


def test_steps_of_all_workers_count(tmp_path):
    workers = [demo_steps.StepLog(str(tmp_path), rank) for rank in range(2)]
    for _ in range(3):
        for worker in workers:
            worker.done()
    for worker in workers:
        worker.close()

    times = demo_steps.read(tmp_path)
    assert len(times) == 6 and times == sorted(times)


def test_without_a_folder_nothing_is_noted():
    demo_steps.StepLog(None, 0).done()


def test_the_longest_gap_is_that_which_reaches_into_the_span():
    times = [0.0, 1.0, 4.0, 4.5, 10.0]

    assert demo_steps.longest_gap(times, 0.0, 5.0) == 5.5
    assert demo_steps.longest_gap(times, 0.0, 4.2) == 3.0
    assert demo_steps.longest_gap([], 0.0, 4.2) == 0.0
