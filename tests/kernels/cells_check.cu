// LevelCells on the host: the same code as the binary search for every 23rd float32 of [-2, 2] and for the
// thresholds' neighbours, of every table of 16 levels. Prints "ok", or the first that differs.
#include <cstdio>

#include "codec.cuh"

template <typename TABLE>
static bool same(const char* name, float v) {
    static constexpr LevelCells<TABLE> cells;
    uint32_t cell = cells.cell(v) & 31, code = cells.before[cell] + (v >= cells.threshold[cell]);
    if (code == TABLE::encode(v)) return true;
    std::printf("%s, %a: cell %u gives %u, the search %u\n", name, v, cell, code, TABLE::encode(v));
    return false;
}

template <typename TABLE>
static bool all_same(const char* name) {
    static_assert(LevelCells<TABLE>::fit());
    bool good = same<TABLE>(name, float_of(0x7fc00000u));
    for (uint32_t sign : {0u, 0x80000000u})
        for (uint32_t u = 0; u <= 0x40000000u && good; u += 23) good = same<TABLE>(name, float_of(u | sign));
    for (int i = 0; i < TABLE::count - 1; ++i)
        for (int d = -2000; d <= 2000 && good; ++d)
            good = same<TABLE>(name, float_of(TABLE::threshold_bits(i) + d));
    return good;
}

int main() {
    if (all_same<Nf4>("Nf4") && all_same<Af4>("Af4") && all_same<BnbFp4>("BnbFp4")) std::printf("ok\n");
}
