"""TensorBoard's event files, for those who ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class Board:
    """Curves of a run in `tensorboard/` of its folder; used as a context manager.

    The folder is made with the first value, so that a run that never starts leaves nothing behind.
    """

    def __init__(self, run_dir: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                f"TensorBoard cannot be loaded ({error}); try python -m pip install -c constraints.txt "
                "'.[tensorboard]', or leave it out"
            ) from error
        self._folder, self._open = run_dir / "tensorboard", SummaryWriter
        self._writer: Any = None

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, epoch: int, values: Mapping[str, float | None]) -> None:
        """One point of each curve; a run that goes on hides what it had written after its checkpoint."""
        if self._writer is None:
            self._writer = self._open(self._folder, purge_step=epoch, flush_secs=10)
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, epoch)
