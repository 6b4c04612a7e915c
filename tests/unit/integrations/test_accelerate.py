"""A loop of Accelerate, alone: the program of docs/how-to/accelerate.md and what is refused."""

import pytest
import torch

from springtide import errors
from tests.unit.integrations import pages

pytestmark = [pytest.mark.extra("accelerate"), pytest.mark.filterwarnings("ignore")]

PLAIN = ("from springtide.integrations.accelerate import", "from accelerate import")
SEEDED = ("model = nn.Seq", "torch.manual_seed(3)\nmodel = nn.Seq")
STRAIGHT = ("shuffle=True", "shuffle=False")
CALL = "accelerator = Accelerator()"


def run(folder, monkeypatch, *changes):
    return pages.run("accelerate.md", folder, monkeypatch, SEEDED, STRAIGHT, *changes)


def test_program_of_the_page_trains_as_plain_accelerate_does(tmp_path, monkeypatch, capsys):
    plain = run(tmp_path, monkeypatch, PLAIN)
    said = capsys.readouterr().out
    ours = run(tmp_path, monkeypatch)
    assert capsys.readouterr().out == said and "epoch 2" in said
    assert ours["schedule"].get_last_lr() == plain["schedule"].get_last_lr() == [0.1 * 0.5**3]
    for name, weight in plain["model"].state_dict().items():
        torch.testing.assert_close(ours["model"].state_dict()[name], weight, msg=name)


def test_worker_that_sets_the_trigger_ends_the_loop(tmp_path, monkeypatch, capsys):
    run(tmp_path, monkeypatch, ("val_loss < 0.01", "epoch == 1"))
    assert capsys.readouterr().out.count("epoch") == 2


def test_batches_go_to_the_device_of_the_model(tmp_path, monkeypatch):
    from springtide.integrations.accelerate import DeviceBatches

    batches = run(tmp_path, monkeypatch)["batches"]
    on_device = DeviceBatches(batches, torch.device("meta"))
    assert len(on_device) == len(batches) == 32
    assert {part.device.type for batch in on_device for part in batch} == {"meta"}
    assert on_device.epoch == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (CALL, "accelerator = Accelerator(gradient_accumulation_steps=4)", "use a larger batch_size"),
        ("accelerator.save_model(model, ", "accelerator.save_state(", "springtide run --resume"),
        (CALL, f"{CALL}\naccelerator.prepare(optimizer)", "got 0 models, 1 optimizers and 0 DataLoaders"),
        (CALL, f"{CALL}\naccelerator.load_state('saved')", "Accelerator.load_state cannot run in a job"),
    ],
)
def test_what_a_job_cannot_follow_is_refused(tmp_path, monkeypatch, old, new, message):
    with pytest.raises(errors.BadInput, match=message):
        run(tmp_path, monkeypatch, (old, new))
