"""A transformers.Trainer, alone: the program of docs/how-to/transformers.md and what is refused."""

import pathlib

import pytest
import torch

from springtide import errors
from tests.unit.integrations import pages

pytestmark = [pytest.mark.extra("transformers"), pytest.mark.filterwarnings("ignore")]

PLAIN = ("from springtide.integrations.transformers import", "from transformers import")
SEEDED = ("trainer = Trainer(", "torch.manual_seed(3)\ntrainer = Trainer(")
OWN = (
    '    optim="adagrad",\n',
    '    optim="adagrad", train_sampling_strategy="sequential", use_cpu=True, disable_tqdm=True, report_to="none",\n'
    '    logging_strategy="no",\n',
)


def run(folder, monkeypatch, *changes):
    import tqdm

    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # it would begin a thread that never ends
    folder.mkdir(exist_ok=True)
    return pages.run("transformers.md", folder, monkeypatch, SEEDED, OWN, *changes)


def evaluations(trainer):
    return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


def test_program_of_the_page_trains_as_the_plain_trainer_does(tmp_path, monkeypatch):
    plain = run(tmp_path / "plain", monkeypatch, PLAIN)["trainer"]
    variables = run(tmp_path / "ours", monkeypatch)
    ours = variables["trainer"]
    assert evaluations(ours) == pytest.approx(evaluations(plain), rel=1e-5)
    assert len(evaluations(ours)) == 3
    assert ours.state.global_step == plain.state.global_step == 3 * 32
    assert ours.state.epoch == plain.state.epoch == 3.0
    assert ours.state.best_model_checkpoint == plain.state.best_model_checkpoint
    assert ours.lr_scheduler.get_last_lr() == plain.lr_scheduler.get_last_lr()
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], weight, msg=name)
    from safetensors.torch import load_file

    best = load_file(pathlib.Path(tmp_path, "ours", ours.state.best_model_checkpoint, "model.safetensors"))
    variables["Clicks"]().load_state_dict(best)


def test_accumulated_gradients_and_the_best_model_are_those_of_the_plain_trainer(tmp_path, monkeypatch):
    changes = [
        ('    "out",\n', '    "out", gradient_accumulation_steps=4, load_best_model_at_end=True,\n'),
        ("per_device_train_batch_size=50", "per_device_train_batch_size=12"),
        ('"eval_loss",', '"eval_loss", greater_is_better=True,'),  # the first epoch is the best
        ("data[:1600]", "data[:1450]"),  # the last batch has 10 samples, in one part instead of four
    ]
    plain = run(tmp_path / "plain", monkeypatch, PLAIN, *changes)["trainer"]
    ours = run(tmp_path / "ours", monkeypatch, *changes)["trainer"]
    assert evaluations(ours) == pytest.approx(evaluations(plain), rel=1e-4)
    assert ours.state.global_step == plain.state.global_step == 3 * 31
    assert ours.state.best_model_checkpoint == plain.state.best_model_checkpoint == "out/checkpoint-31"
    assert type(ours.model.rows) is torch.nn.EmbeddingBag
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], weight, msg=name)
    assert ours.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], rel=1e-4)


@pytest.mark.soak
def test_model_of_transformers_is_trained_saved_and_read_again(tmp_path, monkeypatch):
    bert = """BertForSequenceClassification(BertConfig(
        vocab_size=1000, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    ))"""
    changes = [
        (
            "from torch import nn",
            "from torch import nn\nfrom transformers import BertConfig, BertForSequenceClassification",
        ),
        ("    Clicks(), args", f"    {bert}, args"),
        ('"ids": row, "labels": label', '"input_ids": row, "labels": (label > 0.5).long()'),
        ("num_train_epochs=3", "num_train_epochs=1"),
        ("data[:1600]", "data[:200]"),
    ]
    plain = run(tmp_path / "plain", monkeypatch, PLAIN, *changes)["trainer"]
    ours = run(tmp_path / "ours", monkeypatch, *changes)["trainer"]
    assert evaluations(ours) == pytest.approx(evaluations(plain), rel=1e-4)
    folder = tmp_path / "ours" / ours.state.best_model_checkpoint
    again = type(ours.model).from_pretrained(folder)
    for name, weight in ours.model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], weight, msg=name)


def test_subclass_with_its_own_loss_is_trained_and_its_schedule_follows_the_epoch(tmp_path, monkeypatch):
    own = """
class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **_):
        output = model(**inputs)
        loss = 2 * output["loss"]
        return (loss, output) if return_outputs else loss


torch.manual_seed(3)
trainer = Own("""
    changes = ("torch.manual_seed(3)\ntrainer = Trainer(", own), ("num_train_epochs=3", "num_train_epochs=1")
    trainer = run(tmp_path, monkeypatch, *changes)["trainer"]
    assert trainer.state.global_step == 32
    for taken, step in ((50, 31), (3, 3)):  # of a fast worker, and of one that begins the epoch again
        trainer._batches._keep_pace(taken)
        assert trainer.lr_scheduler.last_epoch == step
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * (1 - step / 32))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("max_steps=10,", "use num_train_epochs and fewer samples"),
        ("num_train_epochs=0.5,", "use a whole number"),
        ("auto_find_batch_size=True,", "choose per_device_train_batch_size"),
    ],
)
def test_arguments_that_a_job_cannot_follow_are_refused(tmp_path, monkeypatch, option, message):
    changed = [("    num_train_epochs=3,\n", "")] if option.startswith("num_train") else []
    with pytest.raises(errors.BadInput, match=message):
        run(tmp_path, monkeypatch, *changed, ('    "out",\n', f'    "out", {option}\n'))


def test_evaluation_in_an_epoch_and_a_checkpoint_to_continue_are_refused(tmp_path, monkeypatch):
    with pytest.raises(errors.BadInput, match="a job evaluates between epochs"):
        run(tmp_path, monkeypatch, ('eval_strategy="epoch"', 'eval_strategy="steps", eval_steps=5'))
    with pytest.raises(errors.BadInput, match="springtide run --resume"):
        run(tmp_path, monkeypatch, ("trainer.train()", "trainer.train(resume_from_checkpoint=True)"))
