"""Models by the names people write, each read from its facts by the reader of any ``config.json``."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from tokenfleet.catalog.checkpoint_names import split_ending
from tokenfleet.catalog.config import read_config
from tokenfleet.catalog.tables import Row, data, rows
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.model import CheckpointQuantization, ModelArchitecture, Part

_SAME_SHAPE = frozenset(("instruct", "chat", "it", "hf", "base", "meta"))
"""Words of a name that tell how a model was trained or packed, never how it is built."""

_META_FP8: tuple[Part, ...] = ("feed_forward",)
"""Meta's own FP8 checkpoint of Llama 3.1 405B, meant where no other organisation is named, leaves attention in
16 bit."""

_WORD = re.compile(r"[A-Za-z0-9.]+")
_MISSPELT = 0.85
"""Words so much alike are one word and a slip of the fingers."""

Key = tuple[str, ...]


@cache
def model_names() -> tuple[str, ...]:
    """Canonical names of every model of the catalog, in alphabetical order."""
    files = (entry.name for entry in (data() / "models").iterdir() if entry.name.endswith(".json"))
    return tuple(sorted((name.removesuffix(".json").replace("--", "/", 1) for name in files), key=str.lower))


def model(name_or_path: str, *, where: str = "model") -> ModelArchitecture:
    """The architecture that a name or a path means.

    A name is looked up as written (case and organisation do not matter), then among the names people write for
    models of the same shape, then with its quantization ending taken off. Words such as *Instruct* or *Base* say
    nothing about the shape. Whatever was concluded is said in ``notes``; no name is matched by likeness.

    Args:
        name_or_path: ``meta-llama/Llama-3.3-70B-Instruct``, ``llama-3.3-70b``, ``Qwen3-32B-FP8``, or the path of
            a ``config.json`` or of its folder.
        where: file, line or key of the name, for the error.

    Raises:
        BadInput: nobody knows the name (the nearest ones are given), or the file cannot be read.
    """
    path = Path(name_or_path)
    if name_or_path.endswith(".json") or _holds_config(path):
        return _from_file(path if name_or_path.endswith(".json") else path / "config.json", where=where)
    found = _known(name_or_path)
    if found is None:
        raise BadInput.at(where, f"unknown model {name_or_path!r}", _mend(name_or_path))
    return found


def _holds_config(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except OSError:
        # No file can be called so.
        return False


def _known(name: str) -> ModelArchitecture | None:
    """The model of a name, with or without a quantization ending; ``None`` where nobody knows it."""
    found = _named(name)
    split = split_ending(name) if found is None else None
    base = _named(split[0]) if split else None
    return _quantized(base, name, split[1], split[2]) if split and base is not None else found


def _mend(name: str) -> str:
    nearest = nearest_model_names(name)
    file = "or give the path of the model's config.json"
    return f"nearest: {', '.join(nearest)}; {file}" if nearest else file.removeprefix("or ")


def nearest_model_names(name: str) -> tuple[str, ...]:
    """Up to three names of models, as one would write them.

    First ``name`` without its slip of the fingers, then those with every word of it, the shortest first, then those
    much like it.
    """
    split = split_ending(name)
    words = _key(split[0] if split else name)
    bare = {" ".join(_key(one)): one for one in reversed(_written())}
    with_all = [bare[one] for one in sorted(bare, key=len) if words and all(word in one for word in words)]
    alike = [bare[one] for one in get_close_matches(" ".join(words), bare, n=6, cutoff=0.5)]
    models: dict[str, str] = {}
    for one in (*_respelt(name), *with_all, *alike):
        models.setdefault(_meant(one), one)
    return tuple(models.values())[:3]


def _respelt(name: str) -> tuple[str, ...]:
    """``name`` with each word that no name has written as the one it looks like; none where that is no model."""
    known = _words()

    def mended(word: re.Match[str]) -> str:
        asked = word[0].lower()
        alike = () if asked in known else get_close_matches(asked, known, n=1, cutoff=_MISSPELT)
        return (alike[0] if word[0].islower() else known[alike[0]]) if alike else word[0]

    right = _WORD.sub(mended, name)
    return (right,) if right != name and _known(right) is not None else ()


def _meant(name: str) -> str:
    """The model of the catalog that another way to write it means; other checkpoints of its shape are themselves."""
    alias = _aliases().get(_key(name))
    if alias is not None:
        return name if "/" in alias["written"] else alias["model"]
    return _by_key().get(_key(name), name)


@cache
def _words() -> dict[str, str]:
    """Every word of the names that are known, as it is written there."""
    return {word.lower(): word for name in reversed(_written()) for word in _WORD.findall(name)}


@cache
def _written() -> tuple[str, ...]:
    return (*model_names(), *(row["written"] for row in rows("model_aliases")))


def _key(name: str) -> Key:
    """Name without organisation, case, punctuation and words that say nothing about the shape."""
    words = re.split(r"[^a-z0-9.]+", name.lower().rsplit("/", 1)[-1])
    return tuple(word for word in words if word and word not in _SAME_SHAPE)


@cache
def _by_exact_name() -> dict[str, str]:
    names = {name.lower(): name for name in model_names()}
    return {name.split("/")[-1].lower(): name for name in model_names()} | names


@cache
def _by_key() -> dict[Key, str]:
    """Canonical name of each key; a key that two models of the catalog share is left out."""
    names: dict[Key, list[str]] = {}
    for name in model_names():
        names.setdefault(_key(name), []).append(name)
    return {key: found[0] for key, found in names.items() if len(found) == 1}


@cache
def _aliases() -> dict[Key, Row]:
    return {_key(row["written"]): row for row in rows("model_aliases")}


def _named(name: str) -> ModelArchitecture | None:
    exact = _by_exact_name().get(name.lower())
    if exact is not None:
        return _from_catalog(exact)
    alias = _aliases().get(_key(name))
    if alias is not None:
        said = alias["written"] if "/" in alias["written"] and "/" not in name else name
        found = _same_shape(alias["model"], said, *filter(None, [alias["note"]]))
        context = alias["max_context_tokens"]
        return replace(found, max_context_tokens=int(context)) if context else found
    canonical = _by_key().get(_key(name), "")
    return _same_shape(canonical, name) if canonical else None


def _same_shape(canonical: str, name: str, *notes: str) -> ModelArchitecture:
    """Another checkpoint of the same shape; a name without organisation is read as the one of the catalog."""
    found = _from_catalog(canonical)
    read_as = f"taken to have the shape of {canonical}" if "/" in name else f"{name} is taken for {canonical}"
    said = (*found.notes, read_as, *notes)
    return replace(found, name=name if "/" in name else canonical, notes=said)


@cache
def _from_catalog(name: str) -> ModelArchitecture:
    file = f"{name.replace('/', '--', 1)}.json"
    facts = json.loads((data() / "models" / file).read_text(encoding="utf-8"))
    found = read_config(facts["architecture"], name=name, source=f"catalog {file}", partial=True)
    notes = (*found.notes, *([facts["note"]] if facts.get("note") else []))
    return replace(found, source=facts["source"], notes=notes)


def _quantized(
    base: ModelArchitecture, name: str, ending: str, scheme: CheckpointQuantization | None
) -> ModelArchitecture:
    """The same shape, its weights stored as the ending of the name says."""
    own = base.quantization
    organisation = name.lower().rpartition("/")[0]
    if scheme is None:
        note = f"{ending}: weights in plain 16 bit"
    elif own is not None and own.number_format == scheme.number_format:
        scheme, note = own, f"{ending}: as the published checkpoint of {base.name}"
    elif ending.lower() == "fp8" and "405b" in name.lower() and organisation in ("", "meta-llama"):
        scheme = replace(scheme, quantized_parts=_META_FP8)
        note = f"{ending} of Meta: feed-forward in FP8, attention in 16 bit"
    else:
        note = f"{ending} read from the name: {scheme.number_format} in all linear layers"
    full_name = name if "/" in name else f"{base.name}-{ending}"
    return replace(base, name=full_name, quantization=scheme, notes=(*base.notes, note))


def _from_file(path: Path, *, where: str) -> ModelArchitecture:
    """A config on disk; the quantization file that some exporters put beside it is read too."""
    config = _json(path, where=where)
    beside = path.with_name("hf_quant_config.json")
    if beside.is_file() and "quantization_config" not in config:
        config = {**config, "quantization_config": {"quant_method": "modelopt", **_json(beside, where=where)}}
    written = str(config.get("_name_or_path") or "")
    name = written if re.fullmatch(r"[\w.-]+/[\w.-]+", written) else path.resolve().parent.name
    return read_config(config, name=name, source=str(path))


def _json(path: Path, *, where: str) -> Mapping[str, object]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput.at(where, f"cannot read {path}: {error.strerror}", "give the path of a config.json") from error
    except ValueError as error:
        raise BadInput.at(where, f"{path} is not JSON: {error}", "give the config.json of a model") from error
    if not isinstance(config, dict):
        raise BadInput.at(where, f"{path} holds no JSON object", "give the config.json of a model")
    return config
