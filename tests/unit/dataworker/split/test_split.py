"""A split forward equals the user's bit for bit; recording it changes nothing."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from springtide.dataworker.split.program.moved_program import this_machine
from springtide.dataworker.split.recorder import pytree
from springtide.dataworker.split.recorder.bit_compare import same
from springtide.dataworker.split.split import Split, Unsplit
from springtide_lab.bench.dataworkers import text_clicks
from tests.unit.dataworker import programs_to_split
from tests.unit.dataworker.programs_to_split import batch
from tests.unit.dataworker.recorded import answered, sent, splitting

CALLS = [batch(64, 1), batch(64, 2), batch(17, 3)]


def moved_operations(divided):
    return {name for group in divided.explanation.moved for name in group.operations}


def stayed_operations(divided):
    return {name for group in divided.explanation.stayed for name in group.operations}


def visible_state(model):
    """All user-visible state of a model by name: tensors as (object, copy), other values as they are."""
    found = {}
    for path, part in model.named_modules():
        found |= {f"{path} {name}": value for name, value in vars(part).items() if not isinstance(value, dict)}
        for name, one in (*part._parameters.items(), *part._buffers.items()):
            found[f"{path} {name} is"] = one
            found[f"{path} {name} grad"] = None if one is None else one.grad
    return found


def train_with(model, forward):
    """The model's state after some steps of Adam, and all that forward gave."""
    torch.manual_seed(11)
    optimizer, given = torch.optim.Adam(model.parameters(), lr=0.05), []
    for step in range(6):
        optimizer.zero_grad()
        made = forward(batch(20 + step, step))
        made["loss"].backward()
        optimizer.step()
        given += [made["loss"].detach(), made["score"].detach()]
    return [*given, *model.state_dict().values()]


def trains_alike(model, divided, *, complete=True):
    own, ours = copy.deepcopy(model), copy.deepcopy(model)
    wanted = train_with(own, lambda call: own(*call[0], **call[1]))
    done = []

    def forward(call):
        made, answers = answered(divided, ours.forward, call)
        done.append(answers.complete)
        return made

    given = train_with(ours, forward)
    return all(map(same, given, wanted)) and (all(done) or not complete)


@pytest.fixture(scope="module")
def crosses():
    torch.manual_seed(5)
    model = programs_to_split.Crosses().train()
    before = visible_state(model)
    divided = splitting(model, CALLS)
    return model, divided, before, visible_state(model)


def test_recording_leaves_the_model_unchanged(crosses):
    _, _, before, after = crosses
    assert before.keys() == after.keys() and all(
        was is after[name] or was == after[name] for name, was in before.items()
    )


def test_hashes_crosses_buckets_and_unique_move_out_of_the_middle_of_a_module(crosses):
    _, divided, *_ = crosses
    assert isinstance(divided, Split), divided.explanation.text()
    assert {"remainder", "bucketize", "unique", "cat", "setitem", "log1p"} <= moved_operations(divided)
    assert {"linear", "dropout", "batch_norm", "embedding", "embedding_bag"} <= stayed_operations(divided)
    assert divided.explanation.recorded == 3 and divided.explanation.compared == 4
    assert divided.needs == {2}, "labels alone are still read"


@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 65, 333])
def test_split_gives_the_same_bits_for_any_batch_size(crosses, size):
    model, divided, *_ = crosses
    own, call = copy.deepcopy(model).eval(), batch(size, 7)
    model.eval()
    try:
        wanted = own(*call[0], **call[1])
        given, answers = answered(divided, model.forward, call)
    finally:
        model.train()
    assert answers.complete and same(wanted["score"], given["score"]) and same(wanted["loss"], given["loss"])


def test_adam_steps_end_with_the_same_parameters_and_buffers(crosses):
    assert trains_alike(*crosses[:2])


@pytest.mark.parametrize(
    "kind", [programs_to_split.Branches, programs_to_split.Counting, programs_to_split.Arrays, programs_to_split.OneHot]
)
def test_start_of_forward_moves_for_any_middle(kind):
    torch.manual_seed(5)
    model = kind().train()
    divided = splitting(model, CALLS)
    assert isinstance(divided, Split), divided.explanation.text()
    assert {"mul", "add", "remainder"} <= moved_operations(divided)
    assert trains_alike(model, divided)


def test_number_that_forward_branches_on_is_sent():
    model = programs_to_split.Branches().train()
    divided = splitting(model, CALLS)
    assert "item" in moved_operations(divided) and isinstance(sent(divided, batch(9))[-1], int)
    assert [group.text for group in divided.explanation.stayed if group.why.startswith("its arguments")] == [
        "hashed = hashed % 800"
    ]


def test_batch_of_another_kind_is_refused_by_the_stage(crosses):
    _, divided, *_ = crosses
    (ids, dense), kwargs = batch(8)
    run = divided.stages[0].run
    assert run([ids.int(), dense, kwargs["label"]]) is None and "torch.int32" in run.why
    assert run([ids[:, 0], dense, kwargs["label"]]) is None
    assert run([ids, dense.requires_grad_(), kwargs["label"]]) is None and "requires grad" in run.why
    assert run([ids, dense.detach(), kwargs["label"]]) is not None


def test_machine_that_may_round_differently_refuses_the_program(crosses):
    _, divided, *_ = crosses
    run = copy.copy(divided.stages[0].run)
    run.machine = "another"
    assert run(pytree.flatten(batch(8))[0]) is None and "may round differently" in run.why


def test_cpu_stage_of_a_gpu_trainer_runs_without_a_gpu(monkeypatch):
    this_machine.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with monkeypatch.context() as trainer:
        trainer.setattr(torch.cuda, "is_initialized", lambda: True)
        trainer.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
        divided = splitting(programs_to_split.Crosses().train(), [batch(64), batch(64, 1)])
        on_gpu = dataclasses.replace(divided.stages[0].run, machine=this_machine(gpu=True), on_gpu=True)
    this_machine.cache_clear()
    leaves = pytree.flatten(batch(8))[0]
    assert divided.stages[0].run.machine and divided.stages[0].run(leaves) is not None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    assert on_gpu(leaves) is None and "NVIDIA A100" in on_gpu.why, "another GPU may round differently"
    this_machine.cache_clear()


def test_result_cheaper_to_compute_than_to_send_stays():
    divided = splitting(programs_to_split.OneHot().train(), [batch(512, 1), batch(512, 2)])
    assert isinstance(divided, Split)
    assert divided.explanation.cut_bytes < 3 * divided.explanation.raw_bytes < 512 * 1000 * 4
    reasons = {group.why for group in divided.explanation.stayed if "one_hot" in group.operations}
    assert len(reasons) == 1 and "cheaper to compute than to send" in reasons.pop()
    assert "minimum cut" in divided.explanation.why


class Uniques(programs_to_split.Base):
    def forward(self, ids, dense, *, label):
        unique, inverse = torch.unique(ids % 1000, return_inverse=True)
        return self.score(self.table((unique * 31 % 1000)[inverse]), dense, label)


def test_moved_calls_are_grouped_into_device_stages_equally_on_all_workers(monkeypatch):
    torch.manual_seed(5)
    model = Uniques().train()
    all_on_the_cpu = splitting(model, [batch(32, 1), batch(32, 2)])
    monkeypatch.setattr(
        "springtide.dataworker.split.split.device_of", lambda call: "cuda" if call.name == "torch.unique" else "cpu"
    )
    divided = splitting(model, [batch(32, 1), batch(32, 2)])
    assert isinstance(divided, Split), divided.explanation.text()
    assert [stage.device for stage in divided.stages] == ["cpu", "cuda", "cpu"]
    assert trains_alike(model, divided)
    again = splitting(model, [batch(32, 21), batch(32, 22), batch(32, 23)])
    assert again.digest == divided.digest != all_on_the_cpu.digest


class Summing(programs_to_split.Base):
    def forward(self, ids, dense, *, label):
        rows = self.table(ids * 3 % 1000)
        return self.score(rows, torch.exp(dense) / torch.exp(dense).sum(), label)


def test_moved_sums_use_the_trainers_thread_count():
    model = Summing().train()
    divided = splitting(model, [batch(64, 1), batch(64, 2)])
    assert "sum" in moved_operations(divided) and divided.threads == torch.get_num_threads()
    assert splitting(Uniques().train(), [batch(64, 1), batch(64, 2)]).threads == 0


class Product(programs_to_split.Base):
    def forward(self, ids, dense, *, label):
        return self.score(self.table(ids * 3 % 1000), dense @ torch.ones(3, 3), label)


def test_matrix_products_stay_because_they_depend_on_the_machine():
    divided = splitting(Product().train(), [batch(64, 1), batch(64, 2)])
    (why,) = [group.why for group in divided.explanation.stayed if "matmul" in group.operations]
    assert "matrix product" in why and "remainder" in moved_operations(divided)


class Drawing(programs_to_split.Base):
    def forward(self, ids, dense, *, label):
        noisy = (dense + torch.rand_like(dense)) * 2
        return self.score(self.table(ids * 3 % 1000), noisy, label)


def test_random_draws_and_their_results_stay():
    model = Drawing().train()
    divided = splitting(model, [batch(64, 1), batch(64, 2)])
    reasons = {group.why for group in divided.explanation.stayed if "rand_like" in group.operations}
    assert reasons == {"it draws random numbers"} and moved_operations(divided) == {"mul", "remainder"}
    assert trains_alike(model, divided)


class Large(programs_to_split.Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.arange(1 << 18))

    def forward(self, ids, dense, *, label):
        return self.score(self.table(self.rows[ids % (1 << 18)] % 1000), dense, label)


def test_large_constant_keeps_its_readers_with_the_trainer():
    divided = splitting(Large().train(), [batch(64, 1), batch(64, 2)])
    (why,) = [group.why for group in divided.explanation.stayed if "getitem" in group.operations]
    assert "buffer rows, which is too large" in why


class Writing(programs_to_split.Base):
    def forward(self, ids, dense, *, label):
        _, before = torch.unique(ids * 3 % 1000, return_inverse=True)
        ids.add_(1)
        return self.score(self.table((ids + before) % 1000), dense, label)


def test_calls_after_an_in_place_write_to_an_input_stay():
    model = Writing().train()
    divided = splitting(model, [batch(64, 1), batch(64, 2)])
    assert isinstance(divided, Split) and moved_operations(divided) == {"mul", "remainder", "unique"}


def test_zoo_model_is_split_like_a_user_model():
    drawn = text_clicks.TextClicks(64)
    model = text_clicks.TextModel(8)
    calls = [(text_clicks.collate([drawn[at] for at in range(first, first + 8)])[:2], {}) for first in (0, 8, 16)]
    assert {"bucketize", "unique", "remainder"} <= moved_operations(splitting(model, calls))


def test_model_without_stateless_calls_says_so_with_its_line():
    calls = [((torch.ones(4, 3),), {}), ((torch.ones(2, 3),), {})]
    refused = splitting(nn.Linear(3, 1), calls)
    assert isinstance(refused, Unsplit) and "nothing can move: linear" in refused.explanation.why


def test_split_explanation_names_each_guard_in_80_columns(crosses):
    _, divided, *_ = crosses
    told = divided.explanation.text()
    assert max(map(len, told.splitlines())) <= 80
    for words in (
        "Moves to data workers:",
        "Stays with the trainer:",
        "Sent:",
        "Time:",
        "Guards,",
        "edges (36",
    ):
        assert words in told
    assert "programs_to_split.py:36: arguments 2654435761, 17, 1000" in told
    assert "a change of any bit" in told and "a write of the loop to its batch" in " ".join(told.split())
    plain = divided.explanation.to_json()
    assert any(guard["what"].startswith("arguments 5, 0") for guard in plain["guards"])
    assert all(guard["breaks"] for guard in plain["guards"]) and 0 <= plain["moved_share"] <= 1
