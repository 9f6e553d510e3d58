"""Writes what a plan leaves behind, whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from tokenfleet import contract
from tokenfleet.app.compose import Composition
from tokenfleet.app.readiness import ready
from tokenfleet.app.report import write_report
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.plan import Plan
from tokenfleet.domain.records import dataclass

CONTRACT = "contract.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What lies in the folder of a plan now."""

    folder: Path
    files: tuple[str, ...]
    stale_contract: bool
    """A contract of an earlier plan lies there, and this plan gives none."""


def check_folder(folder: Path) -> None:
    """Make sure, before any work, that ``folder`` can be written.

    Raises:
        BadInput: it is a file, or nobody may write there.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput.at(str(folder), "is a file; the plan needs a folder", "give another one with -o")
    nearest = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise BadInput.at(str(folder), f"cannot be written: {nearest} does not allow it", "give another one with -o")


def check_file(path: Path, option: str, *, beside: Path) -> None:
    """Make sure, before any work, that a file can be written.

    Args:
        path: The file.
        option: Where it was asked for, such as ``--focus``.
        beside: The folder of the plan, which need not exist yet.

    Raises:
        BadInput: it is a folder, stands in none, or nobody may write there.
    """
    mend = f"give another one with {option}"
    if path.is_dir():
        raise BadInput.at(str(path), "is a folder, not a file", mend)
    folder = path.absolute().parent
    if folder == beside.absolute() and not folder.exists():
        return
    if not folder.is_dir():
        raise BadInput.at(str(path), f"cannot be written: there is no folder {folder}", mend)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput.at(str(path), f"cannot be written: {folder} does not allow it", mend)


@contextmanager
def whole_or_nothing(folder: Path) -> Iterator[Path]:
    """A temporary folder beside ``folder`` whose files move there at the end, and vanish on any error.

    Files of ``folder`` with other names are left alone.

    Raises:
        BadInput: the disk refuses.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise BadInput.at(str(folder), f"cannot be written: {error.strerror}", "give another one with -o") from None
    try:
        yield draft
        folder.mkdir(exist_ok=True)
        for entry in sorted(draft.iterdir()):
            entry.replace(folder / entry.name)
    except OSError as error:
        raise BadInput.at(str(folder), f"cannot be written: {error.strerror}", "give another one with -o") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_plan(
    plan: Plan,
    composition: Composition,
    document: dict[str, object],
    folder: Path,
    *,
    command: str,
    made_on: date,
) -> Written:
    """Write ``plan.json``, ``report.html`` and, when a fleet keeps the promise, ``contract.yaml``.

    Raises:
        BadInput: the folder cannot be written; then nothing is.
    """
    with whole_or_nothing(folder) as draft:
        text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
        (draft / "plan.json").write_text(text + "\n", encoding="utf-8")
        write_report(plan, composition.workload, composition.resolved, draft / "report.html", command=command)
        if plan.fleets:
            starts = (ready(plan.question.rollout.ready_after_s, sized.replica) for sized in plan.fleets)
            start = max(starts, key=lambda each: each.high_s)
            promise = contract.contract_document(
                plan,
                composition.workload,
                composition.resolved,
                made_on=made_on,
                valid_days=composition.valid_days,
                scale_out_s=start.high_s,
                scale_out_source=f"the longest of {start.source}" if start.low_s < start.high_s else start.source,
            )
            contract.write_contract(promise, draft / CONTRACT)
        files = tuple(sorted(entry.name for entry in draft.iterdir()))
    stale = CONTRACT not in files and (folder / CONTRACT).exists()
    return Written(folder=folder, files=files, stale_contract=stale)
