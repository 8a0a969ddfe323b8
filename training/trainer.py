"""The training loop: one step that reads like the maths, and what happens around it.

All ranks run every line of the loop, with the ranks joined and the data prepared; only the progress
writer and the checkpoint marker look at the rank number. What the model is and where its batches
come from is the task's business.
"""

from __future__ import annotations

import gc
import math
import shutil
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import Final

import torch
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from stationmaster.domain.errors import TrainingFailed
from stationmaster.domain.progress_lines import (
    CheckpointSavedLine,
    EvaluatedLine,
    FinishedLine,
    ProgressLine,
    ResumedLine,
    Sample,
    StartedLine,
)
from stationmaster.domain.results import PROFILE
from training.checkpoint import Checkpointer, State
from training.config import TrainerConfig
from training.evaluation import evaluate
from training.final_model import FinalModel
from training.parallel import Ranks, start_sum_over_ranks, sum_over_ranks
from training.profiling import recorded
from training.progress import ProgressWriter
from training.schedule import learning_rate
from training.sharding import ParallelModel
from training.task import Batch, Position, StepResult, Task
from training.throughput import Throughput
from training.waits import RankTimes, watch_gpu
from training.watchdog import Watchdog

# The garbage collector would stop ranks at different moments, and each time all of them wait for
# one: it runs at the same steps everywhere instead. Source: torchtitan.
_STEPS_BETWEEN_COLLECTIONS: Final = 50


class Outcome(StrEnum):
    """How `Trainer.train` came to its end without an error."""

    FINISHED = "finished"
    STOPPED = "stopped"


class Trainer:
    """One rank's part of a run."""

    def __init__(
        self,
        config: TrainerConfig,
        *,
        ranks: Ranks,
        progress: ProgressWriter,
        stop: threading.Event,
        task: Task,
        parallel: ParallelModel,
        optimizer: torch.optim.Optimizer,
        checkpointer: Checkpointer,
        final_model: FinalModel,
        watchdog: Watchdog,
    ) -> None:
        self._recipe = config.recipe
        self._training = config.recipe.own_training
        self._ranks = ranks
        self._progress = progress
        self._stop = stop
        self._task = task
        self.model = task.model
        self._parallel = parallel
        self._optimizer = optimizer
        self._checkpointer = checkpointer
        self._final_model = final_model
        self._watchdog = watchdog
        self._position = Position()
        self._evaluation: EvaluatedLine | None = None
        """The newest evaluation."""
        self._saves_best = self._training.save_best != "off"
        self._best: EvaluatedLine | None = None
        self._num_samples = config.num_samples
        self._profile = config.output_dir / PROFILE
        self._newest_batches: list[Batch] = []
        self._throughput = Throughput(config.recipe, world_size=ranks.world_size)
        self._gpu_use = watch_gpu(ranks.device)
        self._rank_times = RankTimes(task.blocks, ranks)

    def train(self) -> Outcome:
        """Resume if there is something to resume from, and train to the last step or to SIGTERM.

        Returns with every checkpoint complete.

        Raises:
            TrainingFailed: the loss or the gradient is not finite.
            PermanentError: a checkpoint could not be written, or does not belong to this run.
        """
        self._announce()
        self._resume()
        if self._saves_best:
            self._resume_best()
        gc.collect()
        gc.disable()
        try:
            return self._train()
        finally:
            gc.enable()
            self._gpu_use.close()

    def _train(self) -> Outcome:
        outcome = Outcome.FINISHED
        result: StepResult | None = None
        self._throughput.start()
        while self._position.step < self._training.steps:
            if self._position.step % _STEPS_BETWEEN_COLLECTIONS == 0:
                gc.collect(1)
            result = self._step_or_conclude()
            self._watchdog.step_done(self._position.step)
            self._report(result)
            self._conclude_save(wait=False)
            if result.stop_agreed and self._position.step < self._training.steps:
                outcome = Outcome.STOPPED
                break
            if self._is_every(self._training.checkpoint_every):
                self._start_save()
            if self._is_every(self._training.eval_every):
                self._evaluate()
        if self._checkpointer.last_step_started != self._position.step:
            self._start_save()
        self._conclude_save(wait=True)
        if outcome is Outcome.FINISHED:
            if self._training.eval_every and not self._is_evaluated():
                self._evaluate()
            model = self._write_model(loss_nats=result.loss_nats if result else None)
            samples = self._sample()
            self._progress.emit(
                FinishedLine(
                    step=self._position.step,
                    total_steps=self._training.steps,
                    loss_nats=result.loss_nats if result else None,
                    samples_seen=self._position.samples_seen,
                    tokens_seen=self._position.targets_seen,
                    model_path=str(model),
                    best_step=self._best.step if self._best is not None else None,
                    samples=tuple(samples),
                )
            )
        return outcome

    def _write_model(self, *, loss_nats: float | None) -> Path:
        evaluation, step = self._evaluation if self._is_evaluated() else None, self._position.step
        with self._watchdog.paused("writing the model"):
            if self._saves_best:
                # The one that is on the disk, if it is whole.
                self._best = self._checkpointer.best(up_to=step)
            if self._best is not None and self._best.step != step:
                evaluation, step, loss_nats = self._best, self._best.step, None
            return self._final_model.write(step, loss_nats=loss_nats, evaluation=evaluation)

    def _sample(self) -> list[Sample]:
        """Let the trained model write; nothing where an earlier start took the last step."""
        if not self._num_samples or not self._newest_batches:
            return []
        with self._watchdog.paused("generating samples"):
            return self._final_model.sample(self._newest_batches, number=self._num_samples)

    def _is_evaluated(self) -> bool:
        return self._evaluation is not None and self._evaluation.step == self._position.step

    def _is_every(self, interval: int) -> bool:
        return interval > 0 and self._position.step % interval == 0

    def _step_or_conclude(self) -> StepResult:
        try:
            if self._position.step + 1 != self._training.profile:
                return self._train_step()
            with self._watchdog.paused("a profile"), recorded(self._profile, ranks=self._ranks):
                return self._train_step()
        except TrainingFailed:
            # Every rank fails in the same step: the save in progress can still be made complete.
            self._conclude_save(wait=True)
            raise

    def _train_step(self) -> StepResult:
        """Go forward and backward, clip, refuse what is not finite, and update.

        The loss of a step is the sum of -log p over all targets of the global batch, over all
        ranks, divided by their number. Each rank divides its own sum by the global count and the
        gradients are summed, so the result does not depend on how the batch is split into ranks and
        micro-batches.
        """
        rate = learning_rate(self._position.step + 1, self._training)
        with self._rank_times.reading():
            batches = list(self._task.source.micro_batches(self._position.samples_seen))
        self._newest_batches = batches
        targets, ranks_stopping = sum_over_ranks(
            [
                float(sum(batch.count_targets() for batch in batches)),
                float(self._stop.is_set()),
            ],
            self._ranks,
        )

        loss_sum = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
        for index, batch in enumerate(batches):
            with self._parallel.micro_batch(last=index == len(batches) - 1):
                forward = self._task.forward(self._parallel.module, batch.to(self._ranks.device))
                (forward.loss_sum * (self._parallel.loss_scale / targets)).backward()
            loss_sum += forward.reported_sum
        summed_loss = start_sum_over_ranks(loss_sum, self._ranks)
        grad_norm = self._parallel.clip_gradients(self._training.grad_clip)
        # The only place of a step that waits for the device, except for the norm just before.
        loss_nats = float(summed_loss()) / targets

        if not (math.isfinite(loss_nats) and math.isfinite(grad_norm)):
            raise TrainingFailed(
                f"step {self._position.step + 1}: loss {loss_nats}, gradient norm {grad_norm}, "
                "expected finite numbers; the step was not applied; lower "
                f"learning_rate={self._training.learning_rate:g} or raise warmup_steps, and start "
                "again from the last checkpoint"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with self._watchdog.paused("a checkpoint"):
            self._checkpointer.wait_staged()  # a copy in progress must not see the new weights
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

        self._position.step += 1
        self._position.samples_seen += self._training.global_batch_size
        self._position.targets_seen += int(targets)
        return StepResult(loss_nats, grad_norm, rate, targets, ranks_stopping > 0)

    def _evaluate(self) -> None:
        """Measure the loss on the held-out samples, and keep what is the best one so far."""
        began = time.perf_counter()
        found = evaluate(self._task, self._parallel, self._ranks, self._watchdog)
        if found is not None:
            here = {"step": self._position.step, "total_steps": self._training.steps}
            self._evaluation = found.model_copy(update=here)
            self._progress.emit(self._evaluation)
            self._keep_if_best(self._evaluation)
        self._throughput.leave_out(time.perf_counter() - began)

    def _keep_if_best(self, found: EvaluatedLine) -> None:
        is_lower = self._best is None or found.loss_nats < self._best.loss_nats
        mine = float(self._saves_best and math.isfinite(found.loss_nats) and is_lower)
        if not sum_over_ranks([mine], self._ranks)[0]:  # alike on every rank
            return
        self._best = found
        if self._checkpointer.last_step_started != found.step:
            self._start_save()
        self._checkpointer.mark_best(found)

    def _resume_best(self) -> None:
        """Find the best one; what was saved and perhaps not judged before a restart is judged."""
        self._best = self._checkpointer.best(up_to=self._position.step)
        is_judged = self._best is not None and self._best.step == self._position.step
        if self._position.step and self._is_every(self._training.eval_every) and not is_judged:
            self._evaluate()

    def _announce(self) -> None:
        source = self._task.source
        started = StartedLine(
            recipe=self._recipe.name,
            total_steps=self._training.steps,
            world_size=self._ranks.world_size,
            device=self._ranks.device.type,
            parallelism=self._training.parallelism,
            num_parameters=sum(parameter.numel() for parameter in self._task.model.parameters()),
            global_batch_size=self._training.global_batch_size,
            micro_batch_size=source.micro_batch_size,
            grad_accumulation_steps=source.num_micro_batches,
            dataset=self._training.dataset,
        )
        if (samples := source.samples_per_epoch) is not None:
            steps = round(samples / self._training.global_batch_size, 4)
            started = started.model_copy(update={"steps_per_epoch": steps})
        self._progress.emit(started.model_copy(update=dict(source.facts())))
        if self._training.compile:
            self._progress.waits_for("its first step, which compiles the model")

    def _report(self, result: StepResult) -> None:
        self._throughput.add_step(targets=result.targets, samples=self._training.global_batch_size)
        step = self._position.step
        if step % self._training.log_every and step != self._training.steps:
            return
        rates = self._throughput.take(self._ranks.device)
        self._progress.emit(
            ProgressLine(
                step=step,
                total_steps=self._training.steps,
                loss_nats=round(result.loss_nats, 6),
                learning_rate=result.learning_rate,
                grad_norm=round(result.grad_norm, 6),
                gpu_use=self._gpu_use.take_least(self._ranks),
                **rates,
                **self._rank_times.take(step_time_s=rates["step_time_s"]),
            )
        )

    def _resume(self) -> None:
        with self._watchdog.paused("loading a checkpoint"):
            step = self._checkpointer.newest_complete_step()
            if step is None:
                return
            passed_over = self._checkpointer.passed_over
            state = self._state()
            self._checkpointer.load(step, state)
            self._restore(state)
        self._progress.emit(
            ResumedLine(
                step=self._position.step,
                total_steps=self._training.steps,
                samples_seen=self._position.samples_seen,
                path=str(self._checkpointer.path(step)),
                passed_over=passed_over,
            )
        )

    def _start_save(self) -> None:
        self._conclude_save(wait=True)
        with self._watchdog.paused("a checkpoint"):
            self._checkpointer.start_save(
                self._position.step,
                self._state(),
                changing=tuple(self._task.model.buffers()),  # batch norm's, in forward
            )

    def _conclude_save(self, *, wait: bool) -> None:
        began = time.perf_counter()
        with self._watchdog.paused("a checkpoint"):
            saved = self._checkpointer.completed(wait=wait)
        waited_s = time.perf_counter() - began if wait else 0.0
        if saved is not None:
            self._progress.emit(
                CheckpointSavedLine(
                    step=saved.step,
                    path=str(saved.path),
                    size_bytes=saved.num_bytes,
                    stall_s=round(saved.stall_s + waited_s, 4),
                    duration_s=round(saved.duration_s, 4),
                    free_bytes=shutil.disk_usage(saved.path).free,
                )
            )

    def _state(self) -> State:
        """Collect everything that the steps to come depend on."""
        rng = {f"rank-{self._ranks.rank}": torch.get_rng_state()}
        if self._ranks.device.type == "cuda":
            rng[f"rank-{self._ranks.rank}-cuda"] = torch.cuda.get_rng_state(self._ranks.device)
        position = self._position
        return {
            "model": get_model_state_dict(self._parallel.module),
            "optimizer": get_optimizer_state_dict(self._parallel.module, self._optimizer),
            "position": {
                "step": torch.tensor(position.step),
                "samples_seen": torch.tensor(position.samples_seen),
                "targets_seen": torch.tensor(position.targets_seen),
            },
            "rng": rng,
            "data": self._task.source.state(),
        }

    def _restore(self, state: State) -> None:
        set_model_state_dict(self._parallel.module, state["model"])
        set_optimizer_state_dict(self._parallel.module, self._optimizer, state["optimizer"])
        self._position = Position(**{name: int(value) for name, value in state["position"].items()})
        for name, value in state["rng"].items():
            if name.endswith("-cuda"):
                torch.cuda.set_rng_state(value, self._ranks.device)
            else:
                torch.set_rng_state(value)
        self._task.source.restore(state["data"])
