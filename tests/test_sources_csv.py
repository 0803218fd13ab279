"""CSV and TSV tables: what is listed, and what is refused."""

from pathlib import Path

import pytest
from corpora import write_audio, write_lines
from uttershard.pipeline.errors import ConfigError, DataError
from uttershard.writers.sources import csv as csv_source
from uttershard.writers.sources.csv import CsvSource


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one.wav and two.wav."""
    write_audio(tmp_path / "one.wav")
    write_audio(tmp_path / "two.wav", seed=1)
    return tmp_path


def test_csv_with_quotes(folder: Path) -> None:
    path = write_lines(
        folder / "t.csv",
        "audio_filepath,text,duration,speaker",
        'one.wav,"a ""b"", c",1.0,tom',
        'two.wav,"two',
        "",
        'lines",,',
    )
    listing = CsvSource(str(path)).list_utterances()
    assert listing.refused == []
    table = listing.utterances
    assert table["key"].to_pylist() == ["one", "two"]
    assert table["text"].to_pylist() == ['a "b", c', "two\n\nlines"]
    assert table["duration"].to_pylist() == [1.0, None]
    assert table["metadata"].to_pylist() == ['{"speaker":"tom"}', None]
    assert table["origin"].to_pylist() == ["t.csv:2", "t.csv:5"]


def test_tsv_takes_quotes_for_text(folder: Path) -> None:
    path = write_lines(folder / "t.tsv", "path\tsentence", 'one.wav\t"Hello', 'two.wav\tsaid "x"')
    listing = CsvSource(str(path), audio="path", text="sentence").list_utterances()
    assert listing.utterances["text"].to_pylist() == ['"Hello', 'said "x"']


def test_delimiter_and_header_by_option(folder: Path) -> None:
    path = write_lines(folder / "metadata.csv", "one.wav|First, of all", "two.wav|Second")
    listing = CsvSource(str(path), audio="file", delimiter="|", header="file,text").list_utterances()
    assert listing.utterances["text"].to_pylist() == ["First, of all", "Second"]


def test_table_without_header_that_names_no_files(folder: Path) -> None:
    """LJSpeech's own layout: `id|text|normalised`, quotes that are text, audio in wavs/."""
    write_audio(folder / "wavs" / "LJ-1.wav")
    path = write_lines(folder / "metadata.csv", 'LJ-1|"Printing" he said in 1|"Printing" he said in one')
    with pytest.raises(ConfigError, match=r"the first line is one column, 'LJ-1\|.*. If \| .*--option 'delimiter=\|'"):
        CsvSource(str(path), delimiter=",").list_utterances()
    with pytest.raises(ConfigError, match="if that line is no header, name all columns with --option header=id,text"):
        CsvSource(str(path), delimiter="|").list_utterances()
    source = CsvSource(str(path), audio="wavs/{id}.wav", delimiter="|", header="id,raw,text")
    [row] = source.list_utterances().utterances.select(["key", "uri", "text", "metadata"]).to_pylist()
    assert row == {
        "key": "LJ-1",
        "uri": str(folder / "wavs/LJ-1.wav"),
        "text": '"Printing" he said in one',
        "metadata": r'{"raw":"\"Printing\" he said in 1"}',
    }
    with pytest.raises(ConfigError, match=r"no column 'clip'; the option header names id, raw, text.*a pattern such"):
        CsvSource(str(path), audio="{clip}.wav", delimiter="|", header="id,raw,text").list_utterances()


def test_segments(folder: Path) -> None:
    path = write_lines(folder / "t.csv", "id,wav,begin,len", "a,one.wav,0.5,0.25")
    listing = CsvSource(str(path), audio="wav", offset="begin", duration="len").list_utterances()
    assert listing.utterances.select(["key", "start", "end"]).to_pylist() == [{"key": "a", "start": 0.5, "end": 0.75}]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("two.wav", "1 fields, the header has 3"),
        ("two.wav,x,long", "'duration' must be a number of seconds, found 'long'"),
        (",x,1", "no field 'audio_filepath'"),
        ("none.wav,x,1", "the audio file does not exist"),
        (b"two.wav,caf\xe9,1", "not UTF-8: byte 0xe9 at position 12"),
        ('"two"x,x,1', "not a row of the table"),
    ],
)
def test_bad_row(folder: Path, line: str | bytes, reason: str) -> None:
    path = write_lines(folder / "t.csv", "audio_filepath,text,duration", line, "one.wav,x,1")
    listing = CsvSource(str(path)).list_utterances()
    [refusal] = listing.refused
    assert refusal.source == "t.csv:2"
    assert reason in refusal.reason
    assert listing.utterances["key"].to_pylist() == ["one"]


def test_bad_header(folder: Path) -> None:
    path = write_lines(folder / "t.csv", "file,text", "one.wav,x")
    with pytest.raises(
        ConfigError, match=r"no column 'audio_filepath'; the first line names 'file', 'text'.*audio=COLUMN"
    ):
        CsvSource(str(path)).list_utterances()
    with pytest.raises(ConfigError, match="no column 'clip'"):
        CsvSource(str(path), audio="file", id="clip").list_utterances()
    path = write_lines(folder / "t.csv", "audio_filepath,text,text", "one.wav,x,y")
    with pytest.raises(ConfigError, match="the column 'text' twice"):
        CsvSource(str(path)).list_utterances()
    write_lines(path, '"one"two,x')
    with pytest.raises(DataError, match="no line can be read; first: not a row of the table"):
        CsvSource(str(path)).list_utterances()
    path.write_bytes(b"")
    with pytest.raises(DataError, match="not even a header"):
        CsvSource(str(path)).list_utterances()


ODD_ROWS = [
    "b,x.wav,,,,",
    ",x.wav,no id,,,",
    "b,,no audio,,,",
    "b,x.wav,hi,0.25,0.5,p",
    "b,x.wav,hi,0.25,,p",
    "b,x.wav,hi,,0,p",
    "b,x.wav,hi,nan,0.5,p",
    "b,x.wav,hi,1_0,2,p",
    "b,x.wav,hi,-1,2,p",
    "b,x.wav,hi,zero,2,p",
    "b,none.wav,hi,,,",
    "b,/data/x.wav,hi,,,",
    "b,x.wav,hi",
    'b,x.wav,"a, ""quoted""\nline",,,',
    "b,x.wav,né\u2028,,,ü",
    ",,,,,",
]


@pytest.mark.parametrize(
    "options", [{}, {"id": "speaker"}, {"audio": "{audio_filepath}"}, {"text": "speaker"}], ids=str
)
def test_rows_are_the_same_as_columns_and_one_by_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, str]
) -> None:
    write_audio(tmp_path / "x.wav")
    header, good = "id,audio_filepath,text,offset,duration,speaker", "a,x.wav,hello,,1.5,q"
    for row in ODD_ROWS:
        for rows in ([row], [good, row, "", good]):
            source = CsvSource(str(write_lines(tmp_path / "t.csv", header, *rows)), **options)
            columns = source.list_utterances()
            with monkeypatch.context() as patch:
                patch.setattr(csv_source, "add_columns", lambda *arguments: False)
                one_by_one = source.list_utterances()
            assert columns.utterances.equals(one_by_one.utterances), row
            assert columns.refused == one_by_one.refused, row
