"""Measure hidden states while the `Trainer` of Hugging Face's transformers trains a model."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset
from transformers import Trainer, TrainerCallback

from ldreg.dimension.neighbors import as_whole
from ldreg.evaluate.extract import Pooling, pooled, undisturbed
from ldreg.evaluate.measure import evenly_spaced, measure
from ldreg.integrations import check_whole
from ldreg.monitor.watch import Watch, check_settings

__all__ = ["DimensionCallback", "Pooling", "pooled"]

# The key of the alarms' states in the trainer's state and its checkpoints. `ExportableState` does not work here: the
# trainer restores such callbacks by constructing them, without the trainer that this one needs.
_STATE = "ldreg"


class DimensionCallback(Watch, TrainerCallback):  # type: ignore[misc]  # untyped where it is not installed
    """Log LID and effective rank of the hidden states of an evaluation set, and warn when they collapse.

    `eval_lid` and the other measures of `ldreg.evaluate.measure.measure` go through the trainer's `log`, so into its
    history and to TensorBoard, W&B and the like, there as `eval/lid`. With several processes they are of the whole set.
    Measures taken at evaluations are among their metrics, so `metric_for_best_model="eval_lid"` works. Training does
    not change: the model runs in eval mode and without gradients, and torch's random generators are restored. The
    trainer's checkpoints hold the state of the alarm, so a resumed run warns as an uninterrupted one; several callbacks
    are distinguished by their order in the trainer.

    The callback needs the trainer for its `log`: `trainer.add_callback(DimensionCallback(trainer))`.

    Args:
        trainer: the trainer of the model.
        dataset: the rows to measure on; None: the trainer's evaluation set.
        representations: how a sequence becomes one row: the "mean" of the hidden states of its tokens, without padding,
            or that of its first token ("cls"); or a function of model and inputs that returns representations (N, D),
            which models of encoder and decoder need.
        layer: the layer whose hidden states are pooled; -1 is the last, 0 the token embeddings.
        every_steps: training steps between measurements; None: measure at every evaluation.
        k: number of neighbors, at least 2 and below the number of rows.
        points: measure at most this many rows, evenly spread over the set.
        alarm: share of its running maximum below which LID, its 5 % quantile or effective rank raises the alarm, which
            also watches spread and degenerate share; 0: no alarm.

    Attributes:
        latest: the last value of every measure.
        alarms: all alarms raised, in order.

    Raises:
        ValueError: a setting is out of range or does not fit the model, or the set has no length or too few rows.
    """

    def __init__(
        self,
        trainer: Trainer,
        dataset: Any = None,
        *,
        representations: Pooling | Callable[[Any, Mapping[str, Any]], Tensor] = "mean",
        layer: int = -1,
        every_steps: int | None = None,
        k: int = 64,
        points: int = 2000,
        alarm: float = 0.5,
    ) -> None:
        if representations not in ("mean", "cls") and not callable(representations):
            raise ValueError(f"representations: expected 'mean', 'cls' or a function, got {representations!r}")
        if not callable(representations):
            _check_model(trainer.model, representations, layer)
        if every_steps is not None:
            check_whole(1, every_steps=every_steps)
        check_whole(2, k=k, points=points)
        check_settings(k=k, points=points, alarm=alarm)
        super().__init__(alarm)
        self.trainer = trainer
        self.dataset = _some_of(trainer.eval_dataset if dataset is None else dataset, points=points, k=k)
        self.representations = representations
        self.layer = layer
        self.every_steps = every_steps
        self.k = k
        self._loader: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check that something will be measured; restore the alarm of a resumed run."""
        if self.every_steps is None and str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "no":
            raise ValueError("every_steps: expected a number where the trainer does not evaluate, got None")
        try:
            saved = state.stateful_callbacks.get(_STATE, {}).get(self._place())
            if saved is not None:
                self._alarm.load_state_dict(saved)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"trainer_state.json: expected the state of the alarm in stateful_callbacks[{_STATE!r}], got "
                f"{state.stateful_callbacks[_STATE]!r:.80}; remove that entry to start the alarm again"
            ) from error

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure at every `every_steps`-th step."""
        if self.every_steps is not None and state.global_step % self.every_steps == 0:
            self.measure()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure if no steps are given, and add the values to the metrics of the evaluation."""
        if self.every_steps is None:
            kwargs.get("metrics", {}).update(self.measure())

    def measure(self) -> dict[str, float]:
        """Measure now, log the values, and return them."""
        state = self.trainer.state
        found = measure(self._rows(), k=self.k)
        values = {f"eval_{name}": value for name, value in found.items()}
        self.latest |= values
        self.trainer.log(dict(values))  # the trainer adds the epoch to this dict
        self.check(
            {f"eval/{name}": value for name, value in found.items()},
            step=state.global_step,
            epoch=state.epoch or 0.0,
            log=state.is_world_process_zero,
        )
        place = self._place()
        if place is not None:
            state.stateful_callbacks.setdefault(_STATE, {})[place] = self._alarm.state_dict()
        return values

    def _place(self) -> str | None:
        """The position among the trainer's callbacks of this class, as a JSON key; None if it is not one of them."""
        alike = [each for each in self.trainer.callback_handler.callbacks if isinstance(each, DimensionCallback)]
        return next((str(place) for place, each in enumerate(alike) if each is self), None)

    def _rows(self) -> Tensor:
        """Representations (N, D) of the whole set, on every process."""
        model, parts = self.trainer.model, []
        with undisturbed(model, self.trainer.args.device):
            if self._loader is None:  # reused, because the accelerator keeps every loader with its workers
                # Not get_eval_dataloader, which may keep the loader and give it to the next evaluation.
                self._loader = self.trainer.get_test_dataloader(self.dataset)
            for inputs in self._loader:
                with self.trainer.compute_loss_context_manager():
                    found = self._of(model, {name: value for name, value in inputs.items() if name != "labels"})
                # Drops the duplicates that pad the last batch to equal sizes on all processes.
                parts.append(self.trainer.accelerator.gather_for_metrics(found.detach().contiguous()))
        return torch.cat(parts)

    def _of(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if callable(self.representations):
            return self.representations(model, inputs)
        outputs = model(**inputs, output_hidden_states=True, return_dict=True)
        hidden = getattr(outputs, "hidden_states", None)
        if hidden is None:
            wanted = "a function for a model that returns no hidden_states"
            raise ValueError(f"representations: expected {wanted}, got {self.representations!r}")
        return pooled(hidden[self.layer], inputs.get("attention_mask"), how=self.representations)


def _check_model(model: Any, representations: str, layer: int) -> None:
    """Raise ValueError if, by its config, the model has no such hidden states."""
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        wanted = "a function for a model of encoder and decoder, which says whose states to take"
        raise ValueError(f"representations: expected {wanted}, got {representations!r}")
    layers, place = as_whole(getattr(config, "num_hidden_layers", None)), as_whole(layer)
    if place is None:
        raise ValueError(f"layer: expected an integer, got {layer!r}")
    if layers is not None and not -layers - 1 <= place <= layers:
        raise ValueError(f"layer: expected {-layers - 1} to {layers} for a model of {layers} layers, got {layer}")


def _some_of(dataset: Any, *, points: int, k: int) -> Any:
    """At most `points` rows, evenly spread."""
    if dataset is None or isinstance(dataset, dict) or not hasattr(dataset, "__len__"):
        got = "a dict of several" if isinstance(dataset, dict) else type(dataset).__name__
        raise ValueError(f"dataset: expected one set of known length, got {got}")
    if len(dataset) <= k:
        raise ValueError(f"dataset: expected more than k ({k}) rows, got {len(dataset)}")
    if len(dataset) <= points:
        return dataset
    chosen = evenly_spaced(torch.arange(len(dataset)), points).tolist()
    # A set of the library `datasets` stays one, for the trainer to leave out columns that the model does not take.
    return dataset.select(chosen) if hasattr(dataset, "select") else Subset(dataset, chosen)
