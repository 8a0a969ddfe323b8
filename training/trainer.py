"""The training loop: one step that reads like the maths, and what happens around it.

Called by `training.__main__` on every rank, with the ranks joined and the data prepared. All ranks
run every line of the loop; only the progress writer and the checkpoint marker look at the rank
number.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from stationmaster.domain.errors import TrainingFailed
from stationmaster.domain.training_config import TrainingConfig
from training.checkpoint import Checkpointer, State
from training.config import TrainerConfig, fingerprint
from training.data.corpus import TokenShard
from training.data.packed import IGNORED_LABEL, BatchLoader
from training.models.language import build_model, initialise, sum_loss
from training.parallel import Ranks, shard_model, sum_over_ranks
from training.progress import ProgressWriter
from training.schedule import learning_rate
from training.throughput import Throughput


class Outcome(StrEnum):
    """How `Trainer.train` came to its end without an error."""

    FINISHED = "finished"
    STOPPED = "stopped"


@dataclass(slots=True)
class Position:
    """How far the run is; with the seed it decides all that follows."""

    step: int = 0
    samples_seen: int = 0
    tokens_seen: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step reports, the same on every rank."""

    loss_nats: float
    grad_norm: float
    learning_rate: float
    tokens: float
    stop_agreed: bool


class Trainer:
    """One rank's part of a run."""

    def __init__(
        self,
        config: TrainerConfig,
        *,
        ranks: Ranks,
        progress: ProgressWriter,
        stop: threading.Event,
        model: LlamaForCausalLM,
        loader: BatchLoader,
        checkpointer: Checkpointer,
    ) -> None:
        self._name = config.recipe.name
        self._training = config.recipe.training
        self._ranks = ranks
        self._progress = progress
        self._stop = stop
        self._loader = loader
        self._checkpointer = checkpointer
        self._position = Position()
        self.model = model
        self._optimizer = build_optimizer(model, self._training)
        self._throughput = Throughput(
            config.recipe.model,
            sequence_length=self._training.sequence_length,
            world_size=ranks.world_size,
        )

    def train(self) -> Outcome:
        """Resume if there is something to resume from, and train to the last step or to SIGTERM.

        Returns with every checkpoint complete.

        Raises:
            TrainingFailed: the loss or the gradient is not finite.
            PermanentError: a checkpoint could not be written.
        """
        self._announce()
        self._resume()
        outcome = Outcome.FINISHED
        result: StepResult | None = None
        self._throughput.start()
        while self._position.step < self._training.steps:
            result = self._step_or_conclude()
            self._report(result)
            self._conclude_save(wait=False)
            if result.stop_agreed and self._position.step < self._training.steps:
                outcome = Outcome.STOPPED
                break
            if self._position.step % self._training.checkpoint_every == 0:
                self._start_save()
        if self._checkpointer.last_step_started != self._position.step:
            self._start_save()
        self._conclude_save(wait=True)
        if outcome is Outcome.FINISHED:
            self._progress.emit(
                "finished",
                step=self._position.step,
                total_steps=self._training.steps,
                loss_nats=result.loss_nats if result else None,
                samples_seen=self._position.samples_seen,
                tokens_seen=self._position.tokens_seen,
            )
        return outcome

    def _step_or_conclude(self) -> StepResult:
        try:
            return self._train_step()
        except TrainingFailed:
            # Every rank fails in the same step: the save in progress can still be made complete.
            self._conclude_save(wait=True)
            raise

    def _train_step(self) -> StepResult:
        """Forward, backward, clip, refuse what is not finite, update.

        The loss of a step is the sum of -log p over all tokens of the global batch, over all ranks,
        divided by their number. Each rank divides its own sum by the global count and the gradients
        are summed, so the result does not depend on how the batch is split into ranks and
        micro-batches.
        """
        rate = learning_rate(self._position.step + 1, self._training)
        micro_batches = list(self._loader.micro_batches(self._position.samples_seen))
        local_tokens = sum(int((m.labels != IGNORED_LABEL).sum()) for m in micro_batches)
        tokens, ranks_stopping = sum_over_ranks(
            [float(local_tokens), float(self._stop.is_set())], self._ranks
        )

        local_loss = torch.zeros((), device=self._ranks.device)
        for index, micro_batch in enumerate(micro_batches):
            self.model.set_requires_gradient_sync(index == len(micro_batches) - 1)
            loss = sum_loss(
                self.model,
                micro_batch.inputs.to(self._ranks.device),
                micro_batch.labels.to(self._ranks.device),
            )
            (loss / tokens).backward()
            local_loss += loss.detach()
        grad_norm = self._clip_gradients()
        (loss_sum,) = sum_over_ranks([float(local_loss)], self._ranks)
        loss_nats = loss_sum / tokens

        if not (math.isfinite(loss_nats) and math.isfinite(grad_norm)):
            raise TrainingFailed(
                f"step {self._position.step + 1}: loss {loss_nats}, gradient norm {grad_norm}, "
                "expected finite numbers; the step was not applied; lower "
                f"learning_rate={self._training.learning_rate:g} or raise warmup_steps, and start "
                "again from the last checkpoint"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

        self._position.step += 1
        self._position.samples_seen += self._training.global_batch_size
        self._position.tokens_seen += int(tokens)
        return StepResult(loss_nats, grad_norm, rate, tokens, ranks_stopping > 0)

    def _clip_gradients(self) -> float:
        """Scale the gradients to a norm of at most `grad_clip`; returns the norm before."""
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self._training.grad_clip)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def _announce(self) -> None:
        self._progress.emit(
            "started",
            recipe=self._name,
            total_steps=self._training.steps,
            world_size=self._ranks.world_size,
            device=self._ranks.device.type,
            num_parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            global_batch_size=self._training.global_batch_size,
            micro_batch_size=self._loader.micro_batch_size,
            grad_accumulation_steps=self._loader.num_micro_batches,
            sequence_length=self._training.sequence_length,
            dataset=self._training.dataset,
            dataset_tokens=self._loader.num_tokens,
        )

    def _report(self, result: StepResult) -> None:
        self._throughput.add_step(tokens=result.tokens, samples=self._training.global_batch_size)
        step = self._position.step
        if step % self._training.log_every and step != self._training.steps:
            return
        self._progress.emit(
            "progress",
            step=step,
            total_steps=self._training.steps,
            loss_nats=round(result.loss_nats, 6),
            learning_rate=result.learning_rate,
            grad_norm=round(result.grad_norm, 6),
            **self._throughput.take(self._ranks.device),
        )

    def _resume(self) -> None:
        step = self._checkpointer.newest_complete_step()
        if step is None:
            return
        state = self._state()
        self._checkpointer.load(step, state)
        self._restore(state)
        self._progress.emit(
            "resumed",
            step=self._position.step,
            total_steps=self._training.steps,
            samples_seen=self._position.samples_seen,
            path=str(self._checkpointer.path(step)),
        )

    def _start_save(self) -> None:
        self._conclude_save(wait=True)
        self._checkpointer.start_save(self._position.step, self._state())

    def _conclude_save(self, *, wait: bool) -> None:
        saved = self._checkpointer.completed(wait=wait)
        if saved is not None:
            self._progress.emit(
                "checkpoint_saved",
                step=saved.step,
                path=str(saved.path),
                size_bytes=saved.num_bytes,
                stall_s=round(saved.stall_s, 4),
                duration_s=round(saved.duration_s, 4),
            )

    def _state(self) -> State:
        """Everything that the steps to come depend on."""
        rng = {f"rank-{self._ranks.rank}": torch.get_rng_state()}
        if self._ranks.device.type == "cuda":
            rng[f"rank-{self._ranks.rank}-cuda"] = torch.cuda.get_rng_state(self._ranks.device)
        position = self._position
        return {
            "model": get_model_state_dict(self.model),
            "optimizer": get_optimizer_state_dict(self.model, self._optimizer),
            "position": {
                "step": torch.tensor(position.step),
                "samples_seen": torch.tensor(position.samples_seen),
                "tokens_seen": torch.tensor(position.tokens_seen),
            },
            "rng": rng,
        }

    def _restore(self, state: State) -> None:
        set_model_state_dict(self.model, state["model"])
        set_optimizer_state_dict(self.model, self._optimizer, state["optimizer"])
        self._position = Position(**{name: int(value) for name, value in state["position"].items()})
        for name, value in state["rng"].items():
            if name.endswith("-cuda"):
                torch.cuda.set_rng_state(value, self._ranks.device)
            else:
                torch.set_rng_state(value)


def build_trainer(
    config: TrainerConfig,
    *,
    shard: TokenShard,
    ranks: Ranks,
    progress: ProgressWriter,
    stop: threading.Event,
) -> Trainer:
    """Put a rank's part of a run together: model sharded and initialised, data and checkpoints.

    Raises:
        BadParameter: the data set is too small for one sequence.
    """
    recipe = config.recipe
    training = recipe.training
    torch.manual_seed(training.seed + ranks.rank)
    model = build_model(recipe.model, device=ranks.device)
    shard_model(model, ranks)
    initialise(model, seed=training.seed, device=ranks.device)
    loader = BatchLoader(
        shard,
        sequence_length=training.sequence_length,
        global_batch_size=training.global_batch_size,
        micro_batch_tokens=config.micro_batch_tokens,
        seed=training.seed,
        rank=ranks.rank,
        world_size=ranks.world_size,
    )
    identity = f"{recipe.name}-{fingerprint(recipe, tokens_sha256=shard.sha256)}"
    checkpointer = Checkpointer(
        config.output_dir / "checkpoints" / identity, ranks=ranks, kept=config.checkpoints_kept
    )
    return Trainer(
        config,
        ranks=ranks,
        progress=progress,
        stop=stop,
        model=model,
        loader=loader,
        checkpointer=checkpointer,
    )


def build_optimizer(model: LlamaForCausalLM, training: TrainingConfig) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices only: norms' gains are not pulled towards zero."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    gains = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": training.weight_decay},
            {"params": gains, "weight_decay": 0.0},
        ],
        lr=training.learning_rate,
        betas=(training.beta1, training.beta2),
        fused=True,
    )
