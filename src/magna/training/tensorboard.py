"""TensorBoard's event files, for those who ask for them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from magna.config.atomic_files import writing
from magna.errors import MissingExtra


class Board:
    """Curves of a run in `tensorboard/` of its folder; used as a context manager.

    The folder is made with the first value, so that a run that never starts leaves nothing behind.
    """

    def __init__(self, run_dir: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("the board of curves", "TensorBoard", "tensorboard") from error
        self._folder, self._open = run_dir / "tensorboard", SummaryWriter
        self._writer: Any = None

    def __enter__(self) -> Board:
        self._before, threading.excepthook = threading.excepthook, self._on_error_of_thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._writer is not None:
                with writing(self._folder):
                    self._writer.close()
        except OSError:
            if error is None:  # else that one is told
                raise
        finally:
            threading.excepthook = self._before

    def _on_error_of_thread(self, args: threading.ExceptHookArgs) -> None:
        """TensorBoard writes in a thread of its own and tells of a full disk at the next value: once is enough."""
        if not (isinstance(args.exc_value, OSError) and type(args.thread).__module__.startswith("tensorboard.")):
            self._before(args)

    def write(self, epoch: int, values: Mapping[str, float | None]) -> None:
        """One point of each curve; a run that goes on hides what it had written after its checkpoint."""
        with writing(self._folder):
            if self._writer is None:
                self._writer = self._open(self._folder, purge_step=epoch, flush_secs=10)
            for name, value in values.items():
                if value is not None:
                    self._writer.add_scalar(name, value, epoch)
