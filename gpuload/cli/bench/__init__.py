"""`gpuload bench`: loaders side by side on the user's own data, CPU against GPU, streaming against copying.

command.py   what was asked, in which order; tables, JSON lines, page
run.py       which loader does what when: pixels first, then interleaved rounds
process.py   one process a loader, spoken to over a pipe, its memory watched from outside
worker.py    what runs inside that process
subjects.py  how each loader is built
dali_peer.py, webdataset_peer.py, streaming_peer.py  peers' own pipelines, as their users write them
training.py  a training loop whose waits are written down
data.py      what the data is, and the plain torch data sets that read it
measure.py   arrival times to figures
page_cache.py  files out of the page cache
gil.py       how long the interpreter lock is held
machine.py   what it all ran on
table.py, lines.py, pages.py  an outcome as text, as JSON lines, as a page
preprocessing.py, gpu_prediction.py  CPU against GPU: the model, and what the GPU is predicted to take
storage.py, storage_run.py  streaming against copying first
"""
