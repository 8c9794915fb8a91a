// From pixels to the batch: Pillow's weights, its two passes, flips, look-up and store, bit for bit what
// resample_weights.py and resample.py compute. They tell the maths.
//
// CUDA C++ and not Numba: weights are sums of doubles whose every rounding counts, and only here can products and sums
// be kept apart by name; pixels are read as words, and one template stores elements of every size.
//
//   fill_weights   one thread a row of weights: an output's first tap in the source, number of taps, weights
//   first_pass     one thread a pixel of `middle`
//   store_<size>   one thread a pixel of the batch: second pass, flips, look-up, and a store of `size` bytes a channel
//
// The middle image is (outputs high, region wide) where the vertical pass is first, else (region high, outputs wide).
// Its pixels, like the batch's, are numbered as they lie, so that neighbouring threads read and write neighbouring
// memory: in a vertical pass one row of weights and adjacent pixels, in a horizontal one the rows of weights that all
// rows of the image share. `store` makes the second pass's pixels as it needs them: the resized image is never written.
// Where nothing is resampled, `pixels` are the outputs. Beside the outputs stands what is looked up for `fill`.
// Owns `weights`, `middle` and the batch's rows.

#include "image.cuh"

enum { BILINEAR = 2, BICUBIC = 3, BOX = 4, BITS = 22 };

// A double whose operations are each rounded by themselves: no compiler contracts or reorders them.
struct Exact {
    double value;
    __device__ Exact(double value) : value(value) {}
};

__device__ inline Exact operator+(Exact a, Exact b) { return __dadd_rn(a.value, b.value); }
__device__ inline Exact operator-(Exact a, Exact b) { return __dsub_rn(a.value, b.value); }
__device__ inline Exact operator*(Exact a, Exact b) { return __dmul_rn(a.value, b.value); }
__device__ inline Exact operator/(Exact a, Exact b) { return __ddiv_rn(a.value, b.value); }

__device__ inline Exact weight_of(i64 kind, Exact x) {
    if (kind == BOX) return x.value > -0.5 && x.value <= 0.5 ? 1.0 : 0.0;
    if (x.value < 0.0) x.value = -x.value;
    if (kind == BICUBIC) {
        if (x.value < 1.0) return (1.5 * x - 2.5) * x * x + 1.0;
        return x.value < 2.0 ? (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5 : 0.0;
    }
    return x.value < 1.0 ? 1.0 - x : 0.0;
}

// Where the row of weights of output i of an axis lies, counted from `outputs`.
__device__ inline i64 vertical_row(const Image& image, i32 i) {
    return image.first_weight + (i64)i * (2 + image.taps_v);
}
__device__ inline i64 horizontal_row(const Image& image, i32 i) {
    return vertical_row(image, image.outputs.bottom - image.outputs.top) + (i64)i * (2 + image.taps_h);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
fill_weights(i64 n_images, i64 items, const Image* __restrict__ images, i64 kind, i32* __restrict__ weights) {
    const i64 item = item_number();
    if (item >= items) return;
    const Image& image = image_of(images, n_images, &Image::first_row, item);
    const i32 high = image.outputs.bottom - image.outputs.top, number = (i32)(item - image.first_row);
    const bool down = number < high;
    const i32 i = down ? number : number - high, taps = down ? image.taps_v : image.taps_h;
    const Axis& axis = down ? image.vertical : image.horizontal;
    i32* row = weights + (down ? vertical_row(image, i) : horizontal_row(image, i));

    const Exact scale = Exact(axis.in_size) / axis.out_size, stretch = scale.value > 1.0 ? scale : 1.0;
    const Exact reach = Exact(kind == BICUBIC ? 2.0 : kind == BOX ? 0.5 : 1.0) * stretch, shrink = 1.0 / stretch;
    const Exact centre = (Exact(axis.out_start + i) + 0.5) * scale;
    const i32 start = (i32)(centre - reach + 0.5).value, stop = (i32)(centre + reach + 0.5).value;
    const i32 first = start < 0 ? 0 : start;
    const i32 count = clamped((stop < axis.in_size ? stop : axis.in_size) - first, 0, taps);
    Exact total = 0.0;
    for (i32 k = 0; k < count; k++) total = total + weight_of(kind, (Exact(k + first) - centre + 0.5) * shrink);
    if (total.value == 0.0) total = 1.0;
    row[0] = first - axis.source_start;
    row[1] = count;
    for (i32 k = 0; k < taps; k++) {
        i32 weight = 0;
        if (k < count) {  // computed again: cheaper than to keep as many as there may be
            const Exact share = weight_of(kind, (Exact(k + first) - centre + 0.5) * shrink) / total;
            weight = (i32)(share * (double)(1 << BITS) + (share.value < 0.0 ? -0.5 : 0.5)).value;
        }
        row[2 + k] = weight;
    }
}

// The weighted sum of a row's taps among pixels that are `stride` apart.
__device__ inline u32 blended(const u32* pixels, i64 stride, const i32* row) {
    const u32* tap = pixels + row[0] * stride;
    const i32 count = row[1], half = 1 << (BITS - 1);
    i32 r = half, g = half, b = half;
    for (i32 k = 0; k < count; k++, tap += stride) {
        const u32 pixel = *tap;
        const i32 weight = row[2 + k];
        r += weight * (i32)(pixel & 255);
        g += weight * (i32)(pixel >> 8 & 255);
        b += weight * (i32)(pixel >> 16 & 255);
    }
    return four_bytes(clamped(r >> BITS, 0, 255), clamped(g >> BITS, 0, 255), clamped(b >> BITS, 0, 255), 0);
}

__device__ inline i32 wide(const Box& box) { return box.right - box.left; }

extern "C" __global__ void __launch_bounds__(BLOCK)
first_pass(i64 n_images, i64 items, const Image* __restrict__ images, const i32* __restrict__ weights,
           const u32* __restrict__ pixels, u32* __restrict__ middle) {
    const i64 item = item_number();
    if (item >= items) return;
    const Image& image = image_of(images, n_images, &Image::first_middle, item);
    const i64 stride = wide(image.region);
    // Sides have 65,535 pixels at most: a number within an image fits 32 bits without a sign.
    const u32 number = (u32)(item - image.first_middle);
    const u32 columns = (u32)(image.vertical_first ? wide(image.region) : wide(image.outputs));
    const u32 y = number / columns, x = number - y * columns;
    const u32* source = pixels + image.first_pixel;
    middle[item] = image.vertical_first ? blended(source + x, stride, weights + vertical_row(image, (i32)y))
                                        : blended(source + y * stride, 1, weights + horizontal_row(image, (i32)x));
}

// Output (x, y) of an image, counted from `outputs`.
__device__ inline u32 output_of(const Image& image, const i32* weights, const u32* pixels, const u32* middle, i32 x,
                                i32 y) {
    const i64 columns = wide(image.outputs);
    if (!image.resampled) return pixels[image.first_pixel + y * columns + x];
    const u32* source = middle + image.first_middle;
    if (image.vertical_first)
        return blended(source + (i64)y * wide(image.region), 1, weights + horizontal_row(image, x));
    return blended(source + x, columns, weights + vertical_row(image, y));
}

#define STORE(size, Element)                                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                              \
    store_##size(i64 n_images, i64 items, const Image* __restrict__ images, const i32* __restrict__ weights,         \
                 const u32* __restrict__ pixels, const u32* __restrict__ middle, const Element* __restrict__ lookup, \
                 i64 fill_r, i64 fill_g, i64 fill_b, u8* __restrict__ out, i64 height, i64 width, i64 stride_n,      \
                 i64 stride_c, i64 stride_y, i64 stride_x) {                                                         \
        const u32 fill = four_bytes((i32)fill_r, (i32)fill_g, (i32)fill_b, 0);                                       \
        store(items, images, weights, pixels, middle, lookup, fill, out, height, width, stride_n, stride_c,          \
              stride_y, stride_x);                                                                                   \
    }

// Strides are bytes, as out may have any layout; elements are only moved, so their size is all that counts.
template <class Element>
__device__ inline void store(i64 items, const Image* images, const i32* weights, const u32* pixels, const u32* middle,
                             const Element* lookup, u32 fill, u8* out, i64 height, i64 width, i64 stride_n,
                             i64 stride_c, i64 stride_y, i64 stride_x) {
    const i64 item = item_number();
    if (item >= items) return;
    const i64 i = item / (height * width);
    const Image& image = images[i];
    if (image.place < 0) return;  // it goes nowhere
    const u32 number = (u32)(item - i * height * width);  // within a row of the batch, sides as above
    const i32 y = (i32)(number / (u32)width), x = (i32)(number - (u32)y * (u32)width);
    const i32 column = image.shown_left + (image.flip_h ? (i32)width - 1 - x : x);
    const i32 row = image.shown_top + (image.flip_v ? (i32)height - 1 - y : y);
    const Box& box = image.outputs;
    u32 pixel = fill;
    if (column >= box.left && column < box.right && row >= box.top && row < box.bottom)
        pixel = output_of(image, weights, pixels, middle, column - box.left, row - box.top);
    u8* to = out + image.place * stride_n + y * stride_y + x * stride_x;
#pragma unroll
    for (int c = 0; c < 3; c++) *(Element*)(to + c * stride_c) = lookup[256 * c + (pixel >> 8 * c & 255)];
}

STORE(1, u8)
STORE(2, u16)
STORE(4, u32)
STORE(8, unsigned long long)
