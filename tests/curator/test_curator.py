"""Requests of a curator: exactly once, in runs, with receipts that say what happened."""

import json
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from curator_histories import contents, curator_in, people, store_in, table

import dd_jax as dd
from dd_jax.data import models
from dd_jax.data.encoding import Encoding
from dd_jax.data.own_file import OwnData
from dd_jax.data.tasks import labelled
from dd_jax.errors import InputError

NEW = ("N1", 33.5, 44.25, "Bern", "yes")


@pytest.fixture
def curator(tmp_path):
    with curator_in(tmp_path) as opened:
        yield opened


def test_a_request_is_served_once_and_its_name_gives_the_same_receipts(curator, tmp_path):
    (who, other, *_), _ = people()
    first = curator.delete([who], request="ticket", now=True)
    again = curator.delete([who], request="ticket")
    assert [r.text for r in again.receipts] == [r.text for r in first.receipts]
    assert curator.status()["runs"] == 1
    with pytest.raises(InputError, match="ticket"):
        curator.delete([other], request="ticket")
    curator.add(table(curator, tmp_path, NEW), request="new")
    for write in (curator.replace, lambda rows, request: curator.delete(rows.ids, request=request)):
        with pytest.raises(InputError, match="something else"):
            write(table(curator, tmp_path, NEW), request="new")
    assert curator.verify().problems == ()


def test_every_id_that_cannot_be_deleted_has_its_own_answer_and_changes_nothing(curator):
    (gone, waiting, stays, *_), (held_out, *_) = people()
    curator.delete([gone], now=True)
    curator.delete([waiting])
    before = contents(curator._store.path)
    for name, word in ((gone, "deleted"), (waiting, "waits"), (held_out, "held out"), ("X", "'X'")):
        with pytest.raises(InputError, match=word):
            curator.delete([stays, name])
    with pytest.raises(InputError, match="twice"):
        curator.delete([stays, stays])
    with pytest.raises(InputError, match="nobody"):
        curator.delete([])
    with pytest.raises(InputError, match="list"):
        curator.delete(stays)
    for name in ("", " ", "two\nlines", "\udcff"):
        with pytest.raises(InputError, match="name of a request"):
            curator.delete([stays], request=name)
    with pytest.raises(InputError, match="no record"):
        curator.delete(["\udcff"])
    assert contents(curator._store.path) == before


def test_owners_gather_until_a_run_is_full_or_flushed(curator):
    names, _ = people()
    single = names[-4:]
    assert curator.delete(single[:2], request="two").waiting == 2
    assert curator.status()["waiting"] == 2
    third = curator.delete(single[2:3])
    assert (len(third.receipts), third.waiting) == (1, 0)
    both = curator.delete(single[:2], request="two").receipts
    assert [r.values["run"] for r in both] == [third.receipts[0].values["run"]] * 2
    bound = both[0].values["bound"]
    assert (bound["rows"], bound["rows_of_run"]) == (1, 3)
    assert (
        bound["eps_dd_of_run"] == curator.plan.certificate(records=3, observed=(0,)).eps_dd_records
    )
    assert bound["eps_dd"] < bound["eps_dd_of_run"]
    assert curator.delete(single[3:], request="last").waiting == 1
    assert [r.values["run"]["number"] for r in curator.flush()] == [2]
    assert curator.flush() == ()
    # What waits is served when the same request is repeated, and nobody wants to wait any more.
    waits, more = people()[0][-6:-4], {"request": "more"}
    assert curator.delete(waits, **more).waiting == curator.delete(waits, **more).waiting == 2
    assert len(curator.delete(waits, **more, now=True).receipts) == 2


def test_an_owner_with_two_rows_is_deleted_as_one(curator):
    names, _ = people()
    (receipt,) = curator.delete(names[:1], now=True).receipts
    promise = curator.plan.certificate(records=2, observed=(0,))
    assert len(receipt.values["rows"]) == 2
    assert receipt.values["bound"]["eps_dd"] == promise.eps_dd_records
    assert receipt.values["certificate"]["eps_dd_records"] == promise.eps_dd_records


def test_of_several_runs_for_one_request_only_the_last_model_is_published(curator):
    names, _ = people()
    answer = curator.delete(names[-7:], now=True)
    assert [r.values["run"]["number"] for r in answer.receipts] == [1, 1, 1, 2, 2, 2, 3]
    assert curator.status()["published"] == [0, 3]
    digests = [r.values["published"]["model_sha256"] for r in answer.receipts]
    assert digests[:6] == [None] * 6
    assert digests[6]


def test_the_clock_of_an_owner_runs_from_the_first_insertion_on(curator, tmp_path):
    names, _ = people()
    who, other = names[-2:]
    added = curator.add(table(curator, tmp_path, NEW), request="add").receipts[0]
    assert added.values["certificate"] is None
    (late,) = curator.delete(["N1"], now=True).receipts
    assert late.values["first_inserted"] == 1
    of_row = {"row": late.values["rows"][0]}
    question = {"request": 2, "first_inserted": 1, "observed": (0, 1)}
    found = late.values["certificate"]
    promise = curator.plan.certificate(**question)
    assert of_row["row"] == found["row"]
    assert found["eps_dd_adaptive"] == promise.eps_dd_adaptive
    assert found["adaptivity"] == 1  # release 0 was published before the record came in
    curator.delete([who], now=True)
    back = curator.add(table(curator, tmp_path, (who, 50, 50, "Rome", "no"))).receipts[0]
    curator.replace(table(curator, tmp_path, (who, 51, 49, "Rome", "yes")))
    (last,) = curator.delete([who], now=True).receipts
    assert back.values["first_inserted"] == last.values["first_inserted"] == 0
    assert last.values["certificate"]["adaptivity"] == last.values["run"]["number"]
    assert "old record" in str(curator.receipts(who)[2])
    assert curator.verify().problems == ()
    with pytest.raises(InputError, match="replace"):
        curator.replace(table(curator, tmp_path, (who, 51, 49, "Rome", "yes")))
    # The number of a run counts from the first insertion of any of its owners.
    curator.add(table(curator, tmp_path, ("N2", 33, 44, "Bern", "yes")))
    both = curator.delete(["N2", other], now=True).receipts
    request = both[0].values["run"]["number"]
    whole = {"request": request, "observed": tuple(range(request)), "records": 2}
    of_run = curator.plan.certificate(**whole).eps_dd_records
    assert [r.values["bound"]["eps_dd_of_run"] for r in both] == [of_run] * 2


def test_an_owner_who_had_more_rows_before_is_judged_with_all_of_them(curator, tmp_path):
    (twice, *_), _ = people()
    rows = curator.delete([twice], now=True).receipts[0].values["rows"]
    curator.add(table(curator, tmp_path, (twice, 50, 50, "Rome", "no")))
    (receipt,) = curator.delete([twice], now=True).receipts
    bound, question = receipt.values["bound"], {"request": 3, "observed": (0, 1, 2)}
    assert (len(rows), len(receipt.values["rows"])) == (2, 1)
    assert bound["rows"] == bound["rows_of_run"] == 2
    assert bound["eps_dd"] == curator.plan.certificate(records=2, **question).eps_dd_records
    assert not any("A test" in text for text in receipt.values["promised"])
    assert curator.verify().problems == ()


def test_rows_that_do_not_fit_are_refused_and_change_nothing(curator, tmp_path):
    names, _ = people()
    before = contents(curator._store.path)
    row = ("N", 1, 2, "Bern", "no")
    for rows, word in (
        ([("N", 500, 1, "Bern", "no")], "age"),
        ([("N", 1, 1, "Oslo", "no")], "Oslo"),
        ([("N", 1, 1, "Bern", "perhaps"), row], "perhaps"),
        ([row, ("M", 1, 2, "Bern", "no"), ("L", 1, 2, "Bern", "no")], "empty"),
        ([row] * 4, "at most"),
        ([(names[0], 1, 2, "Bern", "no")] * 2, "at most"),  # who has two
    ):
        with pytest.raises(InputError, match=word):
            curator.add(table(curator, tmp_path, *rows))
    rows = table(curator, tmp_path, row)
    for without, name in ((rows._replace(ids=None), "who"), (rows._replace(label=None), "bought")):
        with pytest.raises(InputError, match=name):
            curator.add(without)
    with pytest.raises(InputError, match="2 rows"):
        curator.replace(table(curator, tmp_path, (names[0], 1, 2, "Bern", "no")))
    assert contents(curator._store.path) == before
    # Whose deletion waits gets no other record: the one who asked would lose it.
    assert curator.delete(names[-1:]).waiting == 1
    for write in (curator.add, curator.replace):
        with pytest.raises(InputError, match="waits"):
            write(table(curator, tmp_path, (names[-1], 1, 2, "Bern", "no")))


def test_beyond_the_limit_deletions_are_served_and_not_published(tmp_path):
    names, _ = people()
    path = store_in(tmp_path)
    with dd.curator.open(path) as curator:
        limit = curator.status()["eps_dp_joint_with_next"]
        settings = curator._store
        with settings.transaction():
            settings.put("settings", ("limit", json.dumps(limit)))
    with dd.curator.open(path) as curator:
        for name in names[-2:]:
            curator.delete([name], now=True)
        status = curator.status()
        assert (status["published"], status["runs"]) == ([0, 1], 2)
        assert status["eps_dp_joint"] <= limit < status["eps_dp_joint_with_next"]
        last = curator.receipts()[-1].values
        assert last["published"] == {"before": [[0, 1]], "release": None, "model_sha256": None}
        with pytest.raises(InputError, match="limit"):
            curator.model()
        assert curator.verify().problems == ()
        with curator._store.transaction():
            curator._store.put("settings", ("limit", json.dumps(0.999 * status["eps_dp_joint"])))
    with dd.curator.open(path) as curator:
        (problem,) = curator.verify().problems
        assert "limit" in problem


def test_what_is_joint_grows_as_the_certificate_of_all_releases_says(curator):
    names, _ = people()
    for name in names[-3:]:
        curator.delete([name], now=True)
    status = curator.status()
    promise = curator.plan.certificate(request=3, observed=(0, 1, 2))
    assert status["eps_dp_joint"] == promise.eps_dp_request == promise.eps_dp_joint


def test_two_open_stores_see_one_another(tmp_path):
    names, _ = people()
    path = store_in(tmp_path)
    with dd.curator.open(path) as one, dd.curator.open(path) as two:
        assert one.mechanism is two.mechanism  # compiled once
        one.delete(names[-1:], now=True)
        two.delete(names[-2:-1], now=True)
        with pytest.raises(InputError, match="deleted"):
            one.delete(names[-2:-1])
        assert one.delete(names[-3:-2], now=True).receipts[0].values["run"]["number"] == 3
        assert one.verify().problems == two.verify().problems == ()


def test_requests_at_once_wait_for_one_another(tmp_path):
    names, _ = people()
    path, start = store_in(tmp_path), threading.Barrier(4)

    def serve(name):
        with dd.curator.open(path) as curator:
            start.wait()
            return curator.delete([name], now=True).receipts[0].values["run"]["number"]

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(serve, names[-4:])) == [1, 2, 3, 4]
    with dd.curator.open(path) as curator:
        assert curator.verify().problems == ()


def test_predictions_are_those_of_the_exported_model(curator, tmp_path):
    rows = table(curator, tmp_path, NEW, ("N2", 80, 3, "Rome", "no"))
    curator.delete(people()[0][-1:], now=True)
    path = tmp_path / "model.npz"
    path.write_bytes(curator.model().pack())
    exported = models.predict(models.load(path), rows)
    np.testing.assert_array_equal(exported.scores, curator.predict(rows).scores)
    assert exported.label.tolist() == curator.predict(rows).label.tolist()


def test_another_key_and_other_noise_every_time(tmp_path):
    """Two copies of one store that serve the same request publish different models."""
    names, _ = people()
    digests = set()
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        with curator_in(tmp_path / place) as curator:
            (receipt,) = curator.delete(names[-1:], now=True).receipts
            digests.add(receipt.values["published"]["model_sha256"])
    assert len(digests) == 2


def test_an_error_at_any_moment_leaves_nothing_of_a_request(curator, monkeypatch):
    names, _ = people()
    before, put = contents(curator._store.path), curator._store.put
    writes = 0
    for at in range(100):
        left = [at]

        def failing(*args, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise sqlite3.OperationalError("database or disk is full")
            put(*args)

        monkeypatch.setattr(curator._store, "put", failing)
        try:
            curator.delete(names[-1:], request="once", now=True)
            break
        except InputError:
            writes += 1
            assert contents(curator._store.path) == before
    assert writes == 7  # request, waiting, run, rows, receipt, owner, state
    assert curator.status()["runs"] == 1
    assert curator.verify().problems == ()


def test_whoever_is_interrupted_at_the_commit_goes_on_from_what_was_written(curator):
    """Else the next run would start from the deleted record, and overwrite its receipt."""
    names, _ = people()
    real = curator._store.connection

    class Interrupting:
        in_transaction = False

        def execute(self, statement, *values):
            found = real.execute(statement, *values)
            if statement == "COMMIT":
                raise KeyboardInterrupt
            return found

        def __getattr__(self, name):
            return getattr(real, name)

    curator._store.connection = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        curator.delete(names[-1:], request="once", now=True)
    curator._store.connection = real
    assert curator.delete(names[-1:], request="once").receipts[0].values["receipt"] == 1
    (second,) = curator.delete(names[-2:-1], now=True).receipts
    assert (second.values["receipt"], second.values["run"]["number"]) == (2, 2)
    assert curator.verify().problems == ()


def test_a_store_that_is_moved_or_replaced_while_it_is_open_is_not_written_to(tmp_path):
    names, _ = people()
    with curator_in(tmp_path) as curator:
        path = curator._store.path
        path.rename(tmp_path / "elsewhere.store")
        for replaced in (False, True):
            if replaced:
                path.write_bytes((tmp_path / "elsewhere.store").read_bytes())
            with pytest.raises(InputError, match="open it again"):
                curator.delete(names[-1:], now=True)
    with dd.curator.open(path) as curator:
        assert curator.status()["requests"] == 0


def test_full_locked_and_read_only_stores_fail_in_one_line(tmp_path):
    names, _ = people()
    with curator_in(tmp_path, wait=0.0) as curator:
        path, connection = curator._store.path, curator._store.connection
        before = contents(path)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match="another process"):
            curator.delete(names[-1:], now=True)
        other.close()
        connection.execute("PRAGMA query_only = ON")
        with pytest.raises(InputError, match="cannot be written"):
            curator.delete(names[-1:], now=True)
        connection.execute("PRAGMA query_only = OFF")
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(InputError, match="full"):
            curator.delete(names, now=True)
        assert contents(path) == before
        connection.execute("PRAGMA max_page_count = 1000000")
        assert curator.delete(names[-1:], now=True).receipts
        assert curator.verify().problems == ()


def test_exact_arithmetic_is_taken_where_the_loss_has_it(tmp_path):
    """Its state, its keys and its releases go through the store like others."""
    names = np.array([f"A{i}" for i in range(24)])
    features = np.random.default_rng(0).uniform(-0.5, 0.5, (24, 2))
    records = labelled(features, np.where(features[:, 0] > 0, 1.0, -1.0))
    encoding = Encoding(("a", "b"), prepared="as they are")
    empty = labelled(features[:0], np.zeros(0))
    of_file = (np.arange(24), ("a", "b"), ("no", "yes"), "as they are", "")
    data = OwnData(records, empty, *of_file, encoding=encoding, ids=names)
    path = tmp_path / "exact.store"
    with pytest.raises(InputError, match="limit"):
        dd.curator.create(path, data, eps_dp=4.0, eps_dd=1.0, batches=2, limit=3.0)
    with pytest.raises(InputError, match="protects"):  # rows are emptied, features too
        dd.curator.create(path, data, eps_dp=4.0, eps_dd=1.0, protects="label")
    twice = data._replace(ids=np.array([*names[:-1], "A1"]))
    with pytest.raises(InputError, match="'A1' has 2 rows"):
        dd.curator.create(path, twice, eps_dp=4.0, eps_dd=1.0)
    dd.curator.create(path, data, eps_dp=4.0, eps_dd=1.0, batches=2).close()
    with dd.curator.open(path) as curator:
        assert curator.plan.exact
        before = curator.model().weights
        (receipt,) = curator.delete(["A3"]).receipts
        assert "ChaCha20" in str(receipt)
    with dd.curator.open(path) as curator:
        assert curator.verify(receipt.pack()).problems == ()
        assert not np.array_equal(curator.model().weights, before)
        state = curator._kept.curator
        published = curator.mechanism.publish(None, state.params)
        np.testing.assert_array_equal(curator.model().weights, np.asarray(published))
