// Rectangles of a finished batch set to one value a channel: erase.py says what and why, and is the reference.
//
// An item is a pixel of a rectangle; it finds its rectangle by bisecting their first pixels, and stores its channels.
// Neighbouring items are neighbours in a line of the rectangle, so a warp's stores fall together where x is innermost.
#include "image.cuh"

struct Erased {
    i64 first;  // pixels of all rectangles before it
    i32 row, left, top, width;
};

// Strides are bytes, as out may have any layout; elements are only moved, so their size is all that counts.
template <class Element>
__device__ inline void erase(i64 n, i64 items, const Erased* rectangles, Element red, Element green, Element blue,
                             u8* out, i64 stride_n, i64 stride_c, i64 stride_y, i64 stride_x) {
    const i64 item = item_number();
    if (item >= items) return;
    i64 low = 0, high = n;
    while (high - low > 1) {
        const i64 middle = (low + high) >> 1;
        if (rectangles[middle].first <= item) low = middle;
        else high = middle;
    }
    const Erased& its = rectangles[low];
    const u32 number = (u32)(item - its.first), y = number / (u32)its.width, x = number - y * (u32)its.width;
    u8* to = out + its.row * stride_n + (its.top + (i64)y) * stride_y + (its.left + (i64)x) * stride_x;
    *(Element*)to = red;
    *(Element*)(to + stride_c) = green;
    *(Element*)(to + 2 * stride_c) = blue;
}

#define ERASE(size, Element)                                                                                    \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                         \
    erase_##size(i64 n, i64 items, const Erased* __restrict__ rectangles, i64 red, i64 green, i64 blue,         \
                 u8* __restrict__ out, i64 stride_n, i64 stride_c, i64 stride_y, i64 stride_x) {                \
        erase(n, items, rectangles, (Element)red, (Element)green, (Element)blue, out, stride_n, stride_c,       \
              stride_y, stride_x);                                                                              \
    }

ERASE(1, u8)
ERASE(2, u16)
ERASE(4, u32)
ERASE(8, unsigned long long)
