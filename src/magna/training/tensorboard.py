"""Event files for TensorBoard."""

from __future__ import annotations

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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._writer is not None:
                with writing(self._folder):
                    self._writer.close()
        except OSError:
            if error is None:  # else the first error is raised
                raise

    def write(self, epoch: int, values: Mapping[str, float | None]) -> None:
        """Write one point of each curve; a resumed run hides the points after its checkpoint."""
        with writing(self._folder):
            if self._writer is None:
                self._writer = self._open(self._folder, purge_step=epoch, flush_secs=10)
            for name, value in values.items():
                if value is not None:
                    self._writer.add_scalar(name, value, epoch)
