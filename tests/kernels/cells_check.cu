// Nf4Cells on the host: the same code as the binary search for every seventh float32 of [-2, 2] and for the
// thresholds' neighbours. Prints "ok", or the first that differs.
#include <cstdio>

#include "codec.cuh"

static const Nf4Cells cells;

static bool same(float v) {
    uint32_t cell = Nf4Cells::cell(v) & 31, code = cells.before[cell] + (v >= cells.threshold[cell]);
    if (code == Nf4::encode(v)) return true;
    std::printf("%a: cell %u gives %u, the search %u\n", v, cell, code, Nf4::encode(v));
    return false;
}

int main() {
    bool good = same(float_of(0x7fc00000u));
    for (uint32_t sign : {0u, 0x80000000u})
        for (uint32_t u = 0; u <= 0x40000000u && good; u += 7) good = same(float_of(u | sign));
    for (int i = 0; i < 15; ++i)
        for (int d = -2000; d <= 2000 && good; ++d) good = same(float_of(bits_of(Nf4::threshold(i)) + d));
    if (good) std::printf("ok\n");
}
