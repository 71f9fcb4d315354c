"""`dd-jax curate` as an operator uses it, from a file to a receipt that is verified."""

import json
import re
from pathlib import Path

from dd_jax import cli, sealed


def run(capsys, *arguments):
    """The JSON object of a command."""
    status = cli.main(["curate", *map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def refusal(capsys, *arguments):
    assert cli.main(["curate", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    *progress, line = err.splitlines()
    assert (out, len(progress)) == ("", arguments[0] == "init")
    return line


def test_from_a_file_to_a_verified_receipt(tmp_path, capsys):
    ids = [*(f"C{i}" for i in range(38)), "-x", "日\u2028本 ö"]
    rows = "".join(f"{who},{i % 7},{i * 5 % 11},{'ab'[i % 3 == 0]}\n" for i, who in enumerate(ids))
    (tmp_path / "my.csv").write_text("customer,x,z,y\n" + rows, encoding="utf-8")
    store, data = tmp_path / "my.store", tmp_path / "my.csv"
    how = ["--data", data, "--label", "y", "--id", "customer", "--test-fraction", 0]
    assert "measured" in refusal(capsys, "init", store, *how)
    assert cli.main(["curate", "init", "/proc/my.store", *map(str, how)]) == 2
    assert capsys.readouterr().err.count("\n") == 1  # before anything is read
    bounds = ["--lower", 0, "--upper", 11, "--eps-dp", 4, "--eps-dd", 1, "--arithmetic", "fast"]
    _, made = run(capsys, "init", store, *how, *bounds, "--spare", 1)
    assert (made["owners"], made["empty_rows"], made["published"]) == (40, 1, [0])
    assert cli.main(["curate", "init", str(store), *map(str, [*how, *bounds])]) == 2
    assert "exists" in capsys.readouterr().err
    assert "'X'" in refusal(capsys, "delete", store, "--ids", "X")
    assert "--ids-file" in refusal(capsys, "delete", store)
    (tmp_path / "ids.txt").write_text("\ufeffC3\n\n", encoding="utf-8")  # as spreadsheets begin it
    _, one = run(capsys, "delete", store, "--ids-file", tmp_path / "ids.txt", "--request", "t")
    assert one == run(capsys, "delete", store, "--ids", "C3", "--request", "t")[1]
    assert len(one["receipts"]) == 1
    (tmp_path / "new.csv").write_text("customer,x,z,y\nN,1,2,a\n")
    run(capsys, "add", store, "--data", tmp_path / "new.csv")
    run(capsys, "replace", store, "--data", tmp_path / "new.csv")
    _, predicted = run(capsys, "predict", store, "--data", tmp_path / "new.csv")
    assert "itself" in refusal(capsys, "export", store, tmp_path / "." / store.name)
    run(capsys, "export", store, tmp_path / "model.npz")
    assert cli.main(["predict", str(tmp_path / "model.npz"), "--data", str(data), "--json"]) == 0
    assert capsys.readouterr().out
    assert [line["id"] for line in predicted["predictions"]] == ["N"]
    _, mine = run(capsys, "receipts", store, "--id", "C3", "--save", tmp_path / "out")
    assert mine["receipts"] == one["receipts"]
    saved = tmp_path / "out/receipt-1.json"
    assert "not promised" in saved.with_suffix(".txt").read_text()
    assert run(capsys, "verify", store, "--receipt", saved)[0] == 0
    values = sealed.unpack_json(saved.read_bytes())
    saved.write_text(saved.read_text().replace('"rows": 1', '"rows": 2'))
    for damaged in (saved, "/dev/zero", tmp_path):
        assert str(damaged) in refusal(capsys, "verify", store, "--receipt", damaged)
    saved.write_bytes(sealed.pack_json(values | {"owner": "another"}))
    status, found = run(capsys, "verify", store, "--receipt", saved)
    assert (status, len(found["problems"])) == (1, 1)
    assert run(capsys, "flush", store)[1] == {"receipts": []}
    (tmp_path / "ids.txt").write_text(f"{ids[-1]}\r\n", encoding="utf-8")
    for how in ([f"--ids={ids[-2]}"], ["--ids-file", tmp_path / "ids.txt"]):
        assert len(run(capsys, "delete", store, *how)[1]["receipts"]) == 1
    assert run(capsys, "status", store)[1]["runs"] == 5
    assert cli.main(["curate", "status", str(store)]) == 0
    assert "learning again" in capsys.readouterr().out


def test_the_commands_of_the_guide_lead_to_a_verified_receipt(tmp_path, capsys, monkeypatch):
    guide = (Path(__file__).parents[2] / "docs" / "curator.md").read_text()
    commands = re.findall(r"^    dd-jax (curate .*)$", guide, re.MULTILINE)
    declared = re.search(r"`ranges.json` .*`(\{.*\})`", guide)
    assert declared
    assert len(commands) == 4
    rows = (f"C{i},{18 + i * 7 % 72},{i * 13 % 40},{i % 2}\n" for i in range(80))
    (tmp_path / "my.csv").write_text("customer,age,visits,bought\n" + "".join(rows))
    (tmp_path / "ranges.json").write_text(declared[1])
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert cli.main(command.split()) == 0, command
    assert "made again" in capsys.readouterr().out
    assert Path("receipts/receipt-1.txt").exists()
