"""The store: damage is refused, receipts are verified, crashes leave whole requests, no traces."""

import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from curator_histories import contents, curator_in, lines, people, store_in, table
from problems import soak

import dd_jax as dd
from dd_jax import sealed
from dd_jax.cli import verifying
from dd_jax.curator import receipts, turns, verification
from dd_jax.curator import store as stores
from dd_jax.curator.receipts import Facts, Run, certificate_of, compose, rows_judged
from dd_jax.data import models
from dd_jax.errors import InputError
from dd_jax.oracles import linear


@pytest.fixture
def used(tmp_path):
    """A store that has served requests of all kinds."""
    with curator_in(tmp_path) as curator:
        curator.delete(people()[0][:1], now=True)
        curator.add(table(curator, tmp_path, ("N1", 33.5, 44.25, "Bern", "yes")))
        curator.delete(["N1"], now=True)
        curator.delete(people()[0][1:2])
    return curator._store.path


def test_what_is_no_store_of_this_version_is_refused(tmp_path, used):
    for name, content in (("a.csv", b"a,b\n1,2\n"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE a (b)").connection.close()
    for name in ("missing", "a.csv", "empty", "other.db"):
        with pytest.raises(InputError, match=r"store|damaged"):
            dd.curator.open(tmp_path / name)
    with sqlite3.connect(used) as connection:
        connection.execute("CREATE TABLE kept AS SELECT * FROM records")
    with pytest.raises(InputError, match="tables are others"):
        dd.curator.open(used)
    with sqlite3.connect(used) as connection:
        connection.execute(f"PRAGMA user_version = {stores.FORMAT + 1}")
    with pytest.raises(InputError, match="version"):
        dd.curator.open(used)


def test_a_removed_journal_is_removed_for_good_and_a_foreign_one_is_not_taken(tmp_path, used):
    with dd.curator.open(used) as curator:
        assert curator._store.connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
    (tmp_path / "new.store-journal").write_bytes(b"of an earlier store")
    with pytest.raises(InputError, match="journal"):
        stores.create(tmp_path / "new.store", {})
    assert not (tmp_path / "new.store").exists()


def test_a_store_is_private_and_its_owners_are_hashed_with_its_own_key(tmp_path):
    path = store_in(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    with dd.curator.open(path) as curator:
        hashes = {row[1] for row in curator._store.rows("owners")}
        keys = (curator._key, bytes(32))
    found = [{turns.hash_of(key, name) for name in people()[0]} for key in keys]
    assert found[0] < hashes
    assert not found[1] & hashes


def test_a_batch_that_does_not_follow_from_the_requests_is_refused(tmp_path):
    """The accounting is that of a counter that goes on through all requests."""
    with curator_in(tmp_path) as curator:
        (state,) = curator._store.rows("state")
        with curator._store.transaction():
            curator._store.put("state", (*state[:2], 1 - state[2], *state[3:]))
    with pytest.raises(InputError, match="next batch"):
        dd.curator.open(curator._store.path)


def test_what_a_killed_process_left_of_another_store_is_removed(tmp_path):
    left = tmp_path / ".dd_jax-0123456789abcdef.part"
    left.write_bytes(b"records")
    curator_in(tmp_path).close()
    assert not left.exists()


def test_of_stores_made_at_once_the_first_one_stays(tmp_path):
    start = threading.Barrier(8)

    def make(number):
        row = (0, None, bytes([number]) * 8, b"")
        start.wait()
        try:
            stores.create(tmp_path / "my.store", {"records": [row]})
        except InputError as error:
            return str(error)
        return "made"

    for _ in range(soak(3, 50)):
        with ThreadPoolExecutor(8) as pool:
            said = sorted(pool.map(make, range(8)), key=len)
        assert said[0] == "made"
        assert all("exists" in text for text in said[1:])
        stores.connect(tmp_path / "my.store", 1.0).close()
        (tmp_path / "my.store").unlink()
    assert not list(tmp_path.iterdir())


def test_damage_is_refused_and_never_served(tmp_path, used):
    """A byte that belongs to no row may change; whatever is opened has the contents it had."""
    whole, before = used.read_bytes(), contents(used)
    chance, damaged = random.Random(0), tmp_path / "damaged.store"
    with dd.curator.open(used) as curator:
        rows = {name: curator._store.rows(name) for name in ("state", "records", "receipts")}
        settings = curator._store.settings()
    # Model, a record, a receipt, the plan: what they hold must not change without being noticed.
    held = [rows["state"][0][1], rows["records"][-3][2], rows["receipts"][1][-1].encode()[:99]]
    held.append(settings["plan"].encode()[:99])

    def flipped(place):
        content = bytearray(whole)
        content[place] ^= 1 << chance.randrange(8)
        return bytes(content)

    def is_refused(content):
        damaged.write_bytes(content)
        try:
            with dd.curator.open(damaged, wait=0.0) as curator:
                assert curator.verify().problems == ()
        except InputError as error:
            return "\n" not in str(error)
        assert contents(damaged) == before
        return False

    # An index would not find the owner of a whole row.
    with dd.curator.open(used) as curator:
        name = curator._owner(people()[0][-1]).hash
    assert whole.count(name) == 2
    assert is_refused(flipped(whole.rindex(name)))
    assert is_refused(flipped(whole.index(name)))
    # What is no text any more, in the plan and in a name that SQLite quotes.
    for part in (held[-1], b"_autoindex_owners_1"):
        place = whole.index(part) + len(part) - 1
        assert is_refused(whole[:place] + b"\x8c" + whole[place + 1 :])
    refused = [is_refused(flipped(chance.randrange(len(whole)))) for _ in range(soak(12, 200))]
    assert any(refused)
    for _ in range(soak(2, 30)):
        for part in held:
            place = whole.index(part) + chance.randrange(len(part))
            assert is_refused(flipped(place))
    for _ in range(soak(5, 50)):
        assert is_refused(whole[: chance.randrange(len(whole))])


def test_a_page_that_was_never_written_brings_no_deleted_record_back(tmp_path):
    """Its old rows are whole, and have their digests."""
    names, _ = people()
    with curator_in(tmp_path) as curator:
        number = curator._owner(names[-1]).number
        (old,) = curator._store.rows("records", "owner = ?", number)
        curator.delete(names[-1:], now=True)
        with curator._store.transaction():
            curator._store.put("records", old)
    with pytest.raises(InputError, match=f"row {old[0]} is of somebody"):
        dd.curator.open(tmp_path / "copy.store")


def test_check_names_a_damaged_store_and_one_in_the_middle_of_a_request(tmp_path):
    """Without opening it, which would end the request."""
    path = store_in(tmp_path)
    whole = path.read_bytes()
    with dd.curator.open(path) as curator:
        record = curator._store.rows("records")[-3][2]
    place = whole.index(record)
    flipped = whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]
    for content in (flipped, whole[:-4096], whole[:68] + bytes(4) + whole[72:], b"X" + whole[1:]):
        path.write_bytes(content)
        assert [one.file for one in verifying.verify(tmp_path).damaged] == [path.name]
    path.write_bytes(whole)
    (seen,) = verifying.verify(tmp_path).seen
    assert (seen.kind, seen.damage) == ("stores of curators", None)
    journal = tmp_path / f"{path.name}-journal"
    journal.touch()
    found = verifying.verify(tmp_path)
    assert not found.seen
    assert found.unfinished == [path.name, journal.name]


def test_rows_that_are_changed_with_their_digests_are_found_by_verify(used):
    """Whoever writes digests of rows cannot write receipts that follow from the store."""
    with dd.curator.open(used) as curator:
        for table_name, column, value in (
            ("runs", 2, "2020-01-01T00:00:00+00:00"),
            ("requests", 1, "another name"),
            ("receipts", 4, "[5]"),
        ):
            (row, *_) = curator._store.rows(table_name, "number = 1")
            with curator._store.transaction():
                changed = (*row[:column], value, *row[column + 1 :])
                curator._store.put(table_name, changed)
            assert any("receipt" in text for text in curator.verify().problems), table_name
            with curator._store.transaction():
                curator._store.put(table_name, row)
        null, *_ = curator._store.rows("records", "owner IS NULL")
        held, *_ = curator._store.rows("records", "owner NOT NULL")
        with curator._store.transaction():
            curator._store.put("records", (*null[:2], *held[2:]))
        assert any("not empty" in text for text in curator.verify().problems)
        with curator._store.transaction():
            curator._store.put("records", null)
        # Somebody whose rows are gone, and was not deleted.
        stays = curator._owner(people()[0][-1]).number
        (held,) = curator._store.rows("records", "owner = ?", stays)
        with curator._store.transaction():
            curator._store.put("records", (held[0], None, *null[2:]))
        assert f"owner {stays} should have rows" in curator.verify().problems
        with curator._store.transaction():
            curator._store.put("records", held)
        # The end of the chain is in the state: the last receipt cannot be left out or exchanged.
        (state,) = curator._store.rows("state")
        with curator._store.transaction():
            curator._store.put("state", (*state[:-1], "another head"))
        curator._kept = None
        assert any("last receipt" in text for text in curator.verify().problems)
        for release, word in ((bytes(len(state[4])), "digest"), (None, "kept as published")):
            with curator._store.transaction():
                curator._store.put("state", (*state[:4], release, *state[5:]))
            curator._kept = None
            assert any(word in text for text in curator.verify().problems)
        with curator._store.transaction():
            curator._store.put("state", state)
        curator._kept = None
        # Somebody who was deleted is not present, whatever the table of owners says.
        number = curator.receipts()[0].values["receipt"]
        ((*_, owner, _, _, _),) = curator._store.rows("receipts", "number = ?", number)
        (gone,) = curator._store.rows("owners", "number = ?", owner)
        for changed in ((*gone[:2], "present", *gone[3:]), (*gone[:2], "held out", -1, None)):
            with curator._store.transaction():
                curator._store.put("owners", changed)
            assert any("owner" in text for text in curator.verify().problems)


def test_a_time_from_too_late_and_a_missing_receipt_are_found(tmp_path, monkeypatch):
    """Both are mistakes of a program, with which every receipt follows from the store."""
    names, _ = people()
    with curator_in(tmp_path) as curator:
        (row,) = curator._store.rows("owners", "number = ?", curator._owner(names[-1]).number)
        curator.delete(names[-2:-1], now=True)
        with curator._store.transaction():
            curator._store.put("owners", (*row[:3], 1, row[4]))
        curator.delete(names[-1:], now=True)
        assert any("first insertion" in text for text in curator.verify().problems)
    with curator_in(tmp_path) as curator:
        with monkeypatch.context() as without:
            without.setattr(turns.Turn, "_issue", lambda *_: None)
            curator.delete(names[-1:], now=True)
        assert any("run 1 edited other rows" in text for text in curator.verify().problems)


def test_receipts_of_other_versions_are_not_called_wrong(used, monkeypatch):
    """Their facts are checked; their bounds are those that the other versions computed."""
    with dd.curator.open(used) as curator:
        monkeypatch.setattr(receipts, "_about_arithmetic", lambda plan: "In better words.")
        assert curator.verify().problems
        monkeypatch.setattr(verification, "versions", lambda: "{}")
        found = curator.verify()
        assert found.problems == ()
        assert "1 to 3" in found.unchecked[-1]
        (row, *_) = curator._store.rows("receipts", "number = 1")
        with curator._store.transaction():
            text = row[-1].replace('"n": ', '"n": 1')
            curator._store.put("receipts", (*row[:-1], text))
        assert any("receipt 1 " in text for text in curator.verify().problems)


def leaves(values, path=()):
    if isinstance(values, dict):
        for key, value in values.items():
            yield from leaves(value, (*path, key))
    elif isinstance(values, list) and values:
        for key, value in enumerate(values):
            yield from leaves(value, (*path, key))
    else:
        yield path, values


def test_a_receipt_that_is_edited_in_any_field_or_moved_fails(used, tmp_path):
    with dd.curator.open(used) as curator:
        for receipt in curator.receipts()[:2]:
            content = receipt.pack()
            assert curator.verify(content).problems == ()
            assert curator.verify(content.replace(b'"n": ', b'"n": 1')).problems
            for path, value in list(leaves(receipt.values))[:: soak(9, 1)]:
                for other in (7 if value != 7 else 8, 2**70, [value]):
                    edited = json.loads(receipt.text)
                    inside = edited
                    for key in path[:-1]:
                        inside = inside[key]
                    inside[path[-1]] = other
                    assert curator.verify(sealed.pack_json(edited)).problems, path
    (tmp_path / "other").mkdir()
    other = Path(tmp_path / "other")
    with curator_in(other) as copy:
        # Another store has another name and other noise; a copy that went another way has the name.
        copy.delete(people()[0][2:3], now=True)
        assert copy.verify(content).problems


def test_no_trace_of_deleted_rows_in_any_file(tmp_path):
    """The features as float32 and float64, and the fields of the line as text."""
    names, _ = people()
    path = store_in(tmp_path)
    gone = names[-soak(15, 30) :]
    with dd.curator.open(path) as curator:
        kept = curator._kept.curator.database.features
        places = {
            name: row[0]
            for name in gone
            for row in curator._store.rows("records", "owner = ?", curator._owner(name).number)
        }
        rows = {name: np.asarray(kept[place]) for name, place in places.items()}
    texts = {line.split(",")[0]: line.split(",") for line in lines()}

    def found(files):
        everything = b"".join(file.read_bytes() for file in files)
        hits = []
        for name, row in rows.items():
            patterns = [row.tobytes(), row.astype(np.float64).tobytes(), row[:2].tobytes()]
            patterns += [text.encode() for text in (f"{name},", *texts[name][1:3])]
            patterns += [repr(float(number)).encode() for number in row[:2]]
            hits += [name] if any(pattern in everything for pattern in patterns) else []
        return hits

    assert sorted(found([path])) == sorted(gone)
    with dd.curator.open(path) as curator:
        for receipt in curator.delete(gone, now=True).receipts:
            number = receipt.values["receipt"]
            (tmp_path / f"{number}.json").write_bytes(receipt.pack())
            (tmp_path / f"{number}.txt").write_text(str(receipt))
        (tmp_path / "model.npz").write_bytes(curator.model().pack())
        memory = np.asarray(curator._kept.curator.database.features)
        assert not any((memory == row).all(axis=1).any() for row in rows.values())
    assert len(list(tmp_path.iterdir())) == 2 + 2 * len(gone)
    assert found(file for file in tmp_path.iterdir()) == []


def test_records_that_need_pages_of_their_own_leave_nothing_in_them(tmp_path):
    """Short ones are overwritten in place; of long ones the pages of the old contents are freed."""
    rng, path = np.random.default_rng(0), tmp_path / "wide.store"
    rows = [(k, k, rng.normal(size=3000).astype(np.float32).tobytes(), b"") for k in range(60)]
    stores.create(path, {"records": rows})
    store = stores.connect(path, 1.0)
    for erased in (False, True):
        if erased:
            with store.transaction():
                for place, _, features, label in rows:
                    store.put("records", (place, None, bytes(len(features)), label))
            store.close()
        content = path.read_bytes()
        found = [row[2][:12] in content or row[2][-12:] in content for row in rows]
        assert found == [not erased] * len(rows)


LIFE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from curator_histories import table
import dd_jax as dd
from dd_jax import files
from dd_jax.curator import store as stores
path = Path(sys.argv[1])
with dd.curator.open(path) as curator:
    print("open", flush=True)
    for name in sys.argv[3:]:
        curator.delete([name], request=f"delete {name}", now=True)
        print(f"delete {name}", flush=True)
        row = table(curator, path.parent, (f"new {name}", 33, 44, "Bern", "yes"))
        curator.add(row, request=f"add {name}")
        print(f"add {name}", flush=True)
        files.place(path.parent / "model.npz", curator.model().pack())
        print(f"export {name}", flush=True)
        rows = {name: curator._store.rows(name) for name in stores.TABLES}
        stores.create(path.parent / f"{name}.store", rows)
        print(f"init {name}", flush=True)
"""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_whole_requests(tmp_path):
    """Every acknowledged request is there once with its receipt, no other one is half there."""
    names, _ = people()
    chance, kills = random.Random(1), soak(2, 1000)
    folder = str(Path(__file__).parent)
    names, served = names[-24:], []
    path = store_in(tmp_path)
    for _ in range(kills):
        left = [name for name in names if f"delete {name}" not in served]
        if len(left) < 4:
            path, served, left = store_in(tmp_path), [], names
        command = [sys.executable, "-c", LIFE, str(path), folder, *left]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as life:
            assert life.stdout.readline() == "open\n"
            said = [life.stdout.readline() for _ in range(chance.randrange(6))]
            time.sleep(chance.random() * 0.3)
            os.kill(life.pid, signal.SIGKILL)
            said = "".join([*said, life.stdout.read()]).splitlines()
        acknowledged = served + [name for name in said if name[:3] in ("del", "add")]
        with dd.curator.open(path) as curator:
            assert curator.verify().problems == ()
            receipts, status = curator.receipts(), curator.status()
        served = [r.values["request"]["name"] for r in receipts]
        assert len(set(served)) == len(served)
        assert served[: len(acknowledged)] == acknowledged
        assert len(served) <= len(acknowledged) + 1
        assert status["requests"] == status["receipts"] == status["runs"] == len(served)
        if (tmp_path / "model.npz").exists():
            models.load(tmp_path / "model.npz")
        assert (tmp_path / "model.npz").exists() or not any("export" in name for name in said)
        made = {f"init {file.stem}" for file in tmp_path.glob("P*.store")}
        assert {name for name in said if "init" in name} <= made
        for file in tmp_path.glob("P*.store"):
            with dd.curator.open(file) as other:
                assert other.verify().problems == ()
            file.unlink()


def exact(plan, since, observed, request):
    """R_q of the linear loss, interval by interval between the releases that were seen."""
    constants = plan.problem
    known = (plan.order, constants.loss.lipschitz, constants.l2, plan.noise_variance, plan.n)

    def end(i):
        return plan.learn_steps + i * plan.delete_steps

    start = 0 if since == 0 else end(since - 1)
    cuts = [start, *(end(s) for s in observed if s >= since)]
    total = 0.0
    for first, last in itertools.pairwise(cuts):
        total += linear.renyi(*known, plan.step_size, last - first)
    present = end(request - 1) - cuts[-1]
    return total + linear.renyi(*known, plan.step_size, present, delete_steps=plan.delete_steps)


def in_steps(plan, used, observed, request):
    """R_q of the linear loss, when a record acts in these steps of its batches."""
    ends = [plan.learn_steps + i * plan.delete_steps for i in range(request + 1)]
    contraction = 1 - plan.step_size * plan.problem.l2
    gap = 2 * plan.step_size * plan.problem.loss.lipschitz / (plan.n // plan.batches)
    cuts, total = [0, *(ends[s] for s in observed), ends[request]], 0.0
    for first, last in itertools.pairwise(cuts):
        left = contraction ** (last - 1.0 - np.arange(first, last))
        shift = gap * sum(left[k - first] for k in used if first <= k < last)
        variance = 2 * plan.step_size * plan.noise_variance * np.sum(left**2)
        total += plan.order / 2 * shift**2 / variance
    return total


def test_an_owner_who_came_back_into_another_batch_has_a_true_number():
    """What the batch of the last row alone would show is less than the truth, and may be 0."""
    problem = dd.Problem(dd.losses.linear(), l2=0.3)
    plan = dd.plan_convex(problem, n=64, dim=3, order=2.0, eps_dp=1.0, eps_dd=0.5, batches=4)
    row_of = range(0, 64, 16)
    ends = [plan.learn_steps + i * plan.delete_steps for i in range(8)]
    least = np.inf
    for batches in itertools.product(range(4), repeat=2):
        for left, back, gone in ((1, 2, 3), (1, 3, 4), (2, 3, 5)):
            used = {k for k in range(ends[left - 1]) if k % 4 == batches[0]}
            used |= {k for k in range(ends[back - 1], ends[gone - 1]) if k % 4 == batches[1]}
            judged = rows_judged(plan, [[row_of[batch]] for batch in batches])
            assert judged == len(set(batches))
            run, published = Run(gone, "delete", "", 1, 1, None, "{}"), tuple(range(gone))
            places, asked = (row_of[batches[1]],), (1, "name", "delete", "")
            of_run = (run, 0, judged, judged, published, "published")
            values = compose(plan, Facts("s", 1, "", asked, "", places, 0, *of_run)).values
            wanted = in_steps(plan, used, published, gone)
            assert values["bound"]["eps_dd"] >= wanted * (1 - 1e-12)
            alone = compose(
                plan, Facts("s", 1, "", asked, "", places, 0, run, 0, 1, 1, *of_run[4:])
            )
            least = min(least, alone.values["bound"]["eps_dd"] - wanted)
    assert least < -0.1  # the test would find it


def test_receipts_of_random_histories_are_the_exact_divergence_of_the_linear_loss():
    problem = dd.Problem(dd.losses.linear(), l2=0.3)
    plan = dd.plan_convex(problem, n=50, dim=3, order=3.0, eps_dp=1.0, eps_dd=0.05)
    chance = random.Random(2)
    for number in range(1, soak(31, 201)):
        request = chance.randrange(1, 40)
        since = chance.choice([0, chance.randrange(request)])
        published = tuple(i for i in range(request) if i == 0 or chance.random() < 0.6)
        run = Run(request, "delete", "", 1, 1, None, "{}")
        asked = (number, "name", "delete", "")
        facts = Facts(
            "s", number, "", asked, "", (3,), since, run, since, 1, 1, published, "published"
        )
        certificate = certificate_of(plan, facts)
        wanted = exact(plan, since, published, request)
        assert certificate.eps_dd_request <= certificate.eps_dd_adaptive
        np.testing.assert_allclose(certificate.eps_dd_request, wanted, rtol=1e-9)
        unseen = certificate_of(plan, facts._replace(seen="none"))
        np.testing.assert_allclose(
            unseen.eps_dd_request, exact(plan, since, (), request), rtol=1e-9
        )
        declared = [a for a in unseen.assumptions if "was shown before" in a.statement]
        assert [a.established for a in declared] == ["declared by the user"]
