// The scale header on the host: the stored scale of ranges from a file, by every scale format and rule.
//
//   scale_check IN OUT     IN: float32 pairs low, high; OUT: for each case uint32 codes, then float32 steps
//
// -D: CODEC, MAPPING. cases.inc is generated from FORMATS: a call check<SCALE>(RULE, SMALLEST); for each.
#include <cstdio>
#include <vector>

#include "../../kernels/scale.cuh"

static std::vector<float> ranges;
static FILE* out;

template <typename S>
void check(ScaleRule rule, float smallest) {
    std::vector<uint32_t> codes;
    std::vector<float> steps;
    for (size_t i = 0; i < ranges.size(); i += 2) {
        Scale scale = scale_for<CODEC, S>(MAPPING, rule, smallest, ranges[i], ranges[i + 1], {});
        codes.push_back(scale.code);
        steps.push_back(scale.step);
    }
    std::fwrite(codes.data(), 4, codes.size(), out);
    std::fwrite(steps.data(), 4, steps.size(), out);
}

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    FILE* in = std::fopen(argv[1], "rb");
    out = std::fopen(argv[2], "wb");
    if (!in || !out) return 2;
    float pair[2];
    while (std::fread(pair, 4, 2, in) == 2) ranges.insert(ranges.end(), pair, pair + 2);
#include "cases.inc"
    std::fclose(out);
    return 0;
}
