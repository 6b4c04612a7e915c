"""A lightning.Trainer with SpringtideStrategy, alone: the program of docs/how-to/lightning.md and what is refused."""

import pathlib

import pytest
import torch

from springtide import errors
from tests.unit.integrations import pages

pytestmark = [pytest.mark.extra("lightning"), pytest.mark.filterwarnings("ignore")]

STRATEGY = "    strategy=SpringtideStrategy(),  # this line, and its import\n"
OWN = "    accelerator='cpu', enable_progress_bar=False, enable_model_summary=False,\n"


def run(folder, monkeypatch, *changes):
    seeded = ("import lightning as L\n", "import lightning as L\nL.seed_everything(3)\n")
    own = () if any(old == STRATEGY for old, _ in changes) else ((STRATEGY, OWN + STRATEGY),)
    return pages.run("lightning.md", folder, monkeypatch, seeded, *changes, *own)


def test_program_of_the_page_trains_as_plain_lightning_does(tmp_path, monkeypatch):
    straight = ("shuffle=True", "shuffle=False")
    (tmp_path / "plain").mkdir()
    (tmp_path / "ours").mkdir()
    plain = run(tmp_path / "plain", monkeypatch, straight, (STRATEGY, OWN))
    ours = run(tmp_path / "ours", monkeypatch, straight)
    for name, metric in plain["trainer"].callback_metrics.items():
        torch.testing.assert_close(ours["trainer"].callback_metrics[name], metric, msg=name)
    assert ours["trainer"].global_step == plain["trainer"].global_step == 3 * 32
    assert ours["trainer"].current_epoch == 3
    [rate] = [group["lr"] for group in ours["trainer"].optimizers[0].param_groups]
    assert rate == 0.1 * 0.5**3
    assert pathlib.Path(ours["best"].best_model_path).name == pathlib.Path(plain["best"].best_model_path).name
    again = ours["Clicks"].load_from_checkpoint(ours["best"].best_model_path)
    for name, weight in plain["Clicks"].load_from_checkpoint(plain["best"].best_model_path).state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, msg=name)


def test_best_checkpoint_is_validated_after_training_as_plain_lightning_does(tmp_path, monkeypatch):
    straight = ("shuffle=True", "shuffle=False")
    again = (
        "print(best.best_model_path)",
        "[scores] = trainer.validate(dataloaders=DataLoader(val, batch_size=100), ckpt_path='best', verbose=False)",
    )
    (tmp_path / "plain").mkdir()
    plain = run(tmp_path / "plain", monkeypatch, straight, again, (STRATEGY, OWN))
    ours = run(tmp_path, monkeypatch, straight, again)
    assert ours["scores"] == pytest.approx(plain["scores"])
    assert type(ours["trainer"].lightning_module.rows) is torch.nn.EmbeddingBag


def test_metrics_of_two_parts_are_those_of_the_whole():
    import torchmetrics

    from springtide.integrations.lightning_metrics import MetricStates

    predictions, labels = torch.rand(50), torch.randint(0, 2, (50,))

    def module():
        return torch.nn.ModuleDict(
            {"mean": torchmetrics.MeanMetric(), "auc": torchmetrics.classification.BinaryAUROC(thresholds=20)}
        )

    whole, parts = module(), [module(), module()]
    states = [MetricStates(part) for part in parts]
    for model, chosen in ((whole, slice(0, 50)), (parts[0], slice(0, 20)), (parts[1], slice(20, 50))):
        model["mean"].update(predictions[chosen])
        model["auc"].update(predictions[chosen], labels[chosen])
    given = [part.changed() for part in states]
    for part, state in zip(parts, states, strict=True):
        state.put(given)
        for name, metric in whole.items():
            torch.testing.assert_close(part[name].compute(), metric.compute(), msg=name)
    assert states[0].are_small
    assert not MetricStates(torch.nn.ModuleDict({"auc": torchmetrics.classification.BinaryAUROC()})).are_small


def test_steps_in_the_module_and_a_limit_on_steps(tmp_path, monkeypatch):
    by_hand = """    def training_step(self, batch, batch_idx):
        self.automatic_optimization = False
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(nn.functional.mse_loss(self(batch[0]), batch[1]))
        optimizer.step()

    def unused(self, batch, batch_idx):
"""
    step = "    def training_step(self, batch, batch_idx):\n"
    found = run(tmp_path, monkeypatch, (step, by_hand), ("max_epochs=3", "max_epochs=-1, max_steps=40"))
    assert found["trainer"].global_step == 40


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("accumulate_grad_batches=4", r"accumulate_grad_batches=4\) cannot run in a job, expected 1: use a larger"),
        ("limit_train_batches=0.5", "a job trains all samples"),
        ("val_check_interval=0.5", "a job validates between epochs"),
        ("check_val_every_n_epoch=None", "validates between epochs"),
        ("reload_dataloaders_every_n_epochs=1", "keeps the data set"),
    ],
)
def test_options_that_a_job_cannot_follow_are_refused(tmp_path, monkeypatch, option, message):
    with pytest.raises(errors.BadInput, match=message):
        run(tmp_path, monkeypatch, ("max_epochs=3,", f"max_epochs=3, {option},"))


def test_several_training_loaders_and_a_checkpoint_to_continue_are_refused(tmp_path, monkeypatch):
    loader = "DataLoader(train, batch_size=50, shuffle=True)"
    with pytest.raises(errors.BadInput, match="a job trains one DataLoader"):
        run(tmp_path, monkeypatch, (loader, f"[{loader}, {loader}]"))
    path = run(tmp_path, monkeypatch)["best"].best_model_path
    with pytest.raises(errors.BadInput, match="springtide run --resume"):
        run(tmp_path, monkeypatch, ("batch_size=100)", f"batch_size=100), ckpt_path={path!r}, weights_only=False"))
