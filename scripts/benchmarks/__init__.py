"""Measurements of reading and planning, beside the limits of the machine and a peer: `scripts/bench`.

suite.py     what is run          rounds.py   each in a process of its own, rounds interleaved
subjects.py  all that is measured, by name
    limits.py    what the machine can do: bare decoding, the least copy
    peer.py      webdataset with bucketing, as its users write it
    reading.py   ours, and the clock that all of them run under
    planner.py   time, memory, padding and fill of plans
corpus.py    hours of speech, packed as FLAC and as WAV, of lengths.py
targets.py   what was aimed at    report.py   docs/benchmarks.md    machine.py   what it ran on
"""
