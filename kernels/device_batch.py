"""A batch as the GPU's kernels see it: one flat upload, numbered work items, and where each image's share of them lies.

The host decides everything (which MCUs, which taps, which place in the batch) and writes it down as the arrays below;
the kernels carry it out, each over one long list of items that runs through all images, so that a launch never waits
for its largest image. An item finds its image by bisecting that image's first item. Owns these layouts; image.cuh says
the same in C++, and tests/kernels/test_device_batch.py holds them together.

    what is uploaded, each part at a multiple of 16 bytes
    images       IMAGE (n + 1,)        the last one holds only the totals
    segments     SEGMENT (s,)          image by image, in scan order: neighbours share tables and do similar work
    tables       TABLE (t,)            Huffman tables, each kept once
    definitions  uint8                 their DHT bytes: 16 counts, then as many symbols as these say
    quant        uint16 (q, 64)        natural order
    lookup       uint8 (3, 256, size)  what is stored for each value of each channel, an element as its bytes
    data         uint8                 the encoded bytes of the segments, piece by piece, DATA_PADDING behind them

    what the kernels pass on, all of it written before it is read
    built        int32 (t, TABLE_SIZE)     huffman.py
    layouts      int32 (n, LAYOUT_SIZE)    entropy.py
    status       int32 (n,)                0, or an anomaly of entropy.py: never in an image whose index is its own
    coefficients int16 (blocks, 64)        an image's blocks by component, then rows; one more takes what nobody wants
    last         uint8 (blocks,)           highest zigzag index that is not zero
    planes       uint8 (blocks * 64,)      component c: (8 mcus_high v, 8 mcus_wide h), in the place of its blocks
    pixels       uint8 (.., 4)             (bottom - top, right - left) of each image: R, G, B and nothing
    weights      int32                     the vertical axis' rows, then the horizontal one's: first tap, number of
                                           taps, then `taps` weights (resample_weights.py)
    middle       uint8 (.., 4)             after the first pass: vertical first: (outputs high, right - left), else
                                           (bottom - top, outputs wide)

Kernels take addresses and counts, all int64; items of each, in order:

    build_tables      tables                                                        kernels/decode_segments.py
    lay_out_images    images
    decode_segments   segments
    transform_blocks  blocks                                                        kernels/idct.cu
    to_rgb            pixels                                                        kernels/color.cu
    fill_weights      rows of weights                                               kernels/resample.cu
    first_pass        pixels of `middle`
    store             pixels of the batch: n images of height x width
"""

from __future__ import annotations

import numpy as np
from gpuload.kernels.jpeg_header import HEADER_SIZE

IMAGE = np.dtype(
    [
        # Where its items and its memory begin, in what these names count: of everything before it, so they increase.
        ("first_block", np.int64),
        ("first_pixel", np.int64),
        ("first_middle", np.int64),
        ("first_row", np.int64),  # of weights
        ("first_weight", np.int64),  # an index into `weights`
        ("header", np.int32, (HEADER_SIZE,)),  # as jpeg_header.py fills it
        ("quant", np.int32, (3,)),  # by component: rows of `quant`
        ("dc", np.int32, (3,)),  # rows of `tables`
        ("ac", np.int32, (3,)),
        ("window", np.int32, (4,)),  # left, top, width, height in MCUs: what is decoded
        ("region", np.int32, (4,)),  # left, top, right, bottom in pixels of the image: what becomes RGB
        ("vertical", np.int32, (4,)),  # resample_weights.Axis: in_size, source_start, out_size, out_start
        ("horizontal", np.int32, (4,)),
        ("outputs", np.int32, (4,)),  # left, top, right, bottom in pixels of the resampled crop: what is made of them
        ("taps", np.int32, (2,)),  # vertical, horizontal: tap_limit; 0 where nothing is resampled
        ("resampled", np.int32),
        ("vertical_first", np.int32),
        ("shown", np.int32, (2,)),  # left, top: the pixel of the resampled crop that is pixel (0, 0) before the flips
        ("flips", np.int32, (2,)),  # horizontal, vertical: 0 or 1
        ("place", np.int32),  # row of the batch
        ("_", np.int32),
    ],
    align=True,
)
SEGMENT = np.dtype(
    [
        ("byte", np.uint32),  # in `data`
        ("mcu", np.uint32),  # its first one
        ("image", np.uint16),
        ("count", np.uint16),  # of MCUs
        ("predictors", np.int16, (3,)),
        ("bit", np.uint16),  # of that byte: 0 to 7 are used
    ],
    align=True,
)
TABLE = np.dtype([("begin", np.uint32), ("is_ac", np.uint32)], align=True)  # begin: in `definitions`

MOST_IMAGES = 1 << 16
MOST_MCUS = (1 << 16) - 1
"""What a segment can name, and how long it can be."""

DATA_PADDING = 16
"""Bytes that a decoder may read ahead."""

ALIGNMENT = 16
