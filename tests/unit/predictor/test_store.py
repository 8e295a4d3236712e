import hashlib
import json
import shutil
import zipfile

import numpy as np
import pytest

from sglang_agentcache.predictor.duration import DurationPredictor
from sglang_agentcache.predictor.store import (
    HEADER,
    ArtefactError,
    _header_digest,
    load,
    load_default,
    read_about,
    save,
)
from sglang_agentcache.predictor.tool_calls import ToolCall


def test_a_loaded_predictor_answers_as_the_saved_one(predictor, records, tmp_path):
    predictor_of = records.waits[:80]
    save(predictor, tmp_path / "artefact", {"note": 1})
    again = load(tmp_path / "artefact")
    elapsed = np.linspace(0, 100, 80)
    assert again.get_params() == predictor.get_params()
    assert again.expected_remaining(predictor_of, elapsed) == pytest.approx(
        predictor.expected_remaining(predictor_of, elapsed), rel=1e-9
    )
    assert again.return_rate(predictor_of, elapsed, tau=9.0) == pytest.approx(
        predictor.return_rate(predictor_of, elapsed, tau=9.0), rel=1e-9
    )
    assert read_about(tmp_path / "artefact") == {"note": 1}


def test_what_was_learned_online_is_saved(tmp_path):
    predictor = DurationPredictor(n_trees=5).partial_fit([ToolCall("job")] * 20, [40.0] * 20)
    save(predictor, tmp_path)
    assert load(tmp_path).predict(ToolCall("job")) == pytest.approx(predictor.predict(ToolCall("job")))


def test_saving_over_an_artefact_leaves_one(stacked, cachewise, tmp_path):
    save(stacked, tmp_path)
    save(cachewise, tmp_path)
    assert load(tmp_path).estimator == "cachewise"
    assert len(list(tmp_path.iterdir())) == 2


@pytest.fixture(scope="module")
def pristine(stacked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pristine") / "artefact"
    save(stacked, folder)
    return folder


@pytest.fixture
def artefact(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "artefact")


def edited(directory, change):
    """Rewrite the header as a careful forger would, with its checksum right."""
    header = json.loads((directory / HEADER).read_text())
    change(header)
    header["sha256"] = _header_digest(header)
    (directory / HEADER).write_text(json.dumps(header))


def arrays_of(directory):
    return next(directory.glob("arrays-*.npz"))


def refused(directory, reason):
    with pytest.raises(ArtefactError, match=reason):
        load(directory)


def test_absent(tmp_path):
    refused(tmp_path / "nothing", "no predictor artefact")


def test_not_json(artefact):
    (artefact / HEADER).write_bytes(b"\x80\x04pickle")
    refused(artefact, "damaged")


def test_deep_json(artefact):
    (artefact / HEADER).write_text("[" * 200_000)
    refused(artefact, "damaged")


def test_foreign(artefact):
    (artefact / HEADER).write_text('{"format": "something else"}')
    refused(artefact, "foreign")


def test_newer(artefact):
    edited(artefact, lambda header: header.update(version=2))
    refused(artefact, "format version 2; this package reads versions 1 to 1")


def test_fields_of_a_later_minor_version_are_ignored(artefact):
    edited(artefact, lambda header: header.update(something_new=[1, 2]))
    edited(artefact, lambda header: header["tables"].update(something_new={}))
    assert load(artefact).predict(ToolCall("job")) > 0


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_changed_bytes(artefact, at):
    for path, reason in ((arrays_of(artefact), "checksum"), (artefact / HEADER, "damaged|foreign|version")):
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[int(len(whole) * at)] ^= 0x01
        path.write_bytes(bytes(damaged))
        refused(artefact, reason)
        path.write_bytes(whole)


def test_cut_or_missing_arrays(artefact):
    path = arrays_of(artefact)
    path.write_bytes(path.read_bytes()[:-20])
    refused(artefact, "checksum")
    path.unlink()
    refused(artefact, "cannot be read")


def test_arrays_outside_the_directory(artefact):
    edited(artefact, lambda header: header["arrays"].update(file="../arrays.npz"))
    refused(artefact, "no usable name")


def with_array(directory, name, change):
    with np.load(arrays_of(directory)) as archive:
        arrays = {key: archive[key] for key in archive.files}
    arrays[name] = change(arrays[name])
    np.savez_compressed(arrays_of(directory), **arrays)
    digest = hashlib.sha256(arrays_of(directory).read_bytes()).hexdigest()
    edited(directory, lambda header: header["arrays"].update(sha256=digest))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("trees.left", lambda a: a + 9999),
        ("trees.feature", lambda a: a - 1),
        ("trees.value", lambda a: a * np.nan),
        ("trees.value", lambda a: a[:, :1]),
        ("term", lambda a: a + (1 << 20)),
        ("coef", lambda a: a[:-1]),
        ("residuals0.counts", lambda a: -a - 1),
        ("residuals0.borders", lambda a: a[::-1] - np.arange(len(a))),
        ("coef", lambda a: np.array([object()] * len(a), dtype=object)),
    ],
)
def test_arrays_that_do_not_fit(artefact, name, change):
    with_array(artefact, name, change)
    refused(artefact, "do not fit|damaged")


def test_tables_that_do_not_fit(artefact):
    edited(artefact, lambda header: header["tables"].update(base="NaN"))
    refused(artefact, "finite number")
    edited(artefact, lambda header: header["tables"].update(base=0.0, columns=["other"]))
    refused(artefact, "other features")
    edited(artefact, lambda header: header["params"].update(unknown=1))
    refused(artefact, "do not fit")


def test_nothing_in_an_artefact_is_code(stacked, cachewise, tmp_path):
    for name, predictor in (("a", stacked), ("b", cachewise)):
        save(predictor, tmp_path / name)
        with zipfile.ZipFile(arrays_of(tmp_path / name)) as archive:
            for item in archive.namelist():
                assert b"'O'" not in archive.read(item)[:256]  # an object array would need pickle


def test_the_shipped_predictor_is_small_and_sensible():
    from sglang_agentcache.predictor.store import DEFAULT_DIR

    assert sum(path.stat().st_size for path in DEFAULT_DIR.iterdir()) < 1 << 20
    predictor = load_default()
    calls = [
        ToolCall("Read", '{"file_path": "a.py"}'),
        ToolCall("Bash", '{"command": "go test ./..."}'),
        ToolCall("Task"),
    ]
    quick, test, agent = predictor.predict(calls)
    assert quick < 0.3 < test < 30 < agent
    assert predictor.expected_remaining(
        ToolCall("Bash", {"command": "sleep 120"})
    ) > predictor.expected_remaining(ToolCall("Bash", {"command": "sleep 2"}), horizon=600.0)
