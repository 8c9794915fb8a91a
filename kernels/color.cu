// From planes to pixels, one thread a pixel: what upsample.py and color.py compute, bit for bit. They tell the maths.
//
// CUDA C++ and not Numba: a pixel is stored as one word, and all of it is branches on an image's numbers and small
// unsigned divisions, for which Numba would emit 64-bit code with signed wrap-around.
//
// On the CPU a row is upsampled to memory and then converted; here each pixel takes the up to 4 samples of each
// component that it needs, which its neighbours have brought to the first-level cache, and nothing lies in between.
// Pixels are numbered as they lie: along the rows of an image's region, image by image. A component's true size is
// ceil(size * h / h_max) both ways: beyond it stands its last sample again, though the plane goes on to whole blocks.
// The plane holds only the MCUs of the window, from sample (8 mcu_top v, 8 mcu_left h) of the component on, which are
// those that the region's pixels need (jpeg_plan.region_of).
// Owns `pixels`: R, G, B and a byte that is 0. Leaves their resampling to resample.cu.

#include "image.cuh"

// Component c at pixel (x, y) of the image; `plane` is its part of the planes.
__device__ inline i32 sample_of(const Image& image, i32 c, const u8* plane, i32 x, i32 y) {
    const i32 h = image.header[H + c], v = image.header[V + c];
    const i32 h_max = image.header[H_MAX], v_max = image.header[V_MAX];
    const i64 pitch = 8 * (i64)image.mcus_wide * h;
    const i32 left = 8 * image.mcu_left * h, top = 8 * image.mcu_top * v;
    const u8* origin = plane - top * pitch - left;  // where sample (0, 0) of the component would be
    if (h == h_max && v == v_max) return origin[y * pitch + x];

    // Ratios are whole; no division where they are 1 or 2, as in nearly every photograph.
    const bool doubled_h = h_max == 2 * h, doubled_v = v_max == 2 * v;
    const i32 width = doubled_h ? (image.header[WIDTH] + 1) >> 1 : image.header[WIDTH];
    const i32 height = doubled_v ? (image.header[HEIGHT] + 1) >> 1 : image.header[HEIGHT];
    const bool smooth = doubled_h ? (doubled_v || v == v_max) && width > 2 : h == h_max && doubled_v;
    if (!smooth) return origin[y / (v_max / v) * pitch + x / (h_max / h)];

    const i32 row = doubled_v ? y >> 1 : y, column = doubled_h ? x >> 1 : x;
    const i32 other_row = doubled_v ? clamped(y & 1 ? row + 1 : row - 1, 0, height - 1) : row;
    const u8 *near = origin + row * pitch, *far = origin + other_row * pitch;
    if (!doubled_h) return (3 * near[column] + far[column] + 1 + (y & 1)) >> 2;
    const i32 other = clamped(x & 1 ? column + 1 : column - 1, 0, width - 1);
    const i32 here = 3 * near[column] + far[column], there = 3 * near[other] + far[other];
    const i32 even = doubled_v ? 8 : 4, odd = doubled_v ? 7 : 8;
    return (3 * here + there + (x & 1 ? odd : even)) >> 4;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
to_rgb(i64 n_images, i64 items, const Image* __restrict__ images, const u8* __restrict__ planes,
       u32* __restrict__ pixels) {
    const i64 item = item_number();
    if (item >= items) return;
    const Image& image = image_of(images, n_images, &Image::first_pixel, item);
    // A side has 65,500 pixels at most: a number within an image fits 32 bits without a sign.
    const u32 number = (u32)(item - image.first_pixel), wide = (u32)(image.region.right - image.region.left);
    const u32 row = number / wide;
    const i32 x = image.region.left + (i32)(number - row * wide), y = image.region.top + (i32)row;

    const u8* plane = planes + 64 * image.first_block;
    const i32 first = sample_of(image, 0, plane, x, y);
    if (image.header[COLOR] == GREY) {
        pixels[item] = four_bytes(first, first, first, 0);
        return;
    }
    const i64 samples_in_mcus = 64 * (i64)image.mcus_wide * image.mcus_high;  // of a component that is 1x1
    plane += samples_in_mcus * image.header[H] * image.header[V];
    const i32 second = sample_of(image, 1, plane, x, y);
    plane += samples_in_mcus * image.header[H + 1] * image.header[V + 1];
    const i32 third = sample_of(image, 2, plane, x, y);
    if (image.header[COLOR] == RGB) {
        pixels[item] = four_bytes(first, second, third, 0);
        return;
    }
    const i32 b = second - 128, r = third - 128;
    pixels[item] = four_bytes(clamped(first + ((91881 * r + 32768) >> 16), 0, 255),
                              clamped(first + ((-22554 * b - 46802 * r + 32768) >> 16), 0, 255),
                              clamped(first + ((116130 * b + 32768) >> 16), 0, 255), 0);
}
