// A batch as the kernels see it: device_batch.py says what every array and field means, in the same order.
// What the .cu files share besides: how a thread finds its item's image, and numbers packed into words.

typedef long long i64;
typedef int i32;
typedef unsigned int u32;
typedef short i16;
typedef unsigned short u16;
typedef unsigned char u8;

// Fields of a header (jpeg_header.py).
enum { WIDTH = 0, HEIGHT = 1, COMPONENTS = 2, COLOR = 5, H_MAX = 11, V_MAX = 12, H = 24, V = 28 };
enum { GREY = 0, YCBCR = 1, RGB = 2 };

struct Axis {
    i32 in_size, source_start, out_size, out_start;
};

struct Box {
    i32 left, top, right, bottom;
};

struct Image {
    i64 first_block, first_pixel, first_middle, first_row, first_weight;
    i32 header[44];
    i32 quant[3], dc[3], ac[3];
    i32 mcu_left, mcu_top, mcus_wide, mcus_high;
    Box region;
    Axis vertical, horizontal;
    Box outputs;
    i32 taps_v, taps_h;
    i32 resampled, vertical_first;
    i32 shown_left, shown_top;
    i32 flip_h, flip_v;
    i32 place, unused;
};

// The number of this thread among all of the launch.
__device__ inline i64 item_number() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

// An item's image: the last of n whose `first` is at most that. An image without items is passed over.
__device__ inline const Image& image_of(const Image* images, i64 n, i64 Image::*first, i64 item) {
    i64 low = 0, high = n;
    while (high - low > 1) {
        i64 middle = (low + high) >> 1;
        if (images[middle].*first <= item) low = middle;
        else high = middle;
    }
    return images[low];
}

__device__ inline i32 clamped(i32 value, i32 low, i32 high) { return value < low ? low : value > high ? high : value; }

// Bytes, the first of them lowest: how the processors at hand order them in memory.
__device__ inline u32 four_bytes(i32 a, i32 b, i32 c, i32 d) {
    return (u32)a | (u32)b << 8 | (u32)c << 16 | (u32)d << 24;
}
