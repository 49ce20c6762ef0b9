from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import optimizer as torch_optimizer

from holdfast.checkpoint.track.tracker import Tracker
from holdfast.checkpoint.training.tables import find_tables
from holdfast.errors import ConfigurationError, HoldfastWarning, ModelMismatch
from holdfast.types import Kind, Since
from tests.checkpoint.track.tracker_cases import CASES, Case
from tests.checkpoint.track.tracker_checks import Run, prove_no_row_is_missed, touched

quiet = pytest.mark.filterwarnings("ignore::holdfast.errors.HoldfastWarning", "ignore:Sparse invariant checks")


@quiet
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_changed_row_or_slot_is_missed(case: Case) -> None:
    prove_no_row_is_missed(Run(case))


class Setting:
    """One table of 100 rows under a tracker, already saved once as a baseline."""

    def __init__(self, optimizer=torch.optim.SGD, *, saved: bool = True, **options) -> None:
        options = {"lr": 0.1, **options}
        self.module = nn.Embedding(100, 4, sparse=optimizer is torch.optim.SparseAdam)
        self.model = nn.Sequential(self.module)
        self.optimizer = optimizer(self.model.parameters(), **options)
        (self.table,) = find_tables({"": self.model}, [self.optimizer])
        self.tracker = Tracker([self.table], [self.optimizer])
        if saved:
            self.save(full=True)

    def train(self, *ids: int) -> None:
        self.optimizer.zero_grad()
        self.module(torch.tensor(ids)).square().sum().backward()
        self.optimizer.step()

    def save(self, *, full: bool = False) -> set[int]:
        kind = Kind.FULL if full else Kind.INCREMENTAL
        self.tracker.begin(kind)
        rows = touched(self.tracker, self.table, Since.LAST)
        self.tracker.committed(kind)
        return rows

    def touched(self, since: Since = Since.LAST) -> set[int]:
        return touched(self.tracker, self.table, since)


ALL = set(range(100))


def test_a_delta_holds_the_rows_of_the_gradients_and_no_other() -> None:
    setting = Setting()
    setting.train(3, 4, 3)
    setting.train(99)
    assert setting.save() == {3, 4, 99}
    assert setting.save() == set()
    assert setting.touched(Since.BASELINE) == {3, 4, 99}


def test_a_full_snapshot_holds_every_row_and_starts_anew() -> None:
    setting = Setting()
    setting.train(3)
    assert setting.save(full=True) == ALL
    assert setting.touched(Since.BASELINE) == set()


def test_a_full_snapshot_that_failed_leaves_the_delta_as_it_was() -> None:
    setting = Setting()
    setting.train(3)
    setting.tracker.begin(Kind.FULL)
    setting.tracker.failed(Kind.FULL)
    setting.train(5)
    assert setting.save() == {3, 5}


def test_before_anything_was_saved_every_row_is_touched() -> None:
    setting = Setting(saved=False)
    setting.tracker.begin(Kind.INCREMENTAL)
    assert setting.touched() == ALL


def test_slots_that_appear_after_the_baseline_make_the_table_whole_once() -> None:
    setting = Setting(torch.optim.SparseAdam)
    setting.train(3)
    assert setting.save() == ALL
    setting.train(4)
    assert setting.save() == {4}
    assert setting.touched(Since.BASELINE) == ALL


def test_slots_that_appear_stay_due_until_a_commit_holds_them() -> None:
    setting = Setting(torch.optim.SparseAdam)
    setting.train(3)
    setting.tracker.begin(Kind.INCREMENTAL)
    setting.tracker.failed(Kind.INCREMENTAL)
    assert setting.save() == ALL


def test_a_slot_of_another_type_makes_the_table_whole() -> None:
    setting = Setting(torch.optim.Adagrad)
    state = setting.optimizer.state[setting.module.weight]
    state["sum"] = state["sum"].double()
    assert setting.save() == ALL


def test_after_a_restore_rows_count_from_there() -> None:
    setting = Setting(torch.optim.Adagrad)
    setting.train(1)
    spec = setting.table.spec()
    setting.tracker.forget_all()
    with setting.tracker.suspended(), torch.no_grad():
        setting.module.weight.fill_(1.0)
        setting.optimizer.load_state_dict(setting.optimizer.state_dict())
    setting.tracker.restored([spec])
    setting.tracker.rebuild("0", [7, 8])
    setting.train(2)
    assert setting.save() == {2}
    assert setting.touched(Since.BASELINE) == {2, 7, 8}
    setting.tracker.rebuild("0", None)
    assert setting.touched(Since.BASELINE) == ALL


def test_a_table_that_the_restored_checkpoint_lacks_is_whole() -> None:
    setting = Setting()
    setting.tracker.restored([])
    assert setting.save() == ALL


def test_marks_may_name_rows_or_all_of_them() -> None:
    setting = Setting()
    setting.tracker.mark("0", torch.tensor([5, 6], dtype=torch.int32))
    setting.tracker.mark("0", [7])
    setting.tracker.mark("0", [])
    assert setting.save() == {5, 6, 7}
    setting.tracker.mark("0", None)
    assert setting.save() == ALL


@pytest.mark.parametrize(
    ("ids", "text"), [([100], "rows 0 to 99"), ([-1], "rows 0 to 99"), ([1.5], "integers"), ([True], "integers")]
)
def test_marks_that_name_no_row_are_refused(ids, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'0'.*{text}"):
        Setting().tracker.mark("0", ids)


def test_an_unknown_table_is_named_with_its_neighbours() -> None:
    model = nn.ModuleDict({"user_emb": nn.Embedding(3, 2), "item_emb": nn.Embedding(3, 2)})
    tracker = Tracker(find_tables({"": model}), [])
    with pytest.raises(ConfigurationError, match=r"unknown table 'user_embed'.*user_emb"):
        tracker.mark("user_embed", None)


def test_steps_of_the_given_optimizers_are_counted() -> None:
    setting = Setting()
    other = nn.Linear(2, 1)
    stranger = torch.optim.SGD(other.parameters(), lr=0.1)
    setting.train(1)
    stranger.step()
    with setting.tracker.suspended():
        setting.train(1)
    assert setting.tracker.optimizer_steps == 1


def test_closing_removes_every_hook() -> None:
    gc.collect()
    before = [*torch_optimizer._global_optimizer_pre_hooks, *torch_optimizer._global_optimizer_post_hooks]
    module = nn.Embedding(10, 4, max_norm=1.0)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    tracker = Tracker(find_tables({"": module}, [optimizer]), [optimizer])
    assert module._forward_hooks
    tracker.close()
    tracker.close()
    after = [*torch_optimizer._global_optimizer_pre_hooks, *torch_optimizer._global_optimizer_post_hooks]
    assert set(after) <= set(before)
    assert not module._forward_hooks
    assert not module._forward_pre_hooks
    assert not optimizer._optimizer_load_state_dict_post_hooks


def test_hooks_of_a_tracker_that_was_dropped_are_removed_by_the_next_one() -> None:
    gc.collect()
    Setting().tracker.close()
    before = list(torch_optimizer._global_optimizer_pre_hooks)
    setting = Setting()
    reference = weakref.ref(setting.tracker)
    del setting
    gc.collect()
    assert reference() is None
    Setting().tracker.close()
    assert list(torch_optimizer._global_optimizer_pre_hooks) == before


def test_a_tracker_that_is_dropped_during_a_step_does_not_break_it_off() -> None:
    def drop(*_: object) -> None:
        dropped.clear()
        gc.collect()

    handle = torch_optimizer.register_optimizer_step_pre_hook(drop)
    dropped, other = [Setting(saved=False)], Setting()
    reference = weakref.ref(dropped[0].tracker)
    other.train(1)
    handle.remove()
    assert reference() is None


# --- warnings


def warnings_of(action) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(w.message) for w in caught if issubclass(w.category, HoldfastWarning)]


def test_an_optimizer_that_moves_every_row_is_warned_about_once_with_a_remedy() -> None:
    setting = Setting(torch.optim.Adam)
    (text,) = warnings_of(lambda: [setting.train(1), setting.train(2), setting.save(), setting.train(3)])
    assert text.startswith("table '0' is saved whole: Adam is not known")
    assert "SparseAdam" in text


def test_tables_that_share_a_reason_share_a_warning() -> None:
    model = nn.ModuleList(nn.Embedding(10, 2) for _ in range(5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tracker = Tracker(find_tables({"": model}, [optimizer]), [optimizer])

    def train() -> None:
        sum(table(torch.tensor([1])).sum() for table in model).backward()
        optimizer.step()

    (text,) = warnings_of(train)
    assert text.startswith("tables '0', '1', '2' and 2 more are saved whole: SGD with momentum")
    tracker.close()


def test_a_new_reason_is_a_new_warning() -> None:
    setting = Setting()
    setting.optimizer.param_groups[0]["momentum"] = 0.9
    assert "momentum" in warnings_of(lambda: setting.train(1))[0]
    setting.save()
    setting.optimizer.param_groups[0].update(momentum=0, weight_decay=0.1)
    assert "weight decay" in warnings_of(lambda: setting.train(1))[0]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam])
def test_training_that_gives_deltas_is_not_warned_about(optimizer) -> None:
    setting = Setting(optimizer)
    assert warnings_of(lambda: [setting.train(1), setting.save(), setting.train(2), setting.save()]) == []


def test_an_edit_is_warned_about_once_training_has_started() -> None:
    setting = Setting()

    def edit() -> None:
        with torch.no_grad():
            setting.module.weight.add_(1.0)

    assert warnings_of(lambda: [edit(), setting.save()]) == []
    setting.train(1)
    (text,) = warnings_of(lambda: [edit(), setting.save(), edit(), setting.save()])
    assert "outside of optimizer.step()" in text
    assert "mark()" in text


def test_an_edit_between_steps_is_not_taken_for_a_hooks() -> None:
    setting = Setting()
    setting.train(1)
    with torch.no_grad():
        setting.module.weight.add_(1.0)
    (text,) = warnings_of(lambda: setting.train(2))
    assert "outside of optimizer.step()" in text
    assert setting.save() == ALL


def test_loading_the_optimizers_state_is_no_reason_to_warn() -> None:
    setting = Setting(torch.optim.Adagrad)
    setting.train(1)
    setting.save()
    setting.optimizer.load_state_dict(setting.optimizer.state_dict())
    assert warnings_of(lambda: setting.train(2)) == []
    assert setting.save() == ALL


def test_a_warning_points_at_the_line_that_made_the_step() -> None:
    setting = Setting(torch.optim.Adam)
    with pytest.warns(HoldfastWarning) as caught:
        setting.train(1)
    assert caught[0].filename == __file__


# --- what hooks of the user's own, and other optimizers, may do


@quiet
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_gradient_that_a_hook_clears_after_the_step_hides_nothing(fused: bool, set_to_none: bool) -> None:
    setting = Setting(fused=fused)
    setting.optimizer.register_step_post_hook(lambda o, *_: o.zero_grad(set_to_none=set_to_none))
    setting.train(3)
    assert setting.save() == ALL


@quiet
@pytest.mark.parametrize("fused", [False, True])
def test_an_edit_that_a_hook_makes_after_the_step_is_seen(fused: bool) -> None:
    setting = Setting(fused=fused)
    setting.optimizer.register_step_post_hook(lambda *_: setting.module.weight.detach().mul_(0.5))
    setting.train(3)
    assert setting.save() == ALL


def change_gradients_in_a_hook(setting: Setting) -> None:
    def hook(optimizer, args, kwargs) -> None:
        setting.module.weight.grad.add_(1.0)

    setting.optimizer.register_step_pre_hook(hook)


@quiet
def test_a_gradient_that_a_hook_changes_before_the_step_hides_nothing() -> None:
    setting = Setting()
    change_gradients_in_a_hook(setting)
    before = setting.module.weight.detach().clone()
    setting.train(3)
    assert (setting.module.weight != before).all()
    assert setting.save() == ALL


def test_a_hook_that_changes_the_gradient_is_named() -> None:
    setting = Setting()
    change_gradients_in_a_hook(setting)
    (text,) = warnings_of(lambda: [setting.train(3), setting.train(4)])
    assert "a hook changed it or its gradient" in text


@quiet
@pytest.mark.parametrize("name", ["positional", "keyword"])
def test_a_closure_is_called_once_and_its_loss_returned(name: str) -> None:
    setting = Setting()
    calls: list[int] = []

    def closure() -> float:
        calls.append(1)
        setting.optimizer.zero_grad()
        setting.module(torch.tensor([4])).sum().backward()
        return 2.5

    loss = setting.optimizer.step(closure) if name == "positional" else setting.optimizer.step(closure=closure)
    assert (loss, len(calls)) == (2.5, 1)
    assert setting.save() == {4}


@quiet
def test_a_step_that_fails_half_way_loses_nothing() -> None:
    model = nn.ModuleList([nn.Embedding(100, 4, sparse=True), nn.Embedding(100, 4, sparse=False)])
    optimizer = torch.optim.SparseAdam([{"params": [table.weight]} for table in model], lr=0.1)
    tables = find_tables({"": model}, [optimizer])
    tracker = Tracker(tables, [optimizer])
    tracker.begin(Kind.FULL)
    tracker.committed(Kind.FULL)
    (model[0](torch.tensor([1])).sum() + model[1](torch.tensor([2])).sum()).backward()
    with pytest.raises(RuntimeError, match="dense gradients"):
        optimizer.step()
    tracker.begin(Kind.INCREMENTAL)
    assert touched(tracker, tables[0], Since.LAST) == ALL
    tracker.close()


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_that_was_not_given_makes_its_tables_whole_and_is_named(fused: bool) -> None:
    setting = Setting()
    stranger = torch.optim.Adam(setting.model.parameters(), fused=fused)
    setting.module(torch.tensor([1])).sum().backward()
    (text,) = warnings_of(stranger.step)
    assert "Adam, whose state is not saved, updates it; pass that optimizer to the Checkpointer" in text
    assert setting.save() == ALL


def test_a_table_that_joins_an_optimizer_later_is_followed_with_its_slots() -> None:
    module, head = nn.Embedding(100, 4), nn.Linear(4, 1)
    optimizer = torch.optim.Adagrad(head.parameters(), lr=0.1)
    (table,) = find_tables({"": nn.ModuleList([module, head])}, [optimizer])
    tracker = Tracker([table], [optimizer])
    tracker.begin(Kind.FULL)
    tracker.committed(Kind.FULL)
    optimizer.add_param_group({"params": module.weight})
    for ids, wanted in ((1, ALL), (2, {2})):
        optimizer.zero_grad()
        head(module(torch.tensor([ids]))).sum().backward()
        optimizer.step()
        tracker.begin(Kind.INCREMENTAL)
        assert list(table.slots()) == ["sum"]
        assert touched(tracker, table, Since.LAST) == wanted
        tracker.committed(Kind.INCREMENTAL)
    tracker.close()


def test_a_table_that_moves_to_another_optimizer_is_whole_once() -> None:
    module = nn.Embedding(100, 4)
    spare = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    first, second = torch.optim.Adagrad([module.weight, spare[0]], lr=0.1), torch.optim.Adagrad([spare[1]], lr=0.1)
    (table,) = find_tables({"": module}, [first, second])
    tracker = Tracker([table], [first, second])
    tracker.begin(Kind.FULL)
    tracker.committed(Kind.FULL)
    first.param_groups[0]["params"] = [spare[0]]
    second.add_param_group({"params": module.weight})
    second.state[module.weight] = {"step": torch.tensor(0.0), "sum": torch.full((100, 4), 0.5)}
    for wanted in (ALL, set()):
        tracker.begin(Kind.INCREMENTAL)
        assert table.optimizer is second
        assert touched(tracker, table, Since.LAST) == wanted
        tracker.committed(Kind.INCREMENTAL)
    tracker.close()


def test_regrouped_and_reloaded_optimizers_are_still_followed() -> None:
    setting = Setting(torch.optim.Adagrad)
    setting.optimizer.load_state_dict(setting.optimizer.state_dict())
    assert setting.save() == ALL
    setting.train(9)
    assert setting.save() == {9}


# --- tables without an optimizer, or with unusual parameters


def test_a_table_without_optimizer_is_followed_by_its_version() -> None:
    module = nn.Embedding(100, 4)
    (table,) = find_tables({"": module})
    tracker = Tracker([table], [])
    tracker.begin(Kind.FULL)
    tracker.committed(Kind.FULL)
    tracker.begin(Kind.INCREMENTAL)
    assert touched(tracker, table, Since.LAST) == set()
    tracker.committed(Kind.INCREMENTAL)
    with torch.no_grad():
        module.weight[3] = 1.0
    tracker.begin(Kind.INCREMENTAL)
    assert touched(tracker, table, Since.LAST) == ALL
    tracker.close()


def test_a_parameter_made_in_inference_mode_is_always_whole() -> None:
    with torch.inference_mode():
        module = nn.Embedding(100, 4, _freeze=True)
    (table,) = find_tables({"": module})
    tracker = Tracker([table], [])
    for kind in (Kind.FULL, Kind.INCREMENTAL, Kind.INCREMENTAL):
        tracker.begin(kind)
        assert touched(tracker, table, Since.LAST) == ALL
        tracker.committed(kind)
    tracker.close()


def test_a_table_without_rows_is_no_trouble() -> None:
    module = nn.Embedding(0, 4)
    optimizer = torch.optim.Adagrad(module.parameters(), lr=0.1)
    (table,) = find_tables({"": module}, [optimizer])
    tracker = Tracker([table], [optimizer])
    tracker.begin(Kind.FULL)
    tracker.committed(Kind.FULL)
    module.weight.grad = torch.zeros(0, 4)
    optimizer.step()
    tracker.begin(Kind.INCREMENTAL)
    assert tracker.touched(table, Since.LAST).ids(0, 0).tolist() == []
    tracker.close()


def test_a_gradient_of_two_sparse_dimensions_names_its_rows() -> None:
    setting = Setting()
    gradient = torch.zeros(100, 4)
    gradient[[5, 70], [0, 3]] = 1.0
    setting.module.weight.grad = gradient.to_sparse(2)
    setting.optimizer.step()
    assert setting.save() == {5, 70}


@quiet
def test_a_subclass_that_maps_its_ids_first_is_not_taken_at_its_word() -> None:
    class Hashed(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return F.embedding(99 - ids, self.weight, max_norm=self.max_norm)

    module = Hashed(100, 4, max_norm=0.1)
    (table,) = find_tables({"": module})
    tracker = Tracker([table], [])
    tracker.begin(Kind.FULL)
    tracker.committed(Kind.FULL)
    module(torch.tensor([1]))
    tracker.begin(Kind.INCREMENTAL)
    assert touched(tracker, table, Since.LAST) == ALL
    tracker.close()


def test_ids_given_by_keyword_are_seen_by_max_norm() -> None:
    module = nn.Embedding(100, 4, max_norm=0.1)
    (table,) = find_tables({"": module})
    tracker = Tracker([table], [])
    tracker.begin(Kind.FULL)
    tracker.committed(Kind.FULL)
    module(input=torch.tensor([5, 6], dtype=torch.int32))
    tracker.begin(Kind.INCREMENTAL)
    assert touched(tracker, table, Since.LAST) == {5, 6}
    tracker.close()


def test_copies_of_a_model_are_left_alone() -> None:
    module = nn.Embedding(100, 4, max_norm=0.1)
    (table,) = find_tables({"": module})
    tracker = Tracker([table], [])
    tracker.begin(Kind.FULL)
    tracker.committed(Kind.FULL)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        other(torch.tensor([5]))
    tracker.begin(Kind.INCREMENTAL)
    assert touched(tracker, table, Since.LAST) == set()
    tracker.close()


def test_an_empty_gradient_hides_no_edit_made_in_the_step() -> None:
    setting = Setting(torch.optim.SparseAdam)
    setting.train(1)
    setting.save()
    setting.optimizer.register_step_post_hook(lambda *_: setting.module.weight.detach().mul_(0.5))
    setting.module.weight.grad = torch.zeros(100, 4).to_sparse(1)
    with pytest.warns(HoldfastWarning, match="a hook changed it"):
        setting.optimizer.step()
    assert setting.save() == ALL


@quiet
@pytest.mark.parametrize("max_norm", [None, 0.1])
@pytest.mark.parametrize("compiled_step", [False, True])
def test_compiled_models_and_steps_hide_nothing(max_norm: float | None, compiled_step: bool) -> None:
    setting = Setting()
    setting.module.max_norm = max_norm
    tracker = Tracker([setting.table], [setting.optimizer])
    model = torch.compile(setting.model, backend="eager", fullgraph=True)
    step = torch.compile(lambda: setting.optimizer.step(), backend="eager") if compiled_step else setting.optimizer.step
    for number in range(3):
        tracker.begin(Kind.FULL if number == 0 else Kind.INCREMENTAL)
        tracker.committed(Kind.FULL if number == 0 else Kind.INCREMENTAL)
        before = setting.module.weight.detach().clone()
        setting.optimizer.zero_grad()
        model(torch.tensor([number, 50])).square().sum().backward()
        step()
        tracker.begin(Kind.INCREMENTAL)
        changed = set((setting.module.weight != before).any(dim=1).nonzero().flatten().tolist())
        assert changed
        assert changed <= touched(tracker, setting.table, Since.LAST)
        tracker.committed(Kind.INCREMENTAL)
    tracker.close()


# --- parameters that are no longer what they were


def replace(setting: Setting) -> None:
    setting.module.weight = nn.Parameter(torch.zeros(100, 4))


def load_with_assign(setting: Setting) -> None:
    setting.model.load_state_dict({"0.weight": torch.zeros(100, 4)}, assign=True)


def shrink(setting: Setting) -> None:
    setting.module.weight.data = setting.module.weight.data[:50]


def cast(setting: Setting) -> None:
    setting.model.double()


def leave_optimizer(setting: Setting) -> None:
    setting.optimizer.param_groups[0]["params"] = [nn.Parameter(torch.zeros(1))]


@pytest.mark.parametrize("change", [replace, load_with_assign, shrink, cast, leave_optimizer])
def test_a_changed_parameter_is_an_error_that_names_the_table(change) -> None:
    setting = Setting()
    setting.train(3)
    change(setting)
    with pytest.raises(ModelMismatch, match="table '0'"):
        setting.tracker.begin(Kind.INCREMENTAL)


@pytest.mark.parametrize("change", [replace, load_with_assign, shrink])
def test_a_changed_parameter_is_noticed_at_the_next_step(change) -> None:
    setting = Setting()
    change(setting)
    with pytest.raises(ModelMismatch, match="table '0'"):
        setting.optimizer.step()


def test_a_begin_that_raises_loses_no_row() -> None:
    setting = Setting()
    setting.train(3)
    weight = setting.module.weight
    replace(setting)
    with pytest.raises(ModelMismatch):
        setting.tracker.begin(Kind.INCREMENTAL)
    setting.module.weight = weight
    assert setting.save() == {3}


def test_a_table_that_two_optimizers_hold_later_is_an_error() -> None:
    setting = Setting()
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    tracker = Tracker([setting.table], [setting.optimizer, other])
    other.add_param_group({"params": setting.module.weight})
    with pytest.raises(ConfigurationError, match="'0' is in two optimizers"):
        tracker.begin(Kind.INCREMENTAL)
    tracker.close()
