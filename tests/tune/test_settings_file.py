"""The file of a setting: what is written is read, and what is wrong is named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuload.core.errors import ConfigError
from gpuload.core.setting import Setting
from gpuload.tune.settings_file import load_setting, save_setting


@settings(derandomize=True, max_examples=50)
@given(values=st.tuples(*[st.integers(1, 10**6)] * 3), notes=st.lists(st.text(max_size=30), max_size=3))
def test_what_is_written_is_read(values, notes, tmp_path_factory):
    path = tmp_path_factory.mktemp("settings") / "a.toml"
    save_setting(path, Setting(*values), notes)
    assert load_setting(path) == load_setting(str(path)) == Setting(*values)


@pytest.mark.parametrize(
    "content, told",
    [
        ("", "holds nothing"),
        ("[other]\na = 1\n", "holds other"),
        ("[setting]\nfetch_threads = 2\ndepth = 3\n", "lacks decode_threads"),
        ("[setting]\nfetch_threads = 2\ndepth = 3\ndecode_threads = 1\nspeed = 9\n", "has speed"),
        ("[setting]\nfetch_threads = 0\ndepth = 3\ndecode_threads = 1\n", "fetch_threads must be a whole number"),
        ("[setting]\nfetch_threads = true\ndepth = 3\ndecode_threads = 1\n", "got True"),
        ("[setting]\nfetch_threads = 1\ndepth = 2.5\ndecode_threads = 1\n", "depth must be"),
        ("[setting", "cannot be read"),
        ("\0\ud800", "cannot be read"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(content, told, tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError, match=told) as caught:
        load_setting(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match="gpuload tune DATA"):
        load_setting(tmp_path / "none.toml")
