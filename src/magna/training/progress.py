"""Progress of a training run on stderr: a bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from magna.errors import clean

if TYPE_CHECKING:
    from magna.config.schema import Config
    from magna.training.loop import Epoch

_LINE_SECONDS = 5.0
_WIDE = 100  # columns; a narrower terminal gets a short bar, so that the scores fit
# Settings of a model in the first line of a run.
_SHOWN = ("heads", "K", "alpha", "top_k", "decoder", "skip_channels", "members")


class TrainingProgress:
    """Shows loss, validation score and time left; used as a context manager."""

    def __init__(self) -> None:
        self.task: Any = None  # of the training that has started
        self._bar: Any = None
        self._task: Any = None
        self._last: Epoch | None = None
        self._ended = ""
        self._started = self._last_line = time.monotonic()
        self._trained = 0

    def __enter__(self) -> TrainingProgress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            console = Console(stderr=True)
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24 if console.width >= _WIDE else 8),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TextColumn("{task.fields[left]}", style="progress.remaining"),
                console=console,
            )
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """One line of text, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def start(self, config: Config, task: Any, device: Any) -> None:
        """Describe data, model and device, and say what the user should know about them."""
        self.task = task
        self.say(f"{task.dataset}: {task.size} · {_model(config)} · {device.type}")
        for note in (*task.notes(config), *_note_on_settings(config)):
            self.say(f"note: {clean(note)}")

    def epoch(self, epoch: Epoch) -> None:
        """Show an epoch that has ended."""
        from magna.tasks.metrics import headline  # loads torch, which takes longer than the first line may

        loss = "" if epoch.loss is None else f"loss {epoch.loss:.3f} · "
        valid = "" if epoch.valid is None else f"valid {headline(epoch.valid)} · "
        best = "" if epoch.best is None else f"best {headline(epoch.best)}"
        status = f"{loss}{valid}{best}".removesuffix(" · ")
        left = self._left(epoch)
        if self._bar is not None:
            self._show(epoch, status, left)
        else:
            self._print(epoch, status, left)
        self._last = epoch

    def _print(self, epoch: Epoch, status: str, left: str) -> None:
        now = time.monotonic()
        if epoch.number in (1, epoch.of) or now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            ahead = f" · {left} left" if left else ""
            self.say(f"{epoch.label} · epoch {epoch.number}/{epoch.of} · {status}{ahead}")

    def _show(self, epoch: Epoch, status: str, left: str) -> None:
        """One bar, whatever the number of seeds: what has ended moves up as a line of text."""
        if self._last is None or epoch.run != self._last.run:
            if self._task is not None:
                self.say(self._ended)
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(epoch.label, total=epoch.of, status="", left="")
        self._ended = f"{epoch.label} · {epoch.number} epochs · {status}"
        self._bar.update(self._task, completed=epoch.number, status=status, left=f"{left} left" if left else "")

    def _left(self, epoch: Epoch) -> str:
        """Time until the last run ends, at the pace so far, if none stops early."""
        now, last = time.monotonic(), self._last
        if last is None:
            # What came before, loading and warming up, says nothing of the pace.
            self._started = now
            return ""
        self._trained += epoch.number - last.number if epoch.run == last.run else 1
        ahead = epoch.of - epoch.number + (epoch.runs - 1 - epoch.run) * epoch.of
        return duration((now - self._started) / self._trained * ahead) if ahead and self._trained > 0 else ""


@contextmanager
def shown(progress: bool, on_start: Callable[..., None], on_epoch: Callable[..., None]) -> Iterator[tuple[Any, Any]]:
    """The two callbacks, which also show progress on stderr if that is asked for."""
    if not progress:
        yield on_start, on_epoch
        return
    with TrainingProgress() as display:

        def start(*facts: Any) -> None:
            display.start(*facts)
            on_start(*facts)

        def epoch(ended: Epoch) -> None:
            display.epoch(ended)
            on_epoch(ended)

        yield start, epoch


def _model(config: Config) -> str:
    """Layers, width, name and main settings of a model."""
    model = config.model.recipe_values()
    plain = {"members": 1}
    facts = [f"{name}={model[name]}" for name in _SHOWN if model.get(name) not in (None, 0, plain.get(name))]
    if model.get("num_layers") == 0:
        return ", ".join(["no encoder", *facts])
    shape = " × ".join(str(model[name]) for name in ("num_layers", "hidden_channels") if name in model)
    return f"{shape} {', '.join([config.model.name, *facts])}".strip()


def _note_on_settings(config: Config) -> Iterator[str]:
    """A note for data of the user whose settings come from other data."""
    from magna.data import DATASETS

    if config.data.name not in DATASETS and config.source.settings and not config.source.search:
        settings = config.source.settings.rstrip(".")
        yield f"{settings[:1].lower()}{settings[1:]}; try magna sweep with this data"


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(0.4), duration(75), duration(7500)
    ('0.4 s', '1 min 15 s', '2 h 05 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def seldom(say: Callable[[str], None], seconds: float) -> Callable[[str], None]:
    """`say` with at most one line in so many seconds."""
    last = time.monotonic()

    def say_seldom(line: str) -> None:
        nonlocal last
        if time.monotonic() - last > seconds:
            last = time.monotonic()
            say(line)

    return say_seldom
