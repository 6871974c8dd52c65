// What replaces arithmetic in the headers, on the host: bounds of x instead of a division by the step, FNUZ
// codes from E4M3 and E5M2 codes, base-three digits by fractions. Prints "ok", or the first that differs.
#include <cstdint>
#include <cstdio>

#include "codec.cuh"
#include "packing.cuh"

static uint64_t state = 1;
static uint32_t random_bits() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return uint32_t(state >> 32);
}

// Codes by bounds are those of the quotient: near every bound, of any x, under any step that is no NaN.
template <typename Q>
static bool bounds_are_exact(float step, float x) {
    Bounds<Q> bounds(step);
    if (x != x || bounds.encode(x) == Q::encode(x / step)) return true;
    unsigned found = bounds.encode(x), wanted = Q::encode(x / step);
    std::printf("%a / %a: the bounds give %u, the quotient %u\n", x, step, found, wanted);
    return false;
}

template <typename Q>
static bool bounds_are_exact() {
    uint32_t special[] = {0u, 1u, 2u, 3u, 0x007fffffu, 0x00800000u, 0x3f800000u, 0x40000000u, 0x7f7fffffu};
    constexpr int specials = sizeof special / sizeof *special;
    bool good = true;
    for (int i = 0; i < 2000000 && good; ++i) {
        uint32_t bits = i < specials ? special[i] : random_bits() % 0x7f800000u;
        float step = float_of(bits), half = 0.5f * step, tiny = 0.5f * step * float_of(1u);
        for (int d = -2; d <= 2; ++d)
            for (float near : {half, tiny})
                for (uint32_t sign : {0u, 0x80000000u})
                    good = good && bounds_are_exact<Q>(step, float_of((bits_of(near) + d) ^ sign));
        good = good && bounds_are_exact<Q>(step, float_of(random_bits())) && bounds_are_exact<Q>(step, 0.0f);
    }
    return good;
}

// Four values at a time, as the device has them.
template <int E, int M, int BIAS, int SPECIALS>
static bool fnuz_is_exact() {
    using Fnuz = FloatCodec<E, M, BIAS + 1, FNUZ>;
    using Hardware = FloatCodec<E, M, BIAS, SPECIALS>;
    for (uint64_t first = 0; first < (1ull << 32); first += 4 * 61) {
        uint32_t codes = 0, doubled = 0, want = 0, beyond = 0;
        for (uint32_t k = 0; k < 4; ++k) {
            float v = float_of(uint32_t(first) + 61 * k);
            codes |= Hardware::encode_generic(v) << (8 * k);
            doubled |= Hardware::encode_generic(2.0f * v) << (8 * k);
            want |= Fnuz::encode(v) << (8 * k);
        }
        uint32_t result = fnuz_codes<M>(codes, doubled, beyond);
        bool all_in_range = true;
        for (uint32_t k = 0; k < 4; ++k) {
            float v = float_of(uint32_t(first) + 61 * k);
            all_in_range = all_in_range && (v <= Fnuz::max_value() && v >= -Fnuz::max_value());
        }
        if ((!beyond && result != want) || (beyond && all_in_range)) {
            std::printf("%a: %08x, not %08x\n", float_of(uint32_t(first)), result, want);
            return false;
        }
    }
    return true;
}

static bool digits_are_exact() {
    for (uint32_t byte = 0; byte < 243; ++byte) {
        DigitsOfByte digits(byte);
        for (uint32_t power : {81u, 27u, 9u, 3u, 1u})
            if (digits.next() != byte / power % 3) return std::printf("a digit of %u differs\n", byte), false;
    }
    return true;
}

int main() {
    bool good = bounds_are_exact<CodebookCodec<Ternary>>() && bounds_are_exact<CodebookCodec<Binary>>();
    good = good && fnuz_is_exact<4, 3, 7, FN>() && fnuz_is_exact<5, 2, 15, IEEE>() && digits_are_exact();
    if (good) std::printf("ok\n");
}
