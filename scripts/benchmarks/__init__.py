"""Measurements of reading and planning, beside the limits of the machine and a peer: `scripts/bench`.

    corpus.py    hours of speech with LibriSpeech-like lengths, packed as FLAC and as WAV
    limits.py    what the machine can do: bare decoding, the least copy
    peer.py      webdataset with bucketing, as its users write it
    reading.py   ours, and the clock that all of them run under
    planner.py   seconds, memory, padding and fill of plans
    rounds.py    every measurement in a process of its own, rounds interleaved
    report.py    tables, ratios to the targets, docs/benchmarks.md
"""
