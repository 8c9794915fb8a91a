// From coefficients to samples, one thread a block of 8x8: what idct.py computes, bit for bit; the maths is told there.
//
// CUDA C++ and not Numba, which the scalar `idct_block` of idct.py would allow: a block is read by loads of 16 bytes,
// written by stores of 8, and stays in registers in between. Numba offers neither such accesses nor arrays that live in
// registers: 64 numbers of local memory a thread would be written and read twice, more traffic than the block's own.
//
// A row of a block is 4 words of two 16-bit numbers, which is what both passes leave behind: 32 registers hold a block,
// where one number a register would take 64. A thread reads a whole line of 128 bytes, in 8 loads that find it in the
// first-level cache; neighbouring threads have neighbouring blocks, so each of the 8 stores of a warp is contiguous. An
// image's blocks are in the order component, row, column, and so are its planes: component c is (8 mcus_high v,
// 8 mcus_wide h) samples from 64 times its first block on.
//
// `last` says how much of the block is not zero and need not be read: beyond zigzag index 0 all but the first row,
// beyond 9 all but the first four. Where rows 1 to 7 are zero, the 8 rows of samples are one: it is computed once.
// Coefficients of any value and a `last` of any value, as damaged data may leave them, stay within the block's memory.
// Owns `planes`; what becomes of it is color.cu's.

#include "image.cuh"

enum { BITS = 13, EXTRA_BITS = 2, QUARTER_LAST = 9 };
enum { FIRST_SHIFT = BITS - EXTRA_BITS, SECOND_SHIFT = BITS + EXTRA_BITS + 3 };

// sqrt(2) * cos(k * pi / 16) and their sums, in 13 bits: named by the first three digits, as in idct.py.
enum { C_0_298 = 2446, C_0_390 = 3196, C_0_541 = 4433, C_0_765 = 6270, C_0_899 = 7373, C_1_175 = 9633 };
enum { C_1_501 = 12299, C_1_847 = 15137, C_1_961 = 16069, C_2_053 = 16819, C_2_562 = 20995, C_3_072 = 25172 };

__device__ inline i32 wrapped(i32 value) { return (i16)value; }

// The two numbers of a word, and the word of two numbers, which wrap.
__device__ inline i32 low(u32 word) { return (i16)word; }
__device__ inline i32 high(u32 word) { return (i32)word >> 16; }
__device__ inline u32 two(i32 low, i32 high) { return ((u32)low & 0xffff) | (u32)high << 16; }

// One pass on eight numbers of 16 bits; every sum fits 32.
template <int shift>
__device__ inline void transform(i32 (&x)[8]) {
    const i32 plus = wrapped(x[0] + x[4]) * (1 << BITS), minus = wrapped(x[0] - x[4]) * (1 << BITS);
    const i32 rotated2 = x[2] * (C_0_541 + C_0_765) + x[6] * C_0_541;
    const i32 rotated6 = x[2] * C_0_541 + x[6] * (C_0_541 - C_1_847);
    const i32 half = 1 << (shift - 1);
    const i32 e0 = plus + rotated2 + half, e1 = minus + rotated6 + half;
    const i32 e2 = minus - rotated6 + half, e3 = plus - rotated2 + half;

    const i32 z3 = wrapped(x[3] + x[7]), z4 = wrapped(x[1] + x[5]);
    const i32 y3 = z3 * (C_1_175 - C_1_961) + z4 * C_1_175, y4 = z3 * C_1_175 + z4 * (C_1_175 - C_0_390);
    const i32 o0 = x[1] * (C_1_501 - C_0_899) - x[7] * C_0_899 + y4;
    const i32 o1 = x[3] * (C_3_072 - C_2_562) - x[5] * C_2_562 + y3;
    const i32 o2 = x[5] * (C_2_053 - C_2_562) - x[3] * C_2_562 + y4;
    const i32 o3 = x[7] * (C_0_298 - C_0_899) - x[1] * C_0_899 + y3;

    x[0] = (e0 + o0) >> shift, x[7] = (e0 - o0) >> shift;
    x[1] = (e1 + o1) >> shift, x[6] = (e1 - o1) >> shift;
    x[2] = (e2 + o2) >> shift, x[5] = (e2 - o2) >> shift;
    x[3] = (e3 + o3) >> shift, x[4] = (e3 - o3) >> shift;
}

// The second pass on one row: 8 samples.
__device__ inline uint2 samples_of(const u32 (&row)[4]) {
    i32 x[8];
#pragma unroll
    for (int j = 0; j < 4; j++) x[2 * j] = low(row[j]), x[2 * j + 1] = high(row[j]);
    transform<SECOND_SHIFT>(x);
#pragma unroll
    for (int u = 0; u < 8; u++) x[u] = clamped(x[u] + 128, 0, 255);
    return uint2{four_bytes(x[0], x[1], x[2], x[3]), four_bytes(x[4], x[5], x[6], x[7])};
}

extern "C" __global__ void __launch_bounds__(BLOCK)
transform_blocks(i64 n_images, i64 items, const Image* __restrict__ images, const uint4* __restrict__ quant,
                 const uint4* __restrict__ coefficients, const u8* __restrict__ last, u8* __restrict__ planes) {
    const i64 item = item_number();
    if (item >= items) return;
    const Image& image = image_of(images, n_images, &Image::first_block, item);

    i64 block = item - image.first_block;  // of its component
    i32 c = 0, wide;
    for (;; c++) {
        if (c == image.header[COMPONENTS]) return;  // the one that takes what nobody wants
        wide = image.mcus_wide * image.header[H + c];
        const i64 blocks = (i64)wide * image.mcus_high * image.header[V + c];
        if (block < blocks) break;
        block -= blocks;
    }

    const uint4 *table = quant + 8 * (i64)image.quant[c], *from = coefficients + 8 * item;
    const i32 end = last[item];
    u32 rows[8][4], rest = 0;
#pragma unroll
    for (int v = 0; v < 8; v++) {
        uint4 row = {0, 0, 0, 0}, by = {0, 0, 0, 0};
        if (v == 0 || end > (v < 4 ? 0 : QUARTER_LAST)) row = from[v], by = table[v];
        if (v > 0) rest |= row.x | row.y | row.z | row.w;
        rows[v][0] = two(low(row.x) * (u16)by.x, high(row.x) * (u16)(by.x >> 16));
        rows[v][1] = two(low(row.y) * (u16)by.y, high(row.y) * (u16)(by.y >> 16));
        rows[v][2] = two(low(row.z) * (u16)by.z, high(row.z) * (u16)(by.z >> 16));
        rows[v][3] = two(low(row.w) * (u16)by.w, high(row.w) * (u16)(by.w >> 16));
    }

    const i64 pitch = 8 * (i64)wide;
    const u32 r = (u32)block / (u32)wide;  // a side of an image has 65,500 pixels at most: its blocks fit 32 bits
    u8* to = planes + 64 * (item - block) + 8 * r * pitch + 8 * ((u32)block - r * (u32)wide);
    if (rest == 0) {  // the first pass multiplies by 4 and wraps; otherwise it saturates
#pragma unroll
        for (int j = 0; j < 4; j++)
            rows[0][j] = two(low(rows[0][j]) * (1 << EXTRA_BITS), high(rows[0][j]) * (1 << EXTRA_BITS));
        const uint2 samples = samples_of(rows[0]);
#pragma unroll
        for (int y = 0; y < 8; y++) *(uint2*)(to + y * pitch) = samples;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        i32 left[8], right[8];
#pragma unroll
        for (int v = 0; v < 8; v++) left[v] = low(rows[v][j]), right[v] = high(rows[v][j]);
        transform<FIRST_SHIFT>(left);
        transform<FIRST_SHIFT>(right);
#pragma unroll
        for (int v = 0; v < 8; v++)
            rows[v][j] = two(clamped(left[v], -32768, 32767), clamped(right[v], -32768, 32767));
    }
#pragma unroll
    for (int y = 0; y < 8; y++) *(uint2*)(to + y * pitch) = samples_of(rows[y]);
}
