// fragments.cuh on the host: every bit of a tile's codes has a place of its own in a thread's words, and the
// threads' codes are those of 64 rows by 128 of K, each once. Prints "ok", or what is wrong.
#include <cstdio>
#include <set>
#include <utility>

#include "fragments.cuh"

template <int Bits, bool Bytes, CodeOrder ORDER>
bool places() {
    using Held = Fragment<Bytes>;
    std::set<int> taken;
    for (int step = 0; step < Held::steps; ++step)
        for (int reg = 0; reg < 4; ++reg)
            for (int part = 0; part < Held::parts; ++part)
                for (int bit = 0; bit < Bits; ++bit)
                    taken.insert(place_of_bit<Bits, Bytes, ORDER>(step, reg, part, bit));
    bool whole = taken.size() == 64 * Bits && *taken.begin() == 0 && *taken.rbegin() == 64 * Bits - 1;
    if (!whole) std::printf("%d bits, operands of %d bits: %zu places\n", Bits, Bytes ? 8 : 16, taken.size());
    return whole;
}

template <bool Bytes>
bool covers() {
    using Held = Fragment<Bytes>;
    std::set<std::pair<int, int>> seen;
    for (int thread = 0; thread < kFragmentThreads; ++thread)
        for (int step = 0; step < Held::steps; ++step)
            for (int reg = 0; reg < 4; ++reg)
                for (int part = 0; part < Held::parts; ++part) {
                    int row = Held::row(thread, reg), k = Held::k(thread, step, reg, part);
                    if (row < 0 || row >= kFragmentRows || k < 0 || k >= kFragmentK) return false;
                    seen.insert({row, k});
                }
    return seen.size() == size_t(kFragmentRows) * kFragmentK;
}

int main() {
    bool apart = places<2, false, CodeOrder::APART>() & places<3, false, CodeOrder::APART>() &
                 places<4, false, CodeOrder::APART>() & places<6, false, CodeOrder::APART>() &
                 places<8, false, CodeOrder::APART>();
    bool others = places<4, false, CodeOrder::PAIRED>() & places<4, false, CodeOrder::FLOAT4>() &
                  places<2, true, CodeOrder::APART>() & places<4, true, CodeOrder::APART>() &
                  places<4, true, CodeOrder::PAIRED>();
    if (!covers<false>() || !covers<true>()) std::printf("a tile is not covered\n");
    else if (apart && others) std::printf("ok\n");
}
