"""Progress of a training run on stderr: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magna.train import Epoch

_LINE_SECONDS = 5.0


class TrainingProgress:
    """Shows loss, validation accuracy and time left; used as a context manager."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._tasks: dict[int, Any] = {}
        self._first: dict[int, tuple[float, int]] = {}
        self._last_line = time.monotonic()

    def __enter__(self) -> TrainingProgress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """One line of text, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def epoch(self, epoch: Epoch) -> None:
        """Called after each epoch."""
        status = f"loss {epoch.loss:.3f} · valid {_percent(epoch.valid)} · best {_percent(epoch.best)}"
        if self._bar is not None:
            if epoch.seed not in self._tasks:
                self._tasks[epoch.seed] = self._bar.add_task(f"seed {epoch.seed}", total=epoch.of, status="")
            self._bar.update(self._tasks[epoch.seed], completed=epoch.number, status=status)
            return
        now = time.monotonic()
        start, done = self._first.setdefault(epoch.seed, (now, epoch.number))
        if epoch.number in (1, epoch.of) or now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            left = (now - start) / max(1, epoch.number - done) * (epoch.of - epoch.number)
            ahead = f" · {left:.0f} s left" if epoch.number > done and epoch.number < epoch.of else ""
            self.say(f"seed {epoch.seed} · epoch {epoch.number}/{epoch.of} · {status}{ahead}")


def _percent(metrics: dict[str, float]) -> str:
    return f"{100 * metrics['accuracy']:.1f} %"
