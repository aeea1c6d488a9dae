"""The command doctor: the state of this installation and machine."""

from __future__ import annotations

from collections.abc import Iterator

from magna.cli.command import Result, command
from magna.cli.options import MACHINE, DataDir, plain_console

_MOST_FAULTS = 3  # named in the one line of an error; the report has all


def _show(result: Result) -> None:
    from rich.table import Table

    console = plain_console()
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for topic, text in _facts(result):
        facts.add_row(topic, text)
    console.print(facts)
    lines = [f"note: {note}" for note in result["notes"]] + [f"fault: {fault}" for fault in result["faults"]]
    for line in lines or ["all is well"]:
        console.print(line)


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    """Topic and text of each line."""
    versions = {name: version or "missing" for name, version in result["versions"].items()}
    platform = versions.pop("platform")
    yield "versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "system", platform
    yield "extras", _extras(result) or "unknown, because this package runs from a folder of sources"
    cpu = result["devices"]["cpu"]
    facts = [
        _counted(cpu["usable_cores"], "core"),
        _counted(cpu["threads"], "thread"),
        f"{cpu['instruction_set']} kernels" if cpu["instruction_set"] else "no compiled kernels",
        *([] if cpu["memory_bytes"] is None else [_size(cpu["memory_bytes"])]),
    ]
    yield "CPU", f"{cpu['name']}: {', '.join(facts)}"
    gpus = result["devices"]["gpus"]
    sizes = "; ".join(f"{gpu['name']}, {_size(gpu['memory_bytes'])}, {_size(gpu['free_bytes'])} free" for gpu in gpus)
    yield "GPU", sizes or "none"
    topic = "kernels"
    for line in _kernels(result):
        yield topic, line
        topic = ""
    yield from _data(result)
    yield "disk", "; ".join(f"{_size(row['free_bytes'])} free for {row['for']}" for row in result["disk"])


def _extras(result: Result) -> str:
    """Extras that are installed, and those with a missing package."""
    states: dict[str, list[str]] = {"installed": [], "missing": []}
    for extra, packages in result["extras"].items():
        if extra != "test":
            states["installed" if all(packages.values()) else "missing"].append(extra)
    return "; ".join(f"{state}: {', '.join(extras)}" for state, extras in states.items() if extras)


def _kernels(result: Result) -> Iterator[str]:
    """A line for each backend and device: the number of kernels that agree, or the reason why none runs."""
    for row in result["backends"]:
        if not row["runs"]:
            yield f"{row['backend']} on {row['device']}: does not run: {row['reason']}"
    for backend, device in dict.fromkeys((check["backend"], check["device"]) for check in result["kernels"]):
        checks = [each for each in result["kernels"] if (each["backend"], each["device"]) == (backend, device)]
        names = dict.fromkeys(check["kernel"] for check in checks)
        wrong = {check["kernel"] for check in checks if not check["agrees"]}
        of = next(iter(names)) if len(names) == 1 else _counted(len(names), "kernel")
        state = f"differs: {', '.join(sorted(wrong))}" if wrong else "agrees with the definition"
        yield f"{backend} on {device} ({of}): {state}"


def _data(result: Result) -> Iterator[tuple[str, str]]:
    topic = "data"
    for place in result["data"]["order"]:
        used = " (used)" if place["chosen"] else ""
        yield topic, f"{place['from']}: {place['folder'] or 'not set'}{used}"
        topic = ""
    complete = [row["name"] for row in result["data"]["datasets"] if not row["missing"]]
    partial = [
        f"{row['name']} lacks {row['missing']} of {row['files']} files"
        for row in result["data"]["datasets"]
        if 0 < row["missing"] < row["files"]
    ]
    yield "", f"complete: {', '.join(complete)}" + "".join(f"; {text}" for text in partial)


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'s' * (count != 1)}"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _failure(result: Result) -> str | None:
    faults = result["faults"]
    if not faults:
        return None
    others = f", and {len(faults) - _MOST_FAULTS} others" if len(faults) > _MOST_FAULTS else ""
    named = "; ".join(faults[:_MOST_FAULTS])
    return f"{named}{others}; try backend='reference' until the package is installed again"


@command("magna doctor", "magna doctor --json", show=_show, panel=MACHINE, failure=_failure)
def doctor(data_dir: DataDir = None) -> Result:
    """Check this installation, with every kernel that runs here.

    It lists versions, devices, backends, data folders and free disk.
    Each kernel is compared with its definition on a graph of five nodes; a difference gives exit status 1.
    """
    from magna.bench.doctor import examine

    return examine(data_dir)
