#include "normal_form.h"

#include <algorithm>

#include "utf8.h"

namespace edgedecode {
namespace {

// Hangul syllables follow from their letters (the Unicode standard, 3.12).
constexpr uint32_t kSyllables = 0xac00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11a7;
constexpr uint32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28, kSyllableCount = 11172;

}  // namespace

NormalForm::NormalForm(const Tables& tables)
    : forms_{tables.table<uint16_t>(Tables::kFormBlocks), tables.table<uint8_t>(Tables::kForms)},
      decomposed_(tables.table<Decomposed>(Tables::kDecomposed)),
      parts_(tables.table<uint32_t>(Tables::kParts)),
      composed_(tables.table<Composed>(Tables::kComposed)) {
  for (uint32_t code : parts_)
    if (code > 0x10ffff) tables.damaged();
  for (const Composed& each : composed_)
    if (each.whole > 0x10ffff) tables.damaged();
}

void NormalForm::decompose(uint32_t code, std::vector<uint32_t>& out) const {
  if (code - kSyllables < kSyllableCount) {
    const uint32_t place = code - kSyllables, tail = place % kTailCount;
    out.push_back(kLeads + place / (kVowelCount * kTailCount));
    out.push_back(kVowels + place / kTailCount % kVowelCount);
    if (tail) out.push_back(kTails + tail);
    return;
  }
  const auto found = std::lower_bound(decomposed_.begin(), decomposed_.end(), code,
                                      [](const Decomposed& each, uint32_t wanted) { return each.code < wanted; });
  if (found == decomposed_.end() || found->code != code) return out.push_back(code);
  for (uint32_t n = 0; n < std::min(found->count, 32u); ++n) out.push_back(parts_.at(size_t{found->start} + n));
}

uint32_t NormalForm::whole(uint32_t first, uint32_t second) const {
  if (first - kLeads < kLeadCount && second - kVowels < kVowelCount)
    return kSyllables + ((first - kLeads) * kVowelCount + second - kVowels) * kTailCount;
  const bool open = first - kSyllables < kSyllableCount && (first - kSyllables) % kTailCount == 0;
  if (open && second - kTails - 1 < kTailCount - 1) return first + second - kTails;
  const auto before = [](const Composed& each, const std::pair<uint32_t, uint32_t>& wanted) {
    return std::pair<uint32_t, uint32_t>(each.first, each.second) < wanted;
  };
  const auto found =
      std::lower_bound(composed_.begin(), composed_.end(), std::pair<uint32_t, uint32_t>(first, second), before);
  return found != composed_.end() && found->first == first && found->second == second ? found->whole : 0;
}

std::string NormalForm::composed(std::string_view text) const {
  std::vector<uint32_t> codes;
  bool changes = false;
  for (size_t place = 0; place < text.size();) {
    codes.push_back(next_code_point(text.data(), place));
    changes |= forms_.of(codes.back()) != 0;
  }
  if (!changes) return std::string(text);
  std::vector<uint32_t> parts;
  for (uint32_t code : codes) decompose(code, parts);
  for (size_t start = 0; start < parts.size();) {  // marks behind each starter
    size_t stop = start + 1;
    while (order(parts[start]) && stop < parts.size() && order(parts[stop])) ++stop;
    std::stable_sort(parts.begin() + start, parts.begin() + stop,
                     [this](uint32_t one, uint32_t two) { return order(one) < order(two); });
    start = stop;
  }
  std::vector<uint32_t> found;
  size_t starter = static_cast<size_t>(-1);
  for (uint32_t code : parts) {
    const uint8_t now = order(code);
    const bool near = starter != static_cast<size_t>(-1) && starter + 1 == found.size();
    const bool reachable = near || (starter != static_cast<size_t>(-1) && order(found.back()) < now);
    if (const uint32_t made = reachable ? whole(found[starter], code) : 0) {
      found[starter] = made;
      continue;
    }
    if (now == 0) starter = found.size();
    found.push_back(code);
  }
  std::string result;
  for (uint32_t code : found) append_utf8(code, result);
  return result;
}

}  // namespace edgedecode
