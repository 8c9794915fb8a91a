"""How many threads and how deep: from measured times to a setting, as pure functions and one small controller.

Owns the model (`model.py`), the queue's simulation (`depth.py`), what a machine allows (`limits.py`), the controller
that steers a running loader (`online.py`) and the file in which a setting is kept (`settings_file.py`). Nothing here
starts a thread or reads an image; measuring is the engine's and `cli/tune/`'s.
"""
