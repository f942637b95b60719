"""Hidden states of a tiny random BERT while it is trained."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ldreg.evaluate.measure import measure

transformers = pytest.importorskip("transformers")

from ldreg.integrations.transformers import DimensionCallback, pooled  # noqa: E402


def sentences(count: int, seed: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 50, (count, 7), generator=generator)
    mask = (torch.arange(7) < torch.randint(2, 8, (count, 1), generator=generator)).long()
    return [
        {"input_ids": row, "attention_mask": on, "labels": int(row[0] > 25)}
        for row, on in zip(tokens, mask, strict=True)
    ]


def bert() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **sizes))


def make_trainer(folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "max_steps": 6,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "learning_rate": 1e-2,
        "seed": 3,
        "per_device_eval_batch_size": 16,
    } | options
    arguments = transformers.TrainingArguments(str(folder), **settings)
    return transformers.Trainer(bert(), arguments, train_dataset=sentences(48, 1), eval_dataset=sentences(70, 2))


def hidden_means(model: Any, data: list[dict[str, Any]], layer: int = -1) -> Tensor:
    """Means over tokens, row by row and without padding."""
    model.eval()
    with torch.no_grad():
        return torch.cat(
            [
                model.bert(input_ids=row["input_ids"][row["attention_mask"].bool()][None], output_hidden_states=True)
                .hidden_states[layer]
                .mean(1)
                for row in data
            ]
        )


@pytest.mark.parametrize("layer", [-1, 1])
def test_the_evaluation_set_is_measured_at_every_evaluation(tmp_path: Path, layer: int) -> None:
    trainer = make_trainer(tmp_path)
    callback = DimensionCallback(trainer, k=10, layer=layer)
    trainer.add_callback(callback)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "eval_lid" in entry]
    assert [entry["step"] for entry in logged] == [2, 4, 6]
    assert len({entry["eval_lid"] for entry in logged}) == 3
    expected = measure(hidden_means(trainer.model, sentences(70, 2), layer), k=10)
    for name, value in expected.items():
        assert logged[-1][f"eval_{name}"] == callback.latest[f"eval_{name}"] == pytest.approx(value, rel=1e-3)


def test_steps_sets_and_functions_can_be_given(tmp_path: Path) -> None:
    trainer, seen = make_trainer(tmp_path, eval_strategy="no"), []

    def first_token(model: Any, inputs: Any) -> Tensor:
        seen.append((model.training, torch.is_grad_enabled(), "labels" in inputs))
        found: Tensor = model.bert(**inputs).last_hidden_state[:, 0]
        return found

    given = sentences(100, 5)
    by_function = DimensionCallback(trainer, given, representations=first_token, every_steps=3, k=10, points=50)
    by_name = DimensionCallback(trainer, given[::2], representations="cls", every_steps=3, k=10)
    trainer.add_callback(by_function)
    trainer.add_callback(by_name)
    trainer.train()
    assert [entry["step"] for entry in trainer.state.log_history if "eval_lid" in entry] == [3, 3, 6, 6]
    assert by_function.latest == by_name.latest
    assert seen == [(False, False, False)] * 8  # two measurements of fifty rows in batches of 16


def test_a_watched_run_is_bitwise_the_unwatched_one(tmp_path: Path) -> None:
    plain, watched = make_trainer(tmp_path), make_trainer(tmp_path)
    watched.add_callback(DimensionCallback(watched, every_steps=1, k=10))
    for trainer in (plain, watched):
        torch.manual_seed(4)
        trainer.train()
    theirs = watched.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in plain.model.state_dict().items())
    losses = [[e["eval_loss"] for e in t.state.log_history if "eval_loss" in e] for t in (plain, watched)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3


def test_a_collapse_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_trainer(tmp_path)

    def collapsing(model: Any, inputs: Any) -> Tensor:
        found: Tensor = model.bert(**inputs).last_hidden_state[:, 0]
        return found * float(trainer.state.global_step < 6)

    callback = DimensionCallback(trainer, representations=collapsing, k=10)
    trainer.add_callback(callback)
    with caplog.at_level(logging.WARNING, "ldreg"):
        trainer.train()
    [alarm] = callback.alarms
    assert "step 6: LID (eval/lid) is degenerate: nan" in alarm
    assert "effective rank (eval/effective_rank) is degenerate: 0 " in alarm
    assert alarm in caplog.messages
    assert math.isnan(callback.latest["eval_lid"])


@pytest.mark.parametrize(
    "kept", [None, [1], {"0": "x"}, {"0": {}}, {"0": {"checks": "a", "highest": "b", "fallen": []}}]
)
def test_a_damaged_state_of_the_alarm_is_named(tmp_path: Path, kept: object) -> None:
    trainer = make_trainer(tmp_path)
    callback = DimensionCallback(trainer, k=10)
    trainer.add_callback(callback)
    trainer.state.stateful_callbacks["ldreg"] = kept
    with pytest.raises(ValueError, match=r"trainer_state.json: expected the state of the alarm in stateful_callbacks"):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)


@pytest.mark.parametrize("restoring", [False, True], ids=["", "with callbacks that the trainer restores"])
def test_the_alarm_goes_on_in_a_resumed_run(tmp_path: Path, restoring: bool) -> None:
    def watched(folder: Path, until: int = 12) -> tuple[Any, list[DimensionCallback]]:
        saved = {"save_strategy": "steps", "save_steps": 2, "restore_callback_states_from_checkpoint": restoring}
        trainer = make_trainer(folder, max_steps=12, **saved)

        def falling(model: Any, inputs: Any) -> Tensor:
            if trainer.state.global_step > until:
                raise KeyboardInterrupt
            return torch.randn(len(inputs["input_ids"]), 8 if trainer.state.global_step <= 8 else 2)

        def low(model: Any, inputs: Any) -> Tensor:
            return torch.randn(len(inputs["input_ids"]), 2)

        # Beside one that falls, one that was always low, and would be said to have fallen by the state of the other.
        callbacks = [DimensionCallback(trainer, representations=rows, k=10, alarm=0.6) for rows in (falling, low)]
        for callback in callbacks:
            trainer.add_callback(callback)
        return trainer, callbacks

    unbroken, expected = watched(tmp_path / "unbroken")
    unbroken.train()
    broken, before = watched(tmp_path / "broken", until=8)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    resumed, after = watched(tmp_path / "broken")
    resumed.train(resume_from_checkpoint=True)
    assert [callback.alarms for callback in before] == [[], []]
    assert resumed.state.global_step == 12
    assert [len(callback.alarms) for callback in after] == [1, 0]
    assert after[0].alarms[0].startswith("collapse at epoch 1.67, step 10: LID (eval/lid) fell to ")
    assert [callback.alarms for callback in after] == [callback.alarms for callback in expected]


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, eval_strategy="no")
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("representations", {"representations": "max"}),
        ("every_steps", {"every_steps": 0}),
        ("points", {"points": 64}),
        ("dataset", {"k": 70}),
        ("dataset", {"dataset": {"a": [1]}}),
        ("dataset", {"dataset": (i for i in range(3))}),
        ("alarm", {"alarm": 2.0}),
        ("k", {"k": 1}),
        ("points", {"k": 10, "points": "100"}),
        ("every_steps", {"every_steps": 2.5}),
        ("layer", {"layer": 3}),
        ("layer", {"layer": "last"}),
    ]
    for option, options in wrong:
        with pytest.raises(ValueError, match=f"^{option}: "):
            DimensionCallback(trainer, **options)
    trainer.add_callback(DimensionCallback(trainer, k=10))
    with pytest.raises(ValueError, match=r"^every_steps: expected a number where the trainer does not evaluate"):
        trainer.train()


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_measurements_share_one_loader(tmp_path: Path, workers: int) -> None:
    trainer = make_trainer(
        tmp_path, eval_strategy="no", dataloader_num_workers=workers, dataloader_persistent_workers=workers > 0
    )
    trainer.add_callback(DimensionCallback(trainer, every_steps=1, k=10))
    trainer.train()
    assert len([entry for entry in trainer.state.log_history if "eval_lid" in entry]) == 6
    assert len(trainer.accelerator._dataloaders) == 2  # that of training, and one
    trainer.callback_handler.callbacks.clear()
    trainer.accelerator.free_memory()


def test_models_of_encoder_and_decoder_need_a_function(tmp_path: Path) -> None:
    sizes = {"vocab_size": 50, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    trainer = make_trainer(tmp_path)
    trainer.model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))
    with pytest.raises(ValueError, match=r"^representations: expected a function for a model of encoder and decoder"):
        DimensionCallback(trainer, k=10)

    def encoded(model: Any, inputs: Any) -> Tensor:
        return pooled(model.encoder(**inputs).last_hidden_state, inputs["attention_mask"])

    assert DimensionCallback(trainer, representations=encoded, k=10).measure()["eval_lid"] > 1


def test_pooling_leaves_padding_out() -> None:
    hidden = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]])
    assert torch.allclose(pooled(hidden, mask), torch.stack([hidden[0, :3].mean(0), hidden[1, 2:].mean(0)]))
    assert torch.allclose(pooled(hidden), hidden.mean(1))
    assert torch.equal(pooled(hidden, mask, how="cls"), torch.stack([hidden[0, 0], hidden[1, 2]]))
    assert torch.equal(pooled(hidden, how="cls"), hidden[:, 0])
    long = torch.full((1, 5000, 1), 0.1).half()
    assert pooled(long).item() == pytest.approx(0.1, rel=1e-3)
    with pytest.raises(ValueError, match=r"^mask: expected a token in every row"):
        pooled(hidden, torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]]))
    with pytest.raises(ValueError, match=r"^mask: expected \(2, 4\), got \(2, 3\)"):
        pooled(hidden, mask[:, :3])
    with pytest.raises(ValueError, match=r"^hidden: expected hidden states \(N, T, D\), got shape \(2, 3\)"):
        pooled(hidden[:, 0])
