"""Common Voice tables of several releases."""

from pathlib import Path

import pytest
from corpora import write_audio, write_lines
from source_checks import list_corpus, rows_of
from uttershard.pipeline.errors import DataError


def release(folder: Path, header: str, *lines: str) -> Path:
    for number in range(2):
        write_audio(folder / "clips" / f"common_voice_de_{number}.mp3", 0.3, seed=number)
    write_lines(folder / "validated.tsv", header, *lines)
    return folder


def test_recent_columns(tmp_path: Path) -> None:
    header = "client_id\tpath\tsentence_id\tsentence\tup_votes\tage\tgender\taccents\tlocale"
    line = 'c0\tcommon_voice_de_0.mp3\ts0\tEr sagt: "Ja\t2\t\tmale\tHessen\tde'
    folder = release(tmp_path, header, line, "c1\tgone.mp3\ts1\tweg\t2\t\t\t\tde")
    write_lines(folder / "clip_durations.tsv", "clip\tduration[ms]", "common_voice_de_0.mp3\t300")
    listing = list_corpus(folder)
    row = rows_of(listing)["common_voice_de_0"]
    assert (row["text"], row["duration"]) == ('Er sagt: "Ja', 0.3)
    assert row["metadata"] == (
        '{"accent":"Hessen","client":"c0","gender":"male","language":"de","sentence_id":"s0","up_votes":"2"}'
    )
    assert [(refusal.key, refusal.source) for refusal in listing.refused] == [("gone", "validated.tsv:3")]


def test_first_columns_and_a_table_by_name(tmp_path: Path) -> None:
    folder = release(tmp_path, "client_id\tpath\tsentence\tup_votes\tdown_votes\tage\tgender\taccent")
    write_lines(folder / "dev.tsv", "client_id\tpath\tsentence\taccent", "c0\tcommon_voice_de_1\thallo\tBayern")
    for address, options in ((folder, {"split": "dev"}), (folder / "dev.tsv", {})):
        row = rows_of(list_corpus(address, "commonvoice", **options))["common_voice_de_1"]
        assert (row["text"], row["metadata"]) == ("hallo", '{"accent":"Bayern","client":"c0"}')


def test_a_line_of_another_width_is_refused(tmp_path: Path) -> None:
    folder = release(tmp_path, "path\tsentence", "common_voice_de_0.mp3\ta\tb", "common_voice_de_1.mp3\tok")
    listing = list_corpus(folder)
    assert list(rows_of(listing)) == ["common_voice_de_1"]
    assert [refusal.reason for refusal in listing.refused] == ["3 fields, the header has 2"]
    with pytest.raises(DataError, match="say which table"):
        list_corpus(folder, "commonvoice", split="none")
