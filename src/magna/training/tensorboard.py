"""Event files for TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from magna.config.atomic_files import writing
from magna.errors import MissingExtra


class Board:
    """Curves of a run in `tensorboard/` of its folder, which is made with the first value.

    Records are written at once: `SummaryWriter` writes in a thread, which prints a traceback if the disk is full.
    """

    def __init__(self, run_dir: Path):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise MissingExtra("the board of curves", "TensorBoard", "tensorboard") from error
        self._file = run_dir / "tensorboard" / f"events.out.tfevents.{time.time_ns()}"
        self._events, self._summaries, self._writer = event_pb2, summary_pb2, RecordWriter

    def write(self, epoch: int, loss: float | None, valid: Mapping[str, float] | None) -> None:
        """Write one point of each curve; a resumed run hides the points after its checkpoint."""
        curves = {"loss/train": loss} | {f"{name}/valid": value for name, value in (valid or {}).items()}
        points = [self._summaries.Summary.Value(tag=name, simple_value=value) for name, value in curves.items()]
        events = [{"summary": self._summaries.Summary(value=points)}]
        if not self._file.exists():
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            events = [{"file_version": "brain.Event:2"}, {"session_log": start}, *events]
        with writing(self._file.parent):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                for content in events:
                    event = self._events.Event(wall_time=time.time(), step=epoch, **content)
                    self._writer(file).write(event.SerializeToString())
