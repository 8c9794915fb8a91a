"""`gpuload bench`: loaders side by side on the user's own data.

command.py   what was asked, the terminal's table, the JSON lines, the page
run.py       which loader does what when: pixels first, then interleaved rounds
process.py   one process a loader, spoken to over a pipe, its memory watched from outside
worker.py    what runs inside that process
subjects.py  how each loader is built
dali_peer.py DALI's own pipeline, as its users write it
training.py  a training loop whose waits are written down (the demo)
data.py      what the data is, and the plain torch data sets that read it
measure.py   arrival times to figures
gil.py       how long the interpreter lock is held
machine.py   what it all ran on
"""
