// MixUp and CutMix of a finished batch into another one: mix.py says what and why, and is the reference.
//
// An item is an element of the new batch, numbered as it lies in memory: neighbouring items read neighbouring elements
// of their own image and of the one before it. Rows are `length` elements, whatever their layout.
#include "image.cuh"

// Each operation rounded by itself, and the types of 16 bits to the nearest, ties to even: as torchvision's passes are.
#ifdef __CUDACC__
__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }
__device__ inline double plus(double a, double b) { return __dadd_rn(a, b); }
__device__ inline float of_half(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ inline u16 to_half(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
__device__ inline u32 bits_of(float value) { return __float_as_uint(value); }
__device__ inline float float_of(u32 bits) { return __uint_as_float(bits); }
__device__ inline double double_of(i64 bits) { return __longlong_as_double(bits); }
#else  // the host's compiler, in tests: built without contraction
template <class To, class From>
inline To same_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "");
    To out;
    __builtin_memcpy(&out, &value, sizeof(out));
    return out;
}
template <class T>
inline T times(T a, T b) { return a * b; }
template <class T>
inline T plus(T a, T b) { return a + b; }
inline float of_half(u16 bits) { return (float)same_bits<_Float16>(bits); }
inline u16 to_half(float value) { return same_bits<u16>((_Float16)value); }
inline u32 bits_of(float value) { return same_bits<u32>(value); }
inline float float_of(u32 bits) { return same_bits<float>(bits); }
inline double double_of(i64 bits) { return same_bits<double>(bits); }
#endif

__device__ inline u16 to_bfloat(float value) {
    const u32 bits = bits_of(value);
    return value != value ? (u16)0x7FC0 : (u16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// What a type is stored as, computed with, and how to get from one to the other.
struct Float32 {
    typedef float Stored;
    typedef float Value;
    __device__ static float widen(float stored) { return stored; }
    __device__ static float narrow(float value) { return value; }
};
struct Float64 {
    typedef double Stored;
    typedef double Value;
    __device__ static double widen(double stored) { return stored; }
    __device__ static double narrow(double value) { return value; }
};
struct Float16 {
    typedef u16 Stored;
    typedef float Value;
    __device__ static float widen(u16 stored) { return of_half(stored); }
    __device__ static u16 narrow(float value) { return to_half(value); }
};
struct BFloat16 {
    typedef u16 Stored;
    typedef float Value;
    __device__ static float widen(u16 stored) { return float_of((u32)stored << 16); }
    __device__ static u16 narrow(float value) { return to_bfloat(value); }
};

// The same element of the image before an item's: before the first stands the last of n.
__device__ inline i64 partner(i64 item, i64 n, i64 length) { return item < length ? item + (n - 1) * length : item - length; }

// theirs, own: the shares, as the bits of float64.
template <class Type>
__device__ inline void mix(i64 n, i64 items, const typename Type::Stored* x, i64 length, i64 theirs, i64 own,
                           typename Type::Stored* out) {
    const i64 item = item_number();
    if (item >= items) return;
    typedef typename Type::Value Value;
    const Value other = times(Type::widen(x[partner(item, n, length)]), (Value)double_of(theirs));
    const Value mine = times(Type::widen(x[item]), (Value)double_of(own));
    out[item] = Type::narrow(plus(Type::widen(Type::narrow(other)), Type::widen(Type::narrow(mine))));
}

#define MIX(name, Type)                                                                                    \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                    \
    mix_##name(i64 n, i64 items, const Type::Stored* __restrict__ x, i64 length, i64 theirs, i64 own,      \
               Type::Stored* __restrict__ out) {                                                           \
        mix<Type>(n, items, x, length, theirs, own, out);                                                  \
    }

MIX(float16, Float16)
MIX(bfloat16, BFloat16)
MIX(float32, Float32)
MIX(float64, Float64)

// Column x and line y of an element are (number in its row) / step_x % width and / step_y % height: any dense layout.
template <class Element>
__device__ inline void cut(i64 n, i64 items, const Element* x, i64 length, i64 step_y, i64 height, i64 step_x,
                           i64 width, i64 left, i64 top, i64 right, i64 bottom, Element* out) {
    const i64 item = item_number();
    if (item >= items) return;
    const i64 number = item % length;
    const i64 line = number / step_y % height, column = number / step_x % width;
    const bool inside = line >= top && line < bottom && column >= left && column < right;
    out[item] = x[inside ? partner(item, n, length) : item];
}

#define CUT(size, Element)                                                                                    \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                       \
    cut_##size(i64 n, i64 items, const Element* __restrict__ x, i64 length, i64 step_y, i64 height,           \
               i64 step_x, i64 width, i64 left, i64 top, i64 right, i64 bottom, Element* __restrict__ out) {  \
        cut(n, items, x, length, step_y, height, step_x, width, left, top, right, bottom, out);               \
    }

CUT(1, u8)
CUT(2, u16)
CUT(4, u32)
CUT(8, unsigned long long)

// Rows of `classes` shares from one label a row. A label that is none of the classes has no share.
extern "C" __global__ void __launch_bounds__(BLOCK)
mix_names(i64 n, i64 items, const i64* __restrict__ labels, i64 classes, i64 theirs, i64 own,
          float* __restrict__ out) {
    const i64 item = item_number();
    if (item >= items) return;
    const i64 row = item / classes, name = item - row * classes;
    const float other = labels[row == 0 ? n - 1 : row - 1] == name ? (float)double_of(theirs) : 0.0f;
    const float mine = labels[row] == name ? (float)double_of(own) : 0.0f;
    out[item] = plus(other, mine);
}
